"""Bulk reading of the embedded store's history. See `storage.contract.history`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import SqliteAddress
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
from headwater.storage.shared.unpack import Line, Lowest, batches, cut_up, nth, segment_lines
from headwater.storage.shared.unpack import standing as standing_puts
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.migrate import read_secret

_MERGED = "from buckets b where b.compacted_op > ?1"
"""Buckets in which ops after ?1 were merged: `compacted_op` is the id of the last op that compaction looked at."""


@contextlib.contextmanager
def _reading(address: SqliteAddress) -> Iterator[apsw.Connection]:
    """A connection in one read transaction."""
    path = Path(address.directory) / "store.db"
    if not path.is_file():
        raise StoreError("there is no store", str(path), "check the path")
    with contextlib.closing(open_reader(path)) as connection, sqlite_errors(path):
        connection.execute("begin")
        yield connection


def limits(address: SqliteAddress, where: HistoryFilter, since: OpId) -> HistoryLimits:
    """See `Backend.history_limits`."""
    with _reading(address) as db:
        if since:
            _check_not_overtaken(db, where, since)
        store = life_of(read_secret(db))
        condition, names = _condition(where)
        merged = _number(db, f"select max(b.compacted_op) {_MERGED}{condition}", (0, *names))
        ops = _number(db, f"select sum(b.count) from buckets b where true{condition}", names)
        return HistoryLimits(store, OpId(_number(db, "select checkpoint from state")), OpId(merged), ops)


def read(
    address: SqliteAddress, ops: tuple[OpId, OpId], where: HistoryFilter, unmerged: OpId
) -> Iterator[list[HistoryOp]]:
    """See `Backend.read_history`. Raises OvertakenError when ops after `unmerged` were merged."""
    after, upto = ops
    with _reading(address) as db:
        _check_not_overtaken(db, where, unmerged)
        condition, names = _condition(where)
        hot = db.execute(
            "select o.id, b.name, b.definition, o.line from ops o join buckets b on b.id = o.bucket"
            f" where o.id > ?1 and o.id <= ?2{condition}",
            (after, upto, *names),
        )
        yield from batches(HistoryOp(as_int(row[0]), str(row[1]), str(row[2]), str(row[3])) for row in hot)
        segments = db.execute(
            "select s.first_op, s.sealed, g.bodies, b.name, b.definition from segments s"
            " join buckets b on b.id = s.bucket join segment_blobs g on g.id = s.blob"
            f" where s.last_op > ?1 and s.first_op <= ?2{condition}",
            (after, upto, *names),
        )
        for first, sealed, bodies, name, definition in segments:
            lines = _lines(first, sealed, bodies)
            yield [HistoryOp(op, str(name), str(definition), line) for op, line in lines if after < op <= upto]


def cut(address: SqliteAddress, after: OpId, upto: OpId, ops: int) -> list[tuple[OpId, OpId]]:
    """See `Backend.cut_history`."""
    with _reading(address) as db:
        groups = db.execute(
            "select max(id), count(*) from (select id, row_number() over (order by id) / ?3 as part from ops"
            " where id > ?1 and id <= ?2) group by part"
            " union all select s.last_op, g.size from segments s join segment_blobs g on g.id = s.blob"
            " where s.last_op > ?1 and s.first_op <= ?2",
            (after, upto, max(1, ops // 4)),
        ).fetchall()
    return cut_up(((min(as_int(last), upto), as_int(count)) for last, count in groups), after, upto, ops)


def end(address: SqliteAddress, after: OpId, upto: OpId, ops: int) -> OpId:
    """See `Backend.history_end`."""
    with _reading(address) as db:
        found = nth(_first_ids(db, (after, upto), ops + 1), _runs(db, after, upto), ops, upto)
        if found == upto:
            return upto
        flush = _number(db, "select max(last_op) from flushes where last_op > ? and last_op <= ?", (after, found))
        return OpId(flush or found)


def _first_ids(db: apsw.Connection, bounds: tuple[int, int], limit: int) -> list[int]:
    """The lowest ids in the range in the hot tail or in sealed segments, at most `limit`."""
    sql = "select id from ops where id > ? and id <= ? order by id limit ?"
    lowest = Lowest((as_int(row[0]) for row in db.execute(sql, (*bounds, limit))), limit)
    sql = "select first_op, blob from segments where sealed and last_op > ? and first_op <= ? order by first_op"
    for first, blob in db.execute(sql, bounds).fetchall():
        if lowest.is_beyond(as_int(first)):
            break
        bodies = db.execute("select bodies from segment_blobs where id = ?", (blob,)).fetchall()[0][0]
        for op_id, _ in _lines(first, 1, bodies):
            if bounds[0] < op_id <= bounds[1]:
                lowest.add(op_id)
    return lowest.sorted()


def _runs(db: apsw.Connection, after: int, upto: int) -> Iterator[tuple[int, int]]:
    """Runs of consecutive ids, in order."""
    sql = "select first_op, last_op from segments where not sealed and last_op > ? and first_op <= ? order by first_op"
    for first, last in db.execute(sql, (after, upto)):
        yield max(as_int(first), after + 1), min(as_int(last), upto)


def flushes(address: SqliteAddress, after: OpId, upto: OpId) -> list[FlushRange]:
    """See `Backend.read_flushes`."""
    with _reading(address) as db:
        rows = db.execute(
            "select before, last_op, source, lsn, committed_us from (select lag(last_op) over (order by last_op)"
            " as before, last_op, source, lsn, committed_us from flushes where last_op >="
            " coalesce((select max(last_op) from flushes where last_op <= ?1), 0))"
            " where before is not null and last_op > ?1 and before < ?2 order by last_op",
            (after, upto),
        ).fetchall()
    return [
        FlushRange(OpId(as_int(row[0])), OpId(as_int(row[1])), str(row[2]), Lsn(as_int(row[3])), as_int(row[4]))
        for row in rows
    ]


def standing(address: SqliteAddress, checkpoint: OpId, where: HistoryFilter, part: Slice) -> Iterator[list[HistoryOp]]:
    """See `Backend.read_standing`."""
    condition, names = _condition(where)
    with _reading(address) as db:
        buckets = db.execute(
            f"select b.id, b.name, b.definition, b.compacted_op from buckets b where b.id % ?1 = ?2{condition}",
            (part.count, part.number, *names),
        ).fetchall()
        for key, name, definition, compacted in buckets:
            if as_int(compacted) > checkpoint:
                raise state_overtaken_error(str(name), checkpoint)
            puts = standing_puts(_backwards(db, as_int(key), checkpoint))
            yield from batches(HistoryOp(op_id, str(name), str(definition), line) for op_id, line in puts)


def _backwards(db: apsw.Connection, bucket: int, upto: int) -> Iterator[tuple[int, str]]:
    """A bucket's ops from `upto` backwards."""
    segments = db.execute(
        "select s.first_op, s.last_op, s.sealed, g.bodies from segments s join segment_blobs g on g.id = s.blob"
        " where s.bucket = ? and s.first_op <= ? order by s.first_op desc",
        (bucket, upto),
    )
    for first, last, sealed, bodies in segments:
        yield from _hot_backwards(db, bucket, as_int(last), upto)
        lines = [pair for pair in _lines(first, sealed, bodies) if pair[0] <= upto]
        yield from reversed(lines)
        upto = min(upto, as_int(first) - 1)
    yield from _hot_backwards(db, bucket, 0, upto)


def _hot_backwards(db: apsw.Connection, bucket: int, after: int, upto: int) -> Iterator[tuple[int, str]]:
    sql = "select id, line from ops where bucket = ? and id > ? and id <= ? order by id desc"
    for op_id, line in db.execute(sql, (bucket, after, upto)):
        yield as_int(op_id), str(line)


def _check_not_overtaken(db: apsw.Connection, where: HistoryFilter, since: OpId) -> None:
    condition, names = _condition(where)
    sql = f"select b.name, b.compacted_op {_MERGED}{condition} limit 1"
    row = db.execute(sql, (since, *names)).fetchone()
    if row is not None:
        raise overtaken_error(str(row[0]), since, OpId(as_int(row[1])))


def _condition(where: HistoryFilter) -> tuple[str, tuple[str, ...]]:
    """An SQL condition, with its values, that selects the requested buckets; for a statement with `buckets b`."""
    condition = ""
    for column, names in (("definition", where.definitions), ("name", where.buckets)):
        if names:
            condition += f" and b.{column} in ({', '.join('?' * len(names))})"
    return condition, (*where.definitions, *where.buckets)


def _lines(first: apsw.SQLiteValue, sealed: apsw.SQLiteValue, bodies: apsw.SQLiteValue) -> list[Line]:
    if not isinstance(bodies, bytes):
        raise StoreError("a segment is damaged", f"segment from op {first}", "move the store away to build a new one")
    return segment_lines(as_int(first), bool(sealed), bodies)


def _number(db: apsw.Connection, sql: str, bindings: tuple[object, ...] = ()) -> int:
    """A single number; 0 for no row or null."""
    row = db.execute(sql, bindings).fetchone()
    return 0 if row is None or row[0] is None else as_int(row[0])
