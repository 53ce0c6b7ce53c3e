"""Bulk reading of the history of a store in Postgres. See `storage.contract.history`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import count
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.history import (
    EVERY_BUCKET,
    FlushRange,
    HistoryFilter,
    HistoryLimits,
    HistoryOp,
    Slice,
    overtaken_error,
    state_overtaken_error,
)
from headwater.storage.contract.store import StoreError
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.migrate import read_secret
from headwater.storage.shared.common import life_of
from headwater.storage.shared.unpack import Line, Lowest, batches, cut_up, nth, segment_lines
from headwater.storage.shared.unpack import standing as standing_puts

_FETCHED = 500
_names = count()

_BEGIN = """
begin transaction isolation level repeatable read read only;
set local idle_in_transaction_session_timeout = '1h'
"""

_MERGED = "from buckets b where b.compacted_op > %(since)s"
"""Buckets in which ops after `since` were merged: `compacted_op` is the id of the last op that compaction looked at."""

_HOT = """
select o.id, b.name, b.definition, o.line from buckets b join ops o on o.bucket = b.id
where b.last_op > %(after)s and o.id > %(after)s and o.id <= %(upto)s
"""
_SEGMENTS = """
select s.first_op, s.sealed, g.bodies, b.name, b.definition
from buckets b join segments s on s.bucket = b.id join segment_blobs g on g.id = s.blob
where b.last_op > %(after)s and s.last_op > %(after)s and s.first_op <= %(upto)s
"""
_GROUPS = """
select max(id), count(*) from (
    select o.id, row_number() over (order by o.id) / %(size)s as part from buckets b join ops o on o.bucket = b.id
    where b.last_op > %(after)s and o.id > %(after)s and o.id <= %(upto)s) numbered
group by part
union all
select least(s.last_op, %(upto)s), g.size
from buckets b join segments s on s.bucket = b.id join segment_blobs g on g.id = s.blob
where b.last_op > %(after)s and s.last_op > %(after)s and s.first_op <= %(upto)s
"""
_LOWEST = """
select o.id from buckets b join ops o on o.bucket = b.id
where b.last_op > %(after)s and o.id > %(after)s and o.id <= %(upto)s order by o.id limit %(limit)s
"""
_PLACES = """
select s.first_op, s.last_op, s.blob from buckets b join segments s on s.bucket = b.id
where b.last_op > %(after)s and s.sealed = %(sealed)s and s.last_op > %(after)s and s.first_op <= %(upto)s
order by s.first_op
"""
_FLUSHES = """
select before, last_op, source, lsn, committed_us from (
    select lag(last_op) over (order by last_op) as before, last_op, source, lsn, committed_us from flushes
    where last_op >= coalesce((select max(last_op) from flushes where last_op <= %(after)s), 0)) known
where before is not null and last_op > %(after)s and before < %(upto)s order by last_op
"""
_BACKWARDS = """
select s.first_op, s.last_op, s.sealed, g.bodies from segments s join segment_blobs g on g.id = s.blob
where s.bucket = %s and s.first_op <= %s order by s.last_op desc
"""
_HOT_BACKWARDS = "select id, line from ops where bucket = %s and id > %s and id <= %s order by id desc"


@contextmanager
def _reading(address: PostgresAddress) -> Iterator[psycopg.Connection]:
    """A connection in one read transaction."""
    with closing(connect(address, "history")) as connection, postgres_errors(address):
        if connection.execute("select to_regclass('meta')").fetchall() == [(None,)]:
            raise StoreError("there is no store", str(address), "check database and schema")
        connection.execute(_BEGIN)
        yield connection


def limits(address: PostgresAddress, where: HistoryFilter, since: OpId) -> HistoryLimits:
    """See `Backend.history_limits`."""
    with _reading(address) as db:
        if since:
            _check_not_overtaken(db, where, since)
        store = life_of(read_secret(db))
        merged = _number(db, "select max(b.compacted_op) " + _MERGED, where)
        ops = _number(db, "select sum(b.count)::bigint from buckets b where true", where)
        checkpoint = _number(db, "select checkpoint from state")
        return HistoryLimits(store, OpId(checkpoint), OpId(merged), ops)


def read(
    address: PostgresAddress, ops: tuple[OpId, OpId], where: HistoryFilter, unmerged: OpId
) -> Iterator[list[HistoryOp]]:
    """See `Backend.read_history`. Raises OvertakenError when ops after `unmerged` were merged."""
    after, upto = ops
    with _reading(address) as db:
        _check_not_overtaken(db, where, unmerged)
        bounds = {"after": after, "upto": upto}
        hot = _rows(db, _where(_HOT, where), _bindings(where, bounds))
        yield from batches(HistoryOp(*row) for row in hot)
        for first, sealed, bodies, name, definition in _rows(db, _where(_SEGMENTS, where), _bindings(where, bounds)):
            lines = segment_lines(first, sealed, bodies)
            yield [HistoryOp(op, name, definition, line) for op, line in lines if after < op <= upto]


def cut(address: PostgresAddress, after: OpId, upto: OpId, ops: int) -> list[tuple[OpId, OpId]]:
    """See `Backend.cut_history`."""
    with _reading(address) as db:
        groups = db.execute(_GROUPS, {"after": after, "upto": upto, "size": max(1, ops // 4)}).fetchall()
    return cut_up(groups, after, upto, ops)


def end(address: PostgresAddress, after: OpId, upto: OpId, ops: int) -> OpId:
    """See `Backend.history_end`."""
    bounds = {"after": after, "upto": upto}
    with _reading(address) as db:
        ids = db.execute(_LOWEST, {**bounds, "limit": ops + 1})
        lowest = Lowest((op_id for (op_id,) in ids), ops + 1)
        for first, _, blob in db.execute(_PLACES, {**bounds, "sealed": True}).fetchall():
            if lowest.is_beyond(first):
                break
            bodies = db.execute("select bodies from segment_blobs where id = %s", [blob]).fetchall()[0][0]
            for op_id, _ in segment_lines(first, True, bodies):
                if after < op_id <= upto:
                    lowest.add(op_id)
        places = db.execute(_PLACES, {**bounds, "sealed": False}).fetchall()
        runs = [(max(first, after + 1), min(last, upto)) for first, last, _ in places]
        found = nth(lowest.sorted(), runs, ops, upto)
        if found == upto:
            return upto
        flush = "select max(last_op) from flushes where last_op > %s and last_op <= %s"
        return OpId(db.execute(flush, [after, found]).fetchall()[0][0] or found)


def flushes(address: PostgresAddress, after: OpId, upto: OpId) -> list[FlushRange]:
    """See `Backend.read_flushes`."""
    with _reading(address) as db:
        rows = db.execute(_FLUSHES, {"after": after, "upto": upto}).fetchall()
    return [FlushRange(OpId(row[0]), OpId(row[1]), row[2], Lsn(row[3]), row[4]) for row in rows]


def standing(
    address: PostgresAddress, checkpoint: OpId, where: HistoryFilter, part: Slice
) -> Iterator[list[HistoryOp]]:
    """See `Backend.read_standing`."""
    query = "select b.id, b.name, b.definition, b.compacted_op from buckets b where mod(b.id, %(count)s) = %(number)s"
    with _reading(address) as db:
        bindings = _bindings(where, {"count": part.count, "number": part.number})
        for key, name, definition, compacted in db.execute(_where(query, where), bindings).fetchall():
            if compacted > checkpoint:
                raise state_overtaken_error(name, checkpoint)
            puts = standing_puts(_backwards(db, key, checkpoint))
            yield from batches(HistoryOp(op_id, name, definition, line) for op_id, line in puts)


def _backwards(db: psycopg.Connection, bucket: int, upto: int) -> Iterator[Line]:
    """A bucket's ops from `upto` backwards."""
    for first, last, sealed, bodies in _rows(db, sql.SQL(_BACKWARDS), [bucket, upto]):
        yield from _rows(db, sql.SQL(_HOT_BACKWARDS), [bucket, last, upto])
        lines = [line for line in segment_lines(first, sealed, bodies) if line[0] <= upto]
        yield from reversed(lines)
        upto = min(upto, first - 1)
    yield from _rows(db, sql.SQL(_HOT_BACKWARDS), [bucket, 0, upto])


def _check_not_overtaken(db: psycopg.Connection, where: HistoryFilter, since: OpId) -> None:
    query = _where("select b.name, b.compacted_op " + _MERGED, where)
    row = db.execute(query + sql.SQL(" limit 1"), _bindings(where, {"since": since})).fetchone()
    if row is not None:
        raise overtaken_error(row[0], since, OpId(row[1]))


def _rows(
    db: psycopg.Connection, query: sql.SQL | sql.Composed, bindings: Sequence[object] | Mapping[str, object]
) -> Iterator[Any]:
    """Rows of a large result, fetched as they are consumed."""
    with db.cursor(f"rows_{next(_names)}") as cursor:
        cursor.itersize = _FETCHED
        yield from cursor.execute(query, bindings)


def _where(query: LiteralString, where: HistoryFilter) -> sql.Composed:
    """The query, which uses `buckets b`, restricted to the requested buckets."""
    parts = [sql.SQL(query)]
    if where.definitions:
        parts.append(sql.SQL(" and b.definition = any(%(definitions)s)"))
    if where.buckets:
        parts.append(sql.SQL(" and b.name = any(%(names)s)"))
    return sql.Composed(parts)


def _bindings(where: HistoryFilter, others: Mapping[str, int]) -> dict[str, object]:
    return {**others, "definitions": list(where.definitions), "names": list(where.buckets)}


def _number(db: psycopg.Connection, query: LiteralString, where: HistoryFilter = EVERY_BUCKET) -> int:
    """A single number; 0 for no row or null."""
    row = db.execute(_where(query, where), _bindings(where, {"since": 0})).fetchone()
    return 0 if row is None or row[0] is None else int(row[0])
