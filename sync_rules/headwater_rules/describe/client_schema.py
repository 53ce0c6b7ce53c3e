"""The tables and columns that devices get under a plan, with the types that client SDKs declare, and as source code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice, product

from headwater_rules.describe.wording import columns_of
from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.engine import engine
from headwater_rules.plan import Expr, RowFunction, RowSource, Star, SyncPlan, TablePattern, Value, joined_input
from headwater_rules.schema import Language, SourceColumn, SourceSchema, SourceTable, ValueKind

_MAX_SAMPLES = 64
_MOST_NAMED = 8  # tables that a note names
_REFUSED = re.compile(r"[\"'%,.#\s\[\]]")  # characters that no client SDK accepts in a name


class ClientType(StrEnum):
    """Column types on a device."""

    TEXT = "text"
    INTEGER = "integer"
    REAL = "real"


@dataclass(frozen=True, slots=True)
class ClientColumn:
    """A column of a device's table; `note` explains a type that is a guess."""

    name: str
    type: ClientType
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClientTable:
    """A table on the device, without its `id`. `notes` are for the reader of the schema."""

    name: str
    columns: tuple[ClientColumn, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientSchema:
    """Everything that a plan can send to a device. `notes` describe what is missing from the tables."""

    tables: tuple[ClientTable, ...]
    notes: tuple[str, ...] = ()


def client_schema(plan: SyncPlan, schema: SourceSchema | None) -> ClientSchema:
    """The client schema of a plan, with the types of the source's `schema`; without one, with what the plan alone says.
    Tables are in the order of the config, columns in that of the source."""
    drafts: dict[str, _Draft] = {}
    notes: dict[str, None] = {}
    joined = tuple(_joined_columns(plan, schema))
    for source in (source for bucket in plan.buckets for source in bucket.sources):
        tables = () if schema is None else schema.matching(source.table)
        names = [source.output_table] if source.output_table else [table.name for table in tables]
        if not names:
            notes[f"tables matching {source.table.name}: the source's schema is needed to list them"] = None
        for name in names:
            if _REFUSED.search(name):
                notes[f"table {_shown(name)}: SDKs reject its name; select from it AS another one"] = None
                continue
            own = [table for table in tables if source.output_table or table.name == name]
            drafts.setdefault(name, _Draft(name)).add(plan, source, own, joined)
    return ClientSchema(tuple(draft.table() for draft in drafts.values()), tuple(notes))


def _joined_columns(plan: SyncPlan, schema: SourceSchema | None) -> Iterator[SourceColumn]:
    """The columns of other tables that rows are evaluated with, each with its input as name."""
    if schema is None:
        return
    for join in plan.joins:
        for number, output in enumerate(join.lookup.outputs):
            tables = schema.matching(join.lookup.table)
            found = (table.column(output.inputs[0]) for table in tables if output.inputs)
            column = next((each for each in found if each is not None), None)
            if column is not None:
                yield replace(column, name=joined_input(join.name, number))


class _Draft:
    """A table of the device, merged from all queries that produce its rows."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._types: dict[str, list[ClientType | None]] = {}
        self._notes: dict[str, None] = {}
        self._from: dict[str, None] = {}

    def add(
        self, plan: SyncPlan, source: RowSource, tables: Sequence[SourceTable], joined: tuple[SourceColumn, ...]
    ) -> None:
        self._from[source.table.written] = None
        everything = any(isinstance(item, Star) for item in source.projection)
        if not tables:
            self._notes[f"the columns of {_shown(source.table.name)} in the source are not known"] = None
            if everything:
                self._notes["add those that the rules do not name"] = None
            self._merge(_of_source(plan, source, None, ()))
        for table in tables:
            for column in table.columns if everything else ():
                if _kind(table, column.name, plan) is ValueKind.BLOB:
                    self._notes[f"{_shown(column.name)} is bytea and not synced"] = None
            self._merge(_of_source(plan, source, table, joined))

    def _merge(self, found: Mapping[str, ClientType | None]) -> None:
        for name, known in found.items():
            same = ({"id": "id"} | {each.lower(): each for each in self._types}).get(name.lower(), name)
            if name == "id":
                continue
            if _REFUSED.search(name):
                self._notes[f"column {_shown(name)}: SDKs reject its name; select it AS another one"] = None
            elif same != name:
                self._notes[f"column {_shown(name)}: a device can't distinguish it from {same}"] = None
            else:
                self._types.setdefault(name, []).append(known)

    def table(self) -> ClientTable:
        columns = tuple(ClientColumn(name, *_united(types)) for name, types in self._types.items())
        return ClientTable(self._name, columns, (*self._together(), *self._notes))

    def _together(self) -> Iterator[str]:
        """That tables of several names in the sources are this one table."""
        if len(self._from) > 1:
            shown = ", ".join(_shown(name) for name in islice(self._from, _MOST_NAMED))
            more = ", …" if len(self._from) > _MOST_NAMED else ""
            yield f"rows of {shown}{more}: those with the same id are one row"


def _united(types: Sequence[ClientType | None]) -> tuple[ClientType, str]:
    """The type that holds the values of all queries, and a note."""
    known = {each for each in types if each is not None}
    if None in types and not known:
        return ClientType.TEXT, "type not known"
    if len(known) == 1:
        return known.pop(), "type not known to all queries" if None in types else ""
    if known == {ClientType.INTEGER, ClientType.REAL}:
        return ClientType.REAL, ""
    return ClientType.TEXT, "different types in different queries"


def _of_source(
    plan: SyncPlan, source: RowSource, table: SourceTable | None, joined: tuple[SourceColumn, ...]
) -> dict[str, ClientType | None]:
    """The columns of one query's rows; later ones replace earlier ones. None is an unknown type."""
    whole = table and replace(table, columns=(*table.columns, *joined))
    found: dict[str, ClientType | None] = {}
    for item in source.projection:
        if isinstance(item, Star):
            for name, known in _of_star(plan, source, table, item):
                if item.everything or name not in found:
                    found[name] = known
            continue
        known, is_blob = _type_of(item.expr, whole, plan)
        if not is_blob:
            found[item.name] = known
    return found


def _of_star(
    plan: SyncPlan, source: RowSource, table: SourceTable | None, star: Star
) -> Iterator[tuple[str, ClientType | None]]:
    names = _named(plan, source.table) if table is None else [column.name for column in table.columns]
    for name in names:
        kind = None if table is None else _kind(table, name, plan)
        if kind is not ValueKind.BLOB and (star.everything or not name.startswith("_")):
            yield name, None if kind is None else _CLIENT[kind]


def _named(plan: SyncPlan, pattern: TablePattern) -> list[str]:
    """The columns of a table that the rules mention."""
    sources = [source for bucket in plan.buckets for source in bucket.sources if source.table == pattern]
    exprs = [expr for source in sources for expr in (*source.selected(), *source.deciding())]
    exprs += [expr for lookup in plan.lookups if lookup.table == pattern for expr in lookup.exprs()]
    return columns_of(exprs)


# types of expressions

_CLIENT = dict.fromkeys(ValueKind, ClientType.TEXT) | {
    ValueKind.INTEGER: ClientType.INTEGER,
    ValueKind.REAL: ClientType.REAL,
}
_UUID = "00000000-0000-4000-8000-000000000000"
_SAMPLES: dict[ValueKind | None, tuple[Value, ...]] = {
    ValueKind.INTEGER: (1, 0, None),
    ValueKind.REAL: (1.5, 0.0, None),
    ValueKind.TEXT: ("a", "1.5", "12", "2024-01-31 10:00:00Z", _UUID, None),
    ValueKind.JSON: ("{}", "[]", "[1]", None),
    ValueKind.BLOB: (b"a", None),
    None: (1, 1.5, "a", "{}", b"a", None),
}


def _type_of(expr: Expr, table: SourceTable | None, plan: SyncPlan) -> tuple[ClientType | None, bool]:
    """The type of a selected value: that of its column, or the one that the expression gives for sample values; and
    whether it is a blob, which devices never get."""
    if expr.sql == "?1":
        kind = _input_kind(expr.inputs[0], table, plan)
        return None if kind is None else _CLIENT[kind], kind is ValueKind.BLOB
    tried = _tried(expr, table, plan) - {"null"}
    found = tried - {"blob"}
    if found == {"integer", "real"}:
        return ClientType.REAL, False
    known = ClientType(found.pop()) if len(found) == 1 else ClientType.TEXT if found else None
    return known, tried == {"blob"}


def _tried(expr: Expr, table: SourceTable | None, plan: SyncPlan) -> set[str]:
    """SQLite's names for the types of the expression's values, for samples of its inputs."""
    samples = [_SAMPLES[_input_kind(name, table, plan)] for name in expr.inputs]
    found: set[str] = set()
    for values in islice(product(*samples), _MAX_SAMPLES):
        try:
            found.add(str(engine().rows(f"SELECT typeof({expr.sql})", values)[0][0]))
        except EvaluationError:
            continue  # the expression may fail on some samples
    return found


def _input_kind(name: str, table: SourceTable | None, plan: SyncPlan) -> ValueKind | None:
    if name in {function.value for function in RowFunction}:
        return ValueKind.TEXT
    return None if table is None else _kind(table, name, plan)


def _kind(table: SourceTable, name: str, plan: SyncPlan) -> ValueKind | None:
    column = table.column(name)
    return None if column is None else column.value_kind(custom_types=plan.options.custom_postgres_types)


def _shown(name: str) -> str:
    return " ".join(name.split()) or "without a name"


@dataclass(frozen=True, slots=True)
class _Form:
    """How a language declares a schema. NAME is replaced by a name as `quote` writes it, TYPE by a column's type. Notes
    on a table come before it, with the same indentation."""

    head: str
    table: str
    column: str
    table_end: str
    tail: str
    quote: Callable[[str], str]
    mark: str = "//"


def schema_code(schema: ClientSchema, language: Language) -> str:
    """The schema as source code in a language."""
    lines = _sql(schema) if language is Language.SQL else _declared(schema, _FORMS[language])
    return "\n".join(lines) + "\n"


def _declared(schema: ClientSchema, form: _Form) -> Iterator[str]:
    imports, _, start = form.head.rpartition("\n\n")
    yield f"{imports}\n"
    yield from (f"{form.mark} {note}" for note in schema.notes)
    yield start
    indent = form.table[: -len(form.table.lstrip())]
    for table in schema.tables:
        yield from (f"{indent}{form.mark} {note}" for note in table.notes)
        yield form.table.replace("NAME", form.quote(table.name))
        for column in table.columns:
            line = form.column.replace("TYPE", column.type.value).replace("NAME", form.quote(column.name))
            yield f"{line}{_note(form.mark, column)}"
        yield form.table_end
    yield form.tail


def _sql(schema: ClientSchema) -> Iterator[str]:
    yield "-- The tables on a device. The SDKs create them."
    yield from (f"-- {note}" for note in schema.notes)
    for table in schema.tables:
        yield ""
        yield from (f"-- {note}" for note in table.notes)
        yield f"CREATE TABLE {_identifier(table.name)} ("
        yield "  id TEXT NOT NULL PRIMARY KEY" + ("," if table.columns else "")
        for column in table.columns:
            comma = "," if column is not table.columns[-1] else ""
            yield f"  {_identifier(column.name)} {column.type.value.upper()}{comma}{_note('--', column)}"
        yield ");"


def _note(mark: str, column: ClientColumn) -> str:
    space = "  " if mark == "#" else " "  # as formatters of the languages expect
    return f"{space}{mark} {column.note}" if column.note else ""


def _key(name: str) -> str:
    if name == "__proto__":  # which would set the prototype
        return '["__proto__"]'
    return name if name.isascii() and name.isidentifier() else _text(name)


def _text(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _swift_text(name: str) -> str:
    return re.sub(r"\\u([0-9a-f]{4})", r"\\u{\1}", _text(name))


def _kotlin_text(name: str) -> str:
    return _text(name).replace("$", "\\$")


def _dart_text(name: str) -> str:
    return "'" + name.replace("\\", "\\\\").replace("$", "\\$") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_FORMS = {
    Language.TS: _Form(
        "import { column, Schema, Table } from '@powersync/common';\n\nexport const AppSchema = new Schema({",
        "  NAME: new Table({",
        "    NAME: column.TYPE,",
        "  }),",
        "});",
        _key,
    ),
    Language.DART: _Form(
        "import 'package:powersync/powersync.dart';\n\nconst schema = Schema([",
        "  Table(NAME, [",
        "    Column.TYPE(NAME),",
        "  ]),",
        "]);",
        _dart_text,
    ),
    Language.KOTLIN: _Form(
        "import com.powersync.db.schema.Column\nimport com.powersync.db.schema.Schema\n"
        "import com.powersync.db.schema.Table\n\nval AppSchema: Schema = Schema(\n    listOf(",
        "        Table(\n            name = NAME,\n            columns = listOf(",
        "                Column.TYPE(NAME),",
        "            ),\n        ),",
        "    ),\n)",
        _kotlin_text,
    ),
    Language.SWIFT: _Form(
        "import PowerSync\n\nlet AppSchema = Schema(\n    tables: [",
        "        Table(\n            name: NAME,\n            columns: [",
        "                .TYPE(NAME),",
        "            ]\n        ),",
        "    ]\n)",
        _swift_text,
    ),
    Language.PYTHON: _Form(
        "# The type of each column. Every table has a column id of type text besides.\n\n"
        "TABLES: dict[str, dict[str, str]] = {",
        "    NAME: {",
        '        NAME: "TYPE",',
        "    },",
        "}",
        _text,
        "#",
    ),
}
