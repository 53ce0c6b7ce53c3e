"""The interface of an engine, which runs the tasks of bulk jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from headwater.bulk.contract import CompareJob, Difference
from headwater.errors import MachineError
from headwater.pipeline.compare import RowsTask
from headwater.source.rows.copy import TableChangedError
from headwater.source.rows.query import ComputedResult
from headwater.storage.contract.store import StoreBusyError, StoreError, StoreUnreachableError
from headwater_rules.plan import ComputedTable

Job = TypeVar("Job")
JobT_co = TypeVar("JobT_co", covariant=True)
JobT_contra = TypeVar("JobT_contra", contravariant=True)
Result = TypeVar("Result")
ResultT_co = TypeVar("ResultT_co", covariant=True)

Found = Callable[[Sequence[Difference]], None]

RAISED_AS_THEY_ARE = (TableChangedError, StoreError, StoreBusyError, StoreUnreachableError, MachineError)
"""Errors in tasks that are raised unchanged, since the caller decides by their type what to do."""


class Task(Protocol[JobT_contra, ResultT_co]):
    """A part of a job. The task is sent to an executor as a pickle, and so is the result back: both must be small."""

    def run(self, job: JobT_contra, number: int, attempt: str) -> ResultT_co: ...


class TaskRun(Protocol[JobT_co]):
    """A job that is running. The first error of a task ends the other tasks, and is raised: unchanged if it is in
    RAISED_AS_THEY_ARE, else as an error with kind RETRY. Raises EngineLostError when the engine itself ended."""

    @property
    def application(self) -> str:
        """The engine's own id of this application."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at a time."""

    def remote_tasks_done(self) -> int:
        """How many tasks of the job have finished on other machines. 0 if all run on this one."""

    def tasks(self, tasks: Sequence[Task[JobT_co, Result]]) -> list[Result]:
        """Run tasks, and repeat those with an error that may pass. Returns the results in the order of the tasks."""

    def differences(self: TaskRun[CompareJob], tasks: Sequence[RowsTask], found: Found) -> None:
        """Read rows of both sides, and hand the differences to `found`, in batches."""


class TaskEngine(Protocol):
    def warm_up(self) -> None:
        """Begin to start, without waiting for it. Raises an error of ours when something is not installed."""

    def preparing(self) -> str:
        """What the engine does before it can run tasks, for a person; empty when nothing."""

    def result(self, table: ComputedTable, stop: threading.Event) -> ComputedResult:
        """The result of a computed table whose query is for the engine. Once `stop` is set, it is given up soon. Its
        methods raise EngineError, too, and errors of ours when something is not installed."""

    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> AbstractContextManager[TaskRun[Job]]:
        """Prepare to run the job's tasks; `what` names the job for a person. Once `stop` is set, running tasks are
        ended soon and GivenUpError is raised."""
