"""Tables of several sources in one sync config: how rules name them, and what tells their rows apart."""

from __future__ import annotations

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.why import Why
from headwater_rules.evaluate.rows import TableProgram, bind_table
from headwater_rules.plan import TablePattern
from headwater_rules.results import SourceRow, SyncRequest
from headwater_rules.schema import SourceColumn, SourceSchema, SourceTable, ValueKind
from headwater_rules.testing.rules_test import RulesTest
from headwater_rules.versions import definitions_of


def tables(query: str) -> tuple[TablePattern, ...]:
    return compile_config(f"config: {{edition: 3}}\nstreams:\n  all: {{query: {query!r}}}\n").plan.tables()


def program(query: str, source: str, *columns: str) -> TableProgram:
    plan = compile_config(f"config: {{edition: 3}}\nstreams:\n  all: {{query: {query!r}}}\n").plan
    found = bind_table(plan, source, "public", "todos", columns)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("written", "pattern"),
    [
        ("todos", TablePattern("default", "public", "todos")),
        ("app.todos", TablePattern("default", "app", "todos")),
        ("west.app.todos", TablePattern("west", "app", "todos")),
        ("West.App.Todos", TablePattern("west", "app", "todos")),
        ('"West"."app"."todos"', TablePattern("West", "app", "todos")),
        ('"west.app".todos', TablePattern("west", "app", "todos")),
        ('"west".app.todos', TablePattern("west", "app", "todos")),
        ('"tenant_%".public.todos', TablePattern("tenant_%", "public", "todos")),
        ('"tenant_%"."%"."to%"', TablePattern("tenant_%", "%", "to%")),
        ('"a.b"."c.d".todos', TablePattern("a.b", "c.d", "todos")),
    ],
)
def test_table_names(written: str, pattern: TablePattern) -> None:
    assert tables(f"SELECT * FROM {written}") == (pattern,)
    assert tables(f"SELECT t.* FROM {written} AS t") == (pattern,)


def test_both_ways_of_writing_a_table_are_one_definition() -> None:
    one, other = (
        definitions_of(compile_config(f"config: {{edition: 3}}\nstreams: {{a: {{query: '{query}'}}}}").plan)
        for query in ("SELECT * FROM west.public.todos", 'SELECT * FROM "west.public".todos')
    )
    assert one == other


def test_no_table_of_another_source_matches() -> None:
    plan = compile_config("config: {edition: 3}\nstreams: {a: {query: 'SELECT * FROM west.public.todos'}}").plan
    assert bind_table(plan, "default", "public", "todos", ["id"]) is None
    assert bind_table(plan, "west", "public", "todos", ["id"]) is not None
    assert bind_table(plan, "west/one", "public", "todos", ["id"]) is not None
    assert bind_table(plan, "westend", "public", "todos", ["id"]) is None


@pytest.mark.parametrize(("source", "told"), [("default", "default"), ("west", "west"), ("west/one", "one")])
def test_source_is_the_shard_or_the_tag(source: str, told: str) -> None:
    query = 'SELECT t.id, t.source() AS origin FROM "%".public.todos t WHERE t.source() = t.owner'
    puts = program(query, source, "id", "owner").evaluate(["1", told], "1").puts
    assert [put.data for put in puts] == [f'{{"id":"1","origin":"{told}"}}']
    assert program(query, source, "id", "owner").evaluate(["1", "nobody"], "1").puts == []


def test_source_names_buckets() -> None:
    query = "SELECT * FROM west.public.todos t WHERE t.source() = subscription.parameter('shard')"
    (put,) = program(query, "west/one", "id").evaluate(["1"], "1").puts
    assert put.bucket.endswith('["one"]')


@pytest.mark.parametrize(("source", "row_id"), [("west", "7"), ("west/one", "one/7"), ("west/two", "two/7")])
def test_row_ids_of_shards_differ(source: str, row_id: str) -> None:
    told = program("SELECT t.row_id() AS id, t.title FROM west.public.todos t", source, "title")
    assert [put.id for put in told.evaluate(["x"], "7").puts] == [row_id]
    without_id = program("SELECT t.title FROM west.public.todos t", source, "title")
    assert [put.id for put in without_id.evaluate(["x"], "7").puts] == [row_id]
    with_id = program("SELECT t.id, t.title FROM west.public.todos t", source, "id", "title")
    assert [put.id for put in with_id.evaluate(["a", "x"], "7").puts] == ["a"]


BY_TENANT = """\
config: {edition: 3}
streams:
  mine:
    auto_subscribe: true
    query: >-
      SELECT t.source() || '-' || t.id AS id, t.title FROM "tenant_%".public.todos t
      WHERE t.list IN (SELECT m.list FROM shared.public.members m WHERE m.member = auth.user_id())
"""


def test_rows_of_rule_tests_have_a_source() -> None:
    rules = RulesTest.of_text(BY_TENANT)
    rules.insert("tenant_a.public.todos", id="1", title="a", list="x")
    rules.insert("tenant_b.public.todos", id="1", title="b", list="x")
    rules.insert("tenant_c/one.public.todos", id="1", title="c", list="x")
    rules.insert("members", member="ann", list="x")
    ann = rules.client("ann")
    titles = {"tenant_a-1": "a", "tenant_b-1": "b", "one-1": "c"}
    assert {row["id"]: row["title"] for row in ann.table("t")} == titles
    rules.update("tenant_b.public.todos", {"id": "1"}, list="y")
    rules.delete("tenant_c/one.public.todos", id="1")
    assert [row["id"] for row in ann.table("t")] == ["tenant_a-1"]


def test_rule_tests_refuse_a_table_of_no_or_many_sources() -> None:
    rules = RulesTest.of_text(BY_TENANT)
    with pytest.raises(ValueError, match=r"several sources \(`tenant_%`\); write `tag.public.todos`"):
        rules.insert("todos", id="1")
    with pytest.raises(ValueError, match=r"reads no table `west\.public\.todos`"):
        rules.insert("west.public.todos", id="1")
    with pytest.raises(ValueError, match="has a row with the id"):
        rules.insert("tenant_a.public.todos", {"id": "1"}, {"id": "1"})


def finding(table: str) -> str:
    columns = (SourceColumn("id", "text", ValueKind.TEXT),)
    schema = SourceSchema(tuple(SourceTable(tag, "public", "todos", columns) for tag in ("west", "East")))
    text = f"config: {{edition: 3}}\nstreams: {{a: {{query: 'SELECT * FROM {table}'}}}}"
    warnings = compile_config(text, schema=schema, allow_missing=True).warnings
    return "\n".join(f"{each.message}; {each.suggestion}" for each in warnings)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("west.public.todos", ""),
        ('"%".public.todos', ""),
        ("wset.public.todos", "no source with tables is called `wset`; did you mean `west`?"),
        ("todos", 'no source with tables is called `default`; there are `west`, `"East"`'),
        ('"x%".public.todos', "no source with tables is called `x%`"),
        ('"".public.todos', ""),
    ],
)
def test_a_source_that_does_not_exist_is_told(table: str, told: str) -> None:
    assert told in finding(table)
    assert told or not finding(table) or table.startswith('""')


def test_a_tag_without_schema_is_told() -> None:
    columns = (SourceColumn("id", "text", ValueKind.TEXT),)
    schema = SourceSchema(tuple(SourceTable(tag, "public", "todos", columns) for tag in ("default", "west")))
    text = "config: {edition: 3}\nstreams: {a: {query: SELECT * FROM west.todos}}"
    (warning,) = compile_config(text, schema=schema, allow_missing=True).warnings
    assert warning.suggestion == "write `west.public.todos`"


def test_rows_of_shards_with_one_id_are_told_in_rule_tests() -> None:
    rules = RulesTest.of_text(
        "config: {edition: 3}\nstreams: {s: {auto_subscribe: true, query: SELECT * FROM shop.public.items}}"
    )
    for shard in ("eu", "us"):
        rules.insert(f"shop/{shard}.public.items", id="1", body=shard)
    with pytest.raises(AssertionError, match="from several queries or sources in different forms"):
        rules.assert_synced("a", "items", ["1"])
    rules.delete("shop/us.public.items", id="1")
    rules.assert_synced("a", "items", [{"id": "1", "body": "eu"}])


def test_findings_name_the_source() -> None:
    columns = (SourceColumn("id", "text", ValueKind.TEXT),)
    schema = SourceSchema((SourceTable("west", "public", "todos", columns, lacks=("GRANT",)),))
    text = (
        "config: {edition: 3}\nstreams: {a: {queries: [SELECT * FROM west.public.todos, SELECT * FROM west.public.t]}}"
    )
    messages = {each.message for each in compile_config(text, schema=schema, allow_missing=True).warnings}
    assert messages == {
        "no row of `west.public.todos` reaches a device: it is not published, or may not be read",
        "no table `t` in schema `public` of source `west`",
    }


@pytest.mark.parametrize(("source", "origin"), [("west", "west"), ("west/one", "one")])
def test_explanation_knows_the_source(source: str, origin: str) -> None:
    """A condition that a row fulfils is not named as one that keeps it away."""
    query = f"SELECT * FROM west.public.todos t WHERE t.source() = '{origin}' AND t.owner = 'ada'"
    plan = compile_config(f'config: {{edition: 3}}\nstreams: {{a: {{auto_subscribe: true, query: "{query}"}}}}').plan
    bound = bind_table(plan, source, "public", "todos", ["id", "owner"])
    assert bound is not None
    row = SourceRow("public", "todos", {"id": "1", "owner": "ben"}, "1", bound.evaluate(["1", "ben"], "1"), source)
    reason = Why(plan, SyncRequest({"sub": "u1"}), lambda _: {}).of_row(row, 0, plan.buckets[0].sources[0])
    assert "owner" in reason
    assert origin not in reason
