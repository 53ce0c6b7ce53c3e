"""`python -m tests.spark.cluster_driver MASTER PYTHON [wait]`: run tasks on a cluster whose executors have this
Python, and again after the cluster has ended the application; or with `wait`, after a line has come, until they are
done. Prints `done` each time, and errors of ours. A process has one Spark, so this is one of its own."""

from __future__ import annotations

import sys

from pyspark import cloudpickle

from headwater.errors import HeadwaterError
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark


class Nothing:
    """A task that any executor can do; executors do not have the tests, so it is sent whole."""

    def run(self, job: None, number: int, attempt: str) -> bool:
        return True


def main() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # as it is
    master, python, *wait = sys.argv[1:]
    conf = {"spark.pyspark.python": python, "spark.executor.memory": "600m"}
    spark = Spark(SparkSettings(master, conf), alone_seconds=60 if wait else 600)
    try:
        if not work(spark):
            return
        if wait:
            sys.stdin.readline()
        else:
            jsc = spark.context()._jsc
            assert jsc is not None
            jsc.sc().stop()
        while not work(spark) and wait:
            continue
    finally:
        spark.stop()


def work(spark: Spark) -> bool:
    """Whether the tasks are done."""
    try:
        with SparkEngine(spark).run(None, "test") as run:
            assert run.tasks([Nothing()] * 2) == [True, True]
    except HeadwaterError as error:
        print(error, flush=True)
        return False
    print("done", flush=True)
    return True


if __name__ == "__main__":
    main()
