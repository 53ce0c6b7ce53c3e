"""Finds the differences between the rows of a source and its store, in a DataFrame of both sides."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headwater.bulk.contract import CompareJob, Difference
from headwater.errors import HeadwaterError
from headwater.pipeline.compare import ComparedRow, RowsTask, SourceRows
from headwater.pipeline.engine import Found
from headwater.pipeline.spark.tasks import collect_rarely

FORMAT = "headwater-rows"
JOB_OPTION = "jobsecret"  # Spark keeps options with "secret" in their names out of its logs
_DIFFERENCES_A_BATCH = 100_000
_SOURCE, _STORE = 0, 1
_NO_TABLE = -1
"""The table of a row that holds a task's error."""
_SHARES = 256
"""Rows are divided by key, and an error is in each share: Spark recomputes what was on an executor that died, and then
any part may lack a task's rows."""


def hand_over_differences(
    session: SparkSession, job: CompareJob, tasks: Sequence[RowsTask], found: Found
) -> HeadwaterError | None:
    """Read the rows of both sides, and hand every difference to `found`, in batches. Returns the error of a task that
    failed; then nothing is handed over that lacks its rows."""
    return _hand_over(differing_rows(rows_of(session, job, tasks)), found, job.source.batch_bytes)


def rows_of(session: SparkSession, job: CompareJob, tasks: Sequence[RowsTask]) -> DataFrame:
    """The rows of both sides, and the errors of tasks."""
    session.dataSource.register(RowsSource)
    return session.read.format(FORMAT).option(JOB_OPTION, _encode((job, list(tasks)))).load()


def differing_rows(rows: DataFrame) -> DataFrame:
    """One row for each key or content that differs: not as often on both sides, or with several digests. The same as in
    `compare.BothSides`. Rows with errors are passed on."""
    of_source, of_store = f.col("side") == _SOURCE, f.col("side") == _STORE
    shares = f.when(_is_error(), f.sequence(f.lit(0), f.lit(_SHARES - 1))).otherwise(
        f.array(f.pmod(f.hash("key"), f.lit(_SHARES)))
    )
    return (
        rows.withColumn("share", f.explode(shares))
        .repartition("share")
        .groupBy("share", "table", "key")
        .agg(
            f.count(f.when(of_source, 1)).alias("copies"),
            f.count(f.when(of_store, 1)).alias("stored"),
            f.min("digest").alias("least"),
            f.max("digest").alias("greatest"),
            f.coalesce(f.max(f.when(of_source, f.col("line"))), f.max("line")).alias("line"),
        )
        .where((f.col("copies") != f.col("stored")) | (f.col("least") != f.col("greatest")) | _is_error())
        .select("table", "key", "line", "copies")
    )


def _is_error() -> Column:
    return f.col("table") == _NO_TABLE


def _hand_over(differences: DataFrame, found: Found, batch_bytes: int) -> HeadwaterError | None:
    """Hand the differences over in batches that fit into the driver's memory, of about `batch_bytes` at most."""
    kept = differences.persist(StorageLevel.DISK_ONLY)
    try:
        ((count, size, failed),) = kept.agg(
            f.count("key"),
            f.coalesce(f.sum(f.octet_length("line")), f.lit(0)),
            f.max(f.when(_is_error(), f.col("line"))),
        ).collect()
        batches = max(count // _DIFFERENCES_A_BATCH, size // batch_bytes) + 1
        for number in range(batches if failed is None else 0):
            batch = f.pmod(f.xxhash64("table", "key"), f.lit(batches)) == number
            table = kept.where(batch | _is_error()).toArrow()
            columns = [table.column(name).to_pylist() for name in ("table", "key", "line", "copies")]
            rows = [Difference(*row) for row in zip(*columns, strict=True)]
            failed = next((row.line for row in rows if row.table == _NO_TABLE), None)
            if failed is not None:
                break
            found(rows)
    finally:
        kept.unpersist()
    return None if failed is None else _decode(failed)


def _encode(value: object) -> str:
    """An object as text, for an option or a row of Spark."""
    return base64.b85encode(pickle.dumps(value)).decode()


def _decode(text: str) -> Any:
    """The inverse of `_encode`, for text that we made ourselves."""
    return pickle.loads(base64.b85decode(text))  # noqa: S301


class RowsReader(DataSourceReader):
    def __init__(self, encoded: str) -> None:
        self._job: CompareJob
        self._tasks: list[RowsTask]
        self._job, self._tasks = _decode(encoded)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = self._tasks[partition.value]
        table, side = task.part.table.id, _SOURCE if isinstance(task.part, SourceRows) else _STORE
        collect_rarely()
        try:
            for rows in task.rows(self._job):
                yield _batch(table, side, rows)
        except HeadwaterError as error:
            # If it were raised, Spark would repeat the task in vain, and pass on only text
            yield _batch(_NO_TABLE, side, [ComparedRow(0, f"task {partition.value}", 0, _encode(error))])


def _batch(table: int, side: int, rows: Sequence[ComparedRow]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([table] * len(rows), pa.int64()),
            pa.array([side] * len(rows), pa.int32()),
            pa.array([row.key for row in rows], pa.string()),
            pa.array([row.digest for row in rows], pa.int64()),
            pa.array([row.line for row in rows], pa.string()),
        ],
        names=["table", "side", "key", "digest", "line"],
    )


class RowsSource(DataSource):
    """Registered under FORMAT."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType(
            [
                StructField("table", LongType()),
                StructField("side", IntegerType()),
                StructField("key", StringType()),
                StructField("digest", LongType()),
                StructField("line", StringType()),
            ]
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(self.options[JOB_OPTION])
