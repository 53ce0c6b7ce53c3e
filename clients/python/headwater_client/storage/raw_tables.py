"""Writes synced rows into tables that the app made itself."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from headwater_client.errors import ProtocolError, SchemaError
from headwater_client.schema.tables import RawTable, Statement


class RawWriter:
    """Puts and deletes rows of one table. Raises `SchemaError` where statement or table do not fit."""

    def __init__(self, connection: sqlite3.Connection, name: str, table: RawTable) -> None:
        self._connection = connection
        target = table.table_name or name
        self._put = table.put or _inferred_put(connection, target)
        self._delete = table.delete or Statement(f'DELETE FROM "{target}" WHERE id = ?', ["Id"])

    def put(self, rows: Iterable[tuple[str, str | None]]) -> None:
        """Insert or replace rows, each an id and its JSON text."""
        self._connection.executemany(self._put.sql, [_bound(self._put, row_id, data) for row_id, data in rows])

    def delete(self, ids: Iterable[str]) -> None:
        self._connection.executemany(self._delete.sql, [_bound(self._delete, row_id, None) for row_id in ids])


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
