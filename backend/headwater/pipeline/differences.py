"""Where the rows of a source and its store meet: a DataFrame of both sides, and from it those that are not alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headwater.bulk.jobs import CompareJob, Difference
from headwater.pipeline.compare import RowsTask, SourceRows
from headwater.pipeline.engine import Found
from headwater.pipeline.tasks import JOB_OPTION, decode, encode

FORMAT = "headwater-rows"
_DIFFERENCES_A_BATCH = 100_000


def hand_over_differences(session: SparkSession, job: CompareJob, tasks: Sequence[RowsTask], found: Found) -> None:
    """Read the rows of both sides, and hand every difference to `found`, in batches."""
    _hand_over(_differences(_load(session, job, tasks)), found, job.source.piece_bytes)


def _load(session: SparkSession, job: CompareJob, tasks: Sequence[RowsTask]) -> DataFrame:
    session.dataSource.register(RowsSource)
    return session.read.format(FORMAT).option(JOB_OPTION, encode((job, list(tasks)))).load()


def _differences(rows: DataFrame) -> DataFrame:
    """One row for each key, or content, that the two sides do not have alike."""
    of_source, of_store = f.col("side") == 0, f.col("side") == 1
    return (
        rows.groupBy("table", "key")
        .agg(
            f.count(f.when(of_source, 1)).alias("copies"),
            f.count(f.when(of_store, 1)).alias("stored"),
            f.max(f.when(of_source, f.col("digest"))).alias("digest"),
            f.max(f.when(of_store, f.col("digest"))).alias("stored_digest"),
            f.coalesce(f.max(f.when(of_source, f.col("line"))), f.max("line")).alias("line"),
        )
        .where((f.col("copies") != f.col("stored")) | (f.col("digest") != f.col("stored_digest")))
        .select("table", "key", "line", "copies")
    )


def _hand_over(differences: DataFrame, found: Found, piece: int) -> None:
    """Pass the differences on in batches that the driver's memory can hold, of about `piece` bytes at most."""
    kept = differences.persist(StorageLevel.DISK_ONLY)
    try:
        count, size = kept.agg(f.count("*"), f.coalesce(f.sum(f.octet_length("line")), f.lit(0))).collect()[0]
        batches = max(count // _DIFFERENCES_A_BATCH, size // piece) + 1
        for number in range(batches):
            share = f.pmod(f.xxhash64("table", "key"), f.lit(batches)) == number
            table = kept.where(share).toArrow()
            columns = [table.column(name).to_pylist() for name in ("table", "key", "line", "copies")]
            found([Difference(*row) for row in zip(*columns, strict=True)])
    finally:
        kept.unpersist()


class RowsReader(DataSourceReader):
    """Reads the rows of `RowsTask`s."""

    def __init__(self, encoded: str) -> None:
        self._job: CompareJob
        self._tasks: list[RowsTask]
        self._job, self._tasks = decode(encoded)

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(len(self._tasks))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = self._tasks[partition.value]
        side = 0 if isinstance(task.part, SourceRows) else 1
        for rows in task.rows(self._job):
            yield pa.record_batch(
                [
                    pa.array([task.part.table.id] * len(rows), pa.int64()),
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
