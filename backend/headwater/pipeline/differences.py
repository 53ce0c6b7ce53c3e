"""The comparison of a source and its store on Spark: digests of both sides first, then the rows behind those that
differ.

Most of the time nothing differs, and then a vector of digests per task is all that travels. Rows are fetched only
from partitions of the hash space that differ, and meet in a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from headwater.bulk.jobs import CompareJob, CompareOutcome, Difference
from headwater.pipeline.compare import DigestTask, Rows, RowsTask, SourceRows, StoreRows, TableDigests
from headwater.pipeline.partition import Partition
from headwater.pipeline.tasks import JOB_OPTION, decode, encode, run_tasks

FORMAT = "headwater-rows"
_FEWEST_PARTITIONS, _MOST_PARTITIONS = 1 << 10, 1 << 16
_ROWS_A_PARTITION = 8
_DIFFERENCES_A_BATCH = 100_000

Found = Callable[[Sequence[Difference]], None]


def find_differences(
    session: SparkSession, job: CompareJob, source_parts: Sequence[Partition], found: Found
) -> CompareOutcome:
    """Hand every difference to `found`, in batches."""
    tables = {table.stored.id: table for table in job.tables}
    parts: list[Rows] = [SourceRows(tables[part.table.table_id].stored, part) for part in source_parts]
    parts += [StoreRows(table.stored, *places) for table in job.tables for places in table.ranges]
    sizes = {table.stored.id: _partitions(table.rows) for table in job.tables}
    digests = run_tasks(session, job, [DigestTask(part, sizes[part.table.id]) for part in parts], "comparison")
    differing = _differing(digests, sizes)
    tasks = [
        RowsTask(part, sizes[part.table.id], differing[part.table.id]) for part in parts if differing[part.table.id]
    ]
    if tasks:
        _hand_over(_differences(_load(session, job, tasks)), found)
    return CompareOutcome(
        source_rows=sum(d.rows for d in digests if d.of_source),
        store_rows=sum(d.rows for d in digests if not d.of_source),
        partitions=sum(sizes.values()),
        differing=sum(map(len, differing.values())),
        application=session.sparkContext.applicationId or "",
        tasks=len(parts) + len(tasks),
    )


def _partitions(rows: int) -> int:
    """Enough that few rows share a partition, a power of two."""
    wanted = max(_FEWEST_PARTITIONS, min(_MOST_PARTITIONS, rows // _ROWS_A_PARTITION))
    return 1 << (wanted - 1).bit_length()


def _differing(found: Sequence[TableDigests], sizes: dict[int, int]) -> dict[int, frozenset[int]]:
    """By table, the partitions in which the two sides are not equal."""
    sums = {table: np.zeros(size, dtype=np.uint64) for table, size in sizes.items()}
    for part in found:
        digests = np.frombuffer(part.digests, dtype=np.uint64)
        if part.of_source:
            sums[part.table] += digests
        else:
            sums[part.table] -= digests
    return {table: frozenset(map(int, np.flatnonzero(total))) for table, total in sums.items()}


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


def _hand_over(differences: DataFrame, found: Found) -> None:
    """Pass the differences on in batches that the driver's memory can hold."""
    kept = differences.persist(StorageLevel.DISK_ONLY)
    try:
        batches = kept.count() // _DIFFERENCES_A_BATCH + 1
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
