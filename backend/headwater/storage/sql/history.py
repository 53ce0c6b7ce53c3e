"""Bulk reading of a store's history, beside its writer. See `storage.contract.history`."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.history import FlushRange, HistoryOp, HistoryState
from headwater.storage.contract.parts import PlacedRow
from headwater.storage.contract.store import StoredTable, StoreError
from headwater.storage.shared.common import BATCH_BYTES, life_of
from headwater.storage.shared.segments import Line, batches, cut_up, segment_lines, standing
from headwater.storage.sql.control import secret
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.tables import all_active, checkpoint

_HOT = """
select o.id, b.name, b.definition, o.line from ops o {join_all} buckets b on b.id = o.bucket
where b.last_op > ?1 and o.id > ?1 and o.id <= ?2
"""
_SEGMENTS = """
select s.first_op, s.sealed, g.bodies, b.name, b.definition
from buckets b join segments s on s.bucket = b.id join segment_blobs g on g.id = s.blob
where b.last_op > ?1 and s.last_op > ?1 and s.first_op <= ?2
"""
_GROUPS = """
select max(id), count(*) from (
    select o.id, row_number() over (order by o.id) / ?3 as part from ops o {join_all} buckets b on b.id = o.bucket
    where b.last_op > ?1 and o.id > ?1 and o.id <= ?2
) numbered group by part
union all
select s.last_op, g.size from buckets b join segments s on s.bucket = b.id join segment_blobs g on g.id = s.blob
where b.last_op > ?1 and s.last_op > ?1 and s.first_op <= ?2
"""
_FLUSHES = """
select before, last_op, source, lsn, committed_us from (
    select lag(last_op) over (order by last_op) as before, last_op, source, lsn, committed_us from flushes
    where last_op >= coalesce((select max(last_op) from flushes where last_op <= ?1), 0)) known
where before is not null and last_op > ?1 and before < ?2 order by last_op
"""
_BACKWARDS = """
select s.first_op, s.last_op, s.sealed, g.bodies from segments s join segment_blobs g on g.id = s.blob
where s.bucket = ? and s.first_op <= ? order by s.{key} desc
"""
_HOT_BACKWARDS = "select id, line from ops where bucket = ? and id > ? and id <= ? order by id desc"
_DEFINITIONS = """
with recursive found (name) as (
    select min(definition) from buckets union all
    select (select min(definition) from buckets where definition > found.name) from found where found.name is not null
) select name from found where name is not null"""
"""One look into the index for each, however many buckets it has."""

_BUCKETS_AT_ONCE = 1_000
_ROWS_AT_ONCE = 5_000
_NO_PLACE = (1 << 63) - 1


class HistoryReader:
    """A view of a store at one moment. Used by one thread."""

    def __init__(self, db: Cursor) -> None:
        """Within a snapshot."""
        self._db = db

    def state(self) -> HistoryState:
        """What the view is of."""
        found = checkpoint(self._db)
        definitions = tuple(sorted(name for (name,) in self._db.rows(_DEFINITIONS)))
        return HistoryState(life_of(secret(self._db)), found.op_id, found.lsns, definitions)

    def ops(self, after: OpId, upto: OpId) -> Iterator[list[HistoryOp]]:
        """Ops with after < op_id <= upto, each once, in batches without an order."""
        hot = _HOT.format(join_all=self._db.dialect.join_all)
        yield from batches(HistoryOp(*row) for row in self._db.stream(hot, after, upto))
        for first, sealed, bodies, name, definition in self._db.stream(_SEGMENTS, after, upto):
            lines = _lines(first, sealed, bodies)
            yield [HistoryOp(op, name, definition, line) for op, line in lines if after < op <= upto]

    def cut(self, after: OpId, upto: OpId, ops: int) -> list[tuple[OpId, OpId]]:
        """Split (after, upto] into consecutive ranges of about `ops` ops each; none when there are no ops."""
        statement = _GROUPS.format(join_all=self._db.dialect.join_all)
        groups = self._db.rows(statement, after, upto, max(1, ops // 4))
        return cut_up(((min(last, upto), count) for last, count in groups), after, upto, ops)

    def flushes(self, after: OpId, upto: OpId) -> list[FlushRange]:
        """The recorded flushes with ops in (after, upto], oldest first. Records are kept for a limited time, so the
        oldest ops may belong to none."""
        return [
            FlushRange(before, last, source, Lsn(lsn), committed_us)
            for before, last, source, lsn, committed_us in self._db.rows(_FLUSHES, after, upto)
        ]

    def flushed_at(self, op: OpId) -> int | None:
        """The `committed_us` of the recorded flush that ended with this op. None if none did."""
        row = self._db.one("select committed_us from flushes where last_op = ?", op)
        return None if row is None else int(row[0])

    def knows_flushes_before(self, op: OpId) -> bool:
        """Whether flushes that ended before this op are still recorded."""
        return self._db.one("select 1 from flushes where last_op < ? limit 1", op) is not None

    def live(self) -> Iterator[list[HistoryOp]]:
        """The PUTs of the rows that are in a bucket, each with its own op id, in batches."""
        upto, key = checkpoint(self._db).op_id, -1
        query = f"select id, name, definition from buckets where id > ? order by id limit {_BUCKETS_AT_ONCE}"
        while found := self._db.rows(query, key):
            for key, name, definition in found:
                puts = standing(self._backwards(key, upto))
                yield from batches(HistoryOp(op_id, name, definition, line) for op_id, line in puts)

    def tables(self) -> list[StoredTable]:
        """The tables of all sources that have current rows."""
        return all_active(self._db)

    def rows(self, table: StoredTable) -> Iterator[list[PlacedRow]]:
        """The current rows of a table, in batches."""
        placed = self._db.dialect.placed_rows
        return placed(self._db, table.id, 0, _NO_PLACE, count=_ROWS_AT_ONCE, batch_bytes=BATCH_BYTES)

    def _backwards(self, bucket: int, upto: int) -> Iterator[Line]:
        """A bucket's ops from `upto` backwards."""
        query = _BACKWARDS.format(key=self._db.dialect.segment_key)
        for first, last, sealed, bodies in self._db.stream(query, bucket, upto):
            yield from self._db.stream(_HOT_BACKWARDS, bucket, last, upto)
            yield from reversed([line for line in _lines(first, sealed, bodies) if line[0] <= upto])
            upto = min(upto, first - 1)
        yield from self._db.stream(_HOT_BACKWARDS, bucket, 0, upto)


def _lines(first: int, sealed: bool, bodies: bytes) -> list[Line]:
    if not isinstance(bodies, bytes):
        raise StoreError("a segment is damaged", f"segment from op {first}", "move the store away to build a new one")
    return segment_lines(first, bool(sealed), bodies)
