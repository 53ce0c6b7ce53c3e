"""Compares tables with their source and repairs what differs, while the stream is followed. A table that changes
meanwhile is left to another comparison.

1. Record what the stream touches in the tables.
2. Make a temporary slot: its exported snapshot holds exactly the commits before its consistent point.
3. When the stream has passed that point, Spark compares the snapshot with the current rows.
4. Spark reads a store that later changes have reached. These can hide a difference: a copy too many or too few of a row
   without key, or an old value that moved along with a changed key. So the rows that such changes touched are counted
   in the snapshot once more.
5. Differences are merged between flushes, some at a time (see `merge`). A merged row differs no more, so a comparison
   that was cut short is simply started again.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headwater.bulk.contract import (
    BulkProgress,
    CompareJob,
    CompareOutcome,
    CompareTable,
    Difference,
    JobKind,
    RecountJob,
)
from headwater.oplog.lsn import format_lsn
from headwater.replication.jobs.job import Background, Job, JobContext, JobOutcome, Result, Steps, types_of
from headwater.replication.jobs.merge import Merge, ResyncFindings
from headwater.replication.own_slot import slot_of
from headwater.replication.stream.change_log import ChangeLog
from headwater.replication.tables.changes import attached_only
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import connect
from headwater.source.head import ping_statement
from headwater.source.rows.copy import TableChangedError
from headwater.source.slot import SnapshotKeeper, end_reader, temporary_slot_name
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResyncRequest:
    """Which of the tables that `plans` read to compare: those with these oids, or all. With `verify`, current rows are
    evaluated too; without `repair`, differences are only reported."""

    plans: tuple[SyncPlan, ...]
    reason: ResyncReason
    oids: frozenset[int] | None = None
    repair: bool = True
    verify: bool = False


class Resync(Job):
    def __init__(self, context: JobContext, request: ResyncRequest) -> None:
        super().__init__(context)
        self.kind = JobKind.RESYNC if request.repair else JobKind.AUDIT
        self.findings = ResyncFindings()
        self._request = request
        stored = frozenset(context.stored())
        self._oids = stored if request.oids is None else request.oids & stored
        self._truncated = frozenset[int]()
        self._changed = frozenset[int]()  # oids of tables that changed meanwhile, and stay marked
        self._comparing = False
        self._merged = 0
        self._batches: queue.Queue[Sequence[Difference]] = queue.Queue(maxsize=2)

    @property
    def _equal(self) -> frozenset[int]:
        """The oids of the tables that are equal to the source, when all is done."""
        return self._oids | self._truncated

    def describe(self) -> str:
        if not self._comparing:
            return "waiting for the source's snapshot"
        differ = sum(self.findings.differences.values())
        done = "merged" if self._request.repair else "looked at"
        return f"compared {self._progress} on both sides, {done} {self._merged:,} rows, {differ:,} of these differ"

    def tables_changed(self, oids: frozenset[int]) -> bool:
        self._exclude(oids)
        return True

    def _exclude(self, oids: frozenset[int]) -> None:
        """Stop comparing these tables, which changed. The comparison of all others goes on."""
        self._changed |= self._equal & oids
        self._oids -= oids
        self._truncated -= oids

    def _run(self) -> Steps[JobOutcome]:
        context = self._context
        name = temporary_slot_name(slot_of(context.source, context.store))
        log = ChangeLog(self._oids, context.stream.fill)
        context.stream.recording.logs.append(log)
        opening = Background(partial(self._open_snapshot, name), JobKind.SNAPSHOT)
        comparison = self._compare(log, opening)
        try:
            while True:
                self._exclude(log.invalidated)
                if not self._equal or next(comparison, self) is self:
                    break
                yield
            self._unmark()
        finally:
            self._report_merged(over=True)
            context.stream.recording.stop(log)
            opening.discard(SnapshotKeeper.close)
        # While a table is to be compared again, the request has no answer yet
        result = None if self._changed & context.stored().keys() else self.findings.as_dict()
        return JobOutcome(follow=True, changed=self._changed, equal=self._equal, result=result)

    def _open_snapshot(self, name: str) -> SnapshotKeeper:
        """Called in a thread, which may not use the store."""
        with connect(self._context.source) as conn:
            end_reader(conn, name)  # of an earlier comparison, whose slot may still be waiting for transactions to end
        keeper = SnapshotKeeper(self._context.source, name, temporary=True, stop=self._closed)
        try:
            with connect(self._context.source) as conn:  # so that an idle stream passes the snapshot's position
                conn.execute(ping_statement(conn.info.server_version))
        except BaseException:
            keeper.close()
            raise
        return keeper

    def _compare(self, log: ChangeLog, opening: Background[SnapshotKeeper]) -> Steps[None]:
        """Compare all tables that do not change meanwhile, and merge what differs."""
        context, started = self._context, time.time()
        keeper = yield from opening.steps()
        log.begin_at(keeper.consistent_point)
        _log.info("comparing as of %s", format_lsn(keeper.consistent_point))
        while context.stream.position < keeper.consistent_point:
            yield
        merge = Merge(context, log, self.findings, repair=self._request.repair, verify=self._request.verify)
        compared = yield from self._compare_unchanged(merge, log, keeper.snapshot)
        if compared is None:
            if self._reads_incomplete():
                self._exclude(self._truncated)
            return
        job, outcome = compared
        yield from self._recount(merge, log, job)
        while self._reads_incomplete():
            yield
        self.findings.compared = outcome.source_rows
        context.record(
            self.kind,
            started,
            outcome.application,
            tasks=outcome.tasks,
            rows=outcome.source_rows,
            ops=self.findings.ops,
        )
        _log.info(
            "compared %d rows of %s: %d differ, %d ops",
            outcome.source_rows,
            ", ".join(self.findings.tables),
            sum(self.findings.differences.values()),
            self.findings.ops,
        )

    def _compare_unchanged(
        self, merge: Merge, log: ChangeLog, snapshot: str
    ) -> Steps[tuple[CompareJob, CompareOutcome] | None]:
        """Compare until no table changes meanwhile. Returns None when no table is left."""
        while True:
            changed_before = self._changed
            job = self._next_comparison(snapshot)
            if job is None:
                return None
            compare = partial(self._context.bulk.compare, job, self._report, self._take, self._closed)
            try:
                return job, (yield from self._merge_all(merge, Background(compare, JobKind.COMPARISON)))
            except TableChangedError:
                # The stream brings all rows of a table that was truncated since
                truncated = frozenset(oid for oid in self._oids if log.of(oid).truncated)
                if not truncated and self._changed == changed_before:
                    raise
                self._oids -= truncated
                self._truncated |= truncated

    def _next_comparison(self, snapshot: str) -> CompareJob | None:
        """The comparison of all tables that did not change. None when no table is left."""
        context, request = self._context, self._request
        stored = context.stored()
        published = context.published(request.plans)
        there = self._oids & stored.keys() & published.keys()
        self._exclude(self._oids - {oid for oid in there if published[oid].followed_on(stored[oid].fingerprint)})
        if not self._oids:
            return None
        self._comparing = True
        tables = [self._table(stored[oid], published[oid]) for oid in sorted(self._oids)]
        self.findings.tables = [table.published.qualified_name for table in tables]
        if request.repair:
            unmarked = [table.stored.id for table in tables if not table.stored.resync]
            context.store.mark_resync(context.lease, unmarked, request.reason)
        return CompareJob(
            source=context.source,
            snapshot=snapshot,
            tables=tuple(tables),
            plans=request.plans if request.verify else (),
            types=types_of(context.connection, [table.stored for table in tables]),
            keys=context.store.keys(),
            store=context.store.address,
            directory=context.store.staging_directory(context.lease),
            now=context.stream.job_time(request.plans if request.verify else ()),
            joined=context.stream.joined.lookups,
        )

    def _table(self, stored: StoredTable, published: PublishedTable) -> CompareTable:
        attached = self._request.reason.cause is Cause.ATTACHED and stored.has(Cause.ATTACHED)
        if attached and not self._request.verify:
            part = attached_only(published, stored)
            return CompareTable(part, stored, (), part.estimated_rows)
        return CompareTable(published, stored, *self._context.places(stored.id))

    def _recount(self, merge: Merge, log: ChangeLog, compared: CompareJob) -> Steps[None]:
        """Count rows that were touched since the snapshot in it, and merge what differs. Partly published tables are
        left out, since not all touched rows are known; and truncated ones, since no row of the snapshot is left."""
        tables = [table.stored for table in compared.tables if not table.published.unseen]
        touches = {table.id: log.of(table.relation.oid) for table in tables if table.relation.oid in self._oids}
        counted = {table: touched.to_count for table, touched in touches.items() if not touched.truncated}
        job = RecountJob(compared, {table: contents for table, contents in counted.items() if contents})
        if not job.contents:
            return
        recount = partial(self._context.bulk.recount, job, self._report, self._take, self._closed)
        try:
            yield from self._merge_all(merge, Background(recount, JobKind.RECOUNT))
        except TableChangedError:
            oids = frozenset(table.relation.oid for table in tables if table.id in job.contents)
            self._exclude(frozenset(oid for oid in oids if not log.of(oid).truncated))

    def _take(self, differences: Sequence[Difference]) -> None:
        """Called in the thread of a comparison; blocks while enough differences wait to be merged."""
        while not self._closed.is_set():
            try:
                self._batches.put(differences, timeout=0.5)
            except queue.Full:
                continue
            return

    def _merge_all(self, merge: Merge, finding: Background[Result]) -> Steps[Result]:
        """Merge the differences that `finding` hands over, until it ends."""
        while not finding.done or not self._batches.empty():
            differences = () if self._batches.empty() else self._batches.get()
            if not differences:
                yield
            while differences:
                merged = merge.next_batch(differences, self._oids)
                self._merged += merged
                self._report_merged()
                differences = differences[merged:]
                yield
        return finding.result()

    def _report_merged(self, *, over: bool = False) -> None:
        what = JobKind.MERGE if self._request.repair else JobKind.DIFFERENCES
        self._context.progress(BulkProgress(self._merged, 0, 0, 0, what, over))

    def _reads_incomplete(self) -> bool:
        """Whether rows still lack values that the snapshot did not bring. The next flush reads these from the source;
        until they are stored, only the mark says that rows are missing."""
        tables = [self._context.stream.table(oid) for oid in self._equal]
        return bool([table for table in tables if table is not None and self._context.stream.complete_next(table)])

    def _unmark(self) -> None:
        """Remove the marks of the tables that are equal to the source now."""
        if not self._request.repair:
            return
        tables = [table for oid, table in self._context.stored().items() if oid in self._equal]
        self._context.store.mark_resync(self._context.lease, [table.id for table in tables if table.resync], None)
        self._context.stream.mark_clean([table.id for table in tables])
