"""Runs the bulk jobs of the replicator: divides each into tasks for an engine."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from headwater.bulk.contract import (
    BulkProgress,
    CompareJob,
    CompareOutcome,
    CompareTable,
    Difference,
    JobKind,
    RecountJob,
    RekeyJob,
    ReprocessJob,
    SnapshotJob,
    SnapshotTable,
    VerifyJob,
    VerifyOutcome,
)
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.pipeline.compare import RecountTask, SourceRows
from headwater.pipeline.digests import find_differences
from headwater.pipeline.engine import Engine, Run
from headwater.pipeline.partition import CountedCopies, CountTask, Partition, SnapshotTask
from headwater.pipeline.plan import expected_rows, partitions
from headwater.pipeline.progress import ProgressReporter
from headwater.pipeline.rekey import RekeyCountTask, RekeyTask, needs_counts
from headwater.pipeline.reprocess import ReprocessTask
from headwater.pipeline.verify import verify_store
from headwater.pipeline.verify_tasks import BucketRowsTask
from headwater.source.catalog.published import measured
from headwater.source.connect import SourceSettings
from headwater.storage.contract.parts import BulkOutcome

Read = TypeVar("Read", SnapshotTable, CompareTable)
OfTables = TypeVar("OfTables", SnapshotJob, ReprocessJob, CompareJob, VerifyJob)
Report = Callable[[BulkProgress], None]
Stop = threading.Event | None


class BulkJobs:
    """Implements the replicator's `BulkWork`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def warm_up(self) -> None:
        self._engine.warm_up()

    def preparing(self) -> str:
        return self._engine.preparing()

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        job = replace(job, tables=_measured(job.source, job.tables))
        with self._engine.run(_for_tasks(job), JobKind.SNAPSHOT) as run:
            parts = partitions(job.tables, run.parallelism)
            tasks = _number_copies(run, job, parts)
            with ProgressReporter(
                JobKind.SNAPSHOT, job.directory, expected_rows(job.tables), len(tasks), progress, run.elsewhere
            ):
                staged = run.tasks(tasks)
            return BulkOutcome(tuple(staged), run.application, len(tasks))

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        tasks = [ReprocessTask(table.stored, *places) for table in job.tables for places in table.ranges]
        expected = sum(table.rows for table in job.tables)
        with (
            self._engine.run(_for_tasks(job), JobKind.REPROCESS, stop) as run,
            ProgressReporter(JobKind.REPROCESS, job.directory, expected, len(tasks), progress, run.elsewhere),
        ):
            staged = run.tasks(tasks)
            return BulkOutcome(tuple(staged), run.application, len(tasks))

    def rekey(self, job: RekeyJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        with (
            self._engine.run(job, JobKind.REKEY, stop) as run,
            ProgressReporter(JobKind.REKEY, job.directory, job.rows, len(job.ranges), progress, run.elsewhere),
        ):
            counts: list[Counter[str]] = []
            if needs_counts(job):
                counts = run.tasks([RekeyCountTask(*places) for places in job.ranges])
            before = _counted_before(counts) if counts else [CountedCopies()] * len(job.ranges)
            tasks = [RekeyTask(*places, copies) for places, copies in zip(job.ranges, before, strict=True)]
            staged = run.tasks(tasks)
            return BulkOutcome(tuple(staged), run.application, len(tasks))

    def compare(
        self, job: CompareJob, progress: Report, found: Callable[[Sequence[Difference]], None], stop: Stop = None
    ) -> CompareOutcome:
        job = replace(job, tables=_measured(job.source, job.tables))
        with self._engine.run(_for_tasks(job), JobKind.COMPARISON, stop) as run:
            snapshot_tables = [SnapshotTable(table.stored.id, table.published) for table in job.tables]
            parts = partitions(snapshot_tables, run.parallelism)
            tasks = len(parts) + sum(len(table.ranges) for table in job.tables)
            # The source has about as many rows as the store, whose count is better than the planner's estimate
            pairs = zip(job.tables, snapshot_tables, strict=True)
            expected = sum(table.rows + (table.rows or expected_rows([read])) for table, read in pairs)
            with ProgressReporter(JobKind.COMPARISON, job.directory, expected, tasks, progress, run.elsewhere):
                return find_differences(run, job, parts, found)

    def recount(
        self, job: RecountJob, progress: Report, found: Callable[[Sequence[Difference]], None], stop: Stop = None
    ) -> None:
        compared = job.compared
        tables = _measured(compared.source, [table for table in compared.tables if table.stored.id in job.contents])
        stored = {table.stored.id: table.stored for table in tables}
        with self._engine.run(job, JobKind.RECOUNT, stop) as run:
            parts = partitions([SnapshotTable(table.stored.id, table.published) for table in tables], run.parallelism)
            tasks = [RecountTask(SourceRows(stored[part.table.table_id], part)) for part in parts]
            expected = sum(table.rows for table in tables)
            with ProgressReporter(JobKind.RECOUNT, compared.directory, expected, len(tasks), progress, run.elsewhere):
                counted = run.tasks(tasks)
        copies: dict[tuple[int, str], Difference] = {}
        for task, own in zip(tasks, counted, strict=True):
            table = task.part.table.id
            for content, (line, count) in own.items():
                before = copies[table, content].copies if (table, content) in copies else 0
                copies[table, content] = Difference(table, content, line, before + count)
        found(list(copies.values()))

    def verify(self, job: VerifyJob, progress: Report, stop: Stop = None) -> VerifyOutcome:
        with (
            self._engine.run(_for_tasks(job), JobKind.VERIFICATION, stop) as run,
            ProgressReporter(JobKind.VERIFICATION, job.directory, 0, 0, progress, run.elsewhere),
        ):
            return verify_store(run, job)

    def rows_in_buckets(
        self, job: VerifyJob, buckets: Collection[int], progress: Report, stop: Stop = None
    ) -> dict[int, list[str]]:
        keys = frozenset(buckets)
        tasks = [BucketRowsTask(table, *places, keys) for table in job.tables for places in table.ranges]
        with (
            self._engine.run(_for_tasks(job), JobKind.SEARCH, stop) as run,
            ProgressReporter(JobKind.REBUILD, job.directory, 0, len(tasks), progress, run.elsewhere),
        ):
            found: dict[int, list[str]] = {table.id: [] for table in job.tables}
            for task, rows in zip(tasks, run.tasks(tasks), strict=True):
                found[task.table.id] += rows
            return found


def _for_tasks(job: OfTables) -> OfTables:
    """The job as it goes with every task, which knows its own table: with all of many, it would be most of the work."""
    return replace(job, tables=())


def _measured(source: SourceSettings, tables: Sequence[Read]) -> tuple[Read, ...]:
    """The tables with their present sizes."""
    published = measured(source, [table.published for table in tables])
    return tuple(replace(table, published=now) for table, now in zip(tables, published, strict=True))


def _number_copies(run: Run[SnapshotJob], job: SnapshotJob, parts: Sequence[Partition]) -> list[SnapshotTask]:
    """For tables without key, give each task the number of copies of its rows in earlier tasks, so that copies are
    numbered as the stream does. Only tables in several parts have to be read for that."""
    groups = [list(group) for _, group in groupby(parts, key=lambda part: part.table.table_id)]
    counted = [
        part
        for group in groups
        if len(group) > 1 and RowIdentity.of(group[0].table.published.relation).kind is IdentityKind.FULL
        for part in group
    ]
    counts = run.tasks([CountTask(part) for part in counted])
    before: dict[Partition, CountedCopies] = {}
    for _, pairs in groupby(zip(counted, counts, strict=True), key=lambda pair: pair[0].table.table_id):
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
