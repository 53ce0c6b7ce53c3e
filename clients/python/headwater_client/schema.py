"""The schema of an app: tables, their columns and indexes, and tables that the app keeps itself.

    Schema({"todos": Table({"title": "text", "done": "integer"}, indexes={"by_title": ["title"]})})

Every table also has the column `id`, a text. In the file, a table is one of JSON texts, a view over it, triggers that
write through the view, and indexes: plain SQL but for `headwater_tx()`, which tells transactions apart
(storage/connection.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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


MARK = "-- powersync-auto-generated"
"""Ends each view that is made from a schema, as the stock SDKs mark theirs."""

_PART = 60
"""So many columns fit into one call: a function of SQLite takes 127 arguments."""

_NOWHERE = """'$."."'"""
"""The path of a column that no table has."""

_GREATEST = "1.7976931348623157e308"
"""What is more is an infinity."""

_CHECK_ID = (
    "SELECT CASE WHEN NEW.id IS NULL THEN RAISE(FAIL, 'id is required') "
    "WHEN typeof(NEW.id) != 'text' THEN RAISE(FAIL, 'id should be text') END;"
)
_CHECK_SAME_ID = "SELECT CASE WHEN OLD.id != NEW.id THEN RAISE(FAIL, 'Cannot update id') END;"


def data_table(name: str, table: Table) -> str:
    """The name of the table that holds the JSON texts."""
    return f"ps_data_local__{name}" if table.local_only else f"ps_data__{name}"


def create_data_table(name: str, table: Table) -> str:
    return f"CREATE TABLE {_quoted(data_table(name, table))}(id TEXT PRIMARY KEY NOT NULL, data TEXT)"


def create_indexes(name: str, table: Table) -> dict[str, str]:
    """Each index of the table, by the name that it has in the file."""
    target = data_table(name, table)
    statements = {}
    for index, columns in table.indexes.items():
        called = f"{target}__{index}"
        parts = ", ".join(_indexed(table, column) for column in columns)
        statements[called] = f"CREATE INDEX {_quoted(called)} ON {_quoted(target)}({parts})"
    return statements


def create_view(name: str, table: Table) -> str:
    names = ["id", *table.columns]
    values = ["id", *(_value(table, column) for column in table.columns)]
    if table.track_metadata:
        names += ["_metadata", "_deleted"]
        values += ["NULL", "NULL"]
    listed = ", ".join(_quoted(each) for each in names)
    return (
        f"CREATE VIEW {_quoted(table.view_name or name)}({listed}) AS SELECT {', '.join(values)} "
        f"FROM {_quoted(data_table(name, table))} {MARK}"
    )


def create_triggers(name: str, table: Table) -> list[str]:
    """What makes the view writable. A table that is only inserted to has no other trigger."""
    if table.insert_only:
        return [_on_insert(name, table)]
    on_delete = _trigger("delete", name, table, "DELETE", _deletion(name, table, "NULL"))
    triggers = [_on_insert(name, table), _on_update(name, table), on_delete]
    if table.track_metadata:  # a DELETE has no room for it: an UPDATE of `_deleted` carries it
        steps = _deletion(name, table, "NEW._metadata")
        triggers.append(_trigger("delete2", name, table, "UPDATE", steps, "NEW._deleted IS TRUE"))
    return triggers


def _on_insert(name: str, table: Table) -> str:
    row = _row("NEW", table, table.columns)
    steps = [] if table.local_only else [_CHECK_ID]
    if not table.insert_only:
        steps.append(f"INSERT INTO {_quoted(data_table(name, table))} SELECT NEW.id, {row};")
    if not table.local_only:
        present = _without(row, (("NEW." + _quoted(each) + " IS NULL", each) for each in table.columns))
        metadata = "NEW._metadata" if table.track_metadata else "NULL"
        kind = "PUT_ONLY" if table.insert_only else "PUT"
        steps.append(_queue(name, kind, "NEW", data=f"json({present})", metadata=metadata))
    return _trigger("insert", name, table, "INSERT", steps)


def _on_update(name: str, table: Table) -> str:
    row = _row("NEW", table, table.columns)
    target = _quoted(data_table(name, table))
    steps = [_CHECK_SAME_ID, f"UPDATE {target} SET data = {row} WHERE id = NEW.id;"]
    if not table.local_only:
        changes = _without(row, ((_same(each), each) for each in table.columns))
        previous = table.previous
        old = "NULL" if previous is None else _old_values(table, previous)
        metadata = "NEW._metadata" if table.track_metadata else "NULL"
        only_if = " OR ".join(f"NOT ({_same(each)})" for each in table.columns) or "0"
        steps.append(
            _queue(
                name, "PATCH", "NEW", data=f"json({changes})", old=old, metadata=metadata,
                only_if=only_if if table.ignore_empty_updates else None,
            )
        )  # fmt: skip
    when = "NEW._deleted IS NOT TRUE" if table.track_metadata else None
    return _trigger("update", name, table, "UPDATE", steps, when)


def _deletion(name: str, table: Table, metadata: str) -> list[str]:
    steps = [f"DELETE FROM {_quoted(data_table(name, table))} WHERE id = OLD.id;"]
    if not table.local_only:
        previous = table.previous
        old = "NULL" if previous is None else _row("OLD", table, _tracked(table, previous))
        steps.append(_queue(name, "DELETE", "OLD", old=old, metadata=metadata))
    return steps


def _old_values(table: Table, previous: TrackPrevious) -> str:
    columns = _tracked(table, previous)
    row = _row("OLD", table, columns)
    if previous.only_when_changed:
        return f"json({_without(row, ((_same(each), each) for each in columns))})"
    return row


def _tracked(table: Table, previous: TrackPrevious) -> Sequence[str]:
    if previous.columns is None:
        return list(table.columns)
    return [column for column in previous.columns if column != "id"]


def _queue(
    name: str, kind: str, row: str, *, data: str = "NULL", old: str = "NULL", metadata: str = "NULL",
    only_if: str | None = None,
) -> str:  # fmt: skip
    """One entry of the upload queue, by the view that storage/layout.py makes."""
    values = f"'{kind}', '{name}', {row}.id, {data}, {old}, {metadata}"
    where = "" if only_if is None else f" WHERE {only_if}"
    return f"INSERT INTO headwater_crud(op, type, id, data, old, metadata) SELECT {values}{where};"


def _trigger(
    kind: str, name: str, table: Table, event: str, steps: Iterable[str], when: str | None = None
) -> str:  # fmt: skip
    view = table.view_name or name
    condition = "" if when is None else f" WHEN {when}"
    body = "\n".join(steps)
    return (
        f"CREATE TRIGGER {_quoted(f'ps_view_{kind}_{view}')} INSTEAD OF {event} ON {_quoted(view)} "
        f"FOR EACH ROW{condition} BEGIN\n{body}\nEND"
    )


def _row(of: str, table: Table, columns: Iterable[str]) -> str:
    """The JSON object of these columns of NEW or OLD."""
    pairs = [(f"'{column}'", _plain(of, table, column)) for column in columns]
    paths = [(f"""'$."{column}"'""", _plain(of, table, column)) for column in columns]
    text = f"json_object({', '.join(chain.from_iterable(pairs[:_PART]))})"
    for start in range(_PART, len(paths), _PART):
        text = f"json_set({text}, {', '.join(chain.from_iterable(paths[start : start + _PART]))})"
    return text


def _plain(of: str, table: Table, column: str) -> str:
    # A value that a JSON function made would go in as JSON, not as the text it is: joined with '' it is a plain text
    each = f"{of}.{_quoted(column)}"
    # SQLite before 3.43 writes 15 digits of a number into JSON, but 17 may tell it from its neighbours, and before 3.42
    # it cannot read the infinities that it writes
    exact = (
        f" WHEN 'real' THEN CASE WHEN abs({each}) > {_GREATEST} THEN json(iif({each} > 0, '9e999', '-9e999'))"
        f" WHEN CAST(format('%!.15g', {each}) AS REAL) = {each} THEN {each}"
        f" ELSE json(format('%!.17g', {each})) END"
    )
    numbers = exact if table.columns.get(column) == "real" else ""
    return f"CASE typeof({each}) WHEN 'text' THEN {each} || ''{numbers} ELSE {each} END"


def _without(row: str, left_out: Iterable[tuple[str, str]]) -> str:
    """The JSON object `row` without the columns whose condition holds."""
    paths = [f"""iif({condition}, '$."{column}"', {_NOWHERE})""" for condition, column in left_out]
    for start in range(0, len(paths), _PART):
        row = f"json_remove({row}, {', '.join(paths[start : start + _PART])})"
    return row


def _same(column: str) -> str:
    return f"OLD.{_quoted(column)} IS NEW.{_quoted(column)}"


def _value(table: Table, column: str) -> str:
    if column == "id":
        return "id"
    return f"""CAST(json_extract(data, '$."{column}"') AS {table.columns[column].upper()})"""


def _indexed(table: Table, column: str) -> str:
    name = column.removeprefix("-")
    return f"{_value(table, name)}{' DESC' if name != column else ''}"


def _quoted(name: str) -> str:
    return f'"{name}"'
