"""Runs the bulk jobs of the replicator: divides each into tasks for an engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

import numpy as np

from headwater.bulk.contract import (
    CompareJob,
    CompareOutcome,
    CompareTable,
    Difference,
    JobKind,
    RecountJob,
    RekeyJob,
    Report,
    ReprocessJob,
    SnapshotJob,
    SnapshotTable,
    Stop,
    VerifyJob,
    VerifyOutcome,
)
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.pipeline.compare import (
    DigestTask,
    RecountTask,
    Rows,
    RowsTask,
    SourceRows,
    StoreRows,
    TableDigests,
    WholeTask,
)
from headwater.pipeline.engine import Found, TaskEngine, TaskRun
from headwater.pipeline.progress import ProgressReporter
from headwater.pipeline.rekey import RekeyCountTask, RekeyTask, needs_counts
from headwater.pipeline.reprocess import ReprocessTask
from headwater.pipeline.snapshot import (
    CountedCopies,
    CountTask,
    Partition,
    SnapshotTask,
    expected_rows,
    is_small,
    partitions,
)
from headwater.pipeline.verify import BucketRowsTask, verify_store
from headwater.source.catalog.published import measured
from headwater.source.connect import SourceSettings
from headwater.source.rows.query import ComputedResult
from headwater.storage.contract.parts import BulkOutcome
from headwater_rules.plan import ComputedTable

_FEWEST_PARTITIONS, _MOST_PARTITIONS = 1 << 10, 1 << 16
_ROWS_A_PARTITION = 8
_WHOLE_AT_ONCE = 16  # tables whose differences are in the driver's memory together

Read = TypeVar("Read", SnapshotTable, CompareTable)
OfTables = TypeVar("OfTables", SnapshotJob, ReprocessJob, CompareJob, VerifyJob)


class BulkJobs:
    """Reads and writes whole tables for the replicator. Calls block until the work is done. They raise an error with
    kind RETRY for what may pass, others for what a person has to fix; GivenUpError soon after `stop` was set;
    EngineError when the engine is not available."""

    def __init__(self, engine: TaskEngine) -> None:
        self._engine = engine

    def warm_up(self) -> None:
        """Begin to start what the work needs, without waiting for it. Raises an error of ours when something is not
        installed."""
        self._engine.warm_up()

    def preparing(self) -> str:
        """What work is waiting for now, for a person: `starting Spark`. Empty when for nothing."""
        return self._engine.preparing()

    def result(self, table: ComputedTable, stop: threading.Event) -> ComputedResult:
        """See `TaskEngine.result`."""
        return self._engine.result(table, stop)

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        """Read every table of the job into parts that a store can take over. Raises TableChangedError when a table
        was altered or rewritten meanwhile."""
        job = replace(job, tables=_measured(job.source, job.tables))
        with self._engine.run(_for_tasks(job), JobKind.SNAPSHOT) as run:
            parts = partitions(job.tables, run.parallelism)
            tasks = _number_copies(run, job, parts)
            with ProgressReporter(
                JobKind.SNAPSHOT, job.directory, expected_rows(job.tables), len(tasks), progress, run.remote_tasks_done
            ):
                staged = run.tasks(tasks)
            return BulkOutcome(tuple(staged), run.application, len(tasks))

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        """Evaluate current rows into parts of additions."""
        tasks = [ReprocessTask(table.stored, *places) for table in job.tables for places in table.ranges]
        expected = sum(table.rows for table in job.tables)
        with (
            self._engine.run(_for_tasks(job), JobKind.REPROCESS, stop) as run,
            ProgressReporter(JobKind.REPROCESS, job.directory, expected, len(tasks), progress, run.remote_tasks_done),
        ):
            staged = run.tasks(tasks)
            return BulkOutcome(tuple(staged), run.application, len(tasks))

    def rekey(self, job: RekeyJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        """Write a table's current rows, with other ids, into parts for a new generation."""
        with (
            self._engine.run(job, JobKind.REKEY, stop) as run,
            ProgressReporter(JobKind.REKEY, job.directory, job.rows, len(job.ranges), progress, run.remote_tasks_done),
        ):
            counts: list[Counter[str]] = []
            if needs_counts(job):
                counts = run.tasks([RekeyCountTask(*places) for places in job.ranges])
            before = _counted_before(counts) if counts else [CountedCopies()] * len(job.ranges)
            tasks = [RekeyTask(*places, copies) for places, copies in zip(job.ranges, before, strict=True)]
            staged = run.tasks(tasks)
            return BulkOutcome(tuple(staged), run.application, len(tasks))

    def compare(self, job: CompareJob, progress: Report, found: Found, stop: Stop = None) -> CompareOutcome:
        """Hand every row in which source and store differ to `found`, in batches. Raises TableChangedError as
        `snapshot` does."""
        job = replace(job, tables=_measured(job.source, job.tables))
        with self._engine.run(_for_tasks(job), JobKind.COMPARISON, stop) as run:
            snapshot_tables = [SnapshotTable(table.stored.id, table.published) for table in job.tables]
            parts = partitions(snapshot_tables, run.parallelism)
            tasks = len(parts) + sum(len(table.ranges) for table in job.tables)
            # The source has about as many rows as the store, whose count is better than the planner's estimate
            pairs = zip(job.tables, snapshot_tables, strict=True)
            expected = sum(table.rows + (table.rows or expected_rows([read])) for table, read in pairs)
            with ProgressReporter(JobKind.COMPARISON, job.directory, expected, tasks, progress, run.remote_tasks_done):
                return find_differences(run, job, parts, found)

    def recount(self, job: RecountJob, progress: Report, found: Found, stop: Stop = None) -> None:
        """Hand to `found` how often the source has the job's rows. Rows that it does not have are left out. Raises
        TableChangedError as `snapshot` does."""
        compared = job.compared
        tables = _measured(compared.source, [table for table in compared.tables if table.stored.id in job.contents])
        stored = {table.stored.id: table.stored for table in tables}
        with self._engine.run(job, JobKind.RECOUNT, stop) as run:
            parts = partitions([SnapshotTable(table.stored.id, table.published) for table in tables], run.parallelism)
            tasks = [RecountTask(SourceRows(stored[part.table_id], part)) for part in parts]
            expected = sum(table.rows for table in tables)
            with ProgressReporter(
                JobKind.RECOUNT, compared.directory, expected, len(tasks), progress, run.remote_tasks_done
            ):
                counted = run.tasks(tasks)
        copies: dict[tuple[int, str], Difference] = {}
        for task, own in zip(tasks, counted, strict=True):
            table = task.part.table.id
            for content, (line, count) in own.items():
                before = copies[table, content].copies if (table, content) in copies else 0
                copies[table, content] = Difference(table, content, line, before + count)
        found(list(copies.values()))

    def verify(self, job: VerifyJob, progress: Report, stop: Stop = None) -> VerifyOutcome:
        """Verify histories and lookups against current rows, while these may be written. Raises TableChangedError when
        a table was truncated meanwhile."""
        with (
            self._engine.run(_for_tasks(job), JobKind.VERIFICATION, stop) as run,
            ProgressReporter(JobKind.VERIFICATION, job.directory, 0, 0, progress, run.remote_tasks_done),
        ):
            return verify_store(run, job)

    def rows_in_buckets(
        self, job: VerifyJob, buckets: Collection[int], progress: Report, stop: Stop = None
    ) -> dict[int, list[str]]:
        """By table, ids of the rows that are in any of these buckets (by key)."""
        keys = frozenset(buckets)
        tasks = [BucketRowsTask(table, *places, keys) for table in job.tables for places in table.ranges]
        with (
            self._engine.run(_for_tasks(job), JobKind.SEARCH, stop) as run,
            ProgressReporter(JobKind.REBUILD, job.directory, 0, len(tasks), progress, run.remote_tasks_done),
        ):
            found: dict[int, list[str]] = {table.id: [] for table in job.tables}
            for task, rows in zip(tasks, run.tasks(tasks), strict=True):
                found[task.table.id] += rows
            return found


def _for_tasks(job: OfTables) -> OfTables:
    """The job as it goes with every task, which knows its own table: with all of many, it would be most of the work."""
    return replace(job, tables=())


def _measured(source: SourceSettings, tables: Sequence[Read]) -> tuple[Read, ...]:
    published = measured(source, [table.published for table in tables])
    return tuple(replace(table, published=now) for table, now in zip(tables, published, strict=True))


def _number_copies(run: TaskRun[SnapshotJob], job: SnapshotJob, parts: Sequence[Partition]) -> list[SnapshotTask]:
    """For tables without key, give each task the number of copies of its rows in earlier tasks, so that copies are
    numbered as the stream does. Only tables in several parts have to be read for that."""
    groups = [list(group) for _, group in groupby(parts, key=lambda part: part.table_id)]
    counted = [
        part
        for group in groups
        if len(group) > 1 and RowIdentity.of(group[0].table.relation).kind is IdentityKind.FULL
        for part in group
    ]
    counts = run.tasks([CountTask(part) for part in counted])
    before: dict[Partition, CountedCopies] = {}
    for _, pairs in groupby(zip(counted, counts, strict=True), key=lambda pair: pair[0].table_id):
        of_table = list(pairs)
        before |= zip((part for part, _ in of_table), _counted_before([own for _, own in of_table]), strict=True)
    return [SnapshotTask(part, before.get(part, CountedCopies())) for part in parts]


def _counted_before(counts: Sequence[Counter[str]]) -> list[CountedCopies]:
    """For each part of a table, how often its contents are in the parts before it."""
    total: Counter[str] = Counter()
    before = []
    for own in counts:
        before.append(CountedCopies({content: total[content] for content in own if content in total}))
        total.update(own)
    return before


def find_differences(
    run: TaskRun[CompareJob], job: CompareJob, source_parts: Sequence[Partition], found: Found
) -> CompareOutcome:
    """Hand every difference to `found`, in batches: those of small tables, then those of all others, by digests."""
    tables = {table.stored.id: table for table in job.tables}
    source: dict[int, list[SourceRows]] = {table: [] for table in tables}
    for part in source_parts:
        source[part.table_id].append(SourceRows(tables[part.table_id].stored, part))
    store = {key: [StoreRows(table.stored, *places) for places in table.ranges] for key, table in tables.items()}
    source_rows = store_rows = partitions = differing = 0

    whole = [
        WholeTask(key, tuple(source[key]), tuple(store[key]))
        for key, table in tables.items()
        if is_small(table.published) and len(table.ranges) <= 1
    ]
    for start in range(0, len(whole), _WHOLE_AT_ONCE):
        some = whole[start : start + _WHOLE_AT_ONCE]
        for task, outcome in zip(some, run.tasks(some), strict=True):
            if outcome is None:  # the table is larger than expected
                continue
            if outcome.differences:
                found(outcome.differences)
            source_rows += outcome.source_rows
            store_rows += outcome.store_rows
            partitions += 1
            differing += bool(outcome.differences)
            del tables[task.table]

    sizes = {key: _partitions(table.rows) for key, table in tables.items()}
    parts: list[Rows] = [part for key in tables for part in source[key]]
    parts += [part for key in tables for part in store[key]]
    digests = run.tasks([DigestTask(part, sizes[part.table.id]) for part in parts])
    wanted = _differing(digests, sizes)
    tasks = [RowsTask(part, sizes[part.table.id], wanted[part.table.id]) for part in parts if wanted[part.table.id]]
    if tasks:
        run.differences(tasks, found)
    return CompareOutcome(
        source_rows=source_rows + sum(d.rows for d in digests if d.of_source),
        store_rows=store_rows + sum(d.rows for d in digests if not d.of_source),
        partitions=partitions + sum(sizes.values()),
        differing=differing + sum(map(len, wanted.values())),
        application=run.application,
        tasks=len(whole) + len(parts) + len(tasks),
    )


def _partitions(rows: int) -> int:
    """A power of two that leaves few rows in a partition."""
    wanted = max(_FEWEST_PARTITIONS, min(_MOST_PARTITIONS, rows // _ROWS_A_PARTITION))
    return 1 << (wanted - 1).bit_length()


def _differing(found: Sequence[TableDigests], sizes: dict[int, int]) -> dict[int, frozenset[int]]:
    """By table, the partitions in which the two sides differ."""
    sums = {table: np.zeros(size, dtype=np.uint64) for table, size in sizes.items()}
    for part in found:
        digests = np.frombuffer(part.digests, dtype=np.uint64)
        if part.of_source:
            sums[part.table] += digests
        else:
            sums[part.table] -= digests
    return {table: frozenset(map(int, np.flatnonzero(total))) for table, total in sums.items()}
