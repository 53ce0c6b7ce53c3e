"""Shows what was stored: compares checksums, and writes the newest value of each changed row to its table."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headwater_client.errors import ProtocolError, SchemaError
from headwater_client.protocol.lines import BucketChecksum
from headwater_client.protocol.session import CheckpointTarget, FinishOutcome
from headwater_client.schema import RawTable, Statement
from headwater_client.storage import buckets, uploads
from headwater_client.storage.layout import FULL_SYNC, synced_tables


def _inferred_put(connection: sqlite3.Connection, target: str) -> Statement:
    columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (target,))]
    if "id" not in columns:
        raise SchemaError(f"the raw table {target} is not there, or has no column id: create it before connecting")
    listed = ", ".join(f'"{column}"' for column in columns)
    updates = ", ".join(f'"{column}" = excluded."{column}"' for column in columns if column != "id")
    return Statement(
        f'INSERT INTO "{target}"({listed}) VALUES ({", ".join("?" * len(columns))})'
        f" ON CONFLICT(id) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}",
        ["Id" if column == "id" else {"Column": column} for column in columns],
    )


def _bound(statement: Statement, row_id: str, data: str | None) -> list[object]:
    row = {} if data is None else _object(data)
    named = {each["Column"] for each in statement.params if isinstance(each, Mapping)}
    values: list[object] = []
    for param in statement.params:
        if isinstance(param, Mapping):
            values.append(_plain(row.get(param["Column"])))
        elif param == "Id":
            values.append(row_id)
        else:
            values.append(json.dumps({name: value for name, value in row.items() if name not in {*named, "id"}}))
    return values


def _object(data: str) -> dict[str, object]:
    try:
        row = json.loads(data, parse_int=_number)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ProtocolError("a row of a raw table is not a JSON object")
    return row


def _number(text: str) -> int | float:
    """As SQLite reads it: what has no room in its integers is a real."""
    value = int(text)
    return value if -(2**63) <= value < 2**63 else float(text)


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


# The rows that differ from what the app's tables show: those with an operation since, and those that a local write or
# a removal touched. A partial checkpoint leaves the latter alone, since a bucket to come may have them
_CHANGED: Final = """
INSERT OR IGNORE INTO temp.headwater_changed(row_type, row_id)
SELECT op.row_type, op.row_id FROM ps_buckets AS bucket
CROSS JOIN ps_oplog AS op ON op.bucket = bucket.id AND op.op_id > bucket.last_applied_op
WHERE bucket.id IN (SELECT id FROM temp.headwater_involved) AND op.row_type IS NOT NULL AND op.row_id IS NOT NULL
"""
_TOUCHED: Final = """
INSERT OR IGNORE INTO temp.headwater_changed(row_type, row_id) SELECT row_type, row_id FROM ps_updated_rows
"""

# SQLite takes `data` from the row that has the greatest op_id
_NEWEST: Final = """
SELECT op.row_id AS id, iif(max(op.op_id), op.data, NULL) AS data FROM temp.headwater_changed AS changed
CROSS JOIN ps_oplog AS op ON op.row_type = changed.row_type AND op.row_id = changed.row_id
WHERE changed.row_type = :type AND op.bucket IN (SELECT id FROM temp.headwater_involved)
GROUP BY changed.row_id
"""
_GONE: Final = """
SELECT row_id FROM temp.headwater_changed AS changed WHERE row_type = :type AND NOT EXISTS (
  SELECT 1 FROM ps_oplog AS op WHERE op.row_type = changed.row_type AND op.row_id = changed.row_id)
"""
_FIRST: Final = """
SELECT op.row_id AS id, iif(max(op.op_id), op.data, NULL) AS data FROM ps_oplog AS op
WHERE op.row_type = :type AND op.bucket IN (SELECT id FROM temp.headwater_involved) GROUP BY op.row_id
"""


@dataclass(frozen=True)
class Applied:
    """What came of a checkpoint; `mismatched` buckets were removed."""

    outcome: FinishOutcome
    mismatched: tuple[str, ...] = ()


def prepare(connection: sqlite3.Connection) -> None:
    """Make what `apply` works with, which is gone with the connection."""
    connection.execute("CREATE TEMP TABLE headwater_involved(id INTEGER PRIMARY KEY)")
    connection.execute(
        "CREATE TEMP TABLE headwater_changed("
        "row_type TEXT NOT NULL, row_id TEXT NOT NULL, PRIMARY KEY(row_type, row_id)) WITHOUT ROWID"
    )


def apply(
    connection: sqlite3.Connection,
    target: CheckpointTarget,
    priority: int | None,
    raw: Mapping[str, RawTable],
    now: int,
) -> Applied:
    """Show what is stored of `target`, of the buckets of `priority` and lower numbers, or with None of all.

    To be called within a transaction. `now` is in microseconds since 1970. Local writes that are not confirmed block
    it, unless it is of priority 0.
    """
    involved = target.of_priority(priority)
    wrong = buckets.mismatched(connection, involved)
    if wrong:
        buckets.drop(connection, wrong)
        return Applied(FinishOutcome.MISMATCH, wrong)
    connection.execute(
        "UPDATE ps_buckets SET last_op = max(last_op, ?) WHERE name IN (SELECT value FROM json_each(?))",
        (target.last_op_id, json.dumps(list(involved))),
    )
    if priority is None and target.write_checkpoint is not None:
        uploads.note_seen(connection, target.write_checkpoint)
    if priority != 0 and not uploads.confirmed(connection):
        return Applied(FinishOutcome.BLOCKED)
    buckets.end_bulk(connection)
    _write(connection, involved, raw, full=priority is None)
    if priority is None:
        _finish(connection, target)
    connection.execute(
        "INSERT INTO ps_sync_state(priority, last_synced_at) VALUES (?, ?)"
        " ON CONFLICT(priority) DO UPDATE SET last_synced_at = excluded.last_synced_at",
        (FULL_SYNC if priority is None else priority, now),
    )
    return Applied(FinishOutcome.APPLIED)


def _finish(connection: sqlite3.Connection, target: CheckpointTarget) -> None:
    connection.executemany(
        "UPDATE ps_buckets SET count_since_last = 0, count_at_last = ? WHERE name = ?",
        [(each.count, name) for name, each in target.buckets.items()],
    )
    if target.write_checkpoint is not None:
        uploads.note_applied(connection, target.write_checkpoint)


def _write(
    connection: sqlite3.Connection, involved: Mapping[str, BucketChecksum], raw: Mapping[str, RawTable], *, full: bool
) -> None:
    """Write the changed rows to their tables."""
    _list_involved(connection, None if full else involved)
    first = full and _is_first(connection)
    if first:
        found = connection.execute("SELECT DISTINCT row_type FROM ps_oplog WHERE row_type IS NOT NULL").fetchall()
    else:
        connection.execute(_CHANGED)
        if full:
            connection.execute(_TOUCHED)
        found = connection.execute("SELECT DISTINCT row_type FROM temp.headwater_changed").fetchall()
    tables = synced_tables(connection)
    for (kind,) in found:
        if kind in raw:
            _write_raw(connection, kind, raw[kind], first=first)
        else:
            _write_json(connection, kind, tables.get(kind), first=first)
    involved_ids = "SELECT id FROM temp.headwater_involved"
    connection.execute(f"UPDATE ps_buckets SET last_applied_op = last_op WHERE id IN ({involved_ids})")
    if full:
        connection.execute("DELETE FROM ps_updated_rows")
    connection.execute("DELETE FROM temp.headwater_changed")


def _write_json(connection: sqlite3.Connection, kind: str, table: str | None, *, first: bool) -> None:
    # What SQLite cannot read as JSON would break every query of the app on the table: json() raises for it
    newest = f"SELECT id, iif(json_valid(data), data, json(data)) AS data FROM ({_FIRST if first else _NEWEST})"
    if table is None:
        put = "INSERT OR REPLACE INTO ps_untyped(type, id, data) SELECT :type, id, data"
        delete = "DELETE FROM ps_untyped WHERE type = :type AND"
    else:
        put = f'INSERT OR REPLACE INTO "{table}"(id, data) SELECT id, data'
        delete = f'DELETE FROM "{table}" WHERE'
    try:
        connection.execute(f"{put} FROM ({newest})", {"type": kind})
    except connection.OperationalError as error:
        if "malformed JSON" in str(error):
            raise ProtocolError(f"a row of {kind} is not JSON") from error
        raise
    if not first:
        connection.execute(f"{delete} id IN ({_GONE})", {"type": kind})


def _write_raw(connection: sqlite3.Connection, kind: str, table: RawTable, *, first: bool) -> None:
    """Raises `SchemaError` where statement or table do not fit."""
    target = table.table_name or kind
    put = table.put or _inferred_put(connection, target)
    rows = connection.execute(_FIRST if first else _NEWEST, {"type": kind}).fetchall()
    connection.executemany(put.sql, [_bound(put, row_id, data) for row_id, data in rows])
    if not first:
        delete = table.delete or Statement(f'DELETE FROM "{target}" WHERE id = ?', ["Id"])
        gone = connection.execute(_GONE, {"type": kind}).fetchall()
        connection.executemany(delete.sql, [_bound(delete, row_id, None) for (row_id,) in gone])


def _is_first(connection: sqlite3.Connection) -> bool:
    """Whether no row was ever shown, so that all are new."""
    (found,) = connection.execute(
        "SELECT (SELECT count(*) FROM (SELECT 1 FROM ps_sync_state LIMIT 1))"
        " + (SELECT count(*) FROM (SELECT 1 FROM ps_updated_rows LIMIT 1))"
        " + (SELECT count(*) FROM (SELECT 1 FROM ps_untyped LIMIT 1))"
    ).fetchone()
    return bool(found == 0)


def _list_involved(connection: sqlite3.Connection, names: Iterable[str] | None) -> None:
    connection.execute("DELETE FROM temp.headwater_involved")
    if names is None:
        connection.execute("INSERT INTO temp.headwater_involved SELECT id FROM ps_buckets")
    else:
        connection.execute(
            "INSERT INTO temp.headwater_involved SELECT id FROM ps_buckets"
            " WHERE name IN (SELECT value FROM json_each(?))",
            (json.dumps(list(names)),),
        )
