"""The op log as rows of a DataFrame."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import orjson
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from headwater.oplog.lsn import format_lsn
from headwater.storage.contract.history import FlushRange, HistoryOp

OPS = StructType(
    [
        StructField("op_id", LongType()),
        StructField("op", StringType()),
        StructField("bucket", StringType()),
        StructField("definition", StringType()),
        StructField("table", StringType()),
        StructField("id", StringType()),
        StructField("subkey", StringType()),
        StructField("data", StringType()),
        StructField("checksum", LongType()),
        StructField("source", StringType()),
        StructField("commit_lsn", StringType()),
        StructField("committed_at", TimestampType()),
    ]
)
"""Columns of ops, streamed or read in batch."""

SNAPSHOT = StructType([*OPS.fields, StructField("checkpoint", LongType())])
"""Columns of the rows in buckets at `checkpoint`."""

_ARROW_OPS = to_arrow_schema(OPS, timezone="UTC")
_ARROW_SNAPSHOT = to_arrow_schema(SNAPSHOT, timezone="UTC")

_EPOCH_2000_US = 946_684_800_000_000
_UNKNOWN = (None, None, None)

_Origin = tuple[str | None, str | None, int | None]


class Origins:
    """The source, LSN and commit time of ops, as far as flushes are recorded."""

    def __init__(self, flushes: Sequence[FlushRange]) -> None:
        self._flushes = flushes
        self._ends = [flush.last for flush in flushes]
        self._origins = [_origin(flush) for flush in flushes]

    def of(self, op_id: int) -> _Origin:
        place = bisect_left(self._ends, op_id)
        if place == len(self._ends) or op_id <= self._flushes[place].after:
            return _UNKNOWN
        return self._origins[place]


def _origin(flush: FlushRange) -> _Origin:
    """Source, LSN and commit time of a flush. Bulk work has no commit, so only the source is known."""
    if flush.committed_us == 0:
        return flush.source or None, None, None
    return flush.source, format_lsn(flush.lsn), flush.committed_us + _EPOCH_2000_US


def arrow_rows(
    ops: Sequence[HistoryOp], origins: Origins, tables: frozenset[str], checkpoint: int | None = None
) -> pa.RecordBatch:
    """Rows of OPS, or of SNAPSHOT with a checkpoint. With `tables`, only ops of these output tables and CLEARs; empty
    means all."""
    rows = [_row(op, origins) for op in ops]
    if tables:
        rows = [row for row in rows if row[1] == "CLEAR" or row[4] in tables]
    columns: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [()] * len(_ARROW_OPS)
    if checkpoint is None:
        return _batch(columns, _ARROW_OPS)
    return _batch([*columns, [checkpoint] * len(rows)], _ARROW_SNAPSHOT)


def _row(op: HistoryOp, origins: Origins) -> tuple[object, ...]:
    body = orjson.loads(op.line)
    return (
        op.op_id, body["op"], op.bucket, op.definition, body.get("object_type"), body.get("object_id"),
        body.get("subkey"), body.get("data"), body["checksum"], *origins.of(op.op_id),
    )  # fmt: skip


def _batch(columns: Sequence[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
