"""A config compared with the tables of the source: what is not there, and what can never be true of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, RuleError, SyncConfigError
from headwater_rules.schema import SchemaFormatError, SourceColumn, SourceSchema, ValueKind, column_of
from tests.unit.rules.rules_store import place_of

SCHEMA = SourceSchema.from_json(
    """
{"format": 1, "tables": [
  {"name": "todos", "columns": {
    "id": "uuid", "title": "text", "list_id": "uuid", "size": "integer", "done": "boolean", "price": "numeric(10,2)",
    "meta": "jsonb", "picture": "bytea", "members": "integer[]", "tags": "text[]", "at": "timestamp with time zone"}},
  {"name": "Lists", "columns": {"id": "uuid", "ownerId": "text"}},
  {"name": "log_2024", "columns": {"key": "text", "old": "integer", "both": "integer"}},
  {"name": "log_2025", "columns": {"key": "text", "new": "integer", "both": "text"}},
  {"schema": "app", "name": "plans", "columns": {"id": "uuid", "during": "tstzrange"}}
]}"""
)


def yaml(query: str, options: str = "") -> str:
    return f"config: {{edition: 3{options}}}\nstreams:\n  s:\n    query: |\n      {query}\n"


def findings(query: str, options: str = "") -> tuple[RuleError, ...]:
    found = compile_config(yaml(query, options), schema=SCHEMA, allow_missing=True).warnings
    return tuple(each for each in found if each.code is not RuleCode.LOWERED)  # which needs no schema


@pytest.mark.parametrize(
    ("query", "marked", "message", "suggestion"),
    [
        ("SELECT id FROM todo", "todo", "no table `todo` in schema `public`", "did you mean `todos`?"),
        ("SELECT id FROM app.todos", "todos", "no table `todos` in schema `app`", "there is `public.todos`"),
        ("SELECT id FROM plans", "plans", "no table `plans`", "there is `app.plans`"),
        ("SELECT id FROM app.plan", "plan", "no table `plan` in schema `app`", "did you mean `plans`?"),
        ("SELECT id FROM none.x", "x", "no table `x` in schema `none`", "the schema has no table"),
        ("SELECT id FROM zzz", "zzz", "no table `zzz`", 'its tables are `todos`, `"Lists"`, `log_2024`, `log_2025`'),
        ("SELECT id FROM Lists", "Lists", "no table `lists`", '`Lists` is written without quotes and so means `lists`'),
        ("SELECT id FROM lists", "lists", "no table `lists`", 'did you mean `"Lists"`?'),
        ('SELECT id FROM "Todos"', '"Todos"', "no table `Todos`", "did you mean `todos`?"),
        ('SELECT id FROM "logs_%"', '"logs_%"', "no table is called like `logs_%`", "its tables are"),
        ('SELECT id FROM "x_%".todos', "todos", "no table is called like `todos` in schema `x_%`", "`public.todos`"),
        ("SELECT id FROM todos WHERE titel = 'x'", "titel", "no column `titel` in `todos`", "did you mean `title`?"),
        ("SELECT t.id FROM todos AS \"t\" WHERE t.titel = 'x'", "titel", "no column `titel`", "did you mean `title`?"),
        ("SELECT id, upper(titel) AS x FROM todos", "titel", "no column `titel` in `todos`", "did you mean `title`?"),
        ("SELECT id FROM todos WHERE zzz", "zzz", "no column `zzz`", "its columns are `id`, `title`, `list_id`"),
        (
            'SELECT id FROM todos WHERE list_id IN (SELECT id FROM "Lists" WHERE ownerId = auth.user_id())',
            "ownerId", "no column `ownerid` in `Lists`", 'so means `ownerid`; write `"ownerId"`',
        ),
        (
            'SELECT todos.id FROM todos JOIN "Lists" AS l ON l.idd = todos.list_id', "idd",
            "no column `idd` in `Lists`", "did you mean `id`?",
        ),
        ("SELECT todos.id FROM todos, json_each(todos.tag) AS e WHERE e.value = auth.user_id()", "tag",
         "no column `tag` in `todos`", "did you mean `tags`?"),
        ("SELECT id FROM todos WHERE auth.user_id() IN member", "member", "no column `member`", "`members`?"),
        ('SELECT key AS id, olds FROM "log_%"', "olds", "no column `olds` in `log_%`", "did you mean `old`?"),
        ("SELECT title FROM todos", "title", "no column `id` is selected from `todos`", "`row_id() AS id`"),
        ('SELECT * FROM "log_%"', "*", "no column `id` is selected", "`row_id() AS id`"),
        ("SELECT id, picture FROM todos", "picture", "devices get no blobs", "write `base64(picture) AS picture`"),
        ("SELECT id, picture AS p FROM todos", "picture", "devices get no blobs", "write `base64(picture) AS p`"),
        ("SELECT * FROM todos", "*", "`picture` of `todos` is bytea, and devices get no blobs", "base64(picture)"),
        ("SELECT id FROM todos WHERE size ->> 'x' = 1", "size ->> 'x'", "`->>` needs JSON", "a column of type json"),
        ("SELECT id FROM todos WHERE json_extract(at, '$.x') = 1", "json_extract(at, '$.x')", "`json_extract`", ""),
        ("SELECT id FROM todos WHERE auth.user_id() IN list_id", "list_id", "an expanded array needs JSON", ""),
        ("SELECT id FROM todos WHERE title IN size", "size", "`IN` needs JSON, and `size` is of type integer", ""),
    ],
)  # fmt: skip
def test_unknown_name(query: str, marked: str, message: str, suggestion: str) -> None:
    (finding,) = findings(query)
    assert message in finding.message
    assert suggestion in finding.suggestion
    assert place_of(finding).text == marked


@pytest.mark.parametrize(
    ("condition", "message", "suggestion"),
    [
        ("size = auth.user_id()", "`size` (integer) is a number and `auth.user_id()` is text",
         "write `size::text = auth.user_id()`"),
        ("auth.user_id() = size", "never equal", "write `auth.user_id() = size::text`"),
        ("size != title", "never equal", "write `size::text != title`"),
        ("size = '5'", "`'5'` is text: they are never equal", "write '5' without the quotes"),
        ("size IN (1, '2')", "`'2'` is text: they are never equal", "write '2' without the quotes"),
        ("size = 'big'", "never equal", "write `size::text = 'big'`"),
        ("done = 'true'", "`done` (boolean) is a number", "write `done` alone, or `done = true`"),
        ("price = 5", "`price` (numeric(10,2)) is text and `5` is a number", "write `price::numeric = 5`"),
        ("price > 5", "all of one kind are greater than all of the other", "write `price::numeric > 5`"),
        ("at BETWEEN 1 AND '3'", "all of one kind are greater", "write `at::numeric BETWEEN 1 AND '3'`"),
        ("length(title) = title", "`length(title)` is a number", "never equal"),
        ("picture = title", "`picture` (bytea) is a blob", "compare `hex(…)`"),
        ("auth.user_id() IN members", "an element of `members` is a number", "`auth.user_id()::numeric IN members`"),
        ("title IN members", "an element of `members` is a number", "write `title::numeric IN members`"),
        ("members && auth.parameters()", "", ""),
        ("size IN tags", "an element of `tags` is text", "write `size::text IN tags`"),
        ("size IN (SELECT id FROM app.plans)", "`id` (uuid) is text", "write `size::text"),
        ("auth.user_id() IN (SELECT size FROM todos)", "`size` (integer) is a number", "(SELECT size::text FROM"),
        ("id IN (SELECT during FROM app.plans) AND size = 'x'", "`size` (integer)", ""),
    ],
)  # fmt: skip
def test_impossible_comparison(condition: str, message: str, suggestion: str) -> None:
    found = findings(f"SELECT id FROM todos WHERE {condition}")
    if not message:
        assert found == ()
        return
    (finding,) = found
    assert message in finding.message
    assert suggestion in f"{finding.message} {finding.suggestion}"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM todos WHERE size::text = auth.user_id() AND price::numeric > 5",
        "SELECT id FROM todos WHERE done AND done = true AND done = 1 AND done IS NOT NULL",
        "SELECT id FROM todos WHERE size = auth.parameter('size') AND title = connection.parameter('title')",
        "SELECT id FROM todos WHERE meta ->> 'size' = 5 AND title ->> 'size' = 5 AND at > '2024-01-01'",
        "SELECT id FROM todos WHERE 5 IN members OR auth.user_id() IN tags",
        "SELECT id FROM todos WHERE size BETWEEN 1 AND 2.5 AND list_id = auth.user_id()",
        "SELECT id, hex(picture) AS picture FROM todos WHERE size IS NULL",
        'SELECT id, "ownerId" FROM "Lists" WHERE "ownerId" = auth.user_id()',
        'SELECT key AS id, old, new FROM "log_%" WHERE both = 1 AND coalesce(old, new) = auth.user_id()',
        'SELECT row_id() AS id, key FROM "log_%"',
        "SELECT * FROM app.plans WHERE during ->> 'lower' IS NULL",
        'SELECT id FROM "%".todos',
        "SELECT todos.id FROM todos, json_each(todos.tags) AS e WHERE e.key = 1 AND e.value = auth.user_id()",
    ],
)
def test_fitting_query(query: str) -> None:
    assert findings(query) == ()


def test_without_schema() -> None:
    assert compile_config(yaml("SELECT titel FROM todo WHERE size = '1'")).warnings == ()


def test_schema_keeps_plan() -> None:
    text = yaml("SELECT titel, * FROM todos WHERE size = auth.user_id() AND auth.user_id() IN members")
    assert compile_config(text, schema=SCHEMA).plan == compile_config(text).plan


_DECIDES = """
SELECT id FROM todos WHERE deleted_at IS NULL
SELECT id FROM todos WHERE titel <> 'x'
SELECT id FROM todos WHERE NOT private AND list_id = auth.user_id()
SELECT id, titel FROM todos WHERE titel ->> 'a' = 'x'
SELECT id FROM todos WHERE owner = auth.user_id()
SELECT id FROM todos AS t WHERE t."Title" IS NULL
SELECT id FROM todos WHERE auth.user_id() IN member
SELECT id FROM todos WHERE list_id IN (SELECT idd FROM "Lists" WHERE "ownerId" = auth.user_id())
SELECT id FROM todos WHERE list_id IN (SELECT id FROM "Lists" WHERE ownerId = auth.user_id())
SELECT id FROM todos WHERE list_id IN (SELECT id FROM app.lists WHERE owner = auth.user_id())
SELECT todos.id FROM todos JOIN "Lists" AS l ON l.idd = todos.list_id
SELECT t.id FROM (SELECT id, titel AS x FROM todos) AS t WHERE t.x <> 'a'
SELECT t.id FROM todos AS t, json_each(t.tag) AS e WHERE e.value = auth.user_id()
SELECT id FROM todos WHERE size IN (SELECT size FROM app.plans) OR titel IS NULL
SELECT id FROM todos WHERE coalesce(titel, name) = auth.user_id()
SELECT id FROM todo
SELECT id FROM app.todos WHERE title = 'x'
SELECT key AS id FROM "log_%" WHERE gone IS NULL
"""
_SELECTED = """
SELECT id, titel FROM todos WHERE title = auth.user_id()
SELECT id, upper(titel) AS x, ifnull(titel, title) AS y FROM todos
SELECT t.id, t.x FROM (SELECT id, titel AS x FROM todos) AS t WHERE t.id = auth.user_id()
SELECT id FROM todos WHERE coalesce(titel, title) = auth.user_id()
SELECT id FROM "logs_%" WHERE gone IS NULL
SELECT key AS id FROM "log_%" WHERE old IS NULL
"""


@pytest.mark.parametrize("query", _DECIDES.strip().splitlines())
def test_unknown_deciding_name(query: str) -> None:
    with pytest.raises(SyncConfigError) as caught:
        compile_config(yaml(query), schema=SCHEMA)
    assert {error.code for error in caught.value.errors} <= {RuleCode.NO_COLUMN, RuleCode.NO_TABLE}
    compiled = compile_config(yaml(query), schema=SCHEMA, allow_missing=True)  # rules that come before their migration
    assert {(each.code, each.message) for each in caught.value.errors} <= {
        (each.code, each.message) for each in compiled.warnings
    }


@pytest.mark.parametrize("query", _SELECTED.strip().splitlines())
def test_unknown_selected_name(query: str) -> None:
    assert {each.code for each in compile_config(yaml(query), schema=SCHEMA).warnings} <= {
        RuleCode.NO_COLUMN, RuleCode.NO_TABLE, RuleCode.PARTLY, RuleCode.NO_ID,
    }  # fmt: skip


def test_unpublished_column() -> None:
    notes = replace(SCHEMA.tables[0], unsent=("done", "size"))
    schema = SourceSchema.from_json(SourceSchema((notes,)).to_json())
    assert schema.tables == (notes,)
    with pytest.raises(SyncConfigError) as caught:
        compile_config(yaml("SELECT id, size FROM todos WHERE NOT done"), schema=schema)
    assert [(each.code, each.span and each.span.text) for each in caught.value.errors] == [
        (RuleCode.COLUMN_NOT_SENT, "done")
    ]
    assert [each.code for each in caught.value.warnings] == [RuleCode.COLUMN_NOT_SENT]


def test_wildcard_table_lacks_column() -> None:
    (warning,) = findings('SELECT key AS id FROM "log_%" WHERE old IS NULL')
    assert (warning.code, warning.message) == (
        RuleCode.PARTLY, "`log_2025` has no column `old`, so nobody gets rows of it",
    )  # fmt: skip


def test_strict() -> None:
    query = "SELECT title, picture FROM todos WHERE titel = 'x' AND size = '1'"
    with pytest.raises(SyncConfigError) as caught:
        compile_config(yaml(query, ", strict: true"), schema=SCHEMA)
    assert [error.code.name for error in caught.value.errors] == ["BLOB", "NO_COLUMN", "NEVER_EQUAL"]
    assert [warning.code.name for warning in caught.value.warnings] == ["NO_ID"]


def test_ranges_as_text() -> None:
    query = "SELECT id FROM app.plans WHERE during ->> 'lower' = 'x'"
    assert SCHEMA.tables[-1].columns[1].value_kind() is ValueKind.JSON
    assert SCHEMA.tables[-1].columns[1].value_kind(custom_types=False) is ValueKind.TEXT
    assert findings(query) == ()


def test_shared_query_told_once() -> None:
    text = (
        "config: {edition: 3}\nwith:\n  mine: SELECT idd FROM todos WHERE title = auth.user_id()\nstreams:\n"
        "  a: {query: SELECT id FROM todos WHERE id IN mine}\n  b: {query: SELECT id FROM todos WHERE id IN mine}\n"
    )
    with pytest.raises(SyncConfigError) as caught:
        compile_config(text, schema=SCHEMA)
    (error,) = caught.value.errors
    assert (place_of(error).line, place_of(error).text) == (3, "idd")


def test_schema_as_json() -> None:
    assert SourceSchema.from_json(SCHEMA.to_json()) == SCHEMA
    odd = SourceColumn("mood", "app.mood", ValueKind.JSON, ValueKind.TEXT, by_option=True)
    table = SCHEMA.tables[0]
    schema = SourceSchema((type(table)("other", "app", 'quo"ted', (odd, column_of("n", "double precision[]"))),))
    assert SourceSchema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    ("type_name", "kind", "elements"),
    [
        ("bigint", ValueKind.INTEGER, None),
        ("boolean", ValueKind.INTEGER, None),
        ("double precision", ValueKind.REAL, None),
        ("numeric(10,2)", ValueKind.TEXT, None),
        ("character varying(20)", ValueKind.TEXT, None),
        ("timestamp(3) with time zone", ValueKind.TEXT, None),
        ("jsonb", ValueKind.JSON, None),
        ("bytea", ValueKind.BLOB, None),
        ("integer[]", ValueKind.JSON, ValueKind.INTEGER),
        ("character varying(20)[][]", ValueKind.JSON, ValueKind.TEXT),
        ("nummultirange", ValueKind.JSON, None),
        ("hstore", ValueKind.TEXT, None),
    ],
)
def test_schema_by_hand(type_name: str, kind: ValueKind, elements: ValueKind | None) -> None:
    column = column_of("a", type_name)
    assert (column.kind, column.elements) == (kind, elements)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the source schema must be an object"),
        ("{}", "`format` must be 1"),
        ('{"format": 1}', "`tables` must be a list"),
        ('{"format": 1, "tables": [1]}', "table 1 must be an object"),
        ('{"format": 1, "tables": [{"columns": {}}]}', "`name` of table 1 must be a text"),
        ('{"format": 1, "tables": [{"name": "t"}]}', "`columns` of table `t` must be an object"),
        ('{"format": 1, "tables": [{"name": "t", "columns": {"a": 1}}]}', "column `a` of table `t` must be an object"),
        ('{"format": 1, "tables": [{"name": "t", "columns": {"a": {"type": "x", "kind": "date"}}}]}', "must be one of"),
    ],
)
def test_no_schema(text: str, message: str) -> None:
    with pytest.raises(SchemaFormatError, match=message):
        SourceSchema.from_json(text)


def test_schema_and_bucket_definitions() -> None:
    text = """\
bucket_definitions:
  mine:
    parameters: SELECT idd AS todo FROM todos WHERE size = request.user_id()
    data:
      - SELECT * FROM todos WHERE id = bucket.todo AND titel = 'x'
      - SELECT id FROM todo WHERE id = bucket.todo
"""
    with pytest.raises(SyncConfigError) as caught:
        compile_config(text, schema=SCHEMA)
    errors, others = caught.value.errors, caught.value.warnings
    assert [(each.code.name, each.span and each.span.text) for each in errors] == [
        ("NO_COLUMN", "idd"),
        ("NO_COLUMN", "titel"),
        ("NO_TABLE", "todo"),
    ]
    assert [(each.code.name, each.span and each.span.text) for each in others] == [
        ("NEVER_EQUAL", "size = request.user_id()"),
        ("BLOB", "*"),
    ]
