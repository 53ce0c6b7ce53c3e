"""Removing row sides that no version needs: their buckets, lookups, and the memberships of current rows."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import orjson

from headwater.failpoints import failpoint
from headwater.storage.contract.store import Lease
from headwater.storage.shared.runs import RUN_OPS
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.control import lease as leases

_CURSOR = "retire"  # key in `meta`: the table and place up to which memberships were removed

_STRIP = """
update rows_{0:d} set members = coalesce(
    (select nullif(json_group_array(json(value)), '[]') from json_each(rows_{0:d}.members)
     where json_extract(value, '$[0]') not in (select id from retired_buckets)), '')
where id >= ?1 and id < ?2 and members <> '' and exists
    (select 1 from json_each(rows_{0:d}.members)
     where json_extract(value, '$[0]') in (select id from retired_buckets))
"""


def step(connection: apsw.Connection, lease: Lease, sides: Sequence[str], limit: int) -> bool:
    """See the contract."""
    with leases.holding(connection, lease):
        _begin(connection, sides)
        more = _drop_history(connection, limit) or _drop_lookups(connection, limit) or _strip(connection, limit)
        if not more:
            connection.execute("delete from sides where state = 'retiring'")
            connection.execute("delete from retired_buckets")
            connection.execute("delete from meta where key = ?", (_CURSOR,))
        failpoint("retire.before_commit")
    return more


def _begin(connection: apsw.Connection, sides: Sequence[str]) -> None:
    """Delete their buckets, so that nothing is added to them or sent from them."""
    fresh = [(name,) for name in sides]
    connection.executemany("update sides set state = 'retiring' where name = ?", fresh)
    connection.execute(
        "insert into retired_buckets (id, name) select id, name from buckets"
        " where definition in (select name from sides where state = 'retiring')"
    )
    if connection.changes():
        connection.execute("delete from buckets where id in (select id from retired_buckets)")
        connection.execute("update state set retired = retired + 1")
        connection.execute("delete from meta where key = ?", (_CURSOR,))


def _drop_history(connection: apsw.Connection, limit: int) -> bool:
    connection.execute(
        "delete from ops where id in"
        " (select o.id from retired_buckets r join ops o on o.bucket = r.id limit ?)", (limit,)
    )  # fmt: skip
    if connection.changes():
        return True
    blobs = connection.execute(
        "select s.bucket, s.first_op, s.blob from retired_buckets r join segments s on s.bucket = r.id limit ?",
        (max(1, limit // RUN_OPS),),
    ).fetchall()
    connection.executemany("delete from segments where bucket = ? and first_op = ?", [row[:2] for row in blobs])
    connection.executemany("delete from segment_blobs where id = ?", [row[2:] for row in blobs])
    return bool(blobs)


def _drop_lookups(connection: apsw.Connection, limit: int) -> bool:
    # A lookup's keys begin with its name and `[`; the backslash sorts right after `[`
    connection.execute(
        "delete from lookups where (key, table_id, row_id, output) in (select l.key, l.table_id, l.row_id, l.output"
        " from sides s join lookups l on l.key >= s.name || '[' and l.key < s.name || '\\'"
        " where s.state = 'retiring' limit ?)",
        (limit,),
    )
    return connection.changes() > 0


def _strip(connection: apsw.Connection, limit: int) -> bool:
    if not connection.execute("select 1 from retired_buckets limit 1").fetchall():
        return False
    row = connection.execute("select value from meta where key = ?", (_CURSOR,)).fetchone()
    table, place = orjson.loads(str(row[0])) if row is not None else (0, 0)
    found = connection.execute(
        "select id from tables where state = 'active' and id >= ? order by id limit 2", (table,)
    ).fetchall()
    if not found:
        return False
    current = as_int(found[0][0])
    first = place if current == table else 0
    sql = f"select id from rows_{current:d} where id >= ? order by id limit 1 offset ?"
    beyond = connection.execute(sql, (first, limit)).fetchone()
    end = as_int(beyond[0]) if beyond is not None else (1 << 62)
    connection.execute(_STRIP.format(current), (first, end))
    cursor = (current, end) if beyond is not None else (current + 1, 0)
    connection.execute("insert or replace into meta values (?, ?)", (_CURSOR, orjson.dumps(cursor).decode()))
    return beyond is not None or len(found) > 1
