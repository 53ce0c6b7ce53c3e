"""Gives a table's rows other ids after its replica identity changed, without any op for devices.

Spark writes the current rows into a new generation, under the ids that the new identity gives them; then the new
generation replaces the old one. Changes that the stream brings meanwhile are skipped: a comparison with the source
follows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

from headwater.bulk.contract import JobKind, RekeyJob
from headwater.replication.jobs.job import Background, Job, JobContext, JobOutcome, Steps, types_of
from headwater.storage.contract.parts import BulkOutcome
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)


class Rekey(Job):
    kind = JobKind.REKEY

    def __init__(self, context: JobContext, plans: Sequence[SyncPlan], table: StoredTable) -> None:
        super().__init__(context)
        self._plans = tuple(plans)
        self._table = table
        self._name = table.relation.qualified_name

    def tables_changed(self, oids: frozenset[int]) -> bool:
        return self._table.relation.oid not in oids

    def describe(self) -> str:
        return f"gave {self._progress} of {self._name} the ids of its new replica identity"

    def _run(self) -> Steps[JobOutcome]:
        context, table, started = self._context, self._table, time.time()
        with context.staging():
            pairs = [(table.relation, table.fingerprint)]
            (target,) = context.store.stage_tables(context.lease, context.name, pairs, indexed=True)
            outcome = yield from self._evaluate(target.id)
            distinct = yield from self._stage(outcome)
            if context.stored().get(table.relation.oid) != table:
                return JobOutcome(follow=True)  # truncated meanwhile: the next look decides what it needs
            if distinct and context.store.replace_table(context.lease, table.id, target, ResyncReason(Cause.REPLACED)):
                _log.info("rows of %s now have the ids of its new replica identity", self._name)
                if outcome.tasks:
                    rows = sum(part.rows for part in outcome.parts)
                    context.record(self.kind, started, outcome.application, tasks=outcome.tasks, rows=rows)
            else:
                context.store.mark_resync(context.lease, [table.id], ResyncReason(Cause.IDS_LOST))
                _log.warning("the new replica identity of %s gives several rows one id: sending it again", self._name)
        return JobOutcome(follow=True)

    def _evaluate(self, target: int) -> Steps[BulkOutcome]:
        context = self._context
        ranges, rows = context.places(self._table.id)
        if not ranges:
            return BulkOutcome((), "", 0)  # the table is empty
        job = RekeyJob(
            source_name=context.name,
            stored=self._table,
            target=target,
            ranges=ranges,
            rows=rows,
            plans=self._plans,
            types=types_of(context.connection, [self._table]),
            keys=context.store.keys(),
            store=context.store.address,
            directory=context.store.staging_directory(context.lease),
            now=context.stream.job_time(self._plans),
            batch_bytes=context.source.batch_bytes,
        )
        return (yield from Background(partial(context.bulk.rekey, job, self._report, self._closed), self.kind).steps())

    def _stage(self, outcome: BulkOutcome) -> Steps[bool]:
        """Take the rows in, page by page. Returns False as soon as two rows have the same id."""
        for part in outcome.parts:
            for page in range(part.pages):
                if not self._context.store.stage_page(self._context.lease, part, page):
                    return False
                yield
        return True
