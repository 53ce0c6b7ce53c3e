"""A config in words: expressions as they were written, who gets what, and what a change touches."""

from __future__ import annotations

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.explain import POSTGRES, Explanation, explain, explanation_lines
from headwater_rules.describe.wording import request_words, row_words
from headwater_rules.plan import SyncPlan


def plan_of(*queries: str, more: str = "") -> SyncPlan:
    listed = "".join(f"      - >-\n        {query}\n" for query in queries)
    return compile_config(f"config: {{edition: 3}}\nstreams:\n  s:\n    queries:\n{listed}{more}").plan


def told(*queries: str, more: str = "") -> Explanation:
    return explain(plan_of(*queries, more=more))


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("archived", "archived"),
        ("NOT archived", "NOT archived"),
        ("a = 'x'", "a = 'x'"),
        ("a != 'x'", "NOT a = 'x'"),
        ("a > 2 OR b", "a > 2 OR b"),
        ("a = 1 OR (b = 2 AND c = 3)", "a = 1 OR (b = 2 AND c = 3)"),
        ("(a = 1 OR b = 2) = c", "(a = 1 OR b = 2) = c"),
        ("lower(name) = 'x'", "lower(name) = 'x'"),
        ("substring(name, 1, 2) = 'x'", "substring(name, 1, 2) = 'x'"),
        ("meta ->> 'k' = 3", "(meta ->> 'k') = 3"),
        ("meta ->> '$.a.b'", "meta ->> '$.a.b'"),
        ("meta -> 'a' ->> 'b'", "meta -> 'a' ->> 'b'"),
        ("status IN ('a', 'b')", "status IN ('a', 'b')"),
        ("5 IN tags", "5 IN tags"),
        ("name LIKE 'a%'", "name LIKE 'a%'"),
        ("name || other = 'x'", "(name || other) = 'x'"),
        ("a IS NULL", "a IS NULL"),
        ("a IS NOT NULL", "a IS NOT NULL"),
        ("x BETWEEN 1 AND 2", "x BETWEEN 1 AND 2"),
        ("a - (b - c) = 1", "(a - (b - c)) = 1"),
        ("name < other", "name < other"),
        ("unixepoch(at) > 5", "unixepoch(at) > 5"),
        ("row_id() = 'x'", "row_id() = 'x'"),
        ('"Odd Name" = 1', '"Odd Name" = 1'),
        ("CASE WHEN a THEN 1 ELSE 2 END = 1", "CASE WHEN a THEN 1 ELSE 2 END = 1"),
    ],
)
def test_explained_filter(condition: str, words: str) -> None:
    (bucket,) = plan_of(f"SELECT id FROM t WHERE {condition}").buckets
    (filter_,) = bucket.sources[0].filters
    assert row_words(filter_, bucket.sources[0].each) == words


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("auth.parameter('role') = 'admin'", "auth.parameter('role') = 'admin'"),
        ("connection.parameter('$.a.b') = 1", "connection.parameter('$.a.b') = 1"),
        ("auth.parameters() -> 'org' ->> 'id' = 1", "(auth.parameters() -> 'org' ->> 'id') = 1"),
        ("subscription.parameter('it''s')", "subscription.parameter('it''s')"),
        ("auth.user_id() IN auth.parameter('all')", "auth.user_id() IN auth.parameter('all')"),
    ],
)
def test_explained_gate(condition: str, words: str) -> None:
    (variant,) = plan_of(f"SELECT id FROM t WHERE {condition}").streams[0].variants
    assert [request_words(gate) for gate in variant.gates] == [words]


def test_explained_lookups() -> None:
    (stream,) = told(
        "SELECT id, name FROM tasks WHERE open AND project_id IN"
        " (SELECT id FROM projects WHERE NOT closed AND org_id IN"
        " (SELECT org_id FROM members WHERE user_id = auth.user_id()))"
    ).streams
    (way,) = stream.ways
    assert stream.reads == ("auth.user_id()",)
    assert [(step.table, step.keys, step.filters, step.outputs) for step in way.steps] == [
        ("members", (("user_id", "auth.user_id()"),), (), ("org_id",)),
        ("projects", (("org_id", "org_id of members (step 1)"),), ("NOT closed",), ("id",)),
    ]
    (rows,) = way.rows
    assert (rows.table, rows.output_table, rows.columns, rows.filters) == ("tasks", "tasks", ("id", "name"), ("open",))
    assert rows.parameters == (("project_id", ("id of projects (step 2)",)),)


def test_explained_request_values() -> None:
    (stream,) = told(
        "SELECT id FROM t WHERE org = auth.parameter('org') AND list = subscription.parameter('list')"
        " AND kind IN connection.parameter('kinds')",
        "SELECT id FROM u WHERE owner = auth.user_id() OR auth.parameters() ->> 'role' = 'admin'",
    ).streams
    assert set(stream.reads) == {
        "auth.parameter('org')",
        "auth.parameter('role')",
        "auth.user_id()",
        "connection.parameter('kinds')",
        "subscription.parameter('list')",
    }
    assert ("kind", ("each(connection.parameter('kinds'))",)) in stream.ways[0].rows[0].parameters


def test_explained_limits() -> None:
    one, several, found, whole = (
        told(query).streams[0].ways[0].limits
        for query in (
            "SELECT id FROM t WHERE owner = auth.user_id()",
            "SELECT id FROM t WHERE owner IN auth.parameter('all')",
            "SELECT id FROM t WHERE list_id IN (SELECT id FROM lists WHERE owner = auth.user_id())",
            "SELECT id FROM t WHERE list_id IN (SELECT id FROM lists WHERE NOT closed)",
        )
    )
    assert one == ()
    assert [limit.partition(",")[0] for limit in several] == ["a device gets at most 1"]
    assert len(found) == 2
    assert whole[-1].startswith("every row of lists that passes is read for each request")


def test_explained_column_changes() -> None:
    tables = {
        table.name: table
        for table in told(
            "SELECT id, title FROM todos WHERE NOT done AND list_id IN (SELECT list_id FROM members"
            " WHERE active AND user_id = auth.user_id())",
            more="  admins:\n    query: SELECT id FROM members WHERE auth.user_id() IN (SELECT who FROM app.boss)\n",
        ).tables
    }
    assert set(tables) == {"todos", "members", "app.boss"}
    assert tables["todos"].moves == (("done", ("s",)), ("list_id", ("s",)))
    assert (tables["todos"].rights, tables["todos"].sent) == ((), ("s",))
    assert dict(tables["members"].rights) == {"active": ("s",), "user_id": ("s",), "list_id": ("s",)}
    assert (tables["members"].moves, tables["members"].sent) == ((), ("admins",))
    assert (tables["app.boss"].rights, tables["app.boss"].sent) == ((("who", ("admins",)),), ())


TEXT = """\
stream todos: priority 1, everybody gets it by default
  reads    auth.user_id(), auth.parameter('role')
  way 1 of 2
    step 1   look up members where user_id = auth.user_id() and
             active; take list_id
    sends    * of todos where list_id = list_id of members (step 1)
    bucket   todos.NAME[list_id]
    limits   a device gets at most 1,000 buckets, of all its streams
             together
             each step finds at most 1,000 rows for a request
  way 2 of 2
    only if  auth.parameter('role') = 'admin'
    sends    * of todos
    bucket   todos.NAME[]

stream notices: priority 3, clients subscribe to it
  reads    nothing of the request: the same for everybody
    sends    id, upper(text) AS text of "log_%" as the table's own name
    bucket   notices.NAME[]

table todos: a change of
  list_id  moves rows into, out of and between buckets of todos
  any other column that is selected is sent to the devices that have
    the row (todos)

table log_%: a change of
  any column that is selected is sent to the devices that have the row
    (notices)

table members: a change of
  active   changes who has which buckets of todos
  user_id  changes who has which buckets of todos
  list_id  changes who has which buckets of todos
  any other column does nothing: no row of it is sent
"""


def test_explained_in_a_terminal() -> None:
    plan = compile_config(
        """\
config: {edition: 3}
streams:
  todos:
    auto_subscribe: true
    priority: 1
    query: >
      SELECT * FROM todos WHERE list_id IN (SELECT list_id FROM members WHERE active AND user_id = auth.user_id())
      OR auth.parameter('role') = 'admin'
  notices:
    query: SELECT id, upper(text) AS text FROM "log_%"
"""
    ).plan
    text = "\n".join(explanation_lines(explain(plan), 70))
    expected = TEXT.replace('"log_%"', "log_%")
    for bucket in plan.buckets:
        expected = expected.replace(f"{bucket.name.partition('.')[0]}.NAME", bucket.name, 1)
    head, _, postgres = text.partition("\nPostgres: ")
    assert head == expected
    assert f"Postgres: {postgres}".split() == POSTGRES.split()
    assert max(map(len, text.splitlines())) <= 70


def test_explained_bucket_definitions() -> None:
    plan = compile_config(
        """\
bucket_definitions:
  by_list:
    parameters: SELECT id AS list_id, 1 AS _priority FROM lists WHERE owner = request.user_id()
    data: [SELECT * FROM todos WHERE list_id = bucket.list_id, SELECT * FROM notes WHERE list_id = bucket.list_id]
  everybody: {data: [SELECT * FROM news]}
"""
    ).plan
    by_list, everybody = explain(plan).streams
    assert (by_list.default, by_list.reads, everybody.reads) == (True, ("auth.user_id()",), ())
    (way,) = by_list.ways
    assert way.priority == 1
    assert [rows.table for rows in way.rows] == ["todos", "notes"]
    assert [step.table for step in way.steps] == ["lists"]
    assert everybody.ways[0].rows[0].table == "news"
