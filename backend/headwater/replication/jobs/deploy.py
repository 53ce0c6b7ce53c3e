"""Deploys a version of the sync config, while the stream is followed and the former version is served.

From the start, the stream is evaluated by the plans of both versions. Row sides that are not complete are evaluated
over the current rows on Spark, and the result is taken in page by page, without rows that the stream wrote meanwhile:
those are right already. Tables that the store does not have are read from the source by a re-sync. Then the version
becomes active."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from headwater.bulk.contract import BulkProgress, JobKind, ReprocessJob, ReprocessTable
from headwater.replication.jobs.background import Background
from headwater.replication.jobs.context import JobContext
from headwater.replication.jobs.job import Ending, Job
from headwater.replication.jobs.resync import Order, Resync
from headwater.storage.contract.parts import BulkOutcome, BulkRecord, StagedPart
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable
from headwater.storage.contract.versions import ConfigVersion
from headwater_rules.plan import SyncPlan, TablePattern
from headwater_rules.versions import check_names, sides, tables_of, without

_log = logging.getLogger(__name__)


class Deploy(Job):
    """Deploys one version. `in_use` are the plans that are followed already; from the start, `plan` is followed too.
    Raises RuleErrors when another row side has the name of one of the plan's."""

    def __init__(self, context: JobContext, version: ConfigVersion, plan: SyncPlan, in_use: Sequence[SyncPlan]) -> None:
        self._context = context
        self._version = version
        self._plan = plan
        self._reason = ResyncReason(Cause.NEW_IN_VERSION, str(version.id))
        complete = context.store.complete_sides()
        check_names(plan, complete)
        self.missing = {name: digest for name, digest in sides(plan).items() if name not in complete}
        context.store.begin_sides(context.lease, self.missing)
        self._started = time.time()
        self._progress = BulkProgress(0, 0, 0, 0)
        self._reprocessing: Background[BulkOutcome] | None = None
        self._pages: Iterator[tuple[StagedPart, int]] | None = None
        self._pages_taken = 0
        self._written: Mapping[int, set[str]] = {}
        self._outcome = BulkOutcome((), "", 0)
        self._resync: Resync | None = None
        self._closed = threading.Event()
        known = list(context.stored().values())
        self._new = self._create_tables()
        context.follow([*in_use, plan])
        if self.missing and known:
            self._reprocess(known)

    @property
    def kind(self) -> JobKind:
        return JobKind.DEPLOY

    def finish(self) -> Ending:
        return Ending(follow=True)

    def describe(self) -> str:
        if self._resync is not None:
            return f"new tables: {self._resync.describe()}"
        if self._pages is not None:
            return f"took in {self._pages_taken:,} of {sum(part.pages for part in self._outcome.parts):,} pages of rows"
        return f"evaluated {self._progress}"

    def _create_tables(self) -> frozenset[int]:
        """Create tables that no version before has named. Returns their oids, and those of tables that an interrupted
        deploy has created."""
        stored = self._context.stored()
        wanted = self._context.published([self._plan])
        new = [(table.relation, table.shape) for oid, table in wanted.items() if oid not in stored]
        self._context.store.create_tables(self._context.lease, self._context.tag, new, self._reason)
        unfilled = {oid for oid, table in stored.items() if table.has(Cause.NEW_IN_VERSION)}
        return frozenset(relation.oid for relation, _ in new) | unfilled

    def _reprocess(self, known: Sequence[StoredTable]) -> None:
        patterns = tables_of(self._plan, self.missing.keys())
        tables = [self._table(table) for table in known if self._reads(patterns, table)]
        tables = [table for table in tables if table.ranges]
        if not tables:
            return
        stored = [table.stored for table in tables]
        self._written = self._context.stream.watch([table.id for table in stored])
        job = ReprocessJob(
            tag=self._context.tag,
            tables=tuple(tables),
            plan=without(self._plan, sides(self._plan).keys() - self.missing.keys()),
            types=self._context.types(stored),
            keys=self._context.store.keys(),
            store=self._context.store.address,
            directory=self._context.store.staging_directory(),
            piece=self._context.source.piece_bytes,
        )
        self._reprocessing = Background(
            lambda: self._context.bulk.reprocess(job, self._note, self._closed), JobKind.REPROCESS
        )

    def _table(self, stored: StoredTable) -> ReprocessTable:
        return ReprocessTable(stored, *self._context.places(stored.id))

    def _reads(self, patterns: Sequence[TablePattern], stored: StoredTable) -> bool:
        relation = stored.relation
        return any(pattern.matches(self._context.tag, relation.schema, relation.name) for pattern in patterns)

    def _note(self, progress: BulkProgress) -> None:
        self._progress = progress
        self._context.progress(progress)

    def step(self) -> bool:
        if self._reprocessing is not None:
            if self._reprocessing.done:
                self._outcome = self._reprocessing.result()
                self._reprocessing = None
                for refused in [said for part in self._outcome.parts for said in part.refused]:
                    _log.error("%s", refused)
                self._pages = iter([(part, page) for part in self._outcome.parts for page in range(part.pages)])
            return False
        if self._pages is not None:
            self._take_page(self._pages)
            return False
        if self._new and self._resync is None:
            stored = self._context.stored()
            locked = self._context.locked([stored[oid] for oid in self._new & stored.keys()])
            self._new -= locked  # they stay marked, and do not hold the version up
        if self._new:
            if self._resync is None:
                self._resync = Resync(self._context, Order((self._plan,), self._reason, self._new))
            if not self._resync.step():
                return False
            self._resync.unmark()
            self._resync.close()
            self._new = self._resync.changed & self._context.stored().keys()  # changed meanwhile: compared once more
            self._resync = None
            return False
        self._context.store.activate(self._context.lease, self._version.id, sides(self._plan))
        self._note_job()
        return True

    def _take_page(self, pages: Iterator[tuple[StagedPart, int]]) -> None:
        part, page = next(pages, (None, 0))
        if part is None:
            self._pages = None
            return
        self._pages_taken += 1
        if any(table.id == part.table for table in self._context.stored().values()):
            self._context.store.take_page(self._context.lease, part, page, self._written.get(part.table, ()))
        # else truncated since: the rows of its new generation were evaluated by both plans

    def _note_job(self) -> None:
        outcome = self._outcome
        _log.info("version %d of the sync config is active", self._version.id)
        if outcome.tasks:
            rows, ops = sum(part.rows for part in outcome.parts), sum(part.ops for part in outcome.parts)
            record = BulkRecord(
                JobKind.REPROCESS,
                self._context.tag,
                outcome.application,
                outcome.tasks,
                rows,
                ops,
                self._started,
                time.time(),
            )
            self._context.store.note_job(record)

    def close(self) -> None:
        self._closed.set()
        self._context.stream.unwatch()
        if self._resync is not None:
            self._resync.close()
        self._context.store.discard_staged(self._context.lease)
