"""Converts JSON values to SQL with a text parameter. Postgres itself parses the text as the column's type.

A device's SQLite has null, numbers and text. Arrays, composites and ranges are JSON text there, as they were synced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from psycopg import sql

from headwater.decode.builtin import Oid
from headwater.source.upload.entries import sendable
from headwater.source.upload.errors import BadEntry
from headwater.source.upload.json_text import Json, Number, read_json, write_json
from headwater.source.upload.shape import Column

PLAIN: Final = sql.Placeholder()
"""A parameter whose type Postgres infers from the column that it is assigned to or compared with."""

_BASE64: Final = sql.SQL("pg_catalog.decode(%s, 'base64')")
_MEMBER: Final = sql.SQL("(select r.v from pg_catalog.json_to_record(%s::pg_catalog.json) as r(v {}))")
_JSON_TYPES: Final = frozenset({Oid.JSON, Oid.JSONB})

Bound = tuple[sql.Composable, str | None]


def bind(column: Column, value: Json) -> Bound:
    """The SQL expression for a value of the column, and its parameter. Raises BadEntry for text that Postgres can't
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


def typed(column: Column, value: Json) -> Bound:
    """Like `bind`, with a cast to the column's type, for expressions where Postgres can't infer it."""
    expression, text = bind(column, value)
    return sql.SQL("({})::{}").format(expression, type_name(column)), text


def type_name(column: Column) -> sql.SQL:
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


def _composed(column: Column, value: Json) -> Bound:
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


def _checked(text: str, column: Column) -> str:
    if not sendable(text):
        raise BadEntry("a value has a character that Postgres can't hold", column.name)
    return text
