"""Bulk reading of a store's history, beside its writer. Each function is called within a snapshot. See
`storage.contract.history`."""

from __future__ import annotations

from collections.abc import Iterator

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
from headwater.storage.shared.segments import Line, Lowest, batches, cut_up, nth, segment_lines, standing
from headwater.storage.sql.control import secret
from headwater.storage.sql.cursor import Cursor, Value

_MERGED = "from buckets b where b.compacted_op > ?1"
"""Buckets in which ops after ?1 were merged: `compacted_op` is the id of the last op that compaction looked at."""

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
_LOWEST = """
select o.id from ops o {join_all} buckets b on b.id = o.bucket
where b.last_op > ?1 and o.id > ?1 and o.id <= ?2 order by o.id limit ?3
"""
_PLACES = """
select s.first_op, s.last_op, s.blob from buckets b join segments s on s.bucket = b.id
where b.last_op > ?1 and {sealed} and s.last_op > ?1 and s.first_op <= ?2 order by s.first_op
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


def limits(db: Cursor, where: HistoryFilter, since: OpId) -> HistoryLimits:
    """See `Store.history_limits`."""
    if since:
        check_not_overtaken(db, where, since)
    condition, names = _condition(db, where)
    merged = _number(db, f"select max(b.compacted_op) {_MERGED}{condition}", 0, *names)
    ops = _number(db, f"select cast(sum(b.count) as bigint) from buckets b where true{condition}", *names)
    checkpoint = _number(db, "select checkpoint from state")
    return HistoryLimits(life_of(secret(db)), OpId(checkpoint), OpId(merged), ops)


def read(db: Cursor, after: OpId, upto: OpId, where: HistoryFilter) -> Iterator[list[HistoryOp]]:
    """See `Store.read_history`."""
    condition, names = _condition(db, where)
    hot = _HOT.format(join_all=db.dialect.join_all) + condition
    yield from batches(HistoryOp(*row) for row in db.stream(hot, after, upto, *names))
    for first, sealed, bodies, name, definition in db.stream(_SEGMENTS + condition, after, upto, *names):
        lines = _lines(first, sealed, bodies)
        yield [HistoryOp(op, name, definition, line) for op, line in lines if after < op <= upto]


def cut(db: Cursor, after: OpId, upto: OpId, ops: int) -> list[tuple[OpId, OpId]]:
    """See `Store.cut_history`."""
    groups = db.rows(_GROUPS.format(join_all=db.dialect.join_all), after, upto, max(1, ops // 4))
    return cut_up(((min(last, upto), count) for last, count in groups), after, upto, ops)


def end(db: Cursor, after: OpId, upto: OpId, ops: int) -> OpId:
    """See `Store.history_end`."""
    ids = db.rows(_LOWEST.format(join_all=db.dialect.join_all), after, upto, ops + 1)
    lowest = Lowest((op_id for (op_id,) in ids), ops + 1)
    for first, _, blob in db.rows(_PLACES.format(sealed="s.sealed"), after, upto):
        if lowest.is_beyond(first):
            break
        ((bodies,),) = db.rows("select bodies from segment_blobs where id = ?", blob)
        for op_id, _ in _lines(first, True, bodies):
            if after < op_id <= upto:
                lowest.add(op_id)
    places = db.rows(_PLACES.format(sealed="not s.sealed"), after, upto)
    runs = [(max(first, after + 1), min(last, upto)) for first, last, _ in places]
    found = nth(lowest.sorted(), runs, ops, upto)
    if found == upto:
        return upto
    flush = "select max(last_op) from flushes where last_op > ? and last_op <= ?"
    return OpId(_number(db, flush, after, found) or found)


def flushes(db: Cursor, after: OpId, upto: OpId) -> list[FlushRange]:
    """See `Store.read_flushes`."""
    return [
        FlushRange(before, last, source, Lsn(lsn), committed_us)
        for before, last, source, lsn, committed_us in db.rows(_FLUSHES, after, upto)
    ]


def live(db: Cursor, checkpoint: OpId, where: HistoryFilter, part: Slice) -> Iterator[list[HistoryOp]]:
    """See `Store.read_standing`."""
    condition, names = _condition(db, where)
    query = f"select b.id, b.name, b.definition, b.compacted_op from buckets b where b.id % ?1 = ?2{condition}"
    for key, name, definition, compacted in db.rows(query, part.count, part.number, *names):
        if compacted > checkpoint:
            raise state_overtaken_error(name, checkpoint)
        puts = standing(_backwards(db, key, checkpoint))
        yield from batches(HistoryOp(op_id, name, definition, line) for op_id, line in puts)


def _backwards(db: Cursor, bucket: int, upto: int) -> Iterator[Line]:
    """A bucket's ops from `upto` backwards."""
    for first, last, sealed, bodies in db.stream(_BACKWARDS.format(key=db.dialect.segment_key), bucket, upto):
        yield from db.stream(_HOT_BACKWARDS, bucket, last, upto)
        yield from reversed([line for line in _lines(first, sealed, bodies) if line[0] <= upto])
        upto = min(upto, first - 1)
    yield from db.stream(_HOT_BACKWARDS, bucket, 0, upto)


def check_not_overtaken(db: Cursor, where: HistoryFilter, since: OpId) -> None:
    """Raise OvertakenError when ops after `since` were merged."""
    condition, names = _condition(db, where)
    row = db.one(f"select b.name, b.compacted_op {_MERGED}{condition} limit 1", since, *names)
    if row is not None:
        raise overtaken_error(row[0], since, OpId(row[1]))


def _condition(db: Cursor, where: HistoryFilter) -> tuple[str, list[Value]]:
    """An SQL condition, with its values, that selects the requested buckets; for a statement with `buckets b`."""
    columns = {"definition": where.definitions, "name": where.buckets}
    chosen = {column: list(names) for column, names in columns.items() if names}
    condition = "".join(f" and b.{column} {db.dialect.among}" for column in chosen)
    return condition, list(chosen.values())


def _lines(first: int, sealed: bool, bodies: bytes) -> list[Line]:
    if not isinstance(bodies, bytes):
        raise StoreError("a segment is damaged", f"segment from op {first}", "move the store away to build a new one")
    return segment_lines(first, bool(sealed), bodies)


def _number(db: Cursor, query: str, *values: Value) -> int:
    """A single number; 0 for no row or null."""
    row = db.one(query, *values)
    return 0 if row is None else int(row[0] or 0)
