"""The source's tables as data, for comparing a sync config when no database is available."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from headwater_rules.plan import TablePattern

_FORMAT = 1


class ValueKind(StrEnum):
    """The type of a column's values in rules. JSON is text too."""

    INTEGER = "integer"
    REAL = "real"
    TEXT = "text"
    JSON = "json"
    BLOB = "blob"


class Language(StrEnum):
    """The languages of client SDKs, Python as plain data for `headwater-client`, and SQL for reading."""

    TS = "ts"
    DART = "dart"
    KOTLIN = "kotlin"
    SWIFT = "swift"
    PYTHON = "python"
    SQL = "sql"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column: its Postgres type and the kind of its values. `elements` is the kind of an array's elements. With
    `by_option`, the values are plain text if the config turns `custom_postgres_types` off."""

    name: str
    type: str
    kind: ValueKind
    elements: ValueKind | None = None
    by_option: bool = False

    def value_kind(self, *, custom_types: bool = True) -> ValueKind:
        """The kind of its values under a config's options."""
        return ValueKind.TEXT if self.by_option and not custom_types else self.kind


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table and its columns, in the table's order. `lacks` are the statements without which no row of it can be
    replicated, `unsent` the columns that its publication leaves out."""

    tag: str
    schema: str
    name: str
    columns: tuple[SourceColumn, ...]
    lacks: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()

    @property
    def sent(self) -> frozenset[str]:
        """The names of the columns whose values are replicated, once the table is."""
        return frozenset(column.name for column in self.columns) - frozenset(self.unsent)

    def column(self, name: str) -> SourceColumn | None:
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class NotStreamed:
    """What a query may read like a table, but Postgres does not stream: `form` is a view, say, with its article."""

    tag: str
    schema: str
    name: str
    form: str


class SchemaFormatError(Exception):
    """A text is not a source schema. The message says where and why."""


@dataclass(frozen=True, slots=True)
class SourceSchema:
    """The tables of all sources, and what is named like one but can't be followed. `unread` are the tags of sources
    that could not be read, so that what is not known of them is not missing. `faults` are why
    computed tables can't be computed."""

    tables: tuple[SourceTable, ...]
    not_streamed: tuple[NotStreamed, ...] = ()
    unread: tuple[str, ...] = ()
    faults: tuple[ComputedFault, ...] = ()
    _by_name: Mapping[tuple[str, str, str], tuple[SourceTable, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[tuple[str, str, str], tuple[SourceTable, ...]] = defaultdict(tuple)
        for table in self.tables:
            by_name[table.tag, table.schema, table.name] += (table,)  # several for shards
        object.__setattr__(self, "_by_name", dict(by_name))

    @classmethod
    def of(cls, schemas: Iterable[SourceSchema]) -> SourceSchema:
        """The tables of several sources."""
        every = tuple(schemas)
        return cls(
            tuple(table for each in every for table in each.tables),
            tuple(found for each in every for found in each.not_streamed),
        )

    def matching(self, pattern: TablePattern) -> tuple[SourceTable, ...]:
        """The tables that a table pattern of a rule matches."""
        if pattern.exact:  # as nearly all are: a config asks thousands of times
            return self._by_name.get((pattern.tag, pattern.schema, pattern.name), ())
        return tuple(table for table in self.tables if pattern.matches(table.tag, table.schema, table.name))

    def knows(self, pattern: TablePattern) -> bool:
        """Whether all tables are known that a table pattern of a rule can match."""
        if pattern.computed and not self.matching(pattern):
            return False
        return not any(pattern.of(tag) for tag in self.unread)

    def shards(self, tag: str) -> bool:
        """Whether several sources with this tag are known."""
        if tag in self.unread and any(table.tag == tag for table in self.tables):
            return True
        return any(len(tables) > 1 for (of, *_), tables in self._by_name.items() if of == tag)

    def not_streamed_by(self, pattern: TablePattern) -> NotStreamed | None:
        """The first view, or its like, that a table pattern of a rule matches."""
        matching = (each for each in self.not_streamed if pattern.matches(each.tag, each.schema, each.name))
        return next(matching, None)

    def to_json(self) -> str:
        """JSON with one line per column, so that diffs are readable."""
        written: dict[str, object] = {"format": _FORMAT, "tables": [_table_out(table) for table in self.tables]}
        if self.not_streamed:
            written["not_streamed"] = [asdict(each) for each in self.not_streamed]
        return json.dumps(written, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SourceSchema:
        """The inverse of `to_json`, also for hand-written files, where a column may be just its type. Raises
        SchemaFormatError."""
        try:
            read = json.loads(text)
        except ValueError as error:
            raise SchemaFormatError(f"not JSON: {error}") from None
        root = _object(read, "the source schema")
        if root.get("format") != _FORMAT:
            raise SchemaFormatError(f"`format` must be {_FORMAT}")
        tables = root.get("tables")
        if not isinstance(tables, list):
            raise SchemaFormatError("`tables` must be a list")
        others = root.get("not_streamed", [])
        if not isinstance(others, list):
            raise SchemaFormatError("`not_streamed` must be a list")
        return cls(
            tuple(_table_in(table, number) for number, table in enumerate(tables)), tuple(map(_not_streamed_in, others))
        )


@dataclass(frozen=True, slots=True)
class SeenSchema:
    """What rules are compared with: the tables, or None when there are none to compare with. `note` says which they are
    and as of when, or why there are none."""

    schema: SourceSchema | None
    note: str


@dataclass(frozen=True, slots=True)
class ComputedFault:
    """Why the computed table `name` can't be computed, and what to do; not `certain` where nobody could be asked."""

    name: str
    what: str
    fix: str
    certain: bool = True


def not_compared(why: str) -> SeenSchema:
    """Nothing to compare with."""
    return SeenSchema(None, f"its tables are not compared with the source: {why}")


_KINDS = {
    **dict.fromkeys(
        ("boolean", "bool", "smallint", "int2", "integer", "int", "int4", "bigint", "int8", "oid"), ValueKind.INTEGER
    ),
    **dict.fromkeys(("real", "float4", "double precision", "float8"), ValueKind.REAL),
    **dict.fromkeys(("json", "jsonb"), ValueKind.JSON),
    "bytea": ValueKind.BLOB,
}
_RANGE = re.compile(r"(int4|int8|num|ts|tstz|date)(multi)?range")
_MODIFIER = re.compile(r"\s*\([^)]*\)")


def column_of(name: str, type_name: str) -> SourceColumn:
    """A column of a built-in type; other types are text."""
    plain = _MODIFIER.sub("", type_name).strip().lower()
    if plain.endswith("[]"):
        elements = column_of(name, plain.rstrip("[]")).kind
        return SourceColumn(name, type_name, ValueKind.JSON, elements)
    if _RANGE.fullmatch(plain):
        return SourceColumn(name, type_name, ValueKind.JSON, by_option=True)
    return SourceColumn(name, type_name, _KINDS.get(plain, ValueKind.TEXT))


def _table_out(table: SourceTable) -> dict[str, object]:
    columns = {column.name: _column_out(column) for column in table.columns}
    written: dict[str, object] = {"tag": table.tag, "schema": table.schema, "name": table.name, "columns": columns}
    if table.lacks:
        written["lacks"] = list(table.lacks)
    if table.unsent:
        written["unsent"] = list(table.unsent)
    return written


def _column_out(column: SourceColumn) -> object:
    if column == column_of(column.name, column.type):
        return column.type
    written: dict[str, object] = {"type": column.type, "kind": column.kind.value}
    if column.elements is not None:
        written["elements"] = column.elements.value
    if column.by_option:
        written["by_option"] = True
    return written


def _table_in(value: object, number: int) -> SourceTable:
    where = f"table {number + 1}"
    table = _object(value, where)
    name = _text(table, "name", where)
    where = f"table `{name}`"
    columns = _object(table.get("columns"), f"`columns` of {where}")
    tag, schema = (_text(table, key, where, default) for key, default in (("tag", "default"), ("schema", "public")))
    lacks, unsent = (_texts(table, key, where) for key in ("lacks", "unsent"))
    return SourceTable(tag, schema, name, tuple(_columns_in(columns, where)), lacks, unsent)


def _not_streamed_in(value: object) -> NotStreamed:
    where = "an entry of `not_streamed`"
    read = _object(value, where)
    return NotStreamed(*(_text(read, key, where) for key in ("tag", "schema", "name", "form")))


def _columns_in(columns: Mapping[str, object], table: str) -> Iterable[SourceColumn]:
    for name, value in columns.items():
        where = f"column `{name}` of {table}"
        if isinstance(value, str):
            yield column_of(name, value)
            continue
        column = _object(value, where)
        known = column_of(name, _text(column, "type", where))
        kind, elements = _kind(column, "kind", where), _kind(column, "elements", where)
        by_option = column.get("by_option") is True
        yield SourceColumn(name, known.type, kind or known.kind, elements or known.elements, by_option)


def _object(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise SchemaFormatError(f"{what} must be an object")
    return value


def _text(value: Mapping[str, object], key: str, where: str, default: str | None = None) -> str:
    found = value.get(key, default)
    if not isinstance(found, str) or not found:
        raise SchemaFormatError(f"`{key}` of {where} must be a text")
    return found


def _texts(value: Mapping[str, object], key: str, where: str) -> tuple[str, ...]:
    found = value.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise SchemaFormatError(f"`{key}` of {where} must be a list of texts")
    return tuple(found)


def _kind(value: Mapping[str, object], key: str, where: str) -> ValueKind | None:
    found = value.get(key)
    if found is None:
        return None
    try:
        return ValueKind(str(found))
    except ValueError:
        raise SchemaFormatError(
            f"`{key}` of {where} must be one of {', '.join(kind.value for kind in ValueKind)}"
        ) from None
