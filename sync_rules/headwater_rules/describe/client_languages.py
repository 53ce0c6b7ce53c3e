"""Writes a client schema as source code for each client SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headwater_rules.describe.client_schema import ClientColumn, ClientSchema, ClientTable
from headwater_rules.describe.languages import Language


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
        yield from _sql_columns(table)
        yield ");"


def _sql_columns(table: ClientTable) -> Iterator[str]:
    yield "  id TEXT NOT NULL PRIMARY KEY" + ("," if table.columns else "")
    for number, column in enumerate(table.columns, 1):
        comma = "," if number < len(table.columns) else ""
        yield f"  {_identifier(column.name)} {column.type.value.upper()}{comma}{_note('--', column)}"


def _note(mark: str, column: ClientColumn) -> str:
    space = "  " if mark == "#" else " "  # as formatters of the languages expect
    return f"{space}{mark} {column.note}" if column.note else ""


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
