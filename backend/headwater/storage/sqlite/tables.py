"""Generations of source tables: their description, and the table that holds their current rows."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import orjson

from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.storage.contract import StoredTable

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

ROWS_INDEX = "create unique index rows_{0:d}_row_id on rows_{0:d} (row_id)"

PUT_ROW = """
insert into rows_{0:d} (row_id, layout, line, members, subkey) values (?, ?, ?, ?, ?)
on conflict (row_id) do update set layout = excluded.layout, line = excluded.line,
    members = excluded.members, subkey = excluded.subkey
"""


def create_generation(
    connection: apsw.Connection, source: str, layouts: Sequence[Relation], fingerprint: str, state: str
) -> int:
    """Describe a new generation and make the table of its rows, without an index: bulk work adds that when full."""
    sql = "insert into tables (source, layouts, fingerprint, state) values (?, ?, ?, ?) returning id"
    bindings = (source, encode_layouts(layouts), fingerprint, state)
    table = int(str(connection.execute(sql, bindings).fetchall()[0][0]))
    connection.execute(ROWS_TABLE.format(table))
    return table


def drop_generation(connection: apsw.Connection, table: int) -> None:
    """Forget a generation with its rows and lookups."""
    connection.execute(f"drop table if exists rows_{table:d}")
    connection.execute("delete from lookups where table_id = ?", (table,))
    connection.execute("delete from tables where id = ?", (table,))


def renew_generation(connection: apsw.Connection, table: int) -> int:
    """An empty generation in the place of another one; returns its id."""
    sql = "select source, layouts, fingerprint from tables where id = ?"
    source, layouts, fingerprint = connection.execute(sql, (table,)).fetchall()[0]
    drop_generation(connection, table)
    new = create_generation(connection, str(source), decode_layouts(str(layouts)), str(fingerprint), "active")
    connection.execute(ROWS_INDEX.format(new))
    return new


def load_tables(connection: apsw.Connection, source: str) -> list[StoredTable]:
    """The active generations of a source."""
    sql = "select id, source, layouts, fingerprint from tables where source = ? and state = 'active' order by id"
    return [
        StoredTable(int(str(table)), str(tag), decode_layouts(str(layouts)), str(fingerprint))
        for table, tag, layouts, fingerprint in connection.execute(sql, (source,))
    ]


def encode_layouts(layouts: Sequence[Relation]) -> str:
    """Relations as JSON."""
    return orjson.dumps(
        [
            [
                r.oid,
                r.schema,
                r.name,
                r.identity.value,
                [[c.name, c.type_oid, c.type_modifier, c.key] for c in r.columns],
            ]
            for r in layouts
        ]
    ).decode()


def decode_layouts(text: str) -> tuple[Relation, ...]:
    """The inverse of `encode_layouts`."""
    return tuple(
        Relation(oid, schema, name, ReplicaIdentity(identity), tuple(Column(*column) for column in columns))
        for oid, schema, name, identity, columns in orjson.loads(text)
    )
