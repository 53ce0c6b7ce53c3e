"""Finds the differences between the rows of a source and its store, in a DataFrame of both sides."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headwater.bulk.contract import CompareJob, Difference
from headwater.errors import HeadwaterError
from headwater.pipeline.compare import ComparedRow, RowsTask, SourceRows
from headwater.pipeline.engine import Found

FORMAT = "headwater-rows"
JOB_OPTION = "jobsecret"  # Spark keeps options with "secret" in their names out of its logs
_DIFFERENCES_A_BATCH = 100_000
_SOURCE, _STORE = 0, 1
_NO_TABLE = -1
"""The table of a row that holds a task's error."""


def hand_over_differences(
    session: SparkSession, job: CompareJob, tasks: Sequence[RowsTask], found: Found
) -> HeadwaterError | None:
    """Read the rows of both sides, and hand every difference to `found`, in batches. Returns the error of a task that
    failed; then nothing was handed over."""
    return _hand_over(_differences(_load(session, job, tasks)), found, job.source.piece_bytes)


def _load(session: SparkSession, job: CompareJob, tasks: Sequence[RowsTask]) -> DataFrame:
    session.dataSource.register(RowsSource)
    return session.read.format(FORMAT).option(JOB_OPTION, _encode((job, list(tasks)))).load()


def _differences(rows: DataFrame) -> DataFrame:
    """One row for each key or content that differs: not as often on both sides, or with several digests. The same as in
    `small_table.BothSides`. Rows with errors are passed on."""
    of_source, of_store = f.col("side") == _SOURCE, f.col("side") == _STORE
    return (
        rows.groupBy("table", "key")
        .agg(
            f.count(f.when(of_source, 1)).alias("copies"),
            f.count(f.when(of_store, 1)).alias("stored"),
            f.min("digest").alias("least"),
            f.max("digest").alias("greatest"),
            f.coalesce(f.max(f.when(of_source, f.col("line"))), f.max("line")).alias("line"),
        )
        .where(
            (f.col("copies") != f.col("stored")) | (f.col("least") != f.col("greatest")) | (f.col("table") == _NO_TABLE)
        )
        .select("table", "key", "line", "copies")
    )


def _hand_over(differences: DataFrame, found: Found, piece: int) -> HeadwaterError | None:
    """Hand the differences over in batches that fit into the driver's memory, of about `piece` bytes at most."""
    kept = differences.persist(StorageLevel.DISK_ONLY)
    try:
        ((count, size, failed),) = kept.agg(
            f.count("key"),
            f.coalesce(f.sum(f.octet_length("line")), f.lit(0)),
            f.max(f.when(f.col("table") == _NO_TABLE, f.col("line"))),
        ).collect()
        if failed is not None:
            error: HeadwaterError = _decode(failed)
            return error
        batches = max(count // _DIFFERENCES_A_BATCH, size // piece) + 1
        for number in range(batches):
            share = f.pmod(f.xxhash64("table", "key"), f.lit(batches)) == number
            table = kept.where(share).toArrow()
            columns = [table.column(name).to_pylist() for name in ("table", "key", "line", "copies")]
            found([Difference(*row) for row in zip(*columns, strict=True)])
    finally:
        kept.unpersist()
    return None


def _encode(value: object) -> str:
    """An object as text, for an option or a row of Spark."""
    return base64.b85encode(pickle.dumps(value)).decode()


def _decode(text: str) -> Any:
    """The inverse of `_encode`, for text that we made ourselves."""
    return pickle.loads(base64.b85decode(text))  # noqa: S301


class RowsReader(DataSourceReader):
    """Reads the rows of `RowsTask`s."""

    def __init__(self, encoded: str) -> None:
        self._job: CompareJob
        self._tasks: list[RowsTask]
        self._job, self._tasks = _decode(encoded)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = self._tasks[partition.value]
        table, side = task.part.table.id, _SOURCE if isinstance(task.part, SourceRows) else _STORE
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
