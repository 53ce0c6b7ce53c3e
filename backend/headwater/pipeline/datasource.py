"""The Python Data Source through which Spark runs a snapshot's tasks.

A task reads, transforms and writes inside `read` and yields one row that says what it wrote: rows never pass
through the JVM, which would cost several times the work itself.
https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from __future__ import annotations

import base64
import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headwater.pipeline.partition import CountedCopies, Partition, count_contents, run_partition
from headwater.source.snapshot import SnapshotJob

FORMAT = "headwater-snapshot"
JOB_OPTION = "jobsecret"  # Spark keeps options with "secret" in their names out of its logs

Task = tuple[Partition, CountedCopies]


def encode_job(job: SnapshotJob, tasks: Sequence[Task], *, count_only: bool) -> str:
    """A job as the text of a Spark option."""
    return base64.b85encode(pickle.dumps((job, list(tasks), count_only))).decode()


class TaskPartition(InputPartition):
    """One task: where in the list, so that the plan stays small."""

    def __init__(self, task: Task) -> None:
        super().__init__(task[0].number)
        self.task = task


class SnapshotReader(DataSourceReader):
    """Runs tasks of one job."""

    def __init__(self, encoded: str) -> None:
        self._job: SnapshotJob
        self._tasks: list[Task]
        # Our own driver made this text
        self._job, self._tasks, self._count_only = pickle.loads(base64.b85decode(encoded))  # noqa: S301

    def partitions(self) -> Sequence[InputPartition]:
        return [TaskPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        if not isinstance(partition, TaskPartition):
            raise TypeError(type(partition).__name__)
        context = TaskContext.get()
        attempt = "0" if context is None else str(context.taskAttemptId())
        spec, copies = partition.task
        if self._count_only:
            yield self._count(spec, attempt)
            return
        part = run_partition(self._job, spec, attempt, copies)
        yield (spec.number, part.path, part.table, part.rows, part.ops, attempt)

    def _count(self, spec: Partition, attempt: str) -> tuple[object, ...]:
        counts = count_contents(self._job, spec)
        path = Path(self._job.directory) / f"counts-{spec.number:05d}-{attempt}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(dict(counts)))
        return (spec.number, str(path), spec.table.table_id, counts.total(), 0, attempt)


class SnapshotSource(DataSource):
    """Registered under FORMAT."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType(
            [
                StructField("number", LongType()),
                StructField("path", StringType()),
                StructField("table", LongType()),
                StructField("rows", LongType()),
                StructField("ops", LongType()),
                StructField("attempt", StringType()),
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return SnapshotReader(self.options[JOB_OPTION])


def read_counts(path: str) -> Counter[str]:
    """What a counting task wrote."""
    return Counter(pickle.loads(Path(path).read_bytes()))  # noqa: S301 - written by our own task
