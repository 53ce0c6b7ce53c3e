"""What a config gives a device, as the schema that an app declares: tables, columns, types, and how each SDK writes
them."""

from __future__ import annotations

import ast
import sqlite3

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.client_schema import (
    ClientColumn,
    ClientSchema,
    ClientTable,
    ClientType,
    client_schema,
    schema_code,
)
from headwater_rules.schema import Language, SourceSchema

SCHEMA = SourceSchema.from_json(
    """
{"format": 1, "tables": [
  {"name": "t", "columns": {
    "id": "uuid", "flag": "boolean", "small": "smallint", "big": "bigint", "share": "real", "price": "numeric(8,2)",
    "at": "timestamptz", "meta": "jsonb", "tags": "text[]", "raw": "bytea", "during": "tstzrange", "note": "text",
    "_own": "int"}},
  {"name": "log_2024", "columns": {"id": "uuid", "what": "text", "level": "integer"}},
  {"name": "log_2025", "columns": {"id": "uuid", "what": "text", "level": "text", "who": "uuid"}}
]}"""
)


def schema_of(*queries: str, known: bool = True, options: str = "edition: 3") -> ClientSchema:
    listed = "".join(f"      - >-\n        {query}\n" for query in queries)
    plan = compile_config(f"config: {{{options}}}\nstreams:\n  s:\n    queries:\n{listed}").plan
    return client_schema(plan, SCHEMA if known else None)


def columns(schema: ClientSchema, table: str = "t") -> dict[str, str]:
    (found,) = [each for each in schema.tables if each.name == table]
    return {column.name: column.type.value for column in found.columns}


def test_types_of_all_columns() -> None:
    schema = schema_of("SELECT * FROM t")
    assert columns(schema) == {
        "flag": "integer", "small": "integer", "big": "integer", "share": "real", "price": "text",
        "at": "text", "meta": "text", "tags": "text", "during": "text", "note": "text", "_own": "integer",
    }  # fmt: skip
    assert schema.tables[0].notes == ("raw is bytea and not synced",)


@pytest.mark.parametrize(
    ("expression", "type_name"),
    [
        ("big", "integer"),
        ("row_id()", "text"),
        ("length(raw)", "integer"),
        ("base64(raw)", "text"),
        ("upper(note) || 'x'", "text"),
        ("price::numeric", "real"),
        ("note::integer", "integer"),
        ("share * 2", "real"),
        ("big / small", "integer"),
        ("flag AND big > 3", "integer"),
        ("CASE WHEN flag THEN 'a' ELSE 'b' END", "text"),
        ("iif(flag, 1, 2.5)", "real"),
        ("meta ->> 'a'", "text"),
        ("unixepoch(at)", "integer"),
        ("json_array_length(tags)", "integer"),
        ("coalesce(note, 'x')", "text"),
        ("coalesce(big, note)", "text"),
        ("uuid_blob(id)", None),
        ("raw", None),
    ],
)
def test_types_of_computed_columns(expression: str, type_name: str | None) -> None:
    found = columns(schema_of(f"SELECT id, {expression} AS x FROM t"))
    assert found == ({} if type_name is None else {"x": type_name})


def test_queries_of_one_table() -> None:
    schema = schema_of(
        "SELECT id, small, note AS share FROM t WHERE flag", "SELECT id, big, share, price AS small FROM t"
    )
    assert columns(schema) == {"small": "text", "share": "text", "big": "integer"}
    assert schema.tables[0].columns[0].note == "different types in different queries"
    assert columns(schema_of("SELECT id, small AS x FROM t", "SELECT id, share AS x FROM t")) == {"x": "real"}


def test_column_selected_twice() -> None:
    assert columns(schema_of("SELECT id, note, length(note) AS note FROM t")) == {"note": "integer"}


def test_wildcard() -> None:
    schema = schema_of('SELECT * FROM "log_%"')
    assert columns(schema, "log_2024") == {"what": "text", "level": "integer"}
    assert columns(schema, "log_2025") == {"what": "text", "level": "text", "who": "text"}
    assert columns(schema_of('SELECT * FROM "log_%" AS log'), "log") == {"what": "text", "level": "text", "who": "text"}
    unknown = schema_of('SELECT * FROM "log_%"', known=False)
    assert unknown.tables == ()
    assert "log_%" in unknown.notes[0]


def test_alias() -> None:
    assert columns(schema_of("SELECT id, note FROM t AS things"), "things") == {"note": "text"}


def test_without_source_schema() -> None:
    schema = schema_of("SELECT * FROM t WHERE owner = auth.user_id() AND NOT gone", known=False)
    (table,) = schema.tables
    assert columns(schema) == {"owner": "text", "gone": "text"}
    assert {column.note for column in table.columns} == {"type not known"}
    assert table.notes == ("the columns of t in the source are not known", "add those that the rules do not name")
    assert columns(schema_of("SELECT id, length(a) AS size FROM t", known=False)) == {"size": "integer"}


def test_older_editions() -> None:
    plan = compile_config("bucket_definitions: {b: {data: [SELECT * FROM t]}}\n").plan
    found = columns(client_schema(plan, SCHEMA))
    assert "_own" not in found
    assert found["during"] == "text"
    assert found["big"] == "integer"


def test_impossible_names() -> None:
    odd = SourceSchema.from_json(
        '{"format": 1, "tables": [{"name": "t", "columns": {"ID": "int", "a b": "int", "Note": "int", "note": "int"}}]}'
    )
    plan = compile_config('config: {edition: 3}\nstreams: {s: {queries: [SELECT * FROM t, SELECT id FROM "a.b"]}}').plan
    schema = client_schema(plan, odd)
    (table,) = schema.tables
    assert [column.name for column in table.columns] == ["Note"]
    assert table.notes == (
        "column ID: a device can't distinguish it from id",
        "column a b: SDKs reject its name; select it AS another one",
        "column note: a device can't distinguish it from Note",
    )
    assert schema.notes == ("table a.b: SDKs reject its name; select from it AS another one",)


ODD = ClientSchema(
    (
        ClientTable(
            "to-do$",
            (
                ClientColumn("name", ClientType.TEXT),
                ClientColumn("$größe\\", ClientType.INTEGER, "type not known"),
                ClientColumn("class", ClientType.REAL),
            ),
            ("of two queries",),
        ),
        ClientTable("empty", ()),
    ),
    ("one more",),
)
WRITTEN = {
    Language.TS: """\
import { column, Schema, Table } from '@powersync/common';

// one more
export const AppSchema = new Schema({
  // of two queries
  "to-do$": new Table({
    name: column.text,
    "$größe\\\\": column.integer, // type not known
    class: column.real,
  }),
  empty: new Table({
  }),
});
""",
    Language.DART: """\
import 'package:powersync/powersync.dart';

// one more
const schema = Schema([
  // of two queries
  Table('to-do\\$', [
    Column.text('name'),
    Column.integer('\\$größe\\\\'), // type not known
    Column.real('class'),
  ]),
  Table('empty', [
  ]),
]);
""",
    Language.KOTLIN: """\
import com.powersync.db.schema.Column
import com.powersync.db.schema.Schema
import com.powersync.db.schema.Table

// one more
val AppSchema: Schema = Schema(
    listOf(
        // of two queries
        Table(
            name = "to-do\\$",
            columns = listOf(
                Column.text("name"),
                Column.integer("\\$größe\\\\"), // type not known
                Column.real("class"),
            ),
        ),
        Table(
            name = "empty",
            columns = listOf(
            ),
        ),
    ),
)
""",
    Language.SWIFT: """\
import PowerSync

// one more
let AppSchema = Schema(
    tables: [
        // of two queries
        Table(
            name: "to-do$",
            columns: [
                .text("name"),
                .integer("$größe\\\\"), // type not known
                .real("class"),
            ]
        ),
        Table(
            name: "empty",
            columns: [
            ]
        ),
    ]
)
""",
}


@pytest.mark.parametrize("language", WRITTEN)
def test_form_of_each_sdk(language: Language) -> None:
    assert schema_code(ODD, language) == WRITTEN[language]


def test_python_form() -> None:
    tree = ast.parse(schema_code(ODD, Language.PYTHON))
    (assignment,) = tree.body
    assert isinstance(assignment, ast.AnnAssign)
    assert assignment.value is not None
    assert ast.literal_eval(assignment.value) == {
        "to-do$": {"name": "text", "$größe\\": "integer", "class": "real"},
        "empty": {},
    }


def test_sql_form() -> None:
    with sqlite3.connect(":memory:") as database:
        database.executescript(schema_code(ODD, Language.SQL))
        found = database.execute("SELECT name, type FROM pragma_table_info('to-do$')").fetchall()
        assert found == [("id", "TEXT"), ("name", "TEXT"), ("$größe\\", "INTEGER"), ("class", "REAL")]
        assert database.execute("SELECT * FROM empty").fetchall() == []
    database.close()


def test_tables_of_two_sources_with_one_name() -> None:
    columns_there = {"a": '"n": "int", "title": "text"', "b": '"n": "text", "name": "text"'}
    tables = ", ".join(
        f'{{"tag": "{tag}", "name": "todos", "columns": {{"id": "text", {found}}}}}'
        for tag, found in columns_there.items()
    )
    source = SourceSchema.from_json(f'{{"format": 1, "tables": [{tables}]}}')
    queries = "queries: [SELECT * FROM a.public.todos, SELECT * FROM b.public.todos]"
    (table,) = client_schema(
        compile_config(f"config: {{edition: 3}}\nstreams: {{s: {{{queries}}}}}").plan, source
    ).tables
    assert {column.name: column.type.value for column in table.columns} == {
        "n": "text",
        "title": "text",
        "name": "text",
    }
    assert table.notes == ("rows of a.public.todos, b.public.todos: those with the same id are one row",)
