"""Builds the SQL of one write. Names come from the allow list and the catalog and are quoted; values are parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from psycopg import sql

from headwater.decode.types import Oid
from headwater.source.upload.entries import Json, Number, read_json, sendable, write_json
from headwater.source.upload.errors import UploadBlockedError, UploadRefusedError
from headwater.source.upload.shape import FUNCTION_ARGUMENTS, TableColumn, TableShape


@dataclass(frozen=True, slots=True)
class SqlStatement:
    query: sql.Composed
    parameters: tuple[str | None, ...]


Values = Mapping[str, Json]


def named(*names: str) -> sql.SQL:
    """A quoted name. Each % is doubled, since psycopg would take it for a placeholder."""
    return sql.SQL(sql.Identifier(*names).as_string().replace("%", "%%"))


def key_values(shape: TableShape, row_id: str) -> dict[str, Json]:
    """Split a device's row id into the values of the key columns: joined by the rule's separator, or the JSON array in
    the table's order of columns that `row_id()` of a sync config makes. Raises HW_6111."""
    if len(shape.key) == 1:
        return {shape.key[0]: row_id}
    if row_id.startswith('["'):
        listed = _array(row_id)
        if len(listed) == len(shape.key):
            return dict(zip([name for name in shape.columns if name in shape.key], listed, strict=True))
    parts = row_id.split(shape.rule.separator)
    if len(parts) != len(shape.key):
        what = f"the row id has {len(parts)} parts, but the key has {len(shape.key)} columns"
        raise UploadRefusedError(what, shape.rule.qualified_name, code="HW_6111")
    return dict(zip(shape.key, parts, strict=True))


def _array(text: str) -> list[str]:
    """The texts of a JSON array; none if it is something else."""
    held = _parsed(text)
    return [each for each in held if isinstance(each, str)] if isinstance(held, list) else []


def known_columns(shape: TableShape, values: Values, *, to_write: bool) -> dict[str, Json]:
    """The values without those of columns that the table lacks, or with their new names, as its rule says. To write, a
    column that Postgres alone writes counts as lacking, and HW_6118 is raised when the rule says nothing."""
    renamed, known = dict(shape.rule.renamed), {}
    for name, value in values.items():
        if is_writable(shape, name) or (name in shape.columns and not to_write):
            known[name] = value
        elif name in renamed:
            known[renamed[name]] = values.get(renamed[name], value)
        elif to_write and not shape.rule.drop_unknown and name != "id":
            raise unknown_column(shape, name)
    return known


def unknown_names(shape: TableShape, values: Values) -> list[str]:
    """The columns that `known_columns` leaves out or renames."""
    return [name for name in values if not is_writable(shape, name) and name != "id"]


def is_writable(shape: TableShape, name: str) -> bool:
    """Whether a write may name the column: Postgres lets somebody write it, or it is part of the key."""
    return name in shape.key or (name in shape.columns and not shape.columns[name].generated)


def unknown_column(shape: TableShape, name: str) -> UploadBlockedError:
    """The error of a write to a column that can't be written."""
    rule, column = shape.rule, sql.Identifier(shown(name)).as_string()  # a device may have chosen it to be run as SQL
    if name in shape.columns:
        what, fix = f"Postgres alone writes column {column}", "have the app leave it out"
    else:
        table = sql.Identifier(rule.schema, rule.name).as_string()
        what, fix = f"the table has no column {column}", f"run ALTER TABLE {table} ADD COLUMN {column} …"
        if rule.columns is not None and name not in rule.columns:  # once it is there, it would be refused
            fix = f"name it in `columns` of upload.tables and restart, then {fix}"
    return UploadBlockedError(
        what, rule.qualified_name, f"{fix}, or set unknown_columns for the table in upload.tables", code="HW_6118"
    )


def without_key(shape: TableShape, row_id: str, values: Values) -> tuple[dict[str, Json], SqlStatement | None]:
    """The values without the key's columns. Where these are written otherwise than in the row's id, such as 3.0 for 3,
    also a query that says whether they mean the same. Raises HW_6110 when the device may not write a column."""
    key, written, again = key_values(shape, row_id), {}, {}
    for name, value in values.items():
        if name not in key:
            if shape.rule.columns is not None and name not in shape.rule.columns:
                what = "upload.tables does not allow the column"
                raise UploadRefusedError(what, f"{shape.rule.qualified_name}.{shown(name)}", code="HW_6110")
            written[name] = value
        elif value is None or plain_text(value) != key[name]:
            again[name] = value
    return written, _same_key(shape, key, again) if again else None


def _same_key(shape: TableShape, key: Values, again: Values) -> SqlStatement:
    pairs = [(typed(shape.columns[name], key[name]), typed(shape.columns[name], again[name])) for name in again]
    parts = [sql.SQL("{} is not distinct from {}").format(ours, theirs) for (ours, _), (theirs, _) in pairs]
    parameters = tuple(text for (_, ours), (_, theirs) in pairs for text in (ours, theirs))
    return SqlStatement(sql.SQL("select {}").format(sql.SQL(" and ").join(parts)), parameters)


def shown(name: str) -> str:
    """A name from an upload, made safe for messages that Postgres stores: cut, and escaped when it is not printable."""
    return ascii(name)[1:-1][:100] if not sendable(name) or not name.isprintable() else name[:100]


def insert(shape: TableShape, row_id: str, values: Values, *, if_absent: bool) -> SqlStatement:
    """Insert a row; `if_absent` only when the user sees none with this id.

    It reads the table only in a condition: so a new row has to pass the policies of INSERT alone. With ON CONFLICT it
    would also have to pass those of SELECT.
    """
    row = {**key_values(shape, row_id), **values}
    bound = [bind(_column(shape, name), value) for name, value in row.items()]
    expressions = sql.SQL(", ").join(expression for expression, _ in bound)
    texts = tuple(text for _, text in bound)
    into = sql.SQL("insert into {} ({})").format(_table(shape), sql.SQL(", ").join([named(name) for name in row]))
    if not if_absent:
        return SqlStatement(sql.SQL("{} values ({})").format(into, expressions), texts)
    where = _where(shape, row_id, None)
    query = sql.SQL("{} select {} where not exists (select from {} where {})")
    return SqlStatement(query.format(into, expressions, _table(shape), where.query), (*texts, *where.parameters))


def update(shape: TableShape, row_id: str, values: Values, old: Values | None) -> SqlStatement:
    """Update the row with this id. With `old`, only if it still has these values."""
    bound = {name: bind(_column(shape, name), value) for name, value in values.items()}
    pairs = [sql.SQL("{} = {}").format(named(name), expression) for name, (expression, _) in bound.items()]
    where = _where(shape, row_id, old)
    query = sql.SQL("update {} set {} where {}").format(_table(shape), sql.SQL(", ").join(pairs), where.query)
    return SqlStatement(query, (*(text for _, text in bound.values()), *where.parameters))


def delete(shape: TableShape, row_id: str, old: Values | None) -> SqlStatement:
    """Delete the row with this id. With `old`, only if it still has these values."""
    where = _where(shape, row_id, old)
    return SqlStatement(sql.SQL("delete from {} where {}").format(_table(shape), where.query), where.parameters)


def lock(shape: TableShape, row_id: str) -> SqlStatement:
    """Keep others from changing the row with this id before the transaction ends, if the user may update it."""
    where = _where(shape, row_id, None)
    query = sql.SQL("select from {} where {} for no key update").format(_table(shape), where.query)
    return SqlStatement(query, where.parameters)


def look(shape: TableShape, row_id: str, old: Values | None, permission: str) -> SqlStatement:
    """Select whether the row still has the values of `old`, and whether `permission` holds, an expression over its
    columns as the catalog writes it. Gives no row when the user can't see it, or it is gone."""
    where, same = _where(shape, row_id, None), _same(shape, old or {})
    permitted = sql.SQL(permission.replace("%", "%%"))
    query = sql.SQL("select {}, {} from {} where {}").format(same.query, permitted, _table(shape), where.query)
    return SqlStatement(query, (*same.parameters, *where.parameters))


def fit(shape: TableShape, row_id: str, values: Values, old: Values, expressions: Sequence[str] = ()) -> SqlStatement:
    """Read the row's id and the given values as the types of their columns, and compute expressions over a row of
    them, as the catalog writes these. Fails unless all of that can be done."""
    key = key_values(shape, row_id)
    given = [typed(shape.columns[name], value) for each in (values, old) for name, value in each.items()]
    row = [(name, typed(column, {**values, **key}.get(name))) for name, column in shape.columns.items()]
    if not expressions:
        row = [(name, bound) for name, bound in row if name in key]
    columns = [sql.SQL("{} as {}").format(expression, named(name)) for name, (expression, _) in row]
    query = sql.SQL("select {} from (select {}) as {}").format(
        sql.SQL(", ").join([sql.SQL("*"), *(expression for expression, _ in given), *map(_computed, expressions)]),
        sql.SQL(", ").join(columns),
        named(shape.rule.name),
    )
    return SqlStatement(query, (*(text for _, text in given), *(text for _, (_, text) in row)))


def _computed(expression: str) -> sql.SQL:
    return sql.SQL(f"({expression})".replace("%", "%%"))


def call(function: tuple[str, str], parameters: Sequence[str | None]) -> SqlStatement:
    """Call a conflict function and read its result as text."""
    types = FUNCTION_ARGUMENTS.split(", ")
    casts = [sql.SQL("{}::pg_catalog.{}").format(sql.Placeholder(), named(each)) for each in types]
    query = sql.SQL("select {}({})::pg_catalog.text").format(named(*function), sql.SQL(", ").join(casts))
    return SqlStatement(query, tuple(parameters))


def _where(shape: TableShape, row_id: str, old: Values | None) -> SqlStatement:
    key = {name: bind(_column(shape, name), value) for name, value in key_values(shape, row_id).items()}
    parts = [sql.SQL("{} = {}").format(named(name), expression) for name, (expression, _) in key.items()]
    same = _same(shape, old or {})
    query = sql.SQL(" and ").join([*parts, same.query])
    return SqlStatement(query, (*(text for _, text in key.values()), *same.parameters))


def _same(shape: TableShape, old: Values) -> SqlStatement:
    parts: list[sql.Composable] = [sql.SQL("true")]
    parameters: list[str | None] = []
    for name, value in old.items():
        if name in shape.key:
            continue
        _check_compared(shape, name)
        part, text = _unchanged(shape.columns[name], value)
        parts.append(part)
        parameters.append(text)
    return SqlStatement(sql.SQL(" and ").join(parts), tuple(parameters))


def _check_compared(shape: TableShape, name: str) -> None:
    """Raise HW_6110 for a column that the device may not know: whether a value is the row's would tell it."""
    rule = shape.rule
    known = rule.columns is None or name in rule.columns | rule.compare
    if not known or name not in shape.columns or not shape.columns[name].readable:
        where = f"{rule.qualified_name}.{shown(name)}"
        raise UploadRefusedError(
            "upload.tables does not allow the column to be compared", where, _TRACK_FEWER, code="HW_6110"
        )


_TRACK_FEWER = "track other columns in the client's schema, or name it in `compare`"


def _unchanged(column: TableColumn, value: Json) -> tuple[sql.Composable, str | None]:
    name = named(column.name)
    expression, text = typed(column, value)
    if column.base == Oid.JSON:
        form = sql.SQL("{0}::pg_catalog.jsonb is not distinct from ({1})::pg_catalog.jsonb")
    elif column.comparable:
        form = sql.SQL("{0} is not distinct from {1}")
    else:
        form = sql.SQL("{0}::pg_catalog.text is not distinct from ({1})::pg_catalog.text")
    return form.format(name, expression), text


def _column(shape: TableShape, name: str) -> TableColumn:
    if not is_writable(shape, name):
        raise unknown_column(shape, name)  # as only a conflict function, or the config, can still name one
    return shape.columns[name]


def _table(shape: TableShape) -> sql.Composable:
    return named(shape.rule.schema, shape.rule.name)


PLAIN: Final = sql.Placeholder()
"""A parameter whose type Postgres infers from the column that it is assigned to or compared with."""

_BASE64: Final = sql.SQL("pg_catalog.decode(%s, 'base64')")
_MEMBER: Final = sql.SQL("(select r.v from pg_catalog.json_to_record(%s::pg_catalog.json) as r(v {}))")
_JSON_TYPES: Final = frozenset({Oid.JSON, Oid.JSONB})

Bound = tuple[sql.Composable, str | None]


def bind(column: TableColumn, value: Json) -> Bound:
    """The SQL expression for a value of the column, and its parameter. Raises HW_6111 for text that Postgres can't
    store."""
    if value is None:
        return PLAIN, None
    if column.base in _JSON_TYPES:
        return PLAIN, _checked(value if isinstance(value, str) else write_json(value), column)
    if column.is_array or column.kind in "crm":
        return _composed(column, value)
    text = _checked(plain_text(value), column)
    if column.base == Oid.BYTEA and not text.startswith("\\x"):
        return _BASE64, text
    return PLAIN, text


def typed(column: TableColumn, value: Json) -> Bound:
    """Like `bind`, with a cast to the column's type, for expressions where Postgres can't infer it."""
    expression, text = bind(column, value)
    return sql.SQL("({})::{}").format(expression, type_name(column)), text


def type_name(column: TableColumn) -> sql.SQL:
    """The column's type, as the catalog writes it."""
    return sql.SQL(column.type_name.replace("%", "%%"))


def plain_text(value: Json) -> str:
    """The value as text, without regard to a column."""
    match value:
        case str():
            return value
        case bool():
            return str(int(value))
        case Number():
            return value.plain
        case _:
            return write_json(value)


def _composed(column: TableColumn, value: Json) -> Bound:
    """Bind an array, composite, range or multirange. JSON of the right form is converted; other text is passed on, and
    has to be in Postgres' own notation."""
    held = _parsed(value) if isinstance(value, str) else value
    if column.kind == "r" and isinstance(held, Mapping):
        return PLAIN, _checked(_range(held), column)
    if column.kind == "m" and _is_list(held):
        ranges = [_range(each) for each in cast("Sequence[Json]", held) if isinstance(each, Mapping)]
        return PLAIN, _checked("{" + ",".join(ranges) + "}", column)
    if (column.is_array and _is_list(held)) or (column.kind == "c" and isinstance(held, Mapping)):
        return _MEMBER.format(type_name(column)), write_json({"v": held})
    return PLAIN, _checked(plain_text(value), column)


def _parsed(text: str) -> Json:
    try:
        return read_json(text)
    except ValueError:
        return None


def _is_list(value: Json) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _range(bounds: Mapping[str, Json]) -> str:
    opening = "(" if _flag(bounds.get("lower_exclusive")) else "["
    closing = ")" if _flag(bounds.get("upper_exclusive")) else "]"
    return f"{opening}{_bound(bounds.get('lower'))},{_bound(bounds.get('upper'))}{closing}"


def _flag(value: Json) -> bool:
    return value is True or (isinstance(value, Number) and value.text == "1")


def _bound(value: Json) -> str:
    if value is None:
        return ""
    text = plain_text(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _checked(text: str, column: TableColumn) -> str:
    if not sendable(text):
        raise UploadRefusedError("a value has a character that Postgres can't hold", column.name, code="HW_6111")
    return text
