"""Tasks of ours on Spark: what is sent to an executor, and what comes back.

A task reads, transforms and writes by itself and returns a value that says what it did: source rows never pass through
the JVM, which would cost several times the work itself. An error is a value, too. Raised, Spark would try the task
again however hopeless that is, fill the log with traces of Java, and pass on nothing but text.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext
from pyspark.accumulators import _accumulatorRegistry

from headwater.errors import HeadwaterError, Kind, machine_error
from headwater.pipeline.engine import RAISED_AS_THEY_ARE, Job, Result, Task
from headwater.pipeline.spark.session import SparkJobError

_TRIES = 3


class TaskError(HeadwaterError):
    """A task failed in a way that nobody foresaw."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_5105"


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
    """Where tasks put what they failed of."""
    errors = context.accumulator([], _Errors())
    try:
        yield errors
    finally:
        _accumulatorRegistry.pop(errors.aid, None)  # Spark itself would keep it for ever


def run_tasks(
    context: SparkContext, job: Job, tasks: Sequence[Task[Job, Result]], failed: Accumulator[Errors]
) -> list[Done[Result] | Failed]:
    """Run tasks on Spark; what became of them, in their order. Errors are in `failed` while others still run."""
    numbered = list(enumerate(tasks))
    return context.parallelize(numbered, len(numbered)).map(partial(_run, job, failed)).collect()


def _run(job: Job, failed: Accumulator[Errors], numbered: tuple[int, Task[Job, Result]]) -> Done[Result] | Failed:
    number, task = numbered
    context = TaskContext.get()
    outcome = outcome_of(job, task, number, "0" if context is None else str(context.taskAttemptId()))
    if isinstance(outcome, Failed):
        failed.add([outcome.error])
    return outcome


def outcome_of(job: Job, task: Task[Job, Result], number: int, attempt: str) -> Done[Result] | Failed:
    """Run a task, and again where that may help. `attempt` tells it from its other runs."""
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
    except Exception as error:  # noqa: BLE001 - told where the results are awaited
        return Failed(machine_error(error) or _unforeseen(error))


def _unforeseen(error: Exception) -> TaskError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    (text, *_) = traceback.format_exception_only(error)[-1].splitlines()
    return TaskError(text, f"{frame.filename}:{frame.lineno}")


def explained(error: HeadwaterError, what: str) -> HeadwaterError:
    """A task's error as who asked for the job `what` gets it: one that may go better the next time."""
    return error if isinstance(error, RAISED_AS_THEY_ARE) else SparkJobError(f"a task failed: {error}", what)
