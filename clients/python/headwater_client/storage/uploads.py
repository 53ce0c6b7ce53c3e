"""The upload queue, and which write checkpoint has to arrive before downloaded rows may replace local writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headwater_client.storage.connection import writing
from headwater_client.storage.layout import APPLIED, NO_TARGET, SEEN, TARGET

OpKind = Literal["PUT", "PATCH", "DELETE"]

REQUEST: Final = "current_checkpoint_request_id"
"""The newest checkpoint that was requested by number. The server keeps it by client id, so it outlives a clear."""


@dataclass(frozen=True)
class CrudEntry:
    """One local write. `op_id` numbers the writes of this device, `transaction_id` its transactions.

    `data` has the columns that were written (None for a DELETE), `previous` old values where the table tracks them.
    """

    op_id: int
    transaction_id: int | None
    op: OpKind
    table: str
    id: str
    data: Mapping[str, object] | None
    previous: Mapping[str, object] | None = None
    metadata: str | None = None


def next_transaction(connection: sqlite3.Connection, after: int = 0) -> list[CrudEntry]:
    """The writes of the first transaction beyond the write `after`, in their order; none where nothing waits."""
    first = connection.execute(
        "SELECT id, tx_id, data FROM ps_crud WHERE id > ? ORDER BY id LIMIT 1", (after,)
    ).fetchone()
    if first is None:
        return []
    if first[1] is None:
        return [_entry(first)]
    rows = connection.execute(
        "SELECT id, tx_id, data FROM ps_crud WHERE tx_id = ? AND id > ? ORDER BY id", (first[1], after)
    )
    return [_entry(row) for row in rows.fetchall()]


def next_batch(connection: sqlite3.Connection, limit: int) -> list[CrudEntry]:
    """The first `limit` writes that wait."""
    rows = connection.execute("SELECT id, tx_id, data FROM ps_crud ORDER BY id LIMIT ?", (limit,))
    return [_entry(row) for row in rows.fetchall()]


def first_waiting(connection: sqlite3.Connection) -> int | None:
    """The number of the first write that waits."""
    row = connection.execute("SELECT min(id) FROM ps_crud").fetchone()
    return None if row[0] is None else int(row[0])


def waiting(connection: sqlite3.Connection) -> int:
    """How many writes wait."""
    (count,) = connection.execute("SELECT count(*) FROM ps_crud").fetchone()
    return int(count)


def complete(connection: sqlite3.Connection, last: int, write_checkpoint: str | None) -> None:
    """Take writes up to number `last` off the queue. Where the app knows their write checkpoint, that is the target.

    Nothing changes where they are off it, as by a clear while an upload was on its way.
    """
    with writing(connection):
        if connection.execute("DELETE FROM ps_crud WHERE id <= ?", (last,)).rowcount == 0:
            return
        if write_checkpoint is None:
            _put(connection, TARGET, NO_TARGET)
        elif first_waiting(connection) is None:
            _put(connection, TARGET, int(write_checkpoint))


def unconfirmed_sequence(connection: sqlite3.Connection) -> int | None:
    """Where uploaded writes have no write checkpoint yet, the number of the newest write ever; else None."""
    # One statement, since the app writes in between two
    row = connection.execute(
        "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'ps_crud'), 0) FROM ps_kv"
        " WHERE key = ? AND CAST(value AS INTEGER) = ? AND NOT EXISTS (SELECT 1 FROM ps_crud)",
        (TARGET, NO_TARGET),
    ).fetchone()
    return None if row is None else int(row[0])


def set_target(connection: sqlite3.Connection, write_checkpoint: int, sequence: int) -> bool:
    """Wait for this write checkpoint, unless there were writes since `sequence` was read, or the file was cleared."""
    with writing(connection):
        if unconfirmed_sequence(connection) != sequence:
            return False
        _put(connection, TARGET, write_checkpoint)
        return True


def confirmed(connection: sqlite3.Connection) -> bool:
    """Whether every local write was uploaded and has come back."""
    if first_waiting(connection) is not None:
        return False
    target = _get(connection, TARGET)
    return target is None or target <= (_get(connection, SEEN) or 0)


def note_seen(connection: sqlite3.Connection, write_checkpoint: int) -> None:
    """A whole checkpoint with this write checkpoint is stored."""
    if write_checkpoint > (_get(connection, SEEN) or 0):
        _put(connection, SEEN, write_checkpoint)


def note_applied(connection: sqlite3.Connection, write_checkpoint: int) -> None:
    """The app sees the rows of this write checkpoint."""
    _put(connection, APPLIED, write_checkpoint)


def applied(connection: sqlite3.Connection) -> int:
    """The write checkpoint whose rows the app sees."""
    return _get(connection, APPLIED) or 0


def next_request(connection: sqlite3.Connection) -> int:
    """A number for the next checkpoint that this device asks for."""
    with writing(connection):
        number = current_request(connection) + 1
        _put(connection, REQUEST, number)
        return number


def current_request(connection: sqlite3.Connection) -> int:
    """The newest checkpoint that this device has requested, or waits for; at least 1 is what a server takes."""
    target = _get(connection, TARGET) or 0
    return max(_get(connection, REQUEST) or 0, 0 if target == NO_TARGET else target)


def seed_request(connection: sqlite3.Connection, number: int) -> None:
    """The server knows of checkpoint requests up to this number."""
    with writing(connection):
        if number > current_request(connection):
            _put(connection, REQUEST, number)


def _get(connection: sqlite3.Connection, key: str) -> int | None:
    row = connection.execute("SELECT value FROM ps_kv WHERE key = ?", (key,)).fetchone()
    return None if row is None else int(row[0])


def _put(connection: sqlite3.Connection, key: str, value: int) -> None:
    connection.execute(
        "INSERT INTO ps_kv(key, value) VALUES (?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


def _entry(row: tuple[int, int | None, str]) -> CrudEntry:
    number, transaction, text = row
    fields = json.loads(text)
    values = fields.get("data"), fields.get("old"), fields.get("metadata")
    return CrudEntry(number, transaction, fields["op"], fields["type"], fields["id"], *values)
