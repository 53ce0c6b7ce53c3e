"""The tables of a lake: their columns, and how they are written. docs/lake.md describes them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.decode.copytext import split_line
from headwater.oplog.limits import is_stub
from headwater.oplog.lsn import format_lsn
from headwater.storage.contract.history import FlushRange, HistoryOp
from headwater.storage.contract.parts import PlacedRow
from headwater.storage.contract.store import StoredTable
from headwater.storage.shared.common import batched

_GROUP_ROWS, _GROUP_BYTES = 50_000, 8 << 20
_EPOCH_2000_US = 946_684_800_000_000

Record = tuple[object, ...]
"""A row of one of the tables below."""


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


_TIME = pa.timestamp("us", tz="UTC")

OPS: Final = _schema(
    op_id=pa.int64(), bucket=pa.string(), definition=pa.string(), op=pa.string(), object_type=pa.string(),
    object_id=pa.string(), subkey=pa.string(), data=pa.string(), checksum=pa.int64(), source=pa.string(),
    commit_lsn=pa.string(), committed_at=_TIME,
)  # fmt: skip
"""What devices download, each op once."""

ROWS: Final = _schema(
    source=pa.string(), schema=pa.string(), table=pa.string(), row_id=pa.string(), data=pa.string(),
    checkpoint=pa.int64(), lsn=pa.string(),
)  # fmt: skip
"""Current rows of the sources."""

BUCKETS: Final = _schema(
    bucket=pa.string(), definition=pa.string(), object_type=pa.string(), object_id=pa.string(), subkey=pa.string(),
    op_id=pa.int64(), checkpoint=pa.int64(),
)  # fmt: skip
"""Which rows are in which bucket."""


def write_table(file: BinaryIO, schema: pa.Schema, records: Iterable[Record]) -> int:
    """Write a Parquet file, holding a part of it in memory. Returns the number of records."""
    count = 0
    writer = pq.ParquetWriter(file, schema, compression="zstd")
    try:
        for batch in batched(records, _size, _GROUP_ROWS, _GROUP_BYTES):
            columns = zip(*batch, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema), row_group_size=_GROUP_ROWS)
            count += len(batch)
        writer.close()
    finally:
        writer.is_open = False  # a file that was given up must not be written to when the writer is collected
    return count


def _size(record: Record) -> int:
    return sum(len(cell) for cell in record if isinstance(cell, str))


class Origins:
    """The source, LSN and commit time of ops, as far as flushes are recorded. Bulk work has no commit, so of its ops
    only the source is known."""

    def __init__(self, flushes: Sequence[FlushRange]) -> None:
        self._flushes = flushes
        self._ends = [flush.last for flush in flushes]

    def of(self, op_id: int) -> tuple[str | None, str | None, int | None]:
        place = bisect_left(self._ends, op_id)
        if place == len(self._ends) or op_id <= self._flushes[place].after:
            return None, None, None
        flush = self._flushes[place]
        if flush.committed_us == 0:
            return flush.source or None, None, None
        return flush.source, format_lsn(flush.lsn), flush.committed_us + _EPOCH_2000_US


def op_records(ops: Iterable[HistoryOp], origins: Origins) -> Iterator[Record]:
    """Records of OPS."""
    for op in ops:
        body = orjson.loads(op.line)
        yield (
            op.op_id, op.bucket, op.definition, body["op"], body.get("object_type"), body.get("object_id"),
            body.get("subkey"), body.get("data"), body["checksum"], *origins.of(op.op_id),
        )  # fmt: skip


def bucket_records(puts: Iterable[HistoryOp], checkpoint: int) -> Iterator[Record]:
    """Records of BUCKETS, from the live PUTs of buckets."""
    for put in puts:
        body = orjson.loads(put.line)
        row = body["object_type"], body["object_id"], body["subkey"]
        yield put.bucket, put.definition, *row, put.op_id, checkpoint


def row_records(table: StoredTable, rows: Iterable[PlacedRow], checkpoint: int, lsn: str | None) -> Iterator[Record]:
    """Records of ROWS. The data of a row that is too large for the store is null."""
    names = [[column.name for column in layout.columns] for layout in table.layouts]
    whose = table.source, table.relation.schema, table.relation.name
    for _, row in rows:
        columns = names[row.layout]
        data = None
        if not is_stub(row.line):
            cells = split_line(row.line, len(columns))
            data = orjson.dumps(dict(zip(columns, cells, strict=True))).decode()
        yield *whose, row.row_id, data, checkpoint, lsn
