"""Bulk jobs on Spark, as the replicator asks for them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.bulk.jobs import (
    BulkProgress,
    CompareJob,
    CompareOutcome,
    Difference,
    RekeyJob,
    ReprocessJob,
    SnapshotJob,
    SnapshotTable,
    TableChangedError,
    VerifyJob,
    VerifyOutcome,
)
from headwater.errors import HeadwaterError
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.pipeline.differences import find_differences
from headwater.pipeline.partition import CountedCopies, CountTask, Partition, SnapshotTask
from headwater.pipeline.plan import expected_rows, partitions
from headwater.pipeline.progress import ProgressReporter
from headwater.pipeline.rekey import RekeyCountTask, RekeyTask, needs_counts
from headwater.pipeline.reprocess import ReprocessTask
from headwater.pipeline.session import Spark, SparkJobError
from headwater.pipeline.tasks import run_tasks
from headwater.pipeline.verify import verify_store
from headwater.pipeline.verify_tasks import StandingTask
from headwater.storage.parts import BulkOutcome

Report = Callable[[BulkProgress], None]


class SparkBulk:
    """Implements the replicator's `BulkWork`."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def warm_up(self) -> None:
        self._spark.warm_up()

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        session = self._spark.session()
        with spark_errors("snapshot"):
            parts = partitions(job.tables, session.sparkContext.defaultParallelism)
            tasks = _number_copies(session, job, parts)
            with ProgressReporter("snapshot", job.directory, expected_rows(job.tables), len(tasks), progress):
                staged = run_tasks(session, job, tasks, "snapshot")
            return BulkOutcome(tuple(staged), session.sparkContext.applicationId or "", len(tasks))

    def reprocess(self, job: ReprocessJob, progress: Report) -> BulkOutcome:
        session = self._spark.session()
        tasks = [ReprocessTask(table.stored, *places) for table in job.tables for places in table.ranges]
        expected = sum(table.rows for table in job.tables)
        with spark_errors("reprocess"), ProgressReporter("reprocess", job.directory, expected, len(tasks), progress):
            staged = run_tasks(session, job, tasks, "reprocess")
            return BulkOutcome(tuple(staged), session.sparkContext.applicationId or "", len(tasks))

    def rekey(self, job: RekeyJob, progress: Report) -> BulkOutcome:
        session = self._spark.session()
        with spark_errors("re-key"), ProgressReporter("re-key", job.directory, job.rows, len(job.ranges), progress):
            counts: list[Counter[str]] = []
            if needs_counts(job):
                counts = run_tasks(session, job, [RekeyCountTask(*places) for places in job.ranges], "re-key")
            before = _counted_before(counts) if counts else [CountedCopies()] * len(job.ranges)
            tasks = [RekeyTask(*places, copies) for places, copies in zip(job.ranges, before, strict=True)]
            staged = run_tasks(session, job, tasks, "re-key")
            return BulkOutcome(tuple(staged), session.sparkContext.applicationId or "", len(tasks))

    def compare(
        self, job: CompareJob, progress: Report, found: Callable[[Sequence[Difference]], None]
    ) -> CompareOutcome:
        session = self._spark.session()
        with spark_errors("comparison"):
            snapshot_tables = [SnapshotTable(table.stored.id, table.published) for table in job.tables]
            parts = partitions(snapshot_tables, session.sparkContext.defaultParallelism)
            tasks = len(parts) + sum(len(table.ranges) for table in job.tables)
            expected = expected_rows(snapshot_tables) + sum(table.rows for table in job.tables)
            with ProgressReporter("comparison", job.directory, expected, tasks, progress):
                return find_differences(session, job, parts, found)

    def verify(self, job: VerifyJob, progress: Report) -> VerifyOutcome:
        session = self._spark.session()
        with spark_errors("verification"), ProgressReporter("verification", job.directory, 0, 0, progress):
            return verify_store(session, job)

    def standing(self, job: VerifyJob, buckets: Collection[int], progress: Report) -> dict[int, list[str]]:
        session = self._spark.session()
        keys = frozenset(buckets)
        tasks = [StandingTask(table, *places, keys) for table in job.tables for places in table.ranges]
        with spark_errors("search for rows"), ProgressReporter("rebuild", job.directory, 0, len(tasks), progress):
            found: dict[int, list[str]] = {table.id: [] for table in job.tables}
            for task, rows in zip(tasks, run_tasks(session, job, tasks, "search for rows"), strict=True):
                found[task.table.id] += rows
            return found


def _number_copies(session: SparkSession, job: SnapshotJob, parts: Sequence[Partition]) -> list[SnapshotTask]:
    """Tell each task of a table without key how many copies of its rows earlier tasks have, so that copies are
    numbered as the stream would. Only tables that are cut into several parts need the extra look."""
    groups = [list(group) for _, group in groupby(parts, key=lambda part: part.table.table_id)]
    counted = [
        part
        for group in groups
        if len(group) > 1 and RowIdentity.of(group[0].table.published.relation).kind is IdentityKind.FULL
        for part in group
    ]
    counts = run_tasks(session, job, [CountTask(part) for part in counted], "snapshot")
    before: dict[Partition, CountedCopies] = {}
    for _, pairs in groupby(zip(counted, counts, strict=True), key=lambda pair: pair[0].table.table_id):
        of_table = list(pairs)
        before |= zip((part for part, _ in of_table), _counted_before([own for _, own in of_table]), strict=True)
    return [SnapshotTask(part, before.get(part, CountedCopies())) for part in parts]


def _counted_before(counts: Sequence[Counter[str]]) -> list[CountedCopies]:
    """For each part of a table, how often its contents stand in the parts before it."""
    total: Counter[str] = Counter()
    before = []
    for own in counts:
        before.append(CountedCopies({content: total[content] for content in own if content in total}))
        total.update(own)
    return before


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """What Spark raises, as errors of ours; `what` names the job."""
    try:
        yield
    except PySparkException as error:
        raise _explained(error, what) from error
    except (Py4JError, OSError) as error:  # the JVM is gone
        raise SparkJobError(f"the Spark job failed: {type(error).__name__}", what, "it is tried again") from error


_OURS = re.compile(r"\b([A-Z]\w*(?:Error|Refused|Unreachable|Unusable)): (\[(?:HW|PSYNC)_\w+\] .*)")


def _explained(error: PySparkException, what: str) -> HeadwaterError:
    """The error of ours behind a failed job: Spark passes only the task's trace on."""
    found = _OURS.search(str(error))
    if found is None:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        return SparkJobError(f"the Spark job failed: {lines[-1] if lines else 'no reason given'}", what)
    if found[1] == TableChangedError.__name__:
        return TableChangedError(f"a table was altered, rewritten or truncated during the {what}", "", found[2])
    return SparkJobError(f"a Spark task failed: {found[2]}", what)
