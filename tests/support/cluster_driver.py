"""`python -m tests.support.cluster_driver MASTER PYTHON`: run tasks on a cluster whose executors have this Python, and
again after the cluster has ended the application. Prints the error of ours if there is one, else `done twice`. A
process has one Spark, so this is one of its own."""

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
    master, python = sys.argv[1:]
    spark = Spark(SparkSettings(master, {"spark.pyspark.python": python, "spark.executor.memory": "600m"}))
    try:
        for _ in range(2):
            with SparkEngine(spark).run(None, "test") as run:
                assert run.tasks([Nothing()] * 2) == [True, True]
            jsc = spark.context()._jsc
            assert jsc is not None
            jsc.sc().stop()
        print("done twice")
    except HeadwaterError as error:
        print(error)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
