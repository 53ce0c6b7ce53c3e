"""The schema of an app: tables, their columns and indexes, and tables that the app keeps itself.

    Schema({"todos": Table({"title": "text", "done": "integer"}, indexes={"by_title": ["title"]})})

Every table also has the column `id`, a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from headwater_client.errors import SchemaError

ColumnType = Literal["text", "integer", "real"]

_UNFIT = re.compile(r"""["'%,.#\s\[\]]""")
_MOST_COLUMNS = 1999
"""What SQLite gives to one view."""


@dataclass(frozen=True)
class TrackPrevious:
    """Which old values an upload carries beside the new: those of `columns` (None: of all)."""

    columns: Sequence[str] | None = None
    only_when_changed: bool = False


@dataclass(frozen=True)
class Table:
    """A synced table: `columns` maps each name to `text`, `integer` or `real`.

    `indexes` maps a name to columns; one that begins with a minus sorts downwards. A `local_only` table is never
    uploaded or synced; an `insert_only` one uploads what is inserted and keeps nothing. `view_name` is what the app
    calls it where the server calls it otherwise.
    """

    columns: Mapping[str, ColumnType]
    indexes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    local_only: bool = False
    insert_only: bool = False
    view_name: str | None = None
    track_previous: bool | TrackPrevious = False
    track_metadata: bool = False
    ignore_empty_updates: bool = False

    @property
    def previous(self) -> TrackPrevious | None:
        """Which old values are tracked, if any."""
        if isinstance(self.track_previous, TrackPrevious):
            return self.track_previous
        return TrackPrevious() if self.track_previous else None


@dataclass(frozen=True)
class Statement:
    """SQL of the app with what is bound to it: `"Id"`, `"Rest"`, or the name of a column as `{"Column": name}`."""

    sql: str
    params: Sequence[str | Mapping[str, str]]


@dataclass(frozen=True)
class RawTable:
    """A table that the app made itself, and that synced rows are written to.

    By `put` and `delete`, or where they are missing into the columns of `table_name` (default: the name in the schema).
    `clear` empties it in `disconnect_and_clear`.
    """

    put: Statement | None = None
    delete: Statement | None = None
    clear: str | None = None
    table_name: str | None = None


@dataclass(frozen=True)
class Schema:
    """The tables of an app, by the names that they have on the server."""

    tables: Mapping[str, Table | RawTable]

    def __post_init__(self) -> None:
        views: set[str] = set()
        for name, table in self.tables.items():
            _check_name("table", name)
            if isinstance(table, RawTable):
                continue
            _check_table(name, table)
            view = (table.view_name or name).lower()
            if view in views:
                raise SchemaError(f"two tables are called {table.view_name or name}: give one another view_name")
            views.add(view)

    @property
    def views(self) -> dict[str, Table]:
        """The tables that are kept as JSON, by their names on the server."""
        return {name: table for name, table in self.tables.items() if isinstance(table, Table)}

    @property
    def raw(self) -> dict[str, RawTable]:
        """The tables that the app keeps itself, by their names on the server."""
        return {name: table for name, table in self.tables.items() if isinstance(table, RawTable)}

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, ColumnType] | Table | RawTable]) -> Schema:
        """A schema from plain mappings of columns to types."""
        return cls(
            {name: each if isinstance(each, (Table, RawTable)) else Table(dict(each)) for name, each in tables.items()}
        )


def is_fit(name: str) -> bool:
    """Whether a table or column may be called so."""
    return bool(name) and not _UNFIT.search(name)


def _check_table(name: str, table: Table) -> None:
    if table.view_name is not None:
        _check_name("view", table.view_name)
    if len(table.columns) > _MOST_COLUMNS:
        raise SchemaError(f"{name} has {len(table.columns)} columns: SQLite takes {_MOST_COLUMNS}")
    _check_columns(name, table.columns)
    if table.local_only and (table.track_metadata or table.track_previous):
        raise SchemaError(f"{name} is local_only and never uploaded: there is nothing to track")
    known = {"id", *table.columns}
    previous = table.previous
    _check_known(name, known, () if previous is None else previous.columns or (), "track_previous")
    for index, columns in table.indexes.items():
        _check_name("index", index)
        if not columns:
            raise SchemaError(f"{name}: the index {index} has no column")
        _check_known(name, known, (column.removeprefix("-") for column in columns), f"the index {index}")


def _check_columns(name: str, columns: Mapping[str, ColumnType]) -> None:
    seen: set[str] = set()
    for column, kind in columns.items():
        _check_name(f"{name}: column", column)
        if column.lower() == "id":
            raise SchemaError(f"{name}: every table has a column id already, remove it from the schema")
        if column.lower() in seen:
            raise SchemaError(f"{name}: two columns are called {column}, for SQLite tells no capitals apart")
        if kind not in get_args(ColumnType):
            raise SchemaError(f"{name}.{column} is {kind!r}: take one of {', '.join(get_args(ColumnType))}")
        seen.add(column.lower())


def _check_known(name: str, known: set[str], used: Iterable[str], where: str) -> None:
    for column in used:
        if column not in known:
            raise SchemaError(f"{name}: {where} names the column {column}, which the table does not have")


def _check_name(kind: str, name: str) -> None:
    if not is_fit(name):
        raise SchemaError(f"{kind} {name!r}: a name is not empty and has no quote, comma, dot, %, #, bracket or space")
