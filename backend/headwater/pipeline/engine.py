"""What runs the tasks of bulk jobs, as those who plan the jobs see it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from headwater.bulk.contract import CompareJob, Difference, EngineLostError, TableChangedError
from headwater.errors import MachineError
from headwater.pipeline.compare import RowsTask
from headwater.storage.contract.store import StoreBusyError, StoreError, StoreUnreachableError

Job = TypeVar("Job")
JobT_co = TypeVar("JobT_co", covariant=True)
JobT_contra = TypeVar("JobT_contra", contravariant=True)
Result = TypeVar("Result")
ResultT_co = TypeVar("ResultT_co", covariant=True)

Found = Callable[[Sequence[Difference]], None]

_TRIES = 3

_log = logging.getLogger(__name__)

RAISED_AS_THEY_ARE = (TableChangedError, StoreError, StoreBusyError, StoreUnreachableError, MachineError)
"""Errors in tasks that are not the job's: whoever gave it knows better what to do."""


class Task(Protocol[JobT_contra, ResultT_co]):
    """A part of a job. Goes to an executor, and what `run` returns comes back, both as pickles: small, please."""

    def run(self, job: JobT_contra, number: int, attempt: str) -> ResultT_co: ...


class Run(Protocol[JobT_co]):
    """A job at work. What a task fails of is raised as an error of ours: those of RAISED_AS_THEY_ARE, all else as one
    that may go better the next time. The first ends the other tasks. EngineLostError when the engine itself ended."""

    @property
    def application(self) -> str:
        """What the engine calls itself in its own records."""

    @property
    def parallelism(self) -> int:
        """How many tasks it works on at a time."""

    def tasks(self, tasks: Sequence[Task[JobT_co, Result]]) -> list[Result]:
        """Run tasks, each once or, after a failure that may pass, again; their results in the order of the tasks."""

    def differences(self: Run[CompareJob], tasks: Sequence[RowsTask], found: Found) -> None:
        """Read rows of both sides, and hand those that are not alike to `found`, in batches."""


class Engine(Protocol):
    """Whatever runs tasks."""

    def warm_up(self) -> None:
        """Begin to start, without waiting for it. Raises an error of ours where something is not installed."""

    def preparing(self) -> str:
        """What it does before it can work, for a person; empty when nothing."""

    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> AbstractContextManager[Run[Job]]:
        """Ready for the job's tasks; `what` names it for a person. Once `stop` is set, tasks that run are ended soon
        and GivenUpError is raised."""


def persistently(work: Callable[[], Result]) -> Result:
    """Do work on an engine, from its beginning each time the engine ends in the midst of it. Not for ever: nobody
    else begins it again, but a person waits for it."""
    for _ in range(_TRIES - 1):
        try:
            return work()
        except EngineLostError as error:
            _log.warning("%s", error)
    return work()
