"""Builds the SQL of one write. Names come from the allow list and the catalog and are quoted; values are parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from headwater.decode.builtin import Oid
from headwater.source.upload.entries import sendable
from headwater.source.upload.errors import BadEntry, WriteNotAllowed
from headwater.source.upload.json_text import Json, read_json
from headwater.source.upload.shape import FUNCTION_ARGUMENTS, Column, TableShape
from headwater.source.upload.values import bind, typed


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with its parameters."""

    query: sql.Composed
    parameters: tuple[str | None, ...]


Values = Mapping[str, Json]


def named(*names: str) -> sql.SQL:
    """A quoted name. Each % is doubled, since psycopg would take it for a placeholder."""
    return sql.SQL(sql.Identifier(*names).as_string().replace("%", "%%"))


def key_values(shape: TableShape, row_id: str) -> dict[str, Json]:
    """Split a device's row id into the values of the key columns: joined by the rule's separator, or the JSON array in
    the table's order of columns that `row_id()` of a sync config makes. Raises BadEntry."""
    if len(shape.key) == 1:
        return {shape.key[0]: row_id}
    if row_id.startswith('["'):
        listed = _array(row_id)
        if len(listed) == len(shape.key):
            return dict(zip([name for name in shape.columns if name in shape.key], listed, strict=True))
    parts = row_id.split(shape.rule.separator)
    if len(parts) != len(shape.key):
        what = f"the row id has {len(parts)} parts, but the key has {len(shape.key)} columns"
        raise BadEntry(what, shape.rule.qualified_name)
    return dict(zip(shape.key, parts, strict=True))


def _array(text: str) -> list[str]:
    """The texts of a JSON array; none if it is something else."""
    try:
        held = read_json(text)
    except ValueError:
        return []
    return [each for each in held if isinstance(each, str)] if isinstance(held, list) else []


def allowed_values(shape: TableShape, row_id: str, values: Values) -> dict[str, Json]:
    """The values without the key columns. Raises WriteNotAllowed when the device may not write one, or BadEntry."""
    key, written = key_values(shape, row_id), {}
    for name, value in values.items():
        if name in key:
            if value != key[name]:
                raise WriteNotAllowed("the key of a row can't be changed", f"{shape.rule.qualified_name}.{shown(name)}")
        elif name != "id" or "id" in shape.columns:
            _check_column(shape, name)
            written[name] = value
    return written


def shown(name: str) -> str:
    """A name from an upload, made safe for messages that Postgres stores: cut, and escaped when it is not printable."""
    return ascii(name)[1:-1][:100] if not sendable(name) or not name.isprintable() else name[:100]


def _check_column(shape: TableShape, name: str) -> None:
    where = f"{shape.rule.qualified_name}.{shown(name)}"
    if shape.rule.columns is not None and name not in shape.rule.columns:
        raise WriteNotAllowed("upload.tables does not allow the column", where)
    if name not in shape.columns:
        raise WriteNotAllowed("the table has no such column", where)
    if shape.columns[name].generated:
        raise WriteNotAllowed("the column is generated", where)


def insert(shape: TableShape, row_id: str, values: Values, *, on_conflict: str) -> Statement:
    """Insert a row. `on_conflict` says what to do when its key exists: `fail`, `nothing` or `update`."""
    row = {**key_values(shape, row_id), **values}
    bound = [bind(_column(shape, name), value) for name, value in row.items()]
    key = _listed(shape.key)
    match on_conflict:
        case "fail":
            then: sql.Composable = sql.SQL("")
        case "update" if values:
            pairs = [sql.SQL("{0} = excluded.{0}").format(named(name)) for name in values]
            then = sql.SQL(" on conflict ({}) do update set {}").format(key, sql.SQL(", ").join(pairs))
        case _:
            then = sql.SQL(" on conflict ({}) do nothing").format(key)
    query = sql.SQL("insert into {} ({}) values ({}){}").format(
        _table(shape), _listed(row), sql.SQL(", ").join(expression for expression, _ in bound), then
    )
    return Statement(query, tuple(text for _, text in bound))


def update(shape: TableShape, row_id: str, values: Values, old: Values | None) -> Statement:
    """Update the row with this id. With `old`, only if it still has these values."""
    bound = {name: bind(_column(shape, name), value) for name, value in values.items()}
    pairs = [sql.SQL("{} = {}").format(named(name), expression) for name, (expression, _) in bound.items()]
    where = _where(shape, row_id, old)
    query = sql.SQL("update {} as t set {} where {}").format(_table(shape), sql.SQL(", ").join(pairs), where.query)
    return Statement(query, (*(text for _, text in bound.values()), *where.parameters))


def delete(shape: TableShape, row_id: str, old: Values | None) -> Statement:
    """Delete the row with this id. With `old`, only if it still has these values."""
    where = _where(shape, row_id, old)
    return Statement(sql.SQL("delete from {} as t where {}").format(_table(shape), where.query), where.parameters)


def look(shape: TableShape, row_id: str, old: Values | None) -> Statement:
    """Select whether the row still has the values of `old`. Gives no row when the user can't see it, or it is gone."""
    where, same = _where(shape, row_id, None), _same(shape, old or {})
    query = sql.SQL("select {} from {} as t where {}").format(same.query, _table(shape), where.query)
    return Statement(query, (*same.parameters, *where.parameters))


def call(function: tuple[str, str], parameters: Sequence[str | None]) -> Statement:
    """Call a conflict function and read its result as text."""
    types = FUNCTION_ARGUMENTS.split(", ")
    casts = [sql.SQL("{}::pg_catalog.{}").format(sql.Placeholder(), named(each)) for each in types]
    query = sql.SQL("select {}({})::pg_catalog.text").format(named(*function), sql.SQL(", ").join(casts))
    return Statement(query, tuple(parameters))


def _where(shape: TableShape, row_id: str, old: Values | None) -> Statement:
    key = {name: bind(_column(shape, name), value) for name, value in key_values(shape, row_id).items()}
    parts = [sql.SQL("t.{} = {}").format(named(name), expression) for name, (expression, _) in key.items()]
    same = _same(shape, old or {})
    query = sql.SQL(" and ").join([*parts, same.query])
    return Statement(query, (*(text for _, text in key.values()), *same.parameters))


def _same(shape: TableShape, old: Values) -> Statement:
    parts: list[sql.Composable] = [sql.SQL("true")]
    parameters: list[str | None] = []
    for name, value in old.items():
        if name in shape.key:
            continue
        _check_compared(shape, name)
        part, text = _unchanged(shape.columns[name], value)
        parts.append(part)
        parameters.append(text)
    return Statement(sql.SQL(" and ").join(parts), tuple(parameters))


def _check_compared(shape: TableShape, name: str) -> None:
    """Raise WriteNotAllowed for a column that the device may not know: whether a value is the row's would tell it."""
    rule = shape.rule
    known = rule.columns is None or name in rule.columns | rule.compare
    if not known or name not in shape.columns or not shape.columns[name].readable:
        where = f"{rule.qualified_name}.{shown(name)}"
        raise WriteNotAllowed("upload.tables does not allow the column to be compared", where, _TRACK_FEWER)


_TRACK_FEWER = "track other columns in the client's schema, or name it in `compare`"


def _unchanged(column: Column, value: Json) -> tuple[sql.Composable, str | None]:
    name = named(column.name)
    expression, text = typed(column, value)
    if column.base == Oid.JSON:
        form = sql.SQL("t.{0}::pg_catalog.jsonb is not distinct from ({1})::pg_catalog.jsonb")
    elif column.comparable:
        form = sql.SQL("t.{0} is not distinct from {1}")
    else:
        form = sql.SQL("t.{0}::pg_catalog.text is not distinct from ({1})::pg_catalog.text")
    return form.format(name, expression), text


def _column(shape: TableShape, name: str) -> Column:
    if name not in shape.columns:  # only a conflict function can bring one that was not checked
        raise BadEntry("the table has no such column", f"{shape.rule.qualified_name}.{shown(name)}")
    return shape.columns[name]


def _table(shape: TableShape) -> sql.Composable:
    return named(shape.rule.schema, shape.rule.name)


def _listed(names: Sequence[str] | Values) -> sql.Composed:
    return sql.SQL(", ").join([named(name) for name in names])
