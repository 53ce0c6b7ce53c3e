"""Runs the tasks of a job on Spark."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from headwater.bulk.contract import CompareJob, Difference, GivenUpError
from headwater.errors import HeadwaterError
from headwater.pipeline.compare import RowsTask
from headwater.pipeline.engine import Found, Job, Result, Task
from headwater.pipeline.spark.differences import hand_over_differences
from headwater.pipeline.spark.job_group import job_group, lost
from headwater.pipeline.spark.query import SparkResult
from headwater.pipeline.spark.session import Spark, reason
from headwater.pipeline.spark.tasks import accumulated_errors, explained, finished, run_tasks
from headwater_rules.plan import ComputedTable

_MOST_IDLE_WORKERS = 32


class SparkEngine:
    """Spark, started when first needed. Engines share it; with `pool`, each gets a fair share for its jobs."""

    def __init__(self, spark: Spark, pool: str | None = None) -> None:
        self._spark = spark
        self._pool = pool
        self._running: set[SparkRun[Any]] = set()

    def warm_up(self) -> None:
        self._spark.warm_up()

    def preparing(self) -> str:
        return "starting Spark" if self._spark.starting else ""

    def result(self, table: ComputedTable, stop: threading.Event) -> SparkResult:
        return SparkResult(self._spark, self._pool, table, stop)

    @contextmanager
    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> Iterator[SparkRun[Job]]:
        with self._spark.used() as context, self._spark_errors(context, what):
            run = SparkRun(self._spark, context, job, what, stop or threading.Event(), self._pool)
            self._running.add(run)
            try:
                yield run
            finally:
                self._running.discard(run)

    def cancel(self) -> None:
        """Cancel the work of this engine alone, from another thread."""
        for run in list(self._running):
            run.cancel()

    @contextmanager
    def _spark_errors(self, context: SparkContext, what: str) -> Iterator[None]:
        """Turn what Spark raises into errors of ours."""
        try:
            yield
        except HeadwaterError:
            raise
        except Exception as error:  # when the JVM is gone, PySpark raises any exception
            if (gone := lost(self._spark, context, error, what)) is not None:
                raise gone from error
            if isinstance(error, Py4JJavaError):
                raise _failed(str(error.java_exception.getMessage()), what) from error
            if isinstance(error, (PySparkException, Py4JError, OSError)):
                raise _failed(str(error), what) from error
            raise


class SparkRun(Generic[Job]):
    """See `TaskRun`. All its Spark jobs are in one job group, by which they can be cancelled."""

    def __init__(
        self, spark: Spark, context: SparkContext, job: Job, what: str, stop: threading.Event, pool: str | None
    ) -> None:
        self._spark = spark
        self._pool = pool
        self._context = context
        self._job = job
        self._what = what
        self._stop = stop
        self._group = f"headwater {what} {uuid.uuid4()}"

    @property
    def application(self) -> str:
        return self._context.applicationId or ""

    @property
    def parallelism(self) -> int:
        return self._context.defaultParallelism

    def remote_tasks_done(self) -> int:
        if self._spark.local:
            return 0
        with suppress(Py4JError, OSError):  # the JVM may be gone
            tracker = self._context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            return sum(stage.numCompletedTasks for stage in stages if stage is not None)
        return 0

    def tasks(self, tasks: Sequence[Task[Job, Result]]) -> list[Result]:
        if not tasks:
            return []
        with accumulated_errors(self._context) as failed:
            try:
                with self._watched(lambda: bool(failed.value)):
                    outcomes = run_tasks(self._context, self._job, tasks, failed)
            except (PySparkException, Py4JError):
                if failed.value:
                    raise explained(failed.value[0], self._what) from None
                raise
        return [finished(outcome, self._what) for outcome in outcomes]

    def differences(self: SparkRun[CompareJob], tasks: Sequence[RowsTask], found: Found) -> None:
        with self._watched(lambda: False):
            failed = self._differences(tasks, found)
        if failed is not None:
            raise explained(failed, self._what)

    def _differences(self: SparkRun[CompareJob], tasks: Sequence[RowsTask], found: Found) -> HeadwaterError | None:
        session = self._spark.session()
        handed = False

        def hand(differences: Sequence[Difference]) -> None:
            nonlocal handed
            handed = True
            found(differences)

        for _ in range(_MOST_IDLE_WORKERS):
            try:
                return hand_over_differences(session, self._job, tasks, hand)
            except Py4JJavaError as error:
                if handed or not _is_lost_worker(error):
                    raise
        return hand_over_differences(session, self._job, tasks, hand)

    @contextmanager
    def _watched(self, failed: Callable[[], bool]) -> Iterator[None]:
        """Cancel Spark's work for this thread when the job is cancelled, or has failed already."""
        if self._stop.is_set():
            raise GivenUpError("the job was given up", self._what)
        with job_group(self._context, self._pool, self._group, self._what, lambda: self._stop.is_set() or failed()):
            try:
                yield
            except (PySparkException, Py4JError):
                if self._stop.is_set():
                    raise GivenUpError("the job was given up", self._what) from None
                raise

    def cancel(self) -> None:
        """Have the work end soon. It fails with GivenUpError."""
        self._stop.set()


def _is_lost_worker(error: Py4JJavaError) -> bool:
    """Whether Spark tried to plan with an idle Python worker that had been killed. Each such worker fails once, and
    Spark does not repeat planning as it does tasks."""
    return bool(error.java_exception.getClass().getName() == "java.io.IOException")


def _failed(text: str, what: str) -> HeadwaterError:
    return HeadwaterError(f"the Spark job failed: {reason(text)}", what, "it is tried again", code="HW_5103")
