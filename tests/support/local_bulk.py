"""Bulk work without Spark: the jobs and tasks of the pipeline, run one after the other in the caller's thread.

For tests of what bulk work is a part of. That Spark does the same is what `tests/spark/test_parity.py` holds.
HEADWATER_TEST_BULK=spark has all tests on Spark all the same.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic

import pytest

from headwater.bulk.contract import (
    CompareJob,
    CompareOutcome,
    EngineError,
    GivenUpError,
    Report,
    ReprocessJob,
    SnapshotJob,
    Stop,
)
from headwater.errors import HeadwaterError
from headwater.pipeline.compare import BothSides, RowsTask, SourceRows
from headwater.pipeline.engine import Found, Job, Result, Task
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.spark.tasks import explained, finished, outcome_of
from headwater.source.rows.query import ComputedResult
from headwater.storage.contract.parts import BulkOutcome
from headwater_rules.plan import ComputedTable

APPLICATION: Final = "local"
EVERYTHING_ON_SPARK: Final = os.environ.get("HEADWATER_TEST_BULK") == "spark"
patches_tasks: Final = pytest.mark.skipif(EVERYTHING_ON_SPARK, reason="tasks are patched, in this process only")

_attempts = itertools.count()


class LocalEngine:
    """See `headwater.pipeline.engine.TaskEngine`. Each round of tasks takes `seconds` longer than it has to, so that
    there is time for something to happen meanwhile, as there is on Spark."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def warm_up(self) -> None:
        """There is nothing to start."""

    def preparing(self) -> str:
        return ""

    def result(self, table: ComputedTable, stop: threading.Event) -> ComputedResult:
        raise EngineError("there is no Spark in this process", code="HW_5102")

    @contextmanager
    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> Iterator[LocalRun[Job]]:
        try:
            yield LocalRun(job, what, stop or threading.Event(), self._seconds)
        except OSError as error:
            raise HeadwaterError(
                f"the job failed: {type(error).__name__}", what, "it is tried again", code="HW_5103"
            ) from error


class LocalRun(Generic[Job]):
    """See `headwater.pipeline.engine.TaskRun`."""

    application = APPLICATION
    parallelism = 2

    def __init__(self, job: Job, what: str, stop: threading.Event, seconds: float = 0.0) -> None:
        self._job = job
        self._what = what
        self._stop = stop
        self._seconds = seconds

    def remote_tasks_done(self) -> int:
        return 0

    def tasks(self, tasks: Sequence[Task[Job, Result]]) -> list[Result]:
        results = [self._run(number, task) for number, task in enumerate(tasks)]
        self._stop.wait(self._seconds)
        self._check()
        return results

    def _run(self, number: int, task: Task[Job, Result]) -> Result:
        self._check()
        job, task = _sent((self._job, task))
        return finished(_sent(outcome_of(job, task, number, f"local{next(_attempts)}")), self._what)

    def differences(self: LocalRun[CompareJob], tasks: Sequence[RowsTask], found: Found) -> None:
        tables: defaultdict[int, BothSides] = defaultdict(BothSides)
        try:
            for sent in tasks:
                self._check()
                job, task = _sent((self._job, sent))
                both = tables[task.part.table.id]
                take = both.of_source if isinstance(task.part, SourceRows) else both.of_store
                for rows in task.rows(job):
                    take(rows)
        except HeadwaterError as error:
            raise explained(error, self._what) from error
        found([difference for table, both in tables.items() for difference in both.differences(table)])

    def _check(self) -> None:
        if self._stop.is_set():
            raise GivenUpError("the job was given up", self._what)


def _sent(value: Result) -> Result:
    """What arrives when something is sent between processes, as on Spark."""
    arrived: Result = pickle.loads(pickle.dumps(value))
    return arrived


def local_bulk(seconds: float = 0.0) -> BulkJobs:
    """Bulk work in this process; see `LocalEngine`."""
    return BulkJobs(LocalEngine(seconds))


class Waiting(BulkJobs):
    """Bulk work of which the jobs that are `held` begin when they are let go: `compare`, `snapshot` or `reprocess`."""

    def __init__(self, *held: str) -> None:
        super().__init__(LocalEngine())
        self._held = held or ("compare",)
        self.begun, self.go = threading.Event(), threading.Event()

    def _wait(self, job: str, stop: Stop = None) -> None:
        if job in self._held:
            self.begun.set()
            while not self.go.wait(0.01) and not (stop is not None and stop.is_set()):
                pass

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        self._wait("snapshot")
        return super().snapshot(job, progress)

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        self._wait("reprocess", stop)
        return super().reprocess(job, progress, stop)

    def compare(self, job: CompareJob, progress: Report, found: Found, stop: Stop = None) -> CompareOutcome:
        self._wait("compare", stop)
        return super().compare(job, progress, found, stop)
