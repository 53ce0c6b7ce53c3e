"""A client schema as the source text that an app declares it by, for each SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from headwater_rules.client_schema import ClientColumn, ClientSchema, ClientTable


class Language(StrEnum):
    """The languages of client SDKs; plain data for Python, which has none; and SQL for reading."""

    TS = "ts"
    DART = "dart"
    KOTLIN = "kotlin"
    SWIFT = "swift"
    PYTHON = "python"
    SQL = "sql"


def written(schema: ClientSchema, language: Language) -> str:
    """The schema in a language, ready to be compiled."""
    return "\n".join(_WRITERS[language](schema)) + "\n"


def _ts(schema: ClientSchema) -> Iterator[str]:
    yield "import { column, Schema, Table } from '@powersync/common';"
    yield ""
    yield from _notes("// ", schema.notes)
    yield "export const AppSchema = new Schema({"
    for table in schema.tables:
        yield from _notes("  // ", table.notes)
        yield f"  {_key(table.name)}: new Table({{"
        for column in table.columns:
            yield f"    {_key(column.name)}: column.{column.type.value},{_note('//', column)}"
        yield "  }),"
    yield "});"


def _dart(schema: ClientSchema) -> Iterator[str]:
    yield "import 'package:powersync/powersync.dart';"
    yield ""
    yield from _notes("// ", schema.notes)
    yield "const schema = Schema(["
    for table in schema.tables:
        yield from _notes("  // ", table.notes)
        yield f"  Table({_dart_text(table.name)}, ["
        for column in table.columns:
            yield f"    Column.{column.type.value}({_dart_text(column.name)}),{_note('//', column)}"
        yield "  ]),"
    yield "]);"


def _kotlin(schema: ClientSchema) -> Iterator[str]:
    yield "import com.powersync.db.schema.Column"
    yield "import com.powersync.db.schema.Schema"
    yield "import com.powersync.db.schema.Table"
    yield ""
    yield from _notes("// ", schema.notes)
    yield "val AppSchema: Schema = Schema("
    yield "    listOf("
    for table in schema.tables:
        yield from _notes("        // ", table.notes)
        yield "        Table("
        yield f"            name = {_kotlin_text(table.name)},"
        yield "            columns = listOf("
        for column in table.columns:
            text = _kotlin_text(column.name)
            yield f"                Column.{column.type.value}({text}),{_note('//', column)}"
        yield "            ),"
        yield "        ),"
    yield "    ),"
    yield ")"


def _swift(schema: ClientSchema) -> Iterator[str]:
    yield "import PowerSync"
    yield ""
    yield from _notes("// ", schema.notes)
    yield "let AppSchema = Schema("
    yield "    tables: ["
    for table in schema.tables:
        yield from _notes("        // ", table.notes)
        yield "        Table("
        yield f"            name: {_swift_text(table.name)},"
        yield "            columns: ["
        for column in table.columns:
            yield f"                .{column.type.value}({_swift_text(column.name)}),{_note('//', column)}"
        yield "            ]"
        yield "        ),"
    yield "    ]"
    yield ")"


def _python(schema: ClientSchema) -> Iterator[str]:
    yield "# The type of each column of each table. Every table has a column id of type text besides."
    yield from _notes("# ", schema.notes)
    yield "TABLES: dict[str, dict[str, str]] = {"
    for table in schema.tables:
        yield from _notes("    # ", table.notes)
        yield f"    {_text(table.name)}: {{"
        for column in table.columns:
            note = f"  # {column.note}" if column.note else ""
            yield f'        {_text(column.name)}: "{column.type.value}",{note}'
        yield "    },"
    yield "}"


def _sql(schema: ClientSchema) -> Iterator[str]:
    yield "-- How the tables read on a device. The SDKs make them themselves."
    yield from _notes("-- ", schema.notes)
    for table in schema.tables:
        yield ""
        yield from _notes("-- ", table.notes)
        yield f"CREATE TABLE {_identifier(table.name)} ("
        yield from _sql_columns(table)
        yield ");"


def _sql_columns(table: ClientTable) -> Iterator[str]:
    yield "  id TEXT NOT NULL PRIMARY KEY" + ("," if table.columns else "")
    for number, column in enumerate(table.columns, 1):
        comma = "," if number < len(table.columns) else ""
        yield f"  {_identifier(column.name)} {column.type.value.upper()}{comma}{_note('--', column)}"


_WRITERS: dict[Language, Callable[[ClientSchema], Iterator[str]]] = {
    Language.TS: _ts,
    Language.DART: _dart,
    Language.KOTLIN: _kotlin,
    Language.SWIFT: _swift,
    Language.PYTHON: _python,
    Language.SQL: _sql,
}


def _notes(start: str, notes: Iterable[str]) -> Iterator[str]:
    return (f"{start}{note}" for note in notes)


def _note(mark: str, column: ClientColumn) -> str:
    return f" {mark} {column.note}" if column.note else ""


def _key(name: str) -> str:
    """A key of an object literal. `__proto__` would set the prototype."""
    if name == "__proto__":
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
