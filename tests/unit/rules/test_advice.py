"""Advice: rows that every user gets, told once unless the author says that they are meant; and queries with a bucket
for each row of a table, which may lead a device to many of them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headwater_rules.compiler.advice import buckets_per_row
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, RuleError, Severity
from headwater_rules.schema import SourceSchema, SourceTable, column_of
from tests.unit.rules.rules_store import place_of, plan_of

OPEN = "SELECT * FROM t"
HEAD = "config: {edition: 3}\nstreams:\n  s:\n    auto_subscribe: true\n"


def told(text: str) -> list[RuleError]:
    return [warning for warning in compile_config(text, advise=True).warnings if warning.code is RuleCode.EVERYBODY]


def stream(query: str, *, automatic: bool = True) -> str:
    return f"{HEAD.replace('true', str(automatic).lower())}    query: |\n      {query}\n"


def definition(parameters: str, data: str) -> str:
    given = f"    parameters: {parameters}\n" if parameters else ""
    return f"bucket_definitions:\n  b:\n{given}    data:\n      - {data}\n"


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize(
    ("condition", "whole"),
    [
        ("owner = auth.user_id() OR true", True),
        ("owner = auth.user_id() OR 1 = 1", True),
        ("true OR owner = auth.user_id()", True),
        ("(owner = auth.user_id() AND a = 1) OR NOT false", True),
        ("auth.parameter('role') = 'admin' OR 'a' = 'a'", True),
        ("owner IN (SELECT id FROM m WHERE u = auth.user_id()) OR true", True),
        ("owner = auth.user_id() OR id = id", True),
        ("owner = auth.user_id() OR a IS NULL OR a IS NOT NULL", True),
        ("owner = auth.user_id() OR a = b OR a != b", True),
        ("owner = auth.user_id() OR coalesce(a, 1) = coalesce(a, 1)", True),
        ("owner = auth.user_id() OR id IS NOT NULL", True),
        ("owner = auth.user_id()", False),
        ("owner = auth.user_id() OR public", False),
        ("owner = auth.user_id() OR a != 'secret''s'", False),
        ("owner = auth.user_id() OR a != 17", False),
        ("owner = auth.user_id() OR a IS NOT NULL", False),
        ("owner = auth.user_id() OR a IN (SELECT id FROM m)", False),
        ("owner = auth.user_id() OR false", False),
        ("false", False),
    ],
)
def test_or_for_every_row(condition: str, whole: bool, automatic: bool) -> None:
    found = told(stream(f"{OPEN} WHERE {condition}", automatic=automatic))
    assert [warning.message for warning in found] == (
        ["every user gets all rows of `public.t`: a part of the condition is true for everybody"] if whole else []
    )


@pytest.mark.parametrize("condition", ["auth.user_id() IS NOT NULL", "auth.user_id() = auth.user_id() AND 1 = 1"])
def test_condition_of_every_token(condition: str) -> None:
    (warning,) = told(stream(f"{OPEN} WHERE {condition}"))
    assert "every user gets all rows of `public.t`" in warning.message


@pytest.mark.parametrize(
    ("query", "what"),
    [
        (OPEN, "all rows"),
        (f"{OPEN} WHERE true", "all rows"),
        (f"{OPEN} WHERE published", "the same rows"),
        (f"{OPEN} WHERE a IN (SELECT id FROM m)", "the same rows"),
    ],
)
def test_default_stream_for_all(query: str, what: str) -> None:
    (warning,) = told(stream(query))
    assert warning.message == f"every user gets {what} of `public.t`: nothing in this query depends on who it is"
    assert told(stream(query, automatic=False)) == []


@pytest.mark.parametrize(
    ("parameters", "data", "marked"),
    [
        ("", "SELECT * FROM records", "SELECT * FROM records"),
        ("SELECT x FROM selections", "SELECT * FROM records WHERE id = bucket.x", "SELECT x FROM selections"),
        ("SELECT request.user_id() AS x", "SELECT * FROM records WHERE o = bucket.x", None),
        ("SELECT x FROM selections WHERE u = request.user_id()", "SELECT * FROM records WHERE id = bucket.x", None),
        ("SELECT x FROM selections WHERE u = token_parameters.u", "SELECT * FROM records WHERE id = bucket.x", None),
    ],
)
def test_parameters_without_user(parameters: str, data: str, marked: str | None) -> None:
    places = [warning.span for warning in told(definition(parameters, data))]
    assert [place.text for place in places if place is not None] == ([] if marked is None else [marked])


def test_told_once() -> None:
    text = "bucket_definitions:\n  b:\n    parameters: SELECT x FROM m\n    data:\n" + "".join(
        f"      - SELECT * FROM {table} WHERE id = bucket.x\n" for table in ("a", "b")
    )
    (warning,) = told(text)
    assert "`public.a`, `public.b`" in warning.message
    assert compile_config(text).warnings == ()


SAID = "# headwater: everybody"


@pytest.mark.parametrize(
    "lines",
    [
        f"{SAID}\n    query: {OPEN}",
        f"#headwater:everybody\n    query: {OPEN}",
        f"# of all\n    {SAID}\n    # countries\n    query: |\n      {OPEN}",
        f"queries:\n    {SAID}\n    - {OPEN}",
        f"query:\n      {SAID}\n      {OPEN}",
    ],
)
def test_comment_silences(lines: str) -> None:
    assert told(f"{HEAD}    {lines}\n") == []
    assert len(told(f"{HEAD}    {lines.replace('everybody', 'everyone')}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"{SAID}\nconfig: {{edition: 3}}\nstreams:\n  s: {{auto_subscribe: true,\n    query: {OPEN}}}\n",
        f"config: {{edition: 3}}\nstreams:\n  {SAID}\n  s:\n    auto_subscribe: true\n    query: {OPEN}\n",
        f"config: {{edition: 3}}\nstreams:\n  s:\n    query: {OPEN}\n    {SAID}\n    auto_subscribe: true\n",
        f"{HEAD}    {SAID}\n\n    query: {OPEN}\n",
        f"{HEAD}    # not {SAID[2:]}\n    query: {OPEN}\n",
        f"{HEAD}    query: |\n      -- {SAID}\n      {OPEN}\n",
        f"{HEAD}    queries:\n    {SAID}\n    - SELECT * FROM u\n    - {OPEN}\n",
    ],
)
def test_comment_elsewhere(text: str) -> None:
    assert ["`public.t`" in warning.message for warning in told(text)] == [True]


MINE = "(SELECT k FROM m WHERE u = auth.user_id())"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (f"SELECT * FROM t WHERE id IN {MINE}", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE id::text IN {MINE}", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE row_id() IN {MINE}", [("public.t", "row_id()")]),
        (f"SELECT * FROM t WHERE id IN {MINE} OR public = 1", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE id IN {MINE} AND kind = auth.parameter('kind')", [("public.t", "id")]),
        ("SELECT t.* FROM t JOIN m ON m.k = t.id WHERE m.u = auth.user_id()", [("public.t", "id")]),
        ("SELECT * FROM t WHERE id IN auth.parameter('ids')", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE list_id IN {MINE}", []),
        (f"SELECT * FROM t WHERE lower(id) IN {MINE}", []),
        (f"SELECT * FROM t WHERE substring(id::text, 1, 2) IN {MINE}", []),
        ("SELECT * FROM t WHERE id = auth.user_id()", []),
        (f"SELECT * FROM t WHERE id IN {MINE} AND id = subscription.parameter('id')", []),
        ("SELECT * FROM t WHERE id IN (SELECT org_id FROM users WHERE id = auth.user_id())", []),
        ("SELECT * FROM t", []),
    ],
)
def test_buckets_per_row(query: str, found: list[tuple[str, str]]) -> None:
    assert [(each.table, each.value) for each in buckets_per_row(plan_of(query))] == found


def test_buckets_per_row_advice() -> None:
    text = f"config: {{edition: 3, strict: true}}\nstreams:\n  lists:\n    query: SELECT * FROM t WHERE id IN {MINE}\n"
    assert compile_config(text).warnings == ()
    (warning,) = compile_config(text, advise=True).warnings
    assert (warning.code, warning.severity) == (RuleCode.BUCKET_PER_ROW, Severity.WARNING)
    assert warning.message == "`lists` has one bucket for each row of `public.t`, by `id`"
    assert place_of(warning).line == 3


def schema(*tags: str, id_type: str = "text", unread: tuple[str, ...] = ()) -> SourceSchema:
    """What sources with these tags have: `public.todos`, with ids of this type."""
    columns = (column_of("id", id_type), column_of("owner", "text"))
    return SourceSchema(tuple(SourceTable(tag, "public", "todos", columns) for tag in tags), unread=unread)


def of_ids(*queries: str, known: SourceSchema | None = None) -> list[str]:
    """The warnings about ids for these queries, each a stream of its own."""
    streams = "".join(
        f"  s{number}: {{query: {json.dumps(f'{query} WHERE owner = auth.user_id()')}}}\n"
        for number, query in enumerate(queries)
    )
    found = compile_config(f"config: {{edition: 3}}\nstreams:\n{streams}", schema=known, advise=True).warnings
    return [f"{each.message}; {each.suggestion}" for each in found if each.code is RuleCode.SAME_IDS]


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ('SELECT * FROM "t_%".public.todos', "two sources"),
        ('SELECT id FROM "t_%".public.todos', "two sources"),
        ('SELECT id::text AS id FROM "t_%".public.todos', "two sources"),
        ('SELECT number AS id FROM "t_%".public.todos', "two sources"),
        ('SELECT row_id() AS id FROM "t_%".public.todos', "two sources"),
        ('SELECT owner FROM "t_%".public.todos', "two sources"),
        ('SELECT todos.source() || id AS id FROM "t_%".public.todos', None),
        ('SELECT region || id AS id FROM "t_%".public.todos', None),
        ('SELECT todos.source() || id AS id, * FROM "t_%".public.todos', "two sources"),
        ('SELECT * FROM "t_%".todos', "two schemas"),
        ('SELECT *, todos.schema() || id AS id FROM "t_%".todos', None),
        ('SELECT * FROM "todos_%" AS todos', "two tables"),
        ('SELECT * FROM "todos_%"', None),
        ("SELECT * FROM west.public.todos", None),
        ("SELECT * FROM todos", None),
    ],
)
def test_ids_of_tables_that_a_wildcard_matches(query: str, what: str | None) -> None:
    assert [found.partition(" may have")[0] for found in of_ids(query)] == ([] if what is None else [what])


def test_rows_that_a_request_tells_apart_may_have_one_id() -> None:
    query = "SELECT * FROM \"t_%\".todos AS todos WHERE todos.schema() = auth.parameter('tenant')"
    text = f"config: {{edition: 3}}\nstreams:\n  s: {{query: {json.dumps(query)}}}\n"
    assert RuleCode.SAME_IDS not in {each.code for each in compile_config(text, advise=True).warnings}


@pytest.mark.parametrize(
    ("known", "warned"),
    [
        (None, False),
        (schema("west"), False),
        (schema("west", "east"), False),
        (schema("west", "west"), True),
        (schema("west", unread=("west",)), True),
        (schema("west", "west", id_type="uuid"), False),
    ],
    ids=["unknown", "one", "two tags", "two shards", "a shard that is away", "uuids"],
)
def test_ids_of_shards(known: SourceSchema | None, warned: bool) -> None:
    found = of_ids("SELECT * FROM west.public.todos", known=known)
    assert ["two shards may have rows of `west.public.todos` with the same id" in each for each in found] == (
        [True] if warned else []
    )
    assert of_ids("SELECT row_id() AS id, owner FROM west.public.todos", known=known) == []
    if known is None:
        return
    without_id = SourceSchema(tuple(replace(each, columns=each.columns[1:]) for each in known.tables))
    assert of_ids("SELECT * FROM west.public.todos", known=without_id) == [], "their id is `row_id()`"


def test_two_tables_with_one_name_on_devices() -> None:
    west, east = "SELECT * FROM west.public.todos", "SELECT * FROM east.public.todos"
    (found,) = of_ids(west, east)
    assert found == (
        "`east.public.todos` and `west.public.todos` (stream `s0`) are both `todos` on devices, and rows of them with"
        " the same id are one row there; select from one of them under another name, as `east.public.todos AS"
        " east_todos`"
    )
    assert of_ids(west, f"{east} AS east_todos") == []
    assert of_ids(west, "SELECT todos.source() || id AS id FROM east.public.todos") == []
    assert of_ids(west, "SELECT id FROM west.public.todos") == []
    assert of_ids(west, east, known=schema("west", "east", id_type="uuid")) == []
    (found,) = of_ids("SELECT * FROM old.todos", "SELECT * FROM todos")
    assert "as `public.todos AS public_todos`" in found
