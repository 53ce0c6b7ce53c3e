"""A config that cannot be used gets every one of its errors, each at its place, with what to do; none hides another."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, RuleError, SyncConfigError
from tests.support.examples import examples
from tests.unit.rules.rules_store import errors_of, place_of

START = "config: {edition: 3}\nstreams:\n  s: "


def attempt(text: str) -> tuple[RuleError, ...]:
    try:
        compile_config(text)
    except SyncConfigError as found:
        return found.errors
    return ()


def error_in(query: str) -> RuleError:
    found = errors_of(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n")
    assert len(found.errors) == 1
    return found.errors[0]


@pytest.mark.parametrize(
    ("query", "marked", "message"),
    [
        ("SELECT * FROM t WHERE a ILIKE 'x%'", "a ILIKE 'x%'", "`ILIKE` is not supported"),
        ("SELECT * FROM t WHERE a ~ 'x'", "a ~ 'x'", "regular expressions"),
        ("SELECT * FROM t WHERE a = current_date", "current_date", "at times that are not known"),
        ("SELECT * FROM t ORDER BY a", "a", "`ORDER BY` is not supported"),
        ("SELECT * FROM t LIMIT 3", "3", "`LIMIT` is not supported"),
        ("SELECT * FROM t GROUP BY a", "a", "`GROUP BY` is not supported"),
        ("SELECT DISTINCT ON (a) * FROM t", "a", "`DISTINCT ON` is not supported"),
        ("SELECT * FROM t FOR UPDATE", None, "`FOR UPDATE` is not supported"),
        ("SELECT t.* FROM t RIGHT JOIN u ON t.a = u.a", "u ON t.a = u.a", "only inner and left joins"),
        ("SELECT t.* FROM t JOIN u USING (a)", "u USING (a)", "`USING` is not supported"),
        ("SELECT a FROM t, u", "a", "has to say of which table"),
        ("SELECT t.*, u.x FROM t, u WHERE t.a > u.a", "u.x", "is not joined by `=`"),
        ("SELECT t.*, u.* FROM t, u WHERE t.a = u.a", "u.*", "it is not clear whose rows are synced"),
        ("SELECT t.a, u.x FROM t, u WHERE t.a = u.a", "u.x", "it is not clear whose rows are synced"),
        (
            "SELECT t.*, u.x FROM t, u WHERE t.a = u.a AND u.o = auth.user_id()",
            "t.a = u.a",
            "values of a row are used that depends on the request",
        ),
        ("SELECT auth.user_id() AS u FROM t", "auth.user_id()", "value of the request"),
        ("SELECT * FROM t WHERE x.a = 1", "x.a", "no table `x` in scope"),
        ("SELECT * FROM t WHERE a > auth.user_id()", "a > auth.user_id()", "other than by `=`"),
        ("SELECT * FROM t WHERE NOT (a = auth.user_id())", "a = auth.user_id()", "other than by `=`"),
        ("SELECT * FROM t WHERE (a, b) NOT IN (SELECT c, d FROM u)", None, "`NOT IN` takes one value"),
        ("SELECT * FROM t WHERE auth.user_id() NOT IN (SELECT b FROM u)", None, "compares with the request"),
        (
            "SELECT * FROM t WHERE a NOT IN (SELECT b FROM u WHERE c = auth.user_id())",
            None,
            "compares with the request",
        ),
        ("SELECT * FROM t WHERE 1 NOT IN (SELECT b FROM u)", None, "compares with no other table"),
        ("SELECT * FROM t WHERE a NOT IN (SELECT u.b FROM u, v WHERE u.c = v.c)", None, "reads more than one table"),
        ("SELECT * FROM t WHERE a NOT IN (SELECT u.b FROM u, json_each(u.c) AS e)", None, "more than one table, or an"),
        ("SELECT * FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.b > t.a)", "u.b > t.a", "only by `=`"),
        ("SELECT * FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE b > now() AND b = t.a)", None, "current time"),
        ("SELECT * FROM t WHERE NOT EXISTS (SELECT count(*) FROM u WHERE b = t.a)", None, "an aggregate gives a row"),
        ('SELECT * FROM t WHERE a NOT IN (SELECT b FROM "x.public".u)', None, "two databases"),
        ("SELECT * FROM t WHERE a IN (SELECT b, c FROM u)", "a IN (SELECT b, c FROM u)", "exactly one named column"),
        ("SELECT * FROM t WHERE a IN (b)", "a IN (b)", "ambiguous"),
        (
            "SELECT t.* FROM t, json_each(t.c) e WHERE NOT EXISTS (SELECT 1 FROM u WHERE b = e.value)",
            None,
            "an element",
        ),
        ('SELECT t.id, u.n FROM t JOIN "u%" u ON u.id = t.u WHERE u.o = auth.user_id()', None, "several rows may be"),
        ("SELECT * FROM t WHERE NOT EXISTS (SELECT 1 FROM u)", "1 FROM u", "compares with no other table"),
        ("SELECT * FROM t WHERE a = ANY(b, c)", "ANY(b, c)", "unknown function `any`"),
        ("SELECT EXISTS (SELECT 1 FROM u) AS e FROM t", "1 FROM u", "`EXISTS` is not supported here"),
        ("SELECT * FROM t WHERE (a, b) IN (SELECT c FROM u)", None, "2 values are compared"),
        ("SELECT * FROM t WHERE a IN (upper(b))", "a IN (upper(b))", "ambiguous"),
        ("SELECT * FROM t WHERE auth.userid() = a", "auth.userid()", "unknown use of `auth.userid`"),
        ("SELECT * FROM t WHERE a IN auth.jwt()", "auth.jwt()", "write `auth.parameters()`"),
        ("SELECT * FROM t WHERE auth.uid() = a", "auth.uid()", "write `auth.user_id()`"),
        ("SELECT * FROM t WHERE a = auth.sub()", "auth.sub()", "write `auth.user_id()`"),
        ("SELECT * FROM t WHERE request.user_id() = a", "request.user_id()", "is not available in this query"),
        ("SELECT * FROM t WHERE a ->> b = 1", "a ->> b", "must be a literal"),
        ("SELECT * FROM t WHERE a ->> '$.x[0]' = 1", "a ->> '$.x[0]'", "`[…]` is not supported"),
        ("SELECT * FROM t WHERE a::uuid = 'x'", "a", "unsupported type in a cast"),
        ("SELECT * FROM t WHERE a = $1", "$1", "placeholder"),
        ("SELECT id FROM t UNION SELECT id FROM u", "id FROM t UNION SELECT id FROM u", "expected a SELECT"),
        ("SELECT * FROM t; DELETE FROM t", "t", "only one statement"),
        ("DELETE FROM t", "DELETE", "a query is a `SELECT`"),
        ("SELECT * FRM t", "FRM", "did you mean `FROM`?"),
        ("SELECT * FROM t WHERE a = 'open", None, "inside a quoted text"),
        ("SELECT 1", None, "needs a FROM"),
    ],
)
def test_wrong_query(query: str, marked: str | None, message: str) -> None:
    error = error_in(query)
    assert message in str(error)
    assert place_of(error).line == 5
    if marked is not None:
        assert place_of(error).text == marked


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the sync config is empty"),
        ("streams: [", 1, "not valid YAML"),
        ("a: \x01", 1, "not valid YAML"),
        ("--- a\n--- b\n", 2, "not valid YAML"),
        ("- a\n", 1, "the sync config must be a mapping"),
        ("config: {edition: 3}\n", 1, "defines no streams"),
        ("streams: {s: {query: SELECT * FROM t}}\n", 1, "`streams` need edition 2 or later"),
        ("config: {}\nstreams: {s: {query: SELECT * FROM t}}\n", 2, "`streams` need edition 2 or later"),
        ("config: {edition: '3'}\nstreams: {s: {query: SELECT * FROM t}}\n", 1, "`edition` must be one of 1, 2, 3"),
        ("config: {edition: 3}\nbucket_definitions: {}\n", 2, "edition 3 has no `bucket_definitions`"),
        ("config: {edition: 3}\nstream: {}\nstreams: {s: {query: SELECT * FROM t}}\n", 2, "did you mean `streams`?"),
        ("config: {edition: 3}\nstreams:\n  s: {}\n", 3, "neither `query` nor `queries`"),
        ("config: {edition: 3}\nstreams:\n  s: {query: SELECT 1, queries: []}\n", 3, "both `query` and `queries`"),
        ("config: {edition: 3}\nstreams:\n  s: {queries: []}\n", 3, "has no query"),
        ("config: {edition: 3}\nstreams:\n  s: {query: 5}\n", 3, "a query must be a text"),
        ("config: {edition: 3}\nstreams:\n  s: SELECT\n", 3, "stream `s` must be a mapping"),
        (START + "{query: SELECT * FROM t, priority: 4}\n", 3, "must be one of 0, 1, 2, 3"),
        (START + "{query: SELECT * FROM t, auto_subscribe: yes}\n", 3, "must be true or false"),
        (START + "{query: SELECT * FROM t, auto_subscribe: !!bool yes}\n", 3, "must be true or false"),
        ("%YAML 1.1\n---\nconfig: {edition: 3, strict: yes}\nstreams: {}\n", 3, "`strict` must be true or false"),
        (START + "{query: SELECT * FROM t}\n  s: {query: SELECT * FROM t}\n", 4, "`s` is defined twice"),
        ("config: {edition: 3, timestamp_max_precision: days}\nstreams: {s: {query: S}}\n", 1, "unknown precision"),
        ("config: {timestamp_max_precision: seconds}\nbucket_definitions: {}\n", 1, "needs ISO 8601 timestamps"),
        ("bucket_definitions: []\n", 1, "`bucket_definitions` must be a mapping"),
        ("bucket_definitions:\n  b: {}\n", 2, "bucket definition `b` has no `data`"),
        ("bucket_definitions:\n  b: {data: SELECT 1}\n", 2, "`data` must be a list"),
        ("bucket_definitions:\n  b: {data: [SELECT * FROM t], priority: 9}\n", 2, "must be one of 0, 1, 2, 3"),
        ("bucket_definitions:\n  b: {data: [SELECT * FROM t], query: x}\n", 2, "unknown key `query`"),
        (("config: {edition: 2}\nbucket_definitions:\n  b: {data: [SELECT * FROM t]}\n"
         "streams:\n  b: {query: SELECT * FROM t}\n"), 3, "`b` is a stream and a bucket definition"),
        ("bucket_definitions:\n  b: {data: [SELECT * FROM t]}\nevent_definitions:\n  e: {}\n", 4, "has no `payloads`"),
    ],
)  # fmt: skip
def test_wrong_config(text: str, line: int, message: str) -> None:
    found = errors_of(text)
    assert message in str(found)
    assert place_of(found.errors[0]).line == line


@pytest.mark.parametrize(
    "written",
    [
        "query: SELECT * FROM t WHERE bad(x)",
        "query: 'SELECT * FROM t WHERE bad(x)'",
        'query: "SELECT *\\n FROM \\"é\\" WHERE bad(x)"',
        "query: |\n      -- comment\n      SELECT *\n\n        FROM t\n      WHERE bad(x)",
        "query: >-\n      SELECT *\n      FROM t\n      WHERE bad(x)",
        "query: SELECT *\n      FROM t\n      WHERE bad(x)",
    ],
)
def test_place_in_every_yaml_style(written: str) -> None:
    text = f"config: {{edition: 3}}\nstreams:\n  s:\n    {written}\n"
    place = errors_of(text).errors[0].span
    assert place is not None
    assert place.text == text[place.start : place.end] == "bad(x)"
    assert text.splitlines()[place.line - 1][place.column - 1 :].startswith("bad(x)")


def test_with_query_names_another() -> None:
    found = errors_of(
        "config: {edition: 3}\n"
        "with:\n"
        "  orgs: SELECT org FROM members WHERE user_id = auth.user_id()\n"
        "  projects: SELECT id FROM projects WHERE org IN orgs\n"
        "streams:\n"
        "  s: {query: SELECT * FROM tasks WHERE project IN projects}\n"
    )
    assert (place_of(found.errors[0]).line, place_of(found.errors[0]).text) == (4, "orgs")
    assert "cannot name each other" in str(found)


@pytest.mark.parametrize(
    ("written", "warned"),
    [
        ("SELECT id FROM orgs", True),
        ("SELECT p.id FROM projects p JOIN orgs ON orgs.id = p.org", True),
        ("SELECT id FROM public.orgs", False),
        ("SELECT id FROM projects", False),
    ],
)
def test_with_query_reads_a_namesake(written: str, warned: bool) -> None:
    found = compile_config(
        "config: {edition: 3}\n"
        "with:\n"
        "  orgs: SELECT org FROM members WHERE user_id = auth.user_id()\n"
        f"  projects: {written}\n"
        "streams:\n"
        "  s: {query: SELECT * FROM tasks WHERE project IN projects AND org IN orgs}\n"
    )
    told = [(each.code, each.span and (each.span.line, each.span.text)) for each in found.warnings]
    assert told == ([(RuleCode.NOT_THE_CTE, (4, "orgs"))] if warned else [])


def test_rendered_error() -> None:
    found = errors_of("config: {edition: 3}\nstreams:\n  s:\n    query: SELECT * FROM t WHERE lowr(a)\n")
    assert found.render() == (
        "error [HW_R104]: unknown function `lowr`\n"
        "  --> line 4, column 34\n"
        "4 |     query: SELECT * FROM t WHERE lowr(a)\n"
        "  |                                  ^^^^^^^\n"
        "  help: did you mean `lower`?"
    )


def test_errors_as_pickle_and_json() -> None:
    found = errors_of("config: {edition: 3}\nstreams: {s: {query: SELECT bad(x) FROM t}}\n")
    assert str(pickle.loads(pickle.dumps(found))) == str(found)
    shown = json.loads(json.dumps(found.to_dict()))
    assert shown["code"] == "PSYNC_R0001"
    assert shown["errors"][0]["code"] == "HW_R104"
    assert shown["errors"][0]["place"]["line"] == 2


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 3000 + "a" + ")" * 3000,
        " OR ".join(f"a = {i}" for i in range(3000)),
        " AND ".join(f"(a{i} = auth.user_id() OR b{i} = auth.user_id())" for i in range(8)),
        "a" + " -> '$.0.0'" * 40 + " = 1",
        "a = '" + "x" * 200_000 + "'",
    ],
    ids=["brackets", "or", "combinations", "accesses", "length"],
)
def test_huge_query(condition: str) -> None:
    error = error_in(f"SELECT * FROM t WHERE {condition}")
    assert error.span is not None
    assert len(error.render()) < 2000


@pytest.mark.parametrize(
    "condition",
    [
        " OR ".join(f"a = {i}" for i in range(1_100)),
        " || ".join(["a"] * 1_500) + " = 'x'",
        "NOT (" + " AND ".join(f"a <> {i}" for i in range(3_000)) + ")",
        "CASE " + " ".join(f"WHEN a = {i} THEN {i}" for i in range(1_100)) + " END + " + " + ".join(["a"] * 990),
        " AND ".join(f"a <> {i}" for i in range(1_100)),
        "b AND u = auth.user_id() AND (" + " OR ".join(f"a = {i}" for i in range(998)) + ")",
        " AND ".join(f"auth.user_id() IN a{i}" for i in range(70)),
    ],
    ids=["or", "concat", "not", "sum", "filters", "filter beside another", "arrays"],
)
def test_too_many_parts(condition: str) -> None:
    error = error_in(f"SELECT * FROM t WHERE {condition}")
    assert error.code is RuleCode.TOO_MANY
    assert error.suggestion


pieces = st.sampled_from(
    [
        "SELECT", "FROM", "WHERE", "AND", "OR", "NOT", "IN", "t", "u", "a", "b", "*", ",", "(", ")", "=", "<",
        "||", "->", "->>", "'x'", "1", "auth.user_id()", "json_each(a)", "AS", "JOIN", "ON", "CASE", "WHEN",
        "THEN", "END", "::", "text", "IS", "NULL", "BETWEEN", "LIKE", "ESCAPE", "IS DISTINCT FROM",
        "substring(a", "extract(", "FOR", "-", "~", "datetime(a, '+1 day')", "json_object(", "&&", ".", ";",
        "--", "$", "'", '"', "[", "]", "auth.parameter('x')", "subscription.parameters()", "ANY", "ARRAY[1]",
        "é",
    ]
)  # fmt: skip


@settings(deadline=None, max_examples=examples(400))
@given(st.lists(pieces, max_size=14), st.booleans())
def test_nonsense(words: list[str], complete: bool) -> None:
    query = ("SELECT t.id FROM t WHERE " if complete else "") + " ".join(words)
    errors = attempt(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n")
    assert all(error.span is not None for error in errors)
    assert all(error.render() for error in errors)


@settings(deadline=None, max_examples=examples(200))
@given(st.text(st.sampled_from("config: {edition3}\nstreams-[]|>\"'&*!%#,?\t é\x00"), max_size=60))
def test_any_text(text: str) -> None:
    with pytest.raises(SyncConfigError):
        compile_config(text)


MANY = """\
config:
  edition: 3
  timestamp_max_precision: days
  strikt: true
with:
  spare: SELECT foo(x) AS y FROM lists
streams:
  a:
    queries:
      - SELECT foo(x), bar(y) + baz(z) AS q FROM todos WHERE upper(a, b) = lowr(c) AND b > auth.user_id() AND d ~ 'x'
      - SELECT x.id, y FROM todos RIGHT JOIN lists USING (id) ORDER BY 1 LIMIT 3
      - SELECT * FRM t
      - 5
    priority: 9
    auto_subscribe: maybe
  b:
    query: SELECT id FROM todos WHERE foo(id)
    queries: [SELECT id FROM todos WHERE bar(id)]
    with: {own: SELECT id FROM lists ORDER BY 1}
  c: []
  d:
    query: SELECT id FROM json_eech(auth.parameter('x')) AS e, todos WHERE foo(e.value)
  e:
    query: SELECT id FROM todos, todos WHERE a IN (SELECT foo(id) FROM lists WHERE bar(id))
"""


def test_one_error_hides_no_other() -> None:
    found = errors_of(MANY)
    told = [(error.span.line, error.message) for error in found.errors if error.span]
    assert told == [
        (3, "unknown precision `days`"),
        (4, "unknown key `strikt` in `config`"),
        (6, "unknown function `foo`"),
        (10, "unknown function `foo`"),
        (10, "unknown function `bar`"),
        (10, "unknown function `baz`"),
        (10, "`upper` takes 1 argument, not 2"),
        (10, "unknown function `lowr`"),
        (10, "this condition combines the request with a table other than by `=`"),
        (10, "regular expressions are not supported"),
        (11, "no table `x` in scope"),
        (11, "`y` has to say of which table it is, because there are several"),
        (11, "only inner and left joins are supported"),
        (11, "`USING` is not supported"),
        (11, "`ORDER BY` is not supported"),
        (11, "`LIMIT` is not supported"),
        (12, "`FRM` is no key word of SQL"),
        (13, "a query must be a text"),
        (14, "`priority` must be one of 0, 1, 2, 3"),
        (15, "`auto_subscribe` must be true or false"),
        (16, "stream `b` has both `query` and `queries`"),
        (17, "unknown function `foo`"),
        (18, "unknown function `bar`"),
        (19, "`ORDER BY` is not supported"),
        (20, "stream `c` must be a mapping"),
        (22, "`json_eech` cannot stand in FROM"),
        (22, "unknown function `foo`"),
        (24, "two tables are called `todos`"),
        (24, "unknown function `foo`"),
        (24, "unknown function `bar`"),
    ]


def test_one_error_hides_no_other_in_bucket_definitions() -> None:
    found = errors_of(
        "bucket_definitions:\n"
        "  a:\n"
        "    parameters: SELECT foo(id) AS x FROM lists\n"
        "    data: [SELECT * FROM todos WHERE bar(y) = bucket.x]\n"
        "  b:\n"
        "    parameters: SELECT id AS x FROM lists WHERE owner = request.user_id()\n"
        "    data:\n"
        "      - SELECT * FROM todos WHERE bar(y)\n"
        "      - SELECT * FROM todos WHERE baz(y) AND list_id = bucket.z\n"
    )
    assert [(error.span and error.span.line, error.message) for error in found.errors] == [
        (3, "unknown function `foo`"),
        (4, "unknown function `bar`"),
        (8, "this data query does not use `bucket.x`"),
        (8, "unknown function `bar`"),
        (9, "unknown function `baz`"),
        (9, "the parameter queries give no `z`"),
    ]
