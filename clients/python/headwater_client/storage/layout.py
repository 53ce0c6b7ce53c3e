"""The tables of a device's file: those that every one has, with the names and columns that the stock SDKs give them,
and the app's tables, views and triggers, which follow the schema."""

from __future__ import annotations

import sqlite3
import uuid
from typing import Final

from headwater_client.errors import FileError
from headwater_client.schema import (
    MARK,
    Schema,
    Table,
    create_data_table,
    create_indexes,
    create_triggers,
    create_view,
    data_table,
)
from headwater_client.storage.buckets import INDEXES
from headwater_client.storage.connection import writing

VERSION: Final = 14
"""What `ps_migration` says of a file of this layout."""

NO_TARGET: Final = 2**63 - 1
"""The write target while it is unknown which write checkpoint will contain the local writes."""

FULL_SYNC: Final = 2**31 - 1
"""In place of a priority: all of them."""

TARGET: Final = "target_checkpoint_request_id"
SEEN: Final = "last_seen_checkpoint_request_id"
APPLIED: Final = "last_applied_checkpoint_request_id"

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS ps_migration(id INTEGER PRIMARY KEY, down_migrations TEXT);
CREATE TABLE IF NOT EXISTS ps_buckets(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  last_applied_op INTEGER NOT NULL DEFAULT 0,
  last_op INTEGER NOT NULL DEFAULT 0,
  add_checksum INTEGER NOT NULL DEFAULT 0,
  op_checksum INTEGER NOT NULL DEFAULT 0,
  pending_delete INTEGER NOT NULL DEFAULT 0,
  count_at_last INTEGER NOT NULL DEFAULT 0,
  count_since_last INTEGER NOT NULL DEFAULT 0,
  downloaded_size INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS ps_buckets_name ON ps_buckets (name);
CREATE TABLE IF NOT EXISTS ps_oplog(
  bucket INTEGER NOT NULL,
  op_id INTEGER NOT NULL,
  row_type TEXT,
  row_id TEXT,
  key TEXT,
  data TEXT,
  hash INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS ps_updated_rows(
  row_type TEXT,
  row_id TEXT,
  PRIMARY KEY(row_type, row_id)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS headwater_removed(bucket INTEGER NOT NULL, key TEXT NOT NULL, upto INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ps_untyped(type TEXT NOT NULL, id TEXT NOT NULL, data TEXT, PRIMARY KEY (type, id));
CREATE TABLE IF NOT EXISTS ps_crud(id INTEGER PRIMARY KEY AUTOINCREMENT, data TEXT, tx_id INTEGER);
CREATE TABLE IF NOT EXISTS ps_tx(id INTEGER PRIMARY KEY NOT NULL, current_tx INTEGER, next_tx INTEGER);
CREATE TABLE IF NOT EXISTS ps_kv(key TEXT PRIMARY KEY NOT NULL, value BLOB);
CREATE TABLE IF NOT EXISTS ps_sync_state(
  priority INTEGER NOT NULL PRIMARY KEY,
  last_synced_at INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS ps_stream_subscriptions(
  id INTEGER NOT NULL PRIMARY KEY,
  stream_name TEXT NOT NULL,
  active INTEGER NOT NULL DEFAULT FALSE,
  is_default INTEGER NOT NULL DEFAULT FALSE,
  local_priority INTEGER,
  local_params TEXT NOT NULL DEFAULT 'null',
  ttl INTEGER,
  expires_at INTEGER,
  last_synced_at INTEGER,
  UNIQUE (stream_name, local_params)
) STRICT;
INSERT OR IGNORE INTO ps_tx(id, current_tx, next_tx) VALUES (1, NULL, 1);
"""

# What the triggers of an app's views insert into: one entry of the upload queue. `next_tx` goes up when the transaction
# is another than that of the last entry. Until the service confirms the write, nothing downloaded may hide it
_QUEUE: Final = f"""
CREATE VIEW IF NOT EXISTS headwater_crud(op, type, id, data, old, metadata) AS SELECT 0, 0, 0, 0, 0, 0 WHERE 0;
CREATE TRIGGER IF NOT EXISTS headwater_crud_insert INSTEAD OF INSERT ON headwater_crud FOR EACH ROW BEGIN
UPDATE ps_tx SET current_tx = headwater_tx(), next_tx = next_tx + 1 WHERE current_tx IS NOT headwater_tx();
INSERT INTO ps_crud(tx_id, data) SELECT next_tx - 1, json_remove(
  json_object('op', iif(NEW.op = 'PUT_ONLY', 'PUT', NEW.op), 'id', NEW.id, 'type', NEW.type,
    'data', json(NEW.data), 'old', json(NEW.old), 'metadata', NEW.metadata),
  iif(NEW.data IS NULL, '$.data', '$."."'), iif(NEW.old IS NULL, '$.old', '$."."'),
  iif(NEW.metadata IS NULL, '$.metadata', '$."."')) FROM ps_tx;
INSERT OR IGNORE INTO ps_updated_rows(row_type, row_id) SELECT NEW.type, NEW.id WHERE NEW.op != 'PUT_ONLY';
INSERT INTO ps_kv(key, value) VALUES ('{TARGET}', {NO_TARGET})
  ON CONFLICT(key) DO UPDATE SET value = excluded.value WHERE value IS NOT excluded.value;
DELETE FROM ps_kv WHERE key = '{SEEN}';
END;
"""


def prepare(connection: sqlite3.Connection) -> None:
    """Make what the file lacks. Raises `FileError` for a file of another version."""
    with writing(connection):
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ps_migration'").fetchone()
        if found is not None:
            (version,) = connection.execute("SELECT max(id) FROM ps_migration").fetchone()
            if version != VERSION:
                raise FileError(f"the file has layout {version}, this package knows {VERSION} only: use a new file")
        for statement in _statements(_TABLES + _QUEUE):
            connection.execute(statement)
        for index in INDEXES.values() if found is None else ():
            connection.execute(index)
        connection.execute("INSERT OR IGNORE INTO ps_migration(id, down_migrations) VALUES (?, NULL)", (VERSION,))
        connection.execute("INSERT OR IGNORE INTO ps_kv(key, value) VALUES ('client_id', ?)", (str(uuid.uuid4()),))
        # What the stock JS SDK notes of files whose row keys need no rewriting
        connection.execute("INSERT OR IGNORE INTO ps_kv(key, value) VALUES ('powersync_js_migrated_subkeys', '1')")


def is_device_file(connection: sqlite3.Connection) -> bool:
    """Whether this is the file of a device, of whatever version."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'ps_oplog'").fetchone() is not None


def client_id(connection: sqlite3.Connection) -> str:
    """The id of this database, which scopes its write checkpoints."""
    (value,) = connection.execute("SELECT value FROM ps_kv WHERE key = 'client_id'").fetchone()
    return str(value)


def _statements(script: str) -> list[str]:
    statements, current = [], ""
    for line in script.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements


def replace_schema(connection: sqlite3.Connection, schema: Schema) -> None:
    """Make the file fit the schema, in one transaction; nothing is written where it fits already.

    Rows of a synced table that is new come from where rows without a table wait, and those of one that is gone go
    there. Rows of a local-only table that is gone are lost.
    """
    if _fits(connection, schema):
        return
    with writing(connection):
        for name in made_views(connection):
            connection.execute(f'DROP VIEW "{name}"')
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
    return {name.removeprefix("ps_data__"): name for (name,) in found.fetchall()}


def local_tables(connection: sqlite3.Connection) -> list[str]:
    """The tables whose rows never leave the device."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB 'ps_data_local__*'")
    return [name for (name,) in found.fetchall()]


def _fits(connection: sqlite3.Connection, schema: Schema) -> bool:
    wanted: set[str] = set()
    for name, table in schema.views.items():
        wanted |= {create_data_table(name, table), create_view(name, table)}
        wanted |= {*create_indexes(name, table).values(), *create_triggers(name, table)}
    found = connection.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND (name GLOB 'ps_data_*' OR name GLOB 'ps_view_*'"
        " OR (type = 'view' AND sql GLOB ?))",
        (f"*{MARK}",),
    )
    return {text for (text,) in found.fetchall()} == wanted


def made_views(connection: sqlite3.Connection) -> list[str]:
    """What the app calls the tables that a schema made."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view' AND sql GLOB ?", (f"*{MARK}",))
    return [name for (name,) in found.fetchall()]


def _replace_tables(connection: sqlite3.Connection, schema: Schema) -> None:
    present = synced_tables(connection)
    wanted = {data_table(name, table): (name, table) for name, table in schema.views.items()}
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
    connection.execute(create_data_table(name, table))
    if not table.local_only:
        target = data_table(name, table)
        connection.execute(f'INSERT INTO "{target}"(id, data) SELECT id, data FROM ps_untyped WHERE type = ?', (name,))
        connection.execute("DELETE FROM ps_untyped WHERE type = ?", (name,))


def _make_views(connection: sqlite3.Connection, schema: Schema) -> None:
    for name, table in schema.views.items():
        _replace_indexes(connection, data_table(name, table), create_indexes(name, table))
        connection.execute(create_view(name, table))
        for trigger in create_triggers(name, table):
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
