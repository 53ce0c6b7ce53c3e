"""Compares tables with their source and repairs what differs, while the stream is followed. A table that changes
meanwhile is left to another comparison.

1. Record what the stream touches in the tables.
2. Make a temporary slot: its exported snapshot holds exactly the commits before its consistent point.
3. When the stream has passed that point, Spark compares the snapshot with the current rows.
4. Spark reads a store that later changes have reached. These can hide a difference: a copy too many or too few of a row
   without key, or an old value that moved along with a changed key. So the rows that such changes touched are counted
   in the snapshot once more.
5. Differences are merged between flushes, some at a time (see `merge`). A merged row differs no more, so a comparison
   that was cut short is simply begun again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.bulk.contract import (
    BulkProgress,
    CompareJob,
    CompareOutcome,
    CompareTable,
    Difference,
    JobKind,
    RecountJob,
    TableChangedError,
)
from headwater.oplog.lsn import format_lsn
from headwater.replication.jobs.background import Background
from headwater.replication.jobs.context import JobContext
from headwater.replication.jobs.copies import Copies
from headwater.replication.jobs.job import Ending, Job
from headwater.replication.jobs.merge import Portion, describe, wanted_states
from headwater.replication.own_slot import slot_of
from headwater.replication.stream.touches import TouchLog
from headwater.replication.tables.attached import narrowed
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import connect
from headwater.source.head import ping_statement
from headwater.source.slot import SnapshotKeeper, end_reader, temporary_slot_name
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)

NAMED_ROWS = 100


@dataclass(frozen=True, slots=True)
class Order:
    """Which of the tables that `plans` read to compare: those with these oids, or all. With `verify`, current rows are
    evaluated too; without `repair`, differences are only reported."""

    plans: tuple[SyncPlan, ...]
    reason: ResyncReason
    oids: frozenset[int] | None = None
    repair: bool = True
    verify: bool = False


@dataclass(slots=True)
class Findings:
    """What a comparison found. `rows` has the first differences of each table, `ops` the number of ops that repaired
    them."""

    tables: list[str] = field(default_factory=list)
    compared: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)
    ops: int = 0

    def as_dict(self) -> dict[str, object]:
        return {
            "tables": self.tables,
            "rows_compared": self.compared,
            "differences": self.differences,
            "rows": self.rows,
            "ops": self.ops,
        }


class Resync(Job):
    """Compares tables once."""

    def __init__(self, context: JobContext, order: Order) -> None:
        self._context = context
        self._order = order
        self.findings = Findings()
        self.progress = BulkProgress(0, 0, 0, 0)
        self._started = time.time()
        self._batches: queue.Queue[Sequence[Difference]] = queue.Queue(maxsize=2)
        self._batch: list[Difference] = []
        self._portion = Portion()
        self._copies = Copies(context.stream)
        self._merged = 0
        self._reported = defaultdict[int, set[str]](set)  # by table id, keys of differences; see `_to_merge`
        self._keeper: SnapshotKeeper | None = None
        self._to_count: CompareJob | None = None  # the comparison whose touched rows are still to be counted
        self._comparing: Background[CompareOutcome] | None = None
        self._recounting: Background[None] | None = None
        self._recounted = frozenset[int]()  # oids
        self._closed = threading.Event()
        stored = context.stored()
        self._oids = frozenset(stored) if order.oids is None else order.oids & frozenset(stored)
        self._truncated = frozenset[int]()
        self.changed = frozenset[int]()  # oids of tables that changed meanwhile, and stay marked
        self._changed_before = self.changed
        self._log = TouchLog(self._oids, context.stream.fill)
        context.stream.record(self._log)
        self._slot = temporary_slot_name(slot_of(context.source, context.store))
        self._opening = Background(self._open, JobKind.SNAPSHOT)

    @property
    def kind(self) -> JobKind:
        return JobKind.RESYNC if self._order.repair else JobKind.AUDIT

    def tables_changed(self, oids: frozenset[int]) -> bool:
        self.exclude(oids)
        return True

    def finish(self) -> Ending:
        self.unmark()
        return Ending(follow=True, changed=self.changed, equal=self.equal)

    def result(self) -> dict[str, object] | None:
        """What was found. None while tables are still to be compared that changed meanwhile."""
        return None if self.changed & self._context.stored().keys() else self.findings.as_dict()

    def describe(self) -> str:
        if self._comparing is None:
            return "waiting for the source's snapshot"
        differ = sum(self.findings.differences.values())
        done = "merged" if self._order.repair else "looked at"
        return f"compared {self.progress} on both sides, {done} {self._merged:,} rows, {differ:,} of these differ"

    def _open(self) -> SnapshotKeeper:
        name = self._slot
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

    def step(self) -> bool:
        self.exclude(self._log.spoiled)
        if not self._oids and not self._truncated:
            return True
        if self._keeper is None:
            if self._opening.done:
                self._keeper = self._opening.result()
                self._log.begin_at(self._keeper.consistent_point)
                _log.info("comparing as of %s", format_lsn(self._keeper.consistent_point))
            return False
        if self._comparing is None:
            if self._context.stream.position < self._keeper.consistent_point:
                return False
            return self._compare(self._keeper.snapshot)
        if self._next_batch():
            self._merge()
            return False
        if not self._comparing.done or not self._batches.empty():
            return False
        try:
            outcome = self._comparing.result()
        except TableChangedError:
            # The stream brings all rows of a table that was truncated since
            truncated = frozenset(oid for oid in self._oids if self._log.of(oid).truncated)
            if not truncated and self.changed == self._changed_before:
                raise
            self._oids -= truncated
            self._truncated |= truncated
            return self._compare(self._keeper.snapshot)
        if self._recounts() or self._completes():
            return False
        self._finish(outcome)
        return True

    def _recounts(self) -> bool:
        """Whether rows that were touched since the snapshot are still being counted in it."""
        if self._to_count is not None:
            self._recounting, self._to_count = self._begin_recount(self._to_count), None
        if self._recounting is None:
            return False
        if not self._recounting.done or not self._batches.empty():
            return True
        try:
            self._recounting.result()
        except TableChangedError:
            self.exclude(frozenset(oid for oid in self._recounted if not self._log.of(oid).truncated))
        return False

    def _begin_recount(self, job: CompareJob) -> Background[None] | None:
        """None when there is nothing to count. Partly published tables are left out, since not all touched rows are
        known; and truncated ones, since no row of the snapshot is left."""
        whole = [table.stored for table in job.tables if not table.published.unseen]
        touches = {t.id: self._log.of(t.relation.oid) for t in whole if t.relation.oid in self._oids}
        contents = {table: touched.to_count for table, touched in touches.items() if not touched.truncated}
        contents = {table: counted for table, counted in contents.items() if counted}
        if not contents:
            return None
        self._recounted = frozenset(table.relation.oid for table in whole if table.id in contents)
        recount, closed = RecountJob(job, contents), self._closed
        return Background(lambda: self._context.bulk.recount(recount, self._note, self._take, closed), JobKind.RECOUNT)

    def _completes(self) -> bool:
        """Whether rows still lack values that the snapshot did not bring. These are read from the source first: until
        they are stored, only the mark says that rows are missing."""
        tables = [self._context.stream.table(oid) for oid in self.equal]
        return bool([table for table in tables if table is not None and self._context.stream.completes(table)])

    def exclude(self, oids: frozenset[int]) -> None:
        """Stop comparing these tables, which changed. The comparison of all others goes on."""
        self.changed |= self.equal & oids
        self._oids -= oids
        self._truncated -= oids

    def _compare(self, snapshot: str) -> bool:
        """Begin to compare. Returns True when no table is left."""
        self._changed_before = self.changed
        stored = self._context.stored()
        published = self._context.published(self._order.plans)
        there = self._oids & stored.keys() & published.keys()
        self.exclude(self._oids - {oid for oid in there if published[oid].followed_on(stored[oid].fingerprint)})
        if not self._oids:
            if self._completes():
                self.exclude(self._truncated)
            return True
        tables = [self._table(stored[oid], published[oid]) for oid in sorted(self._oids)]
        self.findings.tables = [table.published.qualified_name for table in tables]
        unmarked = [table.stored.id for table in tables if not table.stored.resync]
        if self._order.repair:
            self._context.store.mark_resync(self._context.lease, unmarked, self._order.reason)
        job = CompareJob(
            source=self._context.source,
            snapshot=snapshot,
            tables=tuple(tables),
            plans=self._order.plans if self._order.verify else (),
            types=self._context.types([table.stored for table in tables]),
            keys=self._context.store.keys(),
            store=self._context.store.address,
            directory=self._context.store.staging_directory(),
        )
        self._to_count, closed = job, self._closed
        self._comparing = Background(
            lambda: self._context.bulk.compare(job, self._note, self._take, closed), JobKind.COMPARISON
        )
        return False

    def _table(self, stored: StoredTable, published: PublishedTable) -> CompareTable:
        attached = self._order.reason.cause is Cause.ATTACHED and stored.has(Cause.ATTACHED)
        if attached and not self._order.verify:
            part = narrowed(published, stored)
            return CompareTable(part, stored, (), part.estimated_rows)
        return CompareTable(published, stored, *self._context.places(stored.id))

    def _note(self, progress: BulkProgress) -> None:
        self.progress = progress
        self._context.progress(progress)

    def _note_merged(self, *, over: bool = False) -> None:
        what = JobKind.MERGE if self._order.repair else JobKind.DIFFERENCES
        self._context.progress(BulkProgress(self._merged, 0, 0, 0, what, over))

    def _take(self, differences: Sequence[Difference]) -> None:
        """Called in the comparison's thread; blocks while enough differences wait to be merged."""
        while not self._closed.is_set():
            try:
                self._batches.put(differences, timeout=0.5)
            except queue.Full:
                continue
            return

    def _next_batch(self) -> bool:
        if not self._batch and not self._batches.empty():
            self._batch = list(self._batches.get())
        return bool(self._batch)

    def _merge(self) -> None:
        count = self._portion.of(self._batch, self._context.source.piece_bytes)
        some, self._batch = self._batch[:count], self._batch[count:]
        self._copies.expect(self._batch)
        started = time.perf_counter()
        self._merge_some(some)
        self._portion.took(count, time.perf_counter() - started)
        self._merged += len(some)
        self._note_merged()

    def _merge_some(self, some: Sequence[Difference]) -> None:
        oid_of = {table.id: oid for oid, table in self._context.stored().items()}
        for table_id in dict.fromkeys(difference.table for difference in some):
            oid = oid_of.get(table_id)
            table = None if oid not in self._oids else self._context.stream.table(oid)
            if oid is None or table is None:
                continue  # changed or truncated since: the snapshot says nothing about its new generation
            touches = self._log.of(oid)
            differences = self._to_merge(table_id, some)
            states, waiting = wanted_states(
                self._context.stream, table, touches, differences, self._copies, reevaluate=self._order.verify
            )
            found = describe(self._context.stream, table, states)
            name = f"{table.relation.schema}.{table.relation.name}"
            if found:
                self.findings.differences[name] = self.findings.differences.get(name, 0) + len(found)
            if len(self.findings.rows) < NAMED_ROWS:
                self.findings.rows += [{"table": name, **finding} for finding in found[:NAMED_ROWS]]
            if self._order.repair and states:
                self.findings.ops += self._context.stream.merge(
                    table, states, waiting=waiting, reevaluate=self._order.verify
                )

    def _to_merge(self, table: int, some: Sequence[Difference]) -> list[Difference]:
        """The differences of a table. Without repair, those that were not reported before: differences that are not
        repaired are found again when touched rows are counted."""
        differences = [difference for difference in some if difference.table == table]
        if self._order.repair:
            return differences
        before = self._reported[table]
        new = [difference for difference in differences if difference.key not in before]
        before.update(difference.key for difference in new)
        return new

    def _finish(self, outcome: CompareOutcome) -> None:
        self.findings.compared = outcome.source_rows
        record = BulkRecord(
            kind=self.kind,
            source=self._context.tag,
            application=outcome.application,
            tasks=outcome.tasks,
            rows=outcome.source_rows,
            ops=self.findings.ops,
            started=self._started,
            finished=time.time(),
        )
        self._context.store.note_job(record)
        _log.info(
            "compared %d rows of %s: %d differ, %d ops",
            outcome.source_rows,
            ", ".join(self.findings.tables),
            sum(self.findings.differences.values()),
            self.findings.ops,
        )

    def close(self) -> None:
        self._closed.set()
        self._note_merged(over=True)
        self._context.stream.forget(self._log)
        self._opening.discard(SnapshotKeeper.close)

    def unmark(self) -> None:
        """Remove the marks: the tables are equal to the source now. Does nothing without `repair`."""
        if not self._order.repair:
            return
        tables = [table for oid, table in self._context.stored().items() if oid in self.equal]
        self._context.store.mark_resync(self._context.lease, [table.id for table in tables if table.resync], None)
        self._context.stream.trust([table.id for table in tables])

    @property
    def equal(self) -> frozenset[int]:
        """The oids of the tables that are equal to the source, when all is done."""
        return self._oids | self._truncated
