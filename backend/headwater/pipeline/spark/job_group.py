"""What a thread has Spark do, under a name by which it can be cancelled; and whether Spark is still there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from headwater.bulk.contract import EngineLostError
from headwater.pipeline.spark.session import Spark

_LOOK_SECONDS = 0.1


@contextmanager
def job_group(
    context: SparkContext, pool: str | None, group: str, what: str, unwanted: Callable[[], bool]
) -> Iterator[None]:
    """Put what this thread has Spark do into a job group and, if it is given, a scheduler pool. `what` names it for
    people. All jobs of the group are cancelled once `unwanted` holds."""

    def watch() -> None:
        while not done.wait(_LOOK_SECONDS):
            if unwanted():
                with suppress(Py4JError, OSError):  # the JVM may be gone
                    context.cancelJobGroup(group)

    done = threading.Event()
    watcher = threading.Thread(target=watch, name="watcher", daemon=True)
    if pool is not None:
        context.setLocalProperty("spark.scheduler.pool", pool)
    context.setJobGroup(group, f"headwater: {what}", interruptOnCancel=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def lost(spark: Spark, context: SparkContext, error: Exception, what: str) -> EngineLostError | None:
    """The error for work that failed with `error` because the JVM has ended; None if it has not."""
    silent = isinstance(error, (Py4JError, OSError)) and not isinstance(error, Py4JJavaError)
    if spark.lost(context, wait=silent):
        return EngineLostError("Spark's JVM has ended, or its cluster has ended it", what, "it is started again")
    return None
