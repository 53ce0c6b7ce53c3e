"""Generations of source tables: their descriptions, and the tables that hold their current rows."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Sequence

import psycopg
from psycopg import errors, sql

from headwater.oplog.change import Relation
from headwater.storage.contract.reason import ResyncReason, reason_columns, stored_reason
from headwater.storage.contract.store import StoredTable
from headwater.storage.shared.common import decode_layouts, encode_layouts

_LONGEST_ID = 500  # characters; an index entry has to stay below 2,700 bytes
_SWEPT_LOOKUPS = 20_000

_ROWS_TABLE = """
create table {rows} (
    place   bigint generated always as identity,
    row_id  text collate "C" not null,
    layout  integer not null,
    line    text collate "C" not null,
    members text not null,
    subkey  text,
    long_id text
) with (fillfactor = 90)
"""


def rows_table(table: int) -> sql.Identifier:
    """The table of a generation's current rows."""
    return sql.Identifier(f"rows_{table:d}")


def stored_id(row_id: str) -> tuple[str, str | None]:
    """A row id as it is indexed, and the full id if that differs (None if not)."""
    if len(row_id) <= _LONGEST_ID:
        return row_id, None
    return f"{row_id[:100]}~{hashlib.blake2b(row_id.encode(), digest_size=32).hexdigest()}", row_id


def create_generation(
    connection: psycopg.Connection,
    source: str,
    layouts: Sequence[Relation],
    fingerprint: str,
    state: str,
    resync: ResyncReason | None = None,
) -> int:
    """Add a generation and create the table of its rows, without an index: bulk work adds that after filling it."""
    row = connection.execute(
        "insert into tables (source, layouts, fingerprint, state, resync, resync_detail)"
        " values (%s, %s, %s, %s, %s, %s) returning id",
        [source, encode_layouts(layouts), fingerprint, state, *reason_columns(resync)],
    ).fetchall()[0]
    table = int(row[0])
    create_rows(connection, table)
    return table


def create_rows(connection: psycopg.Connection, table: int) -> None:
    """Create the empty table of a generation's rows, without an index."""
    connection.execute(sql.SQL(_ROWS_TABLE).format(rows=rows_table(table)))


def index_rows(connection: psycopg.Connection, table: int) -> None:
    """Create the indexes that live replication and bulk reading need."""
    rows = rows_table(table)
    connection.execute(sql.SQL("create unique index if not exists {} on {} (row_id)").format(_name(table, "id"), rows))
    connection.execute(
        sql.SQL("create unique index if not exists {} on {} (place)").format(_name(table, "place"), rows)
    )
    connection.execute(sql.SQL("analyze {}").format(rows))


def _name(table: int, what: str) -> sql.Identifier:
    return sql.Identifier(f"rows_{table:d}_{what}")


def create_active(
    connection: psycopg.Connection,
    source: str,
    layouts: Sequence[Relation],
    fingerprint: str,
    resync: ResyncReason | None,
) -> int:
    """Create a generation that live replication may write to at once; returns its id."""
    table = create_generation(connection, source, layouts, fingerprint, "active", resync)
    index_rows(connection, table)
    return table


def renew_generation(connection: psycopg.Connection, table: int) -> int:
    """Replace a generation, which is then swept, by an empty one; returns its id."""
    (known,) = load(connection, "id = %s", [table])
    connection.execute("update tables set state = 'dropped' where id = %s", [table])
    return create_active(connection, known.source, known.layouts, known.fingerprint, known.resync)


def mark_resync(connection: psycopg.Connection, tables: Sequence[int], reason: ResyncReason | None) -> None:
    """Within a write transaction: set the reason why tables are being compared with the source."""
    connection.execute(
        "update tables set resync = %s, resync_detail = %s where id = any(%s)", [*reason_columns(reason), list(tables)]
    )


def replace_active(connection: psycopg.Connection, table: int, staged: int, resync: ResyncReason | None) -> bool:
    """Within a transaction: replace an active generation by a staged one. Returns False if there is no such active
    one."""
    found = connection.execute(
        "update tables set state = 'dropped' where id = %s and state = 'active' returning layouts, fingerprint", [table]
    ).fetchall()
    if not found:
        return False
    connection.execute(
        "update tables set state = 'active', layouts = %s, fingerprint = %s, resync = %s, resync_detail = %s"
        " where id = %s",
        [*found[0], *reason_columns(resync), staged],
    )
    return True


def add_layout(connection: psycopg.Connection, table: int, relation: Relation, fingerprint: str) -> StoredTable:
    """Within a transaction: write rows in the form of `relation` from now on."""
    (known,) = load(connection, "id = %s", [table])
    layouts = known.layouts if known.relation == relation else (*known.layouts, relation)
    connection.execute(
        "update tables set layouts = %s, fingerprint = %s where id = %s", [encode_layouts(layouts), fingerprint, table]
    )
    return StoredTable(table, known.source, layouts, fingerprint, known.resync)


def active(connection: psycopg.Connection, source: str) -> list[StoredTable]:
    """The active generations of a source."""
    return load(connection, "source = %s and state = 'active'", [source])


def load(connection: psycopg.Connection, condition: str, parameters: Sequence[str | int]) -> list[StoredTable]:
    """Generations that satisfy `condition`, by id."""
    query = f"select id, source, layouts, fingerprint, resync, resync_detail from tables where {condition} order by id"
    return [
        StoredTable(table, tag, decode_layouts(layouts), fingerprint, stored_reason(cause, detail))
        for table, tag, layouts, fingerprint, cause, detail in connection.execute(query, parameters)
    ]


def sweep(connection: psycopg.Connection, stop: threading.Event) -> None:
    """Delete dropped generations with their rows and lookups, in short transactions, until `stop` is set. One that is
    still being read is left for the next run."""
    some = "delete from lookups where ctid = any(array(select ctid from lookups where table_id = %s limit %s))"
    for (table,) in connection.execute("select id from tables where state = 'dropped'").fetchall():
        while not stop.is_set() and connection.execute(some, [table, _SWEPT_LOOKUPS]).rowcount:
            pass
        if stop.is_set():
            return
        with contextlib.suppress(errors.LockNotAvailable), connection.transaction():
            connection.execute("set local lock_timeout = '200ms'")
            connection.execute(sql.SQL("drop table if exists {}").format(rows_table(table)))
            connection.execute("delete from tables where id = %s", [table])
