"""Removing bucket definitions that a source does not need any more: its rows leave their buckets, and its lookups go.

A definition may have rows of several sources. As long as another one has it, rows leave by a REMOVE each. Buckets
whose definition no source keeps are deleted as they are, with all of their history; then memberships of rows only have
to be forgotten, by each source itself. So it does not matter which source comes first, or that one is away for days."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import orjson

from headwater.failpoints import failpoint
from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import finished_op
from headwater.oplog.transform import (
    DraftOp,
    RowKeys,
    decode_memberships,
    oversized_ops,
    replace_memberships,
    row_ops,
)
from headwater.storage.contract.store import Lease
from headwater.storage.shared.common import NAMEABLE
from headwater.storage.shared.segments import RUN_OPS, BucketSum, Run, number_ops
from headwater.storage.sql.control import LEFT, get_meta, lock_definitions, secret, set_meta
from headwater.storage.sql.cursor import UNWANTED, Cursor, Value
from headwater.storage.sql.ops import ADD_OPS, drop_segments, insert_segments, lock_state, move_checkpoint

_POSITION = "retire {}"  # key in `meta`, of a source: the table and place up to which rows have left

_NO_MORE = f"definition in ({UNWANTED})"
_LEAVING = """
definition in (
    select d.name from definitions d join definitions o on o.name = d.name and o.source <> d.source
    where d.source = ? and d.state = 'retiring' and o.state in ('building', 'complete'))
"""
_OF_OTHERS = "definition in (select name from definitions where source <> ? and state <> 'retired')"


def retire(db: Cursor, lease: Lease, definitions: Sequence[str], limit: int) -> bool:
    """See `StoreWriter.retire`."""
    source = lease.name
    with db.transaction(lease):
        if db.dialect.plan_bulk:
            db.execute(db.dialect.plan_bulk)
        lock_definitions(db)
        _begin(db, source, definitions)
        more = _drop_history(db, limit) or _drop_lookups(db, source, limit) or _leave_buckets(db, source, limit)
        if not more:
            _end(db, source)
        failpoint("retire.before_commit")
    return more


def _begin(db: Cursor, source: str, definitions: Sequence[str]) -> None:
    """Delete the buckets that no source keeps, so that nothing is added to them or sent from them."""
    theirs = f"source = ? and name {db.dialect.among} and state in ('building', 'complete')"
    db.execute(f"update definitions set state = 'retired' where {theirs}", LEFT, list(definitions))
    if db.execute(f"update definitions set state = 'retiring' where {theirs}", source, list(definitions)):
        db.execute("delete from meta where key = ?", _POSITION.format(source))
    if db.one(f"select 1 from buckets where {_NO_MORE} limit 1") is None:
        return
    lock_state(db)
    db.execute(f"insert into retired_buckets (id, name) select id, name from buckets where {_NO_MORE}")
    db.execute(f"delete from buckets where {_NO_MORE}")
    db.execute("update state set retired = retired + 1")
    db.execute("delete from meta where key like ?", _POSITION.format("%"))


def _end(db: Cursor, source: str) -> None:
    db.execute("update definitions set state = 'retired' where source = ? and state = 'retiring'", source)
    db.execute("delete from definitions where name not in (select name from definitions where state <> 'retired')")
    if db.one("select 1 from definitions where state = 'retiring' limit 1") is None:
        db.execute("delete from retired_buckets")
    db.execute("delete from meta where key = ?", _POSITION.format(source))


def _drop_history(db: Cursor, limit: int) -> bool:
    key = db.dialect.op_key
    some = "select o.bucket, o.id from retired_buckets r join ops o on o.bucket = r.id limit ?"
    if db.execute(f"delete from ops where ({key}) in (select {key} from ({some}) o)", limit):
        return True
    some = "select s.bucket, s.first_op, s.last_op, s.blob from retired_buckets r join segments s on s.bucket = r.id"
    gone = db.rows(f"{some} limit ?", max(1, limit // RUN_OPS))
    drop_segments(db, gone)
    return bool(gone)


def _drop_lookups(db: Cursor, source: str, limit: int) -> bool:
    return db.execute(db.dialect.retire_lookups, source, limit) > 0


def _leave_buckets(db: Cursor, source: str, limit: int) -> bool:
    """Have some of the source's rows leave the buckets. Returns whether there are more rows."""
    kept = db.one(f"select 1 from buckets where {_LEAVING} limit 1", source) is not None
    dropped = db.one("select 1 from retired_buckets limit 1") is not None
    if not kept and not dropped:
        return False
    stored = get_meta(db, _POSITION.format(source))
    table, reached = (0, 0) if stored is None else orjson.loads(stored)
    following = "select id from tables where source = ? and state = 'active' and id >= ? order by id limit 2"
    found = db.rows(following, source, table)
    if not found:
        return False
    current = found[0][0]
    span = _span(db, current, reached if current == table else 0, limit)
    if kept:
        _leave_kept(db, source, span)
    if dropped:
        db.execute(db.dialect.strip_members.format(table=current), span.first, span.end)
    position = (current + 1, 0) if span.last else (current, span.end)
    set_meta(db, _POSITION.format(source), orjson.dumps(position).decode())
    return not span.last or len(found) > 1


# rows that leave buckets which have rows of other sources


class _Span(NamedTuple):
    """Rows of a table at places [first, end); `last` if there are none after them."""

    table: int
    first: int
    end: int
    last: bool


def _span(db: Cursor, table: int, first: int, limit: int) -> _Span:
    place = db.dialect.place
    beyond = db.one(
        f"select {place} from rows_{table:d} where {place} >= ? order by {place} limit 1 offset ?", first, limit
    )
    return _Span(table, first, (1 << 62) if beyond is None else beyond[0], beyond is None)


class _Left(NamedTuple):
    """What rows left: the names of the buckets, and the memberships of rows afterwards, with their places."""

    next_op: int
    buckets: Sequence[str]
    rows: Sequence[tuple[str, int]]


def _leave_kept(db: Cursor, source: str, span: _Span, which: str = _LEAVING) -> None:
    next_op = lock_state(db)
    left = _remove(db, span, next_op, which, source)
    db.execute_many(f"update rows_{span.table:d} set members = ? where {db.dialect.place} = ?", left.rows)
    if left.next_op > next_op:
        names = orjson.dumps(left.buckets).decode() if len(left.buckets) <= NAMEABLE else None
        move_checkpoint(db, left.next_op - 1, source, names, "[]")
        db.notify()


def leave_others(db: Cursor, lease: Lease, table: int, first: int, limit: int) -> int | None:
    """See `StoreWriter.leave_others`."""
    with db.transaction(lease):
        lock_definitions(db)
        span = _span(db, table, first, limit)
        _leave_kept(db, lease.name, span, _OF_OTHERS)
    return None if span.last else span.end


_ROWS_AT_ONCE = 5_000


def leave_shared(db: Cursor, source: str, table: int, next_op: int) -> int:
    """Within a transaction that has the store's lock: write the REMOVEs of all rows of a table, which is then dropped,
    in buckets that may have rows of other sources. Returns the next op id."""
    if db.one(f"select 1 from buckets where {_OF_OTHERS} limit 1", source) is None:
        return next_op
    first, last = 0, False
    while not last:
        span = _span(db, table, first, _ROWS_AT_ONCE)
        next_op = _remove(db, span, next_op, _OF_OTHERS, source).next_op
        first, last = span.end, span.last
    return next_op


def _remove(db: Cursor, span: _Span, next_op: int, which: str, *values: Value) -> _Left:
    """Write REMOVEs for rows in buckets that satisfy a condition."""
    place, row_id = f"r.{db.dialect.place}", db.dialect.whole_row_id.format("r")
    query = f"select {place}, {row_id}, r.members, r.subkey from rows_{span.table:d} r"
    rows = [
        (at, its_id, members, subkey, decode_memberships(members, its_id))
        for at, its_id, members, subkey in db.rows(
            f"{query} where {place} >= ? and {place} < ? and r.members <> ''", span.first, span.end
        )
    ]
    keys = {each.bucket for row in rows for each in row[4]}
    keys |= {each.bucket for row in rows for each in oversized_ops(row[2])}
    found = f"select id, name from buckets where id {db.dialect.among} and {which}"
    names: dict[int, str] = dict(db.rows(found, sorted(keys), *values))
    store, ops, left = StoreKeys(secret(db)), list[DraftOp](), list[tuple[str, int]]()
    for at, its_id, members, subkey, standing in rows:
        gone = [each for each in standing if each.bucket in names]
        ops += row_ops(gone, (), RowKeys(span.table, its_id, store, subkey))[0]
        left.append((replace_memberships(members, names.keys(), ""), at))
    sums: dict[int, BucketSum] = {}
    runs: list[Run] = []
    single, first = number_ops(ops, next_op, sums, runs.append)
    insert_segments(db, [(run.bucket, run) for run in runs])
    lines = [(op.bucket, op_id, finished_op(op_id, op.body)) for op_id, op in enumerate(single, first)]
    db.execute_many("insert into ops (bucket, id, line) values (?, ?, ?)", lines)
    totals = [(each.checksum & 0xFFFFFFFF, each.count, each.last_op, key) for key, each in sums.items()]
    db.execute_many(ADD_OPS, totals)
    return _Left(first + len(single), [names[key] for key in sums], left)
