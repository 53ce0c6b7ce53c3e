"""No text, however broken, gets anything but a plan or errors that say where; and no rule reaches beyond its rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, RuleError, SyncConfigError
from headwater_rules.evaluate.rows import bind_table
from headwater_rules.testing import RulesTest
from tests.support.examples import examples
from tests.unit.rules.mutations import mutants
from tests.unit.rules.rules_store import plan_of

EXAMPLES = sorted((Path(__file__).parents[3] / "sync_rules" / "examples").glob("*.yaml"))
EACH = 20


def refusals(text: str) -> tuple[RuleError, ...]:
    """The errors of a text, each checked to be one that a person or an editor can use; none if it compiles."""
    try:
        compile_config(text)
    except SyncConfigError as found:
        errors = found.errors
    else:
        return ()
    for error in errors:
        assert error.span is not None, error
        assert 1 <= error.span.line <= text.count("\n") + 1, error
        assert 1 <= error.span.column <= len(error.span.source_line) + 1, error
        assert text[error.span.start : error.span.end] == error.span.text
        assert error.message
        assert error.code is not RuleCode.INTERNAL, error
        assert len(error.render()) < 5000
        assert error.to_dict()["place"]
    assert errors
    return errors


def query(sql: str) -> str:
    return f"config: {{edition: 3}}\nstreams:\n  s:\n    auto_subscribe: true\n    query: |\n      {sql}\n"


@pytest.mark.parametrize("end", ["", "\r", "\r\n", "\r\r", "\n\r"])
def test_error_at_the_end(end: str) -> None:
    assert refusals(f"config:\n  - 'x{end}")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_broken_example(path: Path) -> None:
    text = path.read_text()
    refused = 0
    for mutant in mutants(text, 10 * EACH, seed=len(text)):
        refused += bool(refusals(mutant))
        if refused == EACH:
            break
    assert refused == EACH


@settings(max_examples=examples(80))
@given(st.sampled_from(EXAMPLES), st.randoms())
def test_mutants(path: Path, chance: random.Random) -> None:
    for mutant in mutants(path.read_text(), 1, chance.randrange(2**32)):
        refusals(mutant)


@pytest.mark.long
@settings(max_examples=20_000)
@given(st.sampled_from(EXAMPLES), st.randoms())
def test_many_mutants(path: Path, chance: random.Random) -> None:
    for mutant in mutants(path.read_text(), 3, chance.randrange(2**32)):
        refusals(mutant)


def test_anchor_twice() -> None:
    """The later one counts from there on, without a word."""
    found = compile_config("config: &a {edition: 3}\nstreams: &a {}\n")
    assert found.plan is not None


STREAM = "config: {edition: 3}\nstreams:\n  s: "
LAUGHS = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\ufeff" + STREAM + "{}\n", 3),
        ("\tconfig: {edition: 3}\n", 1),
        ("config:\n\tedition: 3\n", 2),
        (STREAM + "{query: SELECT * FROM t}\n---\nconfig: {}\n", 4),
        ("%YAML 9.9\n---\n" + STREAM + "{}\n", None),
        (STREAM + "!!binary aGVsbG8=\n", 3),
        (STREAM + "!!python/object/apply:os.system ['true']\n", 3),
        (STREAM + "{query: !!binary U0VMRUNU}\n", 3),
        (STREAM + "{query: !own SELECT}\n", 3),
        ("x: &x {query: SELECT * FROM t}\n" + STREAM + "\n    <<: *x\n", None),
        (STREAM + '"\\UFFFFFFFF"\n', 1),
        (STREAM + "&a {query: *a}\n", 3),
        (STREAM + "&a\n    queries: [*a]\n", None),
        (STREAM + "*nothing\n", 3),
        ("a0: &a0 [x, x]\n" + LAUGHS + "streams: *a29\n", None),
        (STREAM + "{? [a, b] : c}\n", 3),
        ("? {a: b}\n: c\n", 1),
        (STREAM + "{query: null}\n", 3),
        (STREAM + "{query: 12.5}\n", 3),
        (STREAM + "{query: 2001-01-01}\n", None),
        (STREAM + "{queries: {a: SELECT * FROM t}}\n", 3),
        (STREAM + "{queries: [[SELECT * FROM t]]}\n", 3),
        (STREAM + "{query: SELECT * FROM t, priority: 1.0}\n", 3),
        (STREAM + "{query: SELECT * FROM t, priority: '1'}\n", 3),
        (STREAM + "{query: SELECT * FROM t, with: [a]}\n", 3),
        (STREAM + "{query: SELECT * FROM t, with: {a: 1}}\n", 3),
        ("config: {edition: 3, strict: maybe}\nstreams: {s: {query: SELECT * FROM t}}\n", 1),
        ("config: [edition, 3]\nstreams: {s: {query: SELECT * FROM t}}\n", 1),
        ("streams:\n  s: {query: SELECT * FROM t\n", None),
        ("[" * 1000, 1),
        ("config: " + "{a: " * 3000, 1),
        ("a:\n" + "".join(" " * i + "b:\n" for i in range(1, 1100)), None),
        ("'" * 1001, None),
        ("x" * 2_000_001, 1),
        (STREAM + "{queries: [&q SELECT * FROM t" + ", *q" * 5000 + "]}\n", 3),
        ("config: {edition: 3}\nstreams:\n  s: &s {query: SELECT * FROM t}\n"
         + "".join(f"  s{i}: *s\n" for i in range(5000)), 5003),
        ("bucket_definitions: {b: {data: [], parameters: [1]}}\n", 1),
        ("bucket_definitions: {b: [SELECT * FROM t]}\n", 1),
        ("bucket_definitions: {b: {data: {a: SELECT * FROM t}}}\n", 1),
        ("event_definitions: {e: {payloads: 1}}\nbucket_definitions: {b: {data: [SELECT * FROM t]}}\n", 1),
    ],
)  # fmt: skip
def test_wrong_yaml(text: str, line: int | None) -> None:
    errors = refusals(text)
    assert errors
    assert line is None or (errors[0].span is not None and errors[0].span.line == line)


def doubled(levels: int, column: str) -> str:
    sql = f"SELECT {column} AS c FROM t"
    for level in range(levels):
        sql = f"SELECT d{level}.c || d{level}.c AS c FROM ({sql}) AS d{level}"
    return sql


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT * FROM x WHERE a IN ({doubled(40, 'a')})",
        f"SELECT * FROM x WHERE a IN ({doubled(40, repr('x' * 50))})",
        "SELECT t0.* FROM " + ", ".join(f"t AS t{i}" for i in range(2000)),
        "SELECT * FROM x WHERE a IN " + "(SELECT a FROM t WHERE a IN " * 300 + "b" + ")" * 300,
        "SELECT * FROM x WHERE " + "NOT " * 5000 + "a",
        "SELECT * FROM x WHERE a = " + "- " * 5000 + "1",
        "SELECT * FROM x WHERE a IN (" + ", ".join(f"auth.parameter('{i}')" for i in range(500)) + ")",
        "SELECT * FROM x WHERE a = " + "upper(" * 3000 + "b" + ")" * 3000,
        "SELECT * FROM x WHERE " + "CASE WHEN a THEN " * 1000 + "1" + " END" * 1000,
        "SELECT * FROM x WHERE " + "/*" * 20_000,
    ],
    ids=["columns", "texts", "tables", "subqueries", "nots", "minuses", "links", "calls", "cases", "comments"],
)
def test_expensive_query(sql: str) -> None:
    codes = {error.code for error in refusals(query(sql))}
    assert codes & {RuleCode.TOO_MANY, RuleCode.SQL_SYNTAX}


@pytest.mark.parametrize(
    "source",
    [
        "readfile('/etc/passwd')",
        "generate_series(1, 9)",
        "pragma_table_info('t')",
        "dbstat()",
        "json_tree(a)",
        "fsdir('/')",
    ],
)
def test_table_functions(source: str) -> None:
    assert refusals(query(f"SELECT * FROM {source}"))
    assert refusals(query(f"SELECT t.* FROM t, {source} AS f WHERE t.a = f.value"))


@pytest.mark.parametrize("table", ["sqlite_master", "json_each", "pg_authid", "information_schema.tables"])
def test_table_names_reach_nothing(table: str) -> None:
    rules = RulesTest.of_text(query(f"SELECT * FROM {table} WHERE a = 1"))
    client = rules.client("u")
    assert client.tables() == ()
    rules.insert(table, id=1, a=1)
    assert [row["id"] for row in client.table(table.rpartition(".")[2])] == ["1"]


def test_endless_expression() -> None:
    plan = plan_of("SELECT * FROM t WHERE a && b AND c = auth.user_id()", "SELECT id FROM t")
    program = bind_table(plan, "default", "public", "t", ["id", "a", "b", "c"])
    assert program is not None
    array = "[" + ",".join(map(str, range(20_000))) + "]"
    result = program.evaluate([1, array, array.replace("[", "[-1,"), "u"], "1")
    assert "evaluation takes too long" in result.errors[0]
    assert len(result.puts) == 1


def test_too_big_value() -> None:
    plan = plan_of("SELECT id, " + "hex(" * 30 + "a" + ")" * 30 + " AS h FROM t", "SELECT id FROM t")
    program = bind_table(plan, "default", "public", "t", ["id", "a"])
    assert program is not None
    result = program.evaluate([1, "x" * 100], "1")
    assert "too big" in result.errors[0]
    assert len(result.puts) == 1
