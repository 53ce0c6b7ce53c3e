"""A stream over a store's op log, as a process that can die: `python -m tests.spark.oplog_tap STORE FOLDER OPS`.

Writes Parquet to FOLDER/out, at most OPS ops a batch, and never ends by itself.
"""

from __future__ import annotations

import sys

from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.session import Spark
from headwater.spark import OplogSource


def run(store: str, folder: str, ops: str) -> None:
    session = Spark(SparkSettings(conf={"spark.driver.memory": "500m"})).session()
    session.dataSource.register(OplogSource)
    rows = session.readStream.format("headwater").options(path=store, maxOpsPerBatch=ops).load()
    query = (
        rows.writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime="0.5 seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    run(*sys.argv[1:])
