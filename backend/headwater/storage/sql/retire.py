"""Removing bucket definitions that no version needs: their buckets, lookups, and the memberships of current rows.

A bucket may have rows of several sources. The first of them that removes its definition removes it for all. The others
may still follow it: no flush of theirs makes a bucket of it again (`Flush.append`), and the memberships of its rows are
removed by each source itself, once it does not follow the definition any more."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from headwater.failpoints import failpoint
from headwater.storage.contract.store import Lease
from headwater.storage.shared.segments import RUN_OPS
from headwater.storage.sql.control import get_meta, set_meta
from headwater.storage.sql.cursor import RETIRING, Cursor
from headwater.storage.sql.ops import drop_segments, lock_state

_POSITION = "retire {}"  # key in `meta`, of a source: the table and place up to which memberships were removed

_RETIRING = f"definition in ({RETIRING})"


def retire(db: Cursor, lease: Lease, definitions: Sequence[str], limit: int) -> bool:
    """See `StoreWriter.retire`."""
    with db.transaction(lease):
        if db.dialect.plan_bulk:
            db.execute(db.dialect.plan_bulk)
        source = lease.name
        _drop_buckets(db, source, definitions)
        more = _drop_history(db, limit) or _drop_lookups(db, limit) or _strip_members(db, source, limit)
        if not more:
            db.execute("delete from definitions where state = 'retiring' and source = ?", source)
            if db.one("select 1 from definitions where state = 'retiring' limit 1") is None:
                db.execute("delete from retired_buckets")
            db.execute("delete from meta where key = ?", _POSITION.format(source))
        failpoint("retire.before_commit")
    return more


def _drop_buckets(db: Cursor, source: str, definitions: Sequence[str]) -> None:
    """Delete their buckets, so that nothing is added to them or sent from them."""
    db.execute(f"update definitions set state = 'retiring' where name {db.dialect.among}", list(definitions))
    if db.one(f"select 1 from buckets where {_RETIRING} limit 1") is None:
        return
    lock_state(db)
    db.execute(f"insert into retired_buckets (id, name) select id, name from buckets where {_RETIRING}")
    db.execute(f"delete from buckets where {_RETIRING}")
    db.execute("update state set retired = retired + 1")
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


def _drop_lookups(db: Cursor, limit: int) -> bool:
    return db.execute(db.dialect.retire_lookups, limit) > 0


def _strip_members(db: Cursor, source: str, limit: int) -> bool:
    if db.one("select 1 from retired_buckets limit 1") is None:
        return False
    stored = get_meta(db, _POSITION.format(source))
    table, reached = (0, 0) if stored is None else orjson.loads(stored)
    following = "select id from tables where source = ? and state = 'active' and id >= ? order by id limit 2"
    found = db.rows(following, source, table)
    if not found:
        return False
    current, place = found[0][0], db.dialect.place
    first = reached if current == table else 0
    beyond = db.one(
        f"select {place} from rows_{current:d} where {place} >= ? order by {place} limit 1 offset ?", first, limit
    )
    end = (1 << 62) if beyond is None else beyond[0]
    db.execute(db.dialect.strip_members.format(table=current), first, end)
    position = (current + 1, 0) if beyond is None else (current, end)
    set_meta(db, _POSITION.format(source), orjson.dumps(position).decode())
    return beyond is not None or len(found) > 1
