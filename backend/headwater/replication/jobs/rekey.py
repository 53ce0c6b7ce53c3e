"""Gives a table's rows other ids after its replica identity changed, without any op for devices.

Spark writes the current rows into a new generation, under the ids that the new identity gives them; then the new
generation replaces the old one. Changes that the stream brings meanwhile are skipped: a comparison with the source
follows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence

from headwater.bulk.contract import BulkProgress, JobKind, RekeyJob
from headwater.replication.jobs.background import Background
from headwater.replication.jobs.context import JobContext
from headwater.replication.jobs.job import Ending, Job
from headwater.storage.contract.parts import BulkOutcome, BulkRecord, StagedPart
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)


class Rekey(Job):
    """Gives the rows of one table other ids."""

    def __init__(self, context: JobContext, plans: Sequence[SyncPlan], table: StoredTable) -> None:
        self._context = context
        self._plans = tuple(plans)
        self._table = table
        self._name = f"{table.relation.schema}.{table.relation.name}"
        self._started = time.time()
        self._progress = BulkProgress(0, 0, 0, 0)
        self._outcome: BulkOutcome | None = None
        self._pages: Iterator[tuple[StagedPart, int]] = iter(())
        self._closed = threading.Event()
        pairs = [(table.relation, table.fingerprint)]
        (self._staged,) = context.store.stage_tables(context.lease, context.tag, pairs, indexed=True)
        self._running = self._begin()

    def _begin(self) -> Background[BulkOutcome] | None:
        ranges, rows = self._context.places(self._table.id)
        if not ranges:
            return None  # the table is empty
        job = RekeyJob(
            tag=self._context.tag,
            stored=self._table,
            target=self._staged.id,
            ranges=ranges,
            rows=rows,
            plans=self._plans,
            types=self._context.types([self._table]),
            keys=self._context.store.keys(),
            store=self._context.store.address,
            directory=self._context.store.staging_directory(),
            piece=self._context.source.piece_bytes,
        )
        return Background(lambda: self._context.bulk.rekey(job, self._note, self._closed), JobKind.REKEY)

    def _note(self, progress: BulkProgress) -> None:
        self._progress = progress
        self._context.progress(progress)

    @property
    def kind(self) -> JobKind:
        return JobKind.REKEY

    def tables_changed(self, oids: frozenset[int]) -> bool:
        return self._table.relation.oid not in oids

    def finish(self) -> Ending:
        return Ending(follow=True)

    def describe(self) -> str:
        return f"gave {self._progress} of {self._name} the ids of its new replica identity"

    def step(self) -> bool:
        if self._running is not None:
            if self._running.done:
                self._outcome = self._running.result()
                self._pages = ((part, page) for part in self._outcome.parts for page in range(part.pages))
                self._running = None
            return False
        page = next(self._pages, None)
        if page is not None and self._context.store.stage_page(self._context.lease, *page):
            return False
        if self._context.stored().get(self._table.relation.oid) != self._table:
            return True  # truncated meanwhile: the next look decides what its new generation needs
        if page is None:
            self._replace()
        else:
            self._give_up()
        return True

    def _replace(self) -> None:
        store, lease = self._context.store, self._context.lease
        if not store.replace_table(lease, self._table.id, self._staged, ResyncReason(Cause.REPLACED)):
            self._give_up()
            return
        _log.info("rows of %s now have the ids of its new replica identity", self._name)
        if self._outcome is not None:
            rows = sum(part.rows for part in self._outcome.parts)
            tag, application, tasks = self._context.tag, self._outcome.application, self._outcome.tasks
            store.note_job(BulkRecord(JobKind.REKEY, tag, application, tasks, rows, 0, self._started, time.time()))

    def _give_up(self) -> None:
        self._context.store.mark_resync(self._context.lease, [self._table.id], ResyncReason(Cause.IDS_LOST))
        _log.warning("the new replica identity of %s gives several rows one id; the table is sent again", self._name)

    def close(self) -> None:
        self._closed.set()
        self._context.store.discard_staged(self._context.lease)
