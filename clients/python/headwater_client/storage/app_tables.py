"""Brings the app's tables, views and triggers of a file to what a schema says, keeping the rows."""

from __future__ import annotations

import sqlite3

from headwater_client.schema import sql
from headwater_client.schema.tables import Schema, Table
from headwater_client.storage.transaction import writing

_SYNCED = "ps_data__"
_LOCAL = "ps_data_local__"


def replace_schema(connection: sqlite3.Connection, schema: Schema) -> None:
    """Make the file fit the schema, in one transaction; nothing is written where it fits already.

    Rows of a synced table that is new come from where rows without a table wait, and those of one that is gone go
    there. Rows of a local-only table that is gone are lost.
    """
    if _fits(connection, schema):
        return
    with writing(connection):
        for statement in _drop_views(connection):
            connection.execute(statement)
        _replace_tables(connection, schema)
        _make_views(connection, schema)


def add_tables(connection: sqlite3.Connection, schema: Schema) -> None:
    """Make synced tables beside those that the file has, with the rows that wait for them."""
    with writing(connection):
        for name, table in schema.views.items():
            _make_table(connection, name, table)
        _make_views(connection, schema)


def kinds_without_table(connection: sqlite3.Connection) -> list[str]:
    """What the server calls the tables of rows that came and have no table here."""
    return [kind for (kind,) in connection.execute("SELECT DISTINCT type FROM ps_untyped ORDER BY type").fetchall()]


def synced_tables(connection: sqlite3.Connection) -> dict[str, str]:
    """The tables that synced rows are kept in as JSON, by the names that rows of them have on the server."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'ps_data__*'")
    return {name.removeprefix(_SYNCED): name for (name,) in found.fetchall()}


def local_tables(connection: sqlite3.Connection) -> list[str]:
    """The tables whose rows never leave the device."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'ps_data_local__*'")
    return [name for (name,) in found.fetchall()]


def _fits(connection: sqlite3.Connection, schema: Schema) -> bool:
    wanted: set[str] = set()
    for name, table in schema.views.items():
        wanted |= {sql.create_data_table(name, table), sql.create_view(name, table)}
        wanted |= {*sql.create_indexes(name, table).values(), *sql.create_triggers(name, table)}
    found = connection.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND (name GLOB 'ps_data_*' OR name GLOB 'ps_view_*'"
        " OR (type = 'view' AND sql GLOB ?))",
        (f"*{sql.MARK}",),
    )
    return {text for (text,) in found.fetchall()} == wanted


def _drop_views(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view' AND sql GLOB ?", (f"*{sql.MARK}",))
    return [f'DROP VIEW "{name}"' for (name,) in found.fetchall()]


def _replace_tables(connection: sqlite3.Connection, schema: Schema) -> None:
    present = synced_tables(connection)
    wanted = {sql.data_table(name, table): (name, table) for name, table in schema.views.items()}
    for kind, target in present.items():
        if target not in wanted:
            connection.execute(
                f'INSERT OR REPLACE INTO ps_untyped(type, id, data) SELECT ?, id, data FROM "{target}"', (kind,)
            )
            connection.execute(f'DROP TABLE "{target}"')
    for target in local_tables(connection):
        if target not in wanted:
            connection.execute(f'DROP TABLE "{target}"')
    present_now = {*synced_tables(connection).values(), *local_tables(connection)}
    for target, (name, table) in wanted.items():
        if target not in present_now:
            _make_table(connection, name, table)


def _make_table(connection: sqlite3.Connection, name: str, table: Table) -> None:
    connection.execute(sql.create_data_table(name, table))
    if not table.local_only:
        target = sql.data_table(name, table)
        connection.execute(f'INSERT INTO "{target}"(id, data) SELECT id, data FROM ps_untyped WHERE type = ?', (name,))
        connection.execute("DELETE FROM ps_untyped WHERE type = ?", (name,))


def _make_views(connection: sqlite3.Connection, schema: Schema) -> None:
    for name, table in schema.views.items():
        _replace_indexes(connection, sql.data_table(name, table), sql.create_indexes(name, table))
        connection.execute(sql.create_view(name, table))
        for trigger in sql.create_triggers(name, table):
            connection.execute(trigger)


def _replace_indexes(connection: sqlite3.Connection, target: str, wanted: dict[str, str]) -> None:
    found = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", (target,)
    )
    present = dict(found.fetchall())
    for name, text in present.items():
        if wanted.get(name) != text:
            connection.execute(f'DROP INDEX "{name}"')
    for name, text in wanted.items():
        if present.get(name) != text:
            connection.execute(text)
