"""Runs our tasks on Spark's executors.

A task reads, evaluates and writes by itself, and only returns what it did: passing source rows through the JVM would
cost several times the work itself. Errors are returned as values. If they were raised, Spark would repeat the task in
vain, fill the log with Java tracebacks, and pass on only text."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Generic

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext
from pyspark.accumulators import _accumulatorRegistry

from headwater.codes import Kind
from headwater.errors import HeadwaterError, machine_error
from headwater.pipeline.engine import RAISED_AS_THEY_ARE, Job, Result, Task
from headwater.pipeline.spark.session import SparkJobError

_TRIES = 3


class TaskError(HeadwaterError):
    """A task failed with an unexpected exception."""

    code = "HW_5105"


@dataclass(frozen=True, slots=True)
class Done(Generic[Result]):
    """What a task returned."""

    result: Result


@dataclass(frozen=True, slots=True)
class Failed:
    """The error that a task ended with."""

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
    """An accumulator for the errors of tasks."""
    errors = context.accumulator([], _Errors())
    try:
        yield errors
    finally:
        _accumulatorRegistry.pop(errors.aid, None)  # Spark itself would keep it for ever


def run_tasks(
    context: SparkContext, job: Job, tasks: Sequence[Task[Job, Result]], failed: Accumulator[Errors]
) -> list[Done[Result] | Failed]:
    """Run tasks on Spark. Returns their outcomes in order. Errors are added to `failed` while other tasks still run."""
    numbered = list(enumerate(tasks))
    return context.parallelize(numbered, len(numbered)).map(partial(_run, job, failed)).collect()


def _run(job: Job, failed: Accumulator[Errors], numbered: tuple[int, Task[Job, Result]]) -> Done[Result] | Failed:
    number, task = numbered
    context = TaskContext.get()
    outcome = outcome_of(job, task, number, "0" if context is None else str(context.taskAttemptId()))
    if isinstance(outcome, Failed):
        failed.add([outcome.error])
    _keep_modules()
    return outcome


@cache
def _keep_modules() -> None:
    """Once in a process, when a task has imported all modules. After every task Spark looks through everything for
    garbage, which for what modules consist of takes longer than the task of a small table."""
    gc.freeze()


def outcome_of(job: Job, task: Task[Job, Result], number: int, attempt: str) -> Done[Result] | Failed:
    """Run a task, and repeat it after an error that may pass. `attempt` identifies this run."""
    tried = 1
    while True:
        outcome = _once(job, task, number, attempt)
        if isinstance(outcome, Done) or outcome.error.kind is not Kind.RETRY or tried == _TRIES:
            return outcome
        attempt, tried = f"{attempt}r", tried + 1


def _once(job: Job, task: Task[Job, Result], number: int, attempt: str) -> Done[Result] | Failed:
    try:
        return Done(task.run(job, number, attempt))
    except HeadwaterError as error:
        return Failed(error)
    except Exception as error:  # noqa: BLE001 - raised where the results are awaited
        return Failed(machine_error(error) or _unforeseen(error))


def _unforeseen(error: Exception) -> TaskError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    (text, *_) = traceback.format_exception_only(error)[-1].splitlines()
    return TaskError(text, f"{frame.filename}:{frame.lineno}")


def explained(error: HeadwaterError, what: str) -> HeadwaterError:
    """The error to raise for a task's error: unchanged if it is in RAISED_AS_THEY_ARE, else one with kind RETRY."""
    return error if isinstance(error, RAISED_AS_THEY_ARE) else SparkJobError(f"a task failed: {error}", what)
