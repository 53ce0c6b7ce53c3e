"""Bulk work without Spark: the jobs and tasks of the pipeline, run one after the other in the caller's thread.

For tests of what bulk work is a part of. That Spark does the same is what `tests/spark/test_parity.py` holds.
HEADWATER_TEST_BULK=spark has all tests on Spark all the same.
"""

from __future__ import annotations

import itertools
import os
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic

from headwater.bulk.jobs import CompareJob
from headwater.errors import HeadwaterError
from headwater.pipeline.compare import ComparedRow, RowsTask, SourceRows, unlike
from headwater.pipeline.engine import RAISED_AS_THEY_ARE, Found, Job, Result, Task
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.session import SparkJobError

APPLICATION: Final = "local"
EVERYTHING_ON_SPARK: Final = os.environ.get("HEADWATER_TEST_BULK") == "spark"

_attempts = itertools.count()

Rows = list[ComparedRow]


class LocalEngine:
    """See `headwater.pipeline.engine.Engine`. Each round of tasks takes `seconds` longer than it has to, so that there
    is time for something to happen meanwhile, as there is on Spark."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def warm_up(self) -> None:
        """There is nothing to start."""

    @contextmanager
    def run(self, job: Job, what: str) -> Iterator[LocalRun[Job]]:
        try:
            yield LocalRun(job, self._seconds)
        except RAISED_AS_THEY_ARE:
            raise
        except HeadwaterError as error:
            raise SparkJobError(f"a task failed: {error}", what) from error
        except OSError as error:
            raise SparkJobError(f"the job failed: {type(error).__name__}", what, "it is tried again") from error


class LocalRun(Generic[Job]):
    """See `headwater.pipeline.engine.Run`."""

    application = APPLICATION
    parallelism = 2

    def __init__(self, job: Job, seconds: float) -> None:
        self._job = job
        self._seconds = seconds

    def tasks(self, tasks: Sequence[Task[Job, Result]]) -> list[Result]:
        results = [self._run(number, task) for number, task in enumerate(tasks)]
        time.sleep(self._seconds)
        return results

    def _run(self, number: int, task: Task[Job, Result]) -> Result:
        job, task = _sent((self._job, task))
        return _sent(task.run(job, number, f"local{next(_attempts)}"))

    def differences(self: LocalRun[CompareJob], tasks: Sequence[RowsTask], found: Found) -> None:
        sides: dict[int, tuple[list[Rows], list[Rows]]] = {}
        for sent in tasks:
            job, task = _sent((self._job, sent))
            sides.setdefault(task.part.table.id, ([], []))[not isinstance(task.part, SourceRows)].extend(task.rows(job))
        found([difference for table, (source, store) in sides.items() for difference in unlike(table, source, store)])


def _sent(value: Result) -> Result:
    """What arrives when something is sent between processes, as on Spark."""
    arrived: Result = pickle.loads(pickle.dumps(value))
    return arrived


def local_bulk(seconds: float = 0.0) -> BulkJobs:
    """Bulk work in this process; see `LocalEngine`."""
    return BulkJobs(LocalEngine(seconds))
