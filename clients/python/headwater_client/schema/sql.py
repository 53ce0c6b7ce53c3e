"""The SQL of one table: a table of JSON texts, a view over it, triggers that write through the view, and indexes.

Everything is plain SQL but for `headwater_tx()`, which tells transactions apart (storage/connection.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from headwater_client.schema.tables import Table, TrackPrevious

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


def view_name(name: str, table: Table) -> str:
    """What the app calls the table."""
    return table.view_name or name


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
        f"CREATE VIEW {_quoted(view_name(name, table))}({listed}) AS SELECT {', '.join(values)} "
        f"FROM {_quoted(data_table(name, table))} {MARK}"
    )


def create_triggers(name: str, table: Table) -> list[str]:
    """What makes the view writable. A table that is only inserted to has no other trigger."""
    if table.insert_only:
        return [_on_insert(name, table)]
    triggers = [_on_insert(name, table), _on_update(name, table), _on_delete(name, table)]
    if table.track_metadata:
        triggers.append(_on_delete_with_metadata(name, table))
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


def _on_delete(name: str, table: Table, *, metadata: str = "NULL") -> str:
    return _trigger("delete", name, table, "DELETE", _deletion(name, table, metadata))


def _on_delete_with_metadata(name: str, table: Table) -> str:
    """A DELETE has no room for metadata: an UPDATE of `_deleted` carries it."""
    steps = _deletion(name, table, "NEW._metadata")
    return _trigger("delete2", name, table, "UPDATE", steps, "NEW._deleted IS TRUE")


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
    view = view_name(name, table)
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
