"""Bulk reading of a store's history, on connections of any back end. See `storage.contract.history`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, cast

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.history import (
    FlushRange,
    HistoryFilter,
    HistoryLimits,
    HistoryOp,
    Slice,
    overtaken_error,
    state_overtaken_error,
)
from headwater.storage.contract.store import StoreError
from headwater.storage.shared.common import life_of
from headwater.storage.shared.unpack import Line, Lowest, batches, cut_up, nth, segment_lines, standing
from headwater.storage.shared.values import as_int

Row = Sequence[object]

_OVERTAKEN = "select b.name, b.compacted_op from buckets b where b.compacted_op > ?"
"""Buckets in which later ops were merged: `compacted_op` is the id of the last op that compaction looked at."""

# The conditions on buckets save reading those without later ops
_HOT = """
select o.id, b.name, b.definition, o.line from buckets b join ops o on o.bucket = b.id
where b.last_op > ? and o.id > ? and o.id <= ?
"""
_SEGMENTS = """
select s.first_op, s.sealed, g.bodies, b.name, b.definition
from buckets b join segments s on s.bucket = b.id join segment_blobs g on g.id = s.blob
where b.last_op > ? and s.last_op > ? and s.first_op <= ?
"""
_HOT_GROUPS = """
select max(id), count(*) from (
    select o.id, row_number() over (order by o.id) / ? as part from buckets b join ops o on o.bucket = b.id
    where b.last_op > ? and o.id > ? and o.id <= ?) numbered
group by part
"""
_SEGMENT_GROUPS = """
select s.last_op, g.size from buckets b join segments s on s.bucket = b.id join segment_blobs g on g.id = s.blob
where b.last_op > ? and s.last_op > ? and s.first_op <= ?
"""
_LOWEST = """
select o.id from buckets b join ops o on o.bucket = b.id
where b.last_op > ? and o.id > ? and o.id <= ? order by o.id limit ?
"""
_PLACES = """
select s.first_op, s.last_op, s.blob, s.sealed from buckets b join segments s on s.bucket = b.id
where b.last_op > ? and s.last_op > ? and s.first_op <= ? order by s.first_op
"""
_FLUSHES = """
select before, last_op, source, lsn, committed_us from (
    select lag(last_op) over (order by last_op) as before, last_op, source, lsn, committed_us from flushes
    where last_op >= coalesce((select max(last_op) from flushes where last_op <= ?), 0)) known
where before is not null and last_op > ? and before < ? order by last_op
"""
_BACKWARDS = """
select s.first_op, s.last_op, s.sealed, g.bodies from segments s join segment_blobs g on g.id = s.blob
where s.bucket = ? and s.first_op <= ? order by s.{0} desc
"""
_HOT_BACKWARDS = "select id, line from ops where bucket = ? and id > ? and id <= ? order by id desc"


class HistoryDb(Protocol):
    """A connection in one read transaction. Statements mark values with `?`."""

    @property
    def secret(self) -> bytes:
        """The store's secret."""

    @property
    def segment_order(self) -> str:
        """The column of segments, `first_op` or `last_op`, in whose order a bucket's segments are read by an index."""

    def rows(self, statement: str, *values: str | int) -> list[Row]:
        """All rows of a small result."""

    def stream(self, statement: str, *values: str | int) -> Iterator[Row]:
        """Rows of a large result, fetched as they are consumed."""


Reading = Callable[[], AbstractContextManager[HistoryDb]]
"""Opens a connection. Raises StoreError when there is no store."""


def limits(reading: Reading, where: HistoryFilter, since: OpId) -> HistoryLimits:
    """See `Backend.history_limits`."""
    condition, names = _condition(where)
    with reading() as db:
        if since:
            _check_not_overtaken(db, where, since)
        totals = f"select max(b.compacted_op), sum(b.count) from buckets b where true{condition}"
        ((merged, ops),) = db.rows(totals, *names)
        ((checkpoint,),) = db.rows("select checkpoint from state")
        return HistoryLimits(
            life_of(db.secret), OpId(as_int(checkpoint or 0)), OpId(as_int(merged or 0)), as_int(ops or 0)
        )


def read(reading: Reading, ops: tuple[OpId, OpId], where: HistoryFilter, unmerged: OpId) -> Iterator[list[HistoryOp]]:
    """See `Backend.read_history`. Raises OvertakenError when ops after `unmerged` were merged."""
    after, upto = ops
    condition, names = _condition(where)
    with reading() as db:
        _check_not_overtaken(db, where, unmerged)
        hot = cast("Iterator[HistoryOp]", db.stream(_HOT + condition, after, after, upto, *names))
        yield from batches(map(HistoryOp._make, hot))
        for first, sealed, bodies, name, of in db.stream(_SEGMENTS + condition, after, after, upto, *names):
            lines = _lines(first, sealed, bodies)
            yield [HistoryOp(op, str(name), str(of), line) for op, line in lines if after < op <= upto]


def cut(reading: Reading, after: OpId, upto: OpId, ops: int) -> list[tuple[OpId, OpId]]:
    """See `Backend.cut_history`."""
    with reading() as db:
        groups = db.rows(_HOT_GROUPS, max(1, ops // 4), after, after, upto)
        groups += db.rows(_SEGMENT_GROUPS, after, after, upto)
    return cut_up(((min(as_int(last), upto), as_int(count)) for last, count in groups), after, upto, ops)


def end(reading: Reading, after: OpId, upto: OpId, ops: int) -> OpId:
    """See `Backend.history_end`."""
    with reading() as db:
        hot = db.rows(_LOWEST, after, after, upto, ops + 1)
        lowest = Lowest((as_int(row[0]) for row in hot), ops + 1)
        runs: list[tuple[int, int]] = []
        for first, last, blob, sealed in db.rows(_PLACES, after, after, upto):
            if not sealed:
                runs.append((max(as_int(first), after + 1), min(as_int(last), upto)))
            elif not lowest.is_beyond(as_int(first)):
                ((bodies,),) = db.rows("select bodies from segment_blobs where id = ?", as_int(blob))
                for op_id, _ in _lines(first, sealed, bodies):
                    if after < op_id <= upto:
                        lowest.add(op_id)
        found = nth(lowest.sorted(), runs, ops, upto)
        if found == upto:
            return upto
        ((flush,),) = db.rows("select max(last_op) from flushes where last_op > ? and last_op <= ?", after, found)
        return OpId(as_int(flush or found))


def flushes(reading: Reading, after: OpId, upto: OpId) -> list[FlushRange]:
    """See `Backend.read_flushes`."""
    with reading() as db:
        rows = db.rows(_FLUSHES, after, after, upto)
    return [
        FlushRange(OpId(as_int(before)), OpId(as_int(last)), str(source), Lsn(as_int(lsn)), as_int(committed))
        for before, last, source, lsn, committed in rows
    ]


def live(reading: Reading, checkpoint: OpId, where: HistoryFilter, part: Slice) -> Iterator[list[HistoryOp]]:
    """See `Backend.read_standing`."""
    condition, names = _condition(where)
    buckets = f"select b.id, b.name, b.definition, b.compacted_op from buckets b where b.id % ? = ?{condition}"
    with reading() as db:
        for key, name, definition, compacted in db.rows(buckets, part.count, part.number, *names):
            if as_int(compacted) > checkpoint:
                raise state_overtaken_error(str(name), checkpoint)
            puts = standing(_backwards(db, as_int(key), checkpoint))
            yield from batches(HistoryOp(op_id, str(name), str(definition), line) for op_id, line in puts)


def _backwards(db: HistoryDb, bucket: int, upto: int) -> Iterator[Line]:
    """A bucket's ops from `upto` backwards."""
    for first, last, sealed, bodies in db.stream(_BACKWARDS.format(db.segment_order), bucket, upto):
        yield from _hot_backwards(db, bucket, as_int(last), upto)
        yield from reversed([line for line in _lines(first, sealed, bodies) if line[0] <= upto])
        upto = min(upto, as_int(first) - 1)
    yield from _hot_backwards(db, bucket, 0, upto)


def _hot_backwards(db: HistoryDb, bucket: int, after: int, upto: int) -> Iterator[Line]:
    return ((as_int(op_id), str(line)) for op_id, line in db.stream(_HOT_BACKWARDS, bucket, after, upto))


def _check_not_overtaken(db: HistoryDb, where: HistoryFilter, since: OpId) -> None:
    condition, names = _condition(where)
    for name, merged in db.rows(f"{_OVERTAKEN}{condition} limit 1", since, *names):
        raise overtaken_error(str(name), since, OpId(as_int(merged)))


def _condition(where: HistoryFilter) -> tuple[str, tuple[str, ...]]:
    """An SQL condition, with its values, that selects the requested buckets; for a statement with `buckets b`."""
    condition = ""
    for column, names in (("definition", where.definitions), ("name", where.buckets)):
        if names:
            condition += f" and b.{column} in ({', '.join('?' * len(names))})"
    return condition, (*where.definitions, *where.buckets)


def _lines(first: object, sealed: object, bodies: object) -> list[Line]:
    if not isinstance(bodies, bytes):
        raise StoreError("a segment is damaged", f"segment from op {first}", "move the store away to build a new one")
    return segment_lines(as_int(first), bool(sealed), bodies)
