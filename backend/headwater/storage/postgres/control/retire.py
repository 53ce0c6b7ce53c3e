"""Removing row sides that no version needs: their buckets, lookups, and the memberships of current rows."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import psycopg
from psycopg import sql

from headwater.failpoints import failpoint
from headwater.storage.contract.store import Lease
from headwater.storage.postgres.bulk.takeover import BULK_PLANS, lock_state
from headwater.storage.postgres.control import lease as leases
from headwater.storage.postgres.tables import rows_table
from headwater.storage.shared.runs import RUN_OPS

_CURSOR = "retire"  # key in `meta`: the table and place up to which memberships were removed

_STRIP = """
update {rows} r set members = coalesce((
    select '[' || string_agg(m.member::text, ',' order by m.number) || ']'
    from json_array_elements(r.members::json) with ordinality m (member, number)
    where (m.member->0)::text::bigint not in (select id from retired_buckets)), '')
where place >= {first} and place < {end} and exists (
    select from json_array_elements(nullif(r.members, '')::json) m (member)
    join retired_buckets b on b.id = (m.member->0)::text::bigint)
"""


def step(connection: psycopg.Connection, lease: Lease, sides: Sequence[str], limit: int) -> bool:
    """See the contract."""
    with leases.holding(connection, lease):
        connection.execute(BULK_PLANS)
        _begin(connection, sides)
        more = _drop_history(connection, limit) or _drop_lookups(connection, limit) or _strip(connection, limit)
        if not more:
            connection.execute("delete from sides where state = 'retiring'")
            connection.execute("delete from retired_buckets")
            connection.execute("delete from meta where key = %s", [_CURSOR])
        failpoint("retire.before_commit")
    return more


def _begin(connection: psycopg.Connection, sides: Sequence[str]) -> None:
    """Delete their buckets, so that nothing is added to them or sent from them."""
    connection.execute("update sides set state = 'retiring' where name = any(%s)", [list(sides)])
    retiring = "definition in (select name from sides where state = 'retiring')"
    if not connection.execute(f"select 1 from buckets where {retiring} limit 1").fetchall():
        return
    lock_state(connection)
    connection.execute(
        f"with gone as (delete from buckets where {retiring} returning id, name)"
        " insert into retired_buckets (id, name) select id, name from gone"
    )
    connection.execute("update state set retired = retired + 1")
    connection.execute("delete from meta where key = %s", [_CURSOR])


def _drop_history(connection: psycopg.Connection, limit: int) -> bool:
    ops = connection.execute(
        "delete from ops where (bucket, id) in"
        " (select o.bucket, o.id from retired_buckets r join ops o on o.bucket = r.id limit %s)",
        [limit],
    )
    if ops.rowcount:
        return True
    blobs = connection.execute(
        "with gone as (delete from segments where (bucket, last_op) in"
        " (select s.bucket, s.last_op from retired_buckets r join segments s on s.bucket = r.id limit %s)"
        " returning blob) delete from segment_blobs where id in (select blob from gone)",
        [max(1, limit // RUN_OPS)],
    )
    return blobs.rowcount > 0


def _drop_lookups(connection: psycopg.Connection, limit: int) -> bool:
    # A lookup's keys begin with its name and `[`; the backslash sorts right after `[`
    gone = connection.execute(
        "delete from lookups where ctid = any(array(select l.ctid from sides s join lookups l"
        " on left(l.key, 500) >= (s.name || '[') collate \"C\" and left(l.key, 500) < (s.name || '\\') collate \"C\""
        " where s.state = 'retiring' limit %s))",
        [limit],
    )
    return gone.rowcount > 0


def _strip(connection: psycopg.Connection, limit: int) -> bool:
    if not connection.execute("select 1 from retired_buckets limit 1").fetchall():
        return False
    row = connection.execute("select value from meta where key = %s", [_CURSOR]).fetchone()
    table, place = orjson.loads(row[0]) if row is not None else (0, 0)
    found = connection.execute(
        "select id from tables where state = 'active' and id >= %s order by id limit 2", [table]
    ).fetchall()
    if not found:
        return False
    current = int(found[0][0])
    rows, first = rows_table(current), place if current == table else 0
    query = sql.SQL("select place from {} where place >= %s order by place limit 1 offset %s").format(rows)
    beyond = connection.execute(query, [first, limit]).fetchone()
    end = int(beyond[0]) if beyond is not None else (1 << 62)
    connection.execute(sql.SQL(_STRIP).format(rows=rows, first=first, end=end))
    cursor = (current, end) if beyond is not None else (current + 1, 0)
    connection.execute(
        "insert into meta values (%s, %s) on conflict (key) do update set value = excluded.value",
        [_CURSOR, orjson.dumps(cursor).decode()],
    )
    return beyond is not None or len(found) > 1
