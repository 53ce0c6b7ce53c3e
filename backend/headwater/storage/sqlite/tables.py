"""Generations of source tables: their descriptions, and the tables that hold their current rows."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from headwater.oplog.change import Relation
from headwater.storage.contract.reason import ResyncReason, reason_columns, stored_reason
from headwater.storage.contract.store import StoredTable
from headwater.storage.shared.common import decode_layouts, encode_layouts
from headwater.storage.shared.values import as_int

ROWS_TABLE = """
create table rows_{0:d} (
    id      integer primary key,
    row_id  text not null,
    layout  integer not null,
    line    text not null,
    members text not null,
    subkey  text
) strict
"""

ROWS_INDEX = "create unique index if not exists rows_{0:d}_row_id on rows_{0:d} (row_id)"

PUT_ROW = """
insert into rows_{0:d} (row_id, layout, line, members, subkey) values (?, ?, ?, ?, ?)
on conflict (row_id) do update set layout = excluded.layout, line = excluded.line,
    members = excluded.members, subkey = excluded.subkey
"""


def create_generation(
    connection: apsw.Connection,
    source: str,
    layouts: Sequence[Relation],
    fingerprint: str,
    state: str,
    resync: ResyncReason | None = None,
) -> int:
    """Add a generation and create the table of its rows, without an index: bulk work adds that after filling it."""
    columns = "source, layouts, fingerprint, state, resync, resync_detail"
    sql = f"insert into tables ({columns}) values (?, ?, ?, ?, ?, ?) returning id"
    bindings = (source, encode_layouts(layouts), fingerprint, state, *reason_columns(resync))
    table = as_int(connection.execute(sql, bindings).fetchall()[0][0])
    connection.execute(ROWS_TABLE.format(table))
    return table


def drop_generation(connection: apsw.Connection, table: int) -> None:
    """Delete a generation with its rows and lookups."""
    connection.execute(f"drop table if exists rows_{table:d}")
    connection.execute("delete from lookups where table_id = ?", (table,))
    connection.execute("delete from tables where id = ?", (table,))


def renew_generation(connection: apsw.Connection, table: int) -> int:
    """Replace a generation by an empty one; returns its id."""
    (known,) = _load(connection, "id = ?", (table,))
    drop_generation(connection, table)
    return create_active(connection, known.source, known.layouts, known.fingerprint, known.resync)


def create_active(
    connection: apsw.Connection, source: str, layouts: Sequence[Relation], fingerprint: str, resync: ResyncReason | None
) -> int:
    """Create a generation that live replication may write to at once; returns its id."""
    new = create_generation(connection, source, layouts, fingerprint, "active", resync)
    connection.execute(ROWS_INDEX.format(new))
    return new


def add_layout(connection: apsw.Connection, table: int, relation: Relation, fingerprint: str) -> StoredTable:
    """Within a write transaction: write rows in the form of `relation` from now on."""
    (known,) = _load(connection, "id = ?", (table,))
    layouts = known.layouts if known.relation == relation else (*known.layouts, relation)
    connection.execute(
        "update tables set layouts = ?, fingerprint = ? where id = ?", (encode_layouts(layouts), fingerprint, table)
    )
    return StoredTable(table, known.source, layouts, fingerprint, known.resync)


def mark_resync(connection: apsw.Connection, tables: Sequence[int], reason: ResyncReason | None) -> None:
    """Within a write transaction: set the reason why tables are being compared with the source."""
    connection.executemany(
        "update tables set resync = ?, resync_detail = ? where id = ?",
        [(*reason_columns(reason), table) for table in tables],
    )


def replace_active(connection: apsw.Connection, table: int, staged: int, resync: ResyncReason | None) -> bool:
    """Within a write transaction: replace an active generation by a staged one. Returns False if there is no such
    active one."""
    found = connection.execute(
        "select layouts, fingerprint from tables where id = ? and state = 'active'", (table,)
    ).fetchall()
    if not found:
        return False
    drop_generation(connection, table)
    connection.execute(
        "update tables set state = 'active', layouts = ?, fingerprint = ?, resync = ?, resync_detail = ? where id = ?",
        (*found[0], *reason_columns(resync), staged),
    )
    return True


def load_tables(connection: apsw.Connection, source: str) -> list[StoredTable]:
    """The active generations of a source."""
    return _load(connection, "source = ? and state = 'active'", (source,))


def _load(connection: apsw.Connection, condition: str, bindings: tuple[str | int, ...]) -> list[StoredTable]:
    sql = f"select id, source, layouts, fingerprint, resync, resync_detail from tables where {condition} order by id"
    return [
        StoredTable(as_int(table), tag, decode_layouts(layouts), fingerprint, stored_reason(cause, detail))
        for table, *texts in connection.execute(sql, bindings)
        for tag, layouts, fingerprint, cause, detail in [map(str, texts)]
    ]
