"""What the command reads: schemas, tokens, device files."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from headwater_client.database.database import Database
from headwater_client.errors import ClientError, FileError
from headwater_client.schema.tables import ColumnType, Schema, is_fit
from headwater_client.storage.layout import is_device_file

_TYPES: dict[str, ColumnType] = {"integer": "integer", "true": "integer", "false": "integer", "real": "real"}
_STEPS = 100_000
"""Of SQLite's machine: some milliseconds."""


class Failed(click.ClickException):
    """An error that the user is told in one line."""

    @classmethod
    def of(cls, error: ClientError) -> Failed:
        return cls(str(error))


def read_schema(path: Path) -> tuple[Schema, list[str]]:
    """The tables of a JSON file, `{"todos": {"title": "text"}}`, and names in it that no table or column can have."""
    try:
        tables: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(f"{path} cannot be read: {error}") from error
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise Failed(f'{path} has to map tables to columns: {{"todos": {{"title": "text"}}}}')
    columns = {f"{table}.{column}": column for table, each in tables.items() if is_fit(table) for column in each}
    left_out = [table for table in tables if not is_fit(table)]
    left_out += [name for name, column in columns.items() if not is_fit(column) or column.lower() == "id"]
    fit = {
        table: {column: kind for column, kind in each.items() if f"{table}.{column}" not in left_out}
        for table, each in tables.items()
        if table not in left_out
    }
    try:
        return Schema.of(fit), left_out
    except ClientError as error:
        raise Failed.of(error) from error


def open_existing(path: Path, key: str | None) -> Database:
    """The device of a file that is there. Raises `Failed`."""
    if not path.exists():
        raise Failed(f"{path} is not there: headwater-client sync makes it")
    try:
        if key is None:
            _check(path)
        database = Database(path, key=key)
    except ClientError as error:
        raise Failed.of(error) from error
    # While SQLite works, Python hears of Ctrl-C only where it is called
    database.conn.set_progress_handler(lambda: 0, _STEPS)
    return database


def _check(path: Path) -> None:
    """Look at the file without changing it. Raises `FileError`."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            if is_device_file(connection):
                return
    except sqlite3.Error as error:
        raise FileError(f"{path} cannot be opened as a SQLite file: {error}") from error
    raise FileError(f"{path} is not the file of a device")


def found_schema(
    connection: sqlite3.Connection, kinds: Iterable[str], present: Iterable[str]
) -> tuple[Schema, list[str]]:
    """The tables and columns that the downloaded rows of these kinds have, beside tables that are `present`. What no
    schema can name, or SQLite can't tell from another, is left out and named."""
    columns: dict[str, dict[str, ColumnType]] = {}
    called: dict[str, str] = {name.lower(): name for name in present}
    called_in: dict[str, dict[str, str]] = {}
    left_out: dict[str, None] = {}
    rows = connection.execute(
        "SELECT DISTINCT op.row_type, field.key, field.type FROM ps_oplog AS op, json_each(op.data) AS field"
        " WHERE op.row_type IN (SELECT value FROM json_each(?)) AND field.key != 'id' AND field.type != 'null'"
        " ORDER BY 1, 2, 3",
        [json.dumps(list(kinds))],
    )
    for table, column, kind in rows.fetchall():
        if not _has_name(called, table):
            left_out[table] = None
            continue
        known, this = columns.setdefault(table, {}), _TYPES.get(kind, "text")
        if _has_name(called_in.setdefault(table, {"id": "id"}), column):
            known[column] = this if known.get(column, this) == this else "text"
        else:
            left_out[f"{table}.{column}"] = None
    return Schema.of(columns), list(left_out)


def _has_name(called: dict[str, str], name: str) -> bool:
    """Whether it may have its name beside the others, which are kept by how SQLite tells them apart."""
    return is_fit(name) and called.setdefault(name.lower(), name) == name
