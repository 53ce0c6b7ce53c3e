"""Spark as the engine that runs the tasks of bulk jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.bulk.jobs import CompareJob, TableChangedError
from headwater.errors import HeadwaterError
from headwater.pipeline.compare import RowsTask
from headwater.pipeline.differences import hand_over_differences
from headwater.pipeline.engine import RAISED_AS_THEY_ARE, Found, Job, Result, Task
from headwater.pipeline.session import Spark, SparkJobError
from headwater.pipeline.tasks import run_tasks


class SparkEngine:
    """Spark, started when first needed."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def warm_up(self) -> None:
        self._spark.warm_up()

    @contextmanager
    def run(self, job: Job, what: str) -> Iterator[SparkRun[Job]]:
        session = self._spark.session()
        with _spark_errors(what):
            yield SparkRun(session, job, what)


class SparkRun(Generic[Job]):
    """See `Run`."""

    def __init__(self, session: SparkSession, job: Job, what: str) -> None:
        self._session = session
        self._job = job
        self._what = what

    @property
    def application(self) -> str:
        return self._session.sparkContext.applicationId or ""

    @property
    def parallelism(self) -> int:
        return self._session.sparkContext.defaultParallelism

    def tasks(self, tasks: Sequence[Task[Job, Result]]) -> list[Result]:
        return run_tasks(self._session, self._job, tasks, self._what)

    def differences(self: SparkRun[CompareJob], tasks: Sequence[RowsTask], found: Found) -> None:
        hand_over_differences(self._session, self._job, tasks, found)


@contextmanager
def _spark_errors(what: str) -> Iterator[None]:
    """What Spark raises, as errors of ours."""
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
    for error_type in RAISED_AS_THEY_ARE:
        if found[1] == error_type.__name__:
            return error_type(found[2].removeprefix(f"[{error_type.code}] "))
    return SparkJobError(f"a Spark task failed: {found[2]}", what)
