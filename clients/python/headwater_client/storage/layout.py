"""The tables that every device's file has, with the names and columns that the stock SDKs give them."""

from __future__ import annotations

import sqlite3
import uuid
from typing import Final

from headwater_client.errors import FileError
from headwater_client.storage import bulk
from headwater_client.storage.transaction import writing

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
        for index in bulk.INDEXES.values() if found is None else ():
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
