"""Runs a task on one of Spark's executors. (Rows that are compared in a DataFrame are read there by
`differences.RowsReader`.)

A task reads, evaluates and writes by itself, and only returns what it did: passing source rows through the JVM would
cost several times the work itself. Errors are returned as values. If they were raised, Spark would repeat the task in
vain, fill the log with Java tracebacks, and pass on only text.

Every Python worker imports this module, so it must not need pyarrow: 40 MB each.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext
from pyspark.accumulators import _accumulatorRegistry

from headwater.codes import Kind
from headwater.errors import HeadwaterError, machine_error
from headwater.pipeline.engine import RAISED_AS_THEY_ARE, Job, Result, Task

_TRIES = 3


@dataclass(frozen=True, slots=True)
class FailedTask:
    """What comes back of a task that ended with an error."""

    error: HeadwaterError


Errors = list[HeadwaterError]


class _Errors(AccumulatorParam[Errors]):
    """Brings errors to the driver as soon as their tasks have ended."""

    def zero(self, value: Errors) -> Errors:
        return []

    def addInPlace(self, value1: Errors, value2: Errors) -> Errors:  # noqa: N802 - Spark's name
        return value1 + value2


@contextmanager
def accumulated_errors(context: SparkContext) -> Iterator[Accumulator[Errors]]:
    errors = context.accumulator([], _Errors())
    try:
        yield errors
    finally:
        _accumulatorRegistry.pop(errors.aid, None)  # Spark itself would never remove it


def run_tasks(
    context: SparkContext, job: Job, tasks: Sequence[Task[Job, Result]], failed: Accumulator[Errors]
) -> list[Result | FailedTask]:
    """Run tasks on Spark. Returns their outcomes in order. Errors are added to `failed` while other tasks still run."""
    numbered = list(enumerate(tasks))
    return context.parallelize(numbered, len(numbered)).map(partial(_run, job, failed)).collect()


def _run(job: Job, failed: Accumulator[Errors], numbered: tuple[int, Task[Job, Result]]) -> Result | FailedTask:
    number, task = numbered
    collect_rarely()
    context = TaskContext.get()
    outcome = outcome_of(job, task, number, "0" if context is None else str(context.taskAttemptId()))
    if isinstance(outcome, FailedTask):
        failed.add([outcome.error])
    _keep_modules()
    return outcome


@cache
def collect_rarely() -> None:
    """Once in a process. Rows come in large batches, which are short-lived and free of cycles: to look for garbage at
    every 700 objects would be most of the work of a comparison."""
    gc.set_threshold(100_000, 50, 100)


@cache
def _keep_modules() -> None:
    """Once in a process, when a task has imported all modules. After every task Spark looks through everything for
    garbage, which for what modules consist of takes longer than the task of a small table."""
    gc.freeze()


def outcome_of(job: Job, task: Task[Job, Result], number: int, attempt: str) -> Result | FailedTask:
    """Run a task, and repeat it after an error that may pass. `attempt` identifies this run."""
    tried = 1
    while True:
        outcome = _once(job, task, number, attempt)
        if not isinstance(outcome, FailedTask) or outcome.error.kind is not Kind.RETRY or tried == _TRIES:
            return outcome
        attempt, tried = f"{attempt}r", tried + 1


def _once(job: Job, task: Task[Job, Result], number: int, attempt: str) -> Result | FailedTask:
    try:
        return task.run(job, number, attempt)
    except HeadwaterError as error:
        return FailedTask(error)
    except Exception as error:  # noqa: BLE001 - raised where the results are awaited
        return FailedTask(machine_error(error) or _unforeseen(error))


def _unforeseen(error: Exception) -> HeadwaterError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    (text, *_) = traceback.format_exception_only(error)[-1].splitlines()
    return HeadwaterError(text, f"{frame.filename}:{frame.lineno}", code="HW_5105")


def finished(outcome: Result | FailedTask, what: str) -> Result:
    """What a task returned. Raises the error that it ended with, as `explained`."""
    if isinstance(outcome, FailedTask):
        raise explained(outcome.error, what)
    return outcome


def explained(error: HeadwaterError, what: str) -> HeadwaterError:
    """The error to raise for a task's error: unchanged if it is in RAISED_AS_THEY_ARE, else one with kind RETRY."""
    if isinstance(error, RAISED_AS_THEY_ARE):
        return error
    return HeadwaterError(f"a task failed: {error}", what, code="HW_5103")
