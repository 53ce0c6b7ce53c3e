"""Bulk jobs on Spark, as the replicator asks for them."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from headwater.errors import HeadwaterError
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.pipeline.datasource import FORMAT, JOB_OPTION, SnapshotSource, Task, encode_job, read_counts
from headwater.pipeline.partition import CountedCopies, Partition
from headwater.pipeline.plan import partitions
from headwater.pipeline.session import Spark, SparkJobError
from headwater.source.snapshot import BulkProgress, SnapshotJob, TableChangedError
from headwater.storage.contract import BulkOutcome, StagedPart

_PROGRESS_SECONDS = 0.25
_ROWS_A_PAGE = 60


class SparkBulk:
    """Implements the replicator's `BulkWork`."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def warm_up(self) -> None:
        self._spark.warm_up()

    def snapshot(self, job: SnapshotJob, progress: Callable[[BulkProgress], None]) -> BulkOutcome:
        session = self._spark.session()
        with _spark_errors():
            session.dataSource.register(SnapshotSource)
            parts = partitions(job, session.sparkContext.defaultParallelism)
            tasks = _number_copies(session, job, parts)
            with _ProgressReporter(job, len(tasks), progress):
                rows = _run(session, job, tasks, count_only=False)
            staged = tuple(StagedPart(r["path"], r["table"], r["rows"], r["ops"], r["attempt"]) for r in rows)
            return BulkOutcome(staged, session.sparkContext.applicationId or "", len(rows))


def _number_copies(session: SparkSession, job: SnapshotJob, parts: Sequence[Partition]) -> list[Task]:
    """Tell each task of a table without key how many copies of its rows earlier tasks have, so that copies are
    numbered as the stream would. Only tables that are cut into several parts need the extra look."""
    groups = [list(group) for _, group in groupby(parts, key=lambda part: part.table.table_id)]
    counted = [
        part
        for group in groups
        if len(group) > 1 and RowIdentity.of(group[0].table.published.relation).kind is IdentityKind.FULL
        for part in group
    ]
    if not counted:
        return [(part, CountedCopies()) for part in parts]
    rows = _run(session, job, [(part, CountedCopies()) for part in counted], count_only=True)
    counts = {int(row["number"]): read_counts(row["path"]) for row in rows}
    before: dict[int, CountedCopies] = {}
    totals: dict[int, Counter[str]] = {}
    for part in counted:
        total = totals.setdefault(part.table.table_id, Counter())
        own = counts[part.number]
        before[part.number] = CountedCopies({content: total[content] for content in own if content in total})
        total.update(own)
    return [(part, before.get(part.number, CountedCopies())) for part in parts]


def _run(session: SparkSession, job: SnapshotJob, tasks: Sequence[Task], *, count_only: bool) -> list[Row]:
    """Run the tasks and return their rows in the order of their numbers."""
    if not tasks:
        return []
    option = encode_job(job, tasks, count_only=count_only)
    rows = session.read.format(FORMAT).option(JOB_OPTION, option).load().collect()
    if len(rows) != len(tasks):
        raise SparkJobError(f"{len(rows)} of {len(tasks)} Spark tasks reported", "snapshot", "the job is tried again")
    return sorted(rows, key=lambda row: int(row["number"]))


@contextmanager
def _spark_errors() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise _explained(error) from error
    except (Py4JError, OSError) as error:  # the JVM is gone
        raise SparkJobError(f"the Spark job failed: {type(error).__name__}", "snapshot", "it is tried again") from error


_OURS = re.compile(r"\b([A-Z]\w*(?:Error|Refused|Unreachable|Unusable)): (\[(?:HW|PSYNC)_\w+\] .*)")


def _explained(error: PySparkException) -> HeadwaterError:
    """The error of ours behind a failed job: Spark passes only the task's trace on."""
    found = _OURS.search(str(error))
    if found is None:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        return SparkJobError(f"the Spark job failed: {lines[-1] if lines else 'no reason given'}", "snapshot")
    if found[1] == TableChangedError.__name__:
        return TableChangedError("a table was altered, rewritten or truncated during the snapshot", "", found[2])
    return SparkJobError(f"a Spark task failed: {found[2]}", "snapshot")


class _ProgressReporter:
    """Sums up the tasks' progress files now and then, from a thread."""

    def __init__(self, job: SnapshotJob, tasks: int, progress: Callable[[BulkProgress], None]) -> None:
        self._directory = Path(job.directory)
        leaves = [leaf for table in job.tables for leaf in table.published.leaves]
        # The planner has no number for a table that was never analysed
        self._expected = sum(leaf.estimated_rows or leaf.pages * _ROWS_A_PAGE for leaf in leaves)
        self._tasks = tasks
        self._progress = progress
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._progress(BulkProgress(0, self._expected, 0, self._tasks))
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._report()

    def _watch(self) -> None:
        while not self._done.wait(_PROGRESS_SECONDS):
            self._report()

    def _report(self) -> None:
        rows = 0
        for path in self._directory.glob("progress-*"):
            with suppress(OSError):
                rows += int.from_bytes(path.read_bytes(), "big")
        finished = len({path.name.split("-")[1] for path in self._directory.glob("part-*.db")})
        self._progress(BulkProgress(rows, self._expected, finished, self._tasks))
