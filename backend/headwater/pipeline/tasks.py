"""The Python Data Source through which Spark runs tasks of ours.

A task reads, transforms and writes inside `read` and yields one row that says what it did: source rows never pass
through the JVM, which would cost several times the work itself.
https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from typing import Any, Generic

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from headwater.pipeline.engine import Job, Result, Task
from headwater.pipeline.session import SparkJobError

FORMAT = "headwater-tasks"
JOB_OPTION = "jobsecret"  # Spark keeps options with "secret" in their names out of its logs


def run_tasks(session: SparkSession, job: Job, tasks: Sequence[Task[Job, Result]], what: str) -> list[Result]:
    """Run tasks on Spark; their results in the order of the tasks."""
    if not tasks:
        return []
    session.dataSource.register(TaskSource)
    rows = session.read.format(FORMAT).option(JOB_OPTION, encode((job, list(tasks)))).load().collect()
    if len(rows) != len(tasks):
        raise SparkJobError(f"{len(rows)} of {len(tasks)} Spark tasks reported", what, "the job is tried again")
    return [pickle.loads(row["result"]) for row in sorted(rows, key=lambda row: int(row["number"]))]  # noqa: S301 - our own task's


def encode(value: object) -> str:
    """An object as the text of a Spark option."""
    return base64.b85encode(pickle.dumps(value)).decode()


def decode(text: str) -> Any:
    """The inverse of `encode`: our own driver made the text."""
    return pickle.loads(base64.b85decode(text))  # noqa: S301


def attempt_id() -> str:
    """What tells the tries of the running task apart."""
    context = TaskContext.get()
    return "0" if context is None else str(context.taskAttemptId())


class TaskReader(DataSourceReader, Generic[Job, Result]):
    """Runs tasks of one job."""

    def __init__(self, encoded: str) -> None:
        self._job: Job
        self._tasks: list[Task[Job, Result]]
        self._job, self._tasks = decode(encoded)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        number = partition.value
        yield (number, pickle.dumps(self._tasks[number].run(self._job, number, attempt_id())))


class TaskSource(DataSource):
    """Registered under FORMAT."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType([StructField("number", LongType()), StructField("result", BinaryType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return TaskReader(self.options[JOB_OPTION])
