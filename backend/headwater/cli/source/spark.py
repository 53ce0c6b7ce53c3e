"""Results of queries that Spark runs, for commands that need them once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from headwater.cli.config import ServiceConfig
from headwater.source.rows.query import ComputedResult
from headwater_rules.plan import ComputedTable

if TYPE_CHECKING:
    from headwater.pipeline.spark.engine import SparkEngine


@contextmanager
def spark_results(config: ServiceConfig) -> Iterator[Callable[[ComputedTable], ComputedResult]]:
    """What gives the result of a computed table. Spark is started with the first, and stopped at the end."""
    with ExitStack() as held:

        @cache
        def engine() -> SparkEngine:
            from headwater.pipeline.spark.engine import SparkEngine
            from headwater.pipeline.spark.session import Spark

            spark = Spark(config.spark)
            held.callback(spark.stop)
            return SparkEngine(spark)

        yield lambda table: engine().result(table, threading.Event())
