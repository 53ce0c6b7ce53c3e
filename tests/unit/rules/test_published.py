"""Forms that published configs hold, whose meaning is clear, and options that mean something elsewhere."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode, Severity
from headwater_rules.plan import Value
from tests.unit.rules.rules_store import RuleStore, errors_of, place_of, plan_of

HEAD = "config: {edition: 3}\nstreams:\n  s:\n    auto_subscribe: true\n    query: "


def stream(query: str) -> str:
    return HEAD + json.dumps(query) + "\n"


def codes(found: Compiled) -> list[RuleCode]:
    return [warning.code for warning in found.warnings]


# nothing to sync


@pytest.mark.parametrize(
    ("config", "marked"),
    [
        ("config: {edition: 3}\nstreams: {}\n", (2, 10)),
        ("bucket_definitions: {}\n", (1, 21)),
        ("bucket_definitions:\n  b: {data: []}\n", (2, 3)),
        ("bucket_definitions:\n  b: {data: [], parameters: SELECT request.user_id() AS u}\n", (2, 3)),
    ],
)
def test_config_without_queries(config: str, marked: tuple[int, int]) -> None:
    found = compile_config(config)
    (warning,) = found.warnings
    assert (warning.code, warning.severity) == (RuleCode.NO_EFFECT, Severity.WARNING)
    assert (place_of(warning).line, place_of(warning).column) == marked
    assert (found.plan.buckets, found.plan.lookups, found.plan.tables()) == ((), (), ())
    assert RuleStore(found.plan, {"t": [{"id": "1"}]}).resolve({"sub": "u"}).buckets == ()


def test_parameters_without_data() -> None:
    (error,) = errors_of("bucket_definitions:\n  b: {data: [], parameters: SELECT nonsense(1) AS u}\n").errors
    assert error.code is RuleCode.UNKNOWN_FUNCTION


# the other engine


@pytest.mark.parametrize("value", ["true", "false"])
def test_other_engine(value: str) -> None:
    options = f"edition: 3, unstable_sqlite_expression_engine: {value}"
    found = compile_config(f"config: {{{options}}}\nstreams: {{s: {{query: SELECT * FROM t}}}}\n")
    assert codes(found) == ([RuleCode.NO_EFFECT] if value == "true" else [])
    assert all("other rows may pass" in warning.message for warning in found.warnings)


@pytest.mark.parametrize("edition", [1, 2])
def test_other_engine_needs_edition_3(edition: int) -> None:
    rest = "bucket_definitions: {b: {data: [SELECT * FROM t]}}\n"
    option = "unstable_sqlite_expression_engine"
    (error,) = errors_of(f"config: {{edition: {edition}, {option}: true}}\n{rest}").errors
    assert error.code is RuleCode.OPTION
    assert place_of(error).text == option
    assert compile_config(f"config: {{edition: {edition}, {option}: false}}\n{rest}").warnings == ()


# names for the columns of json_each


def test_element_names() -> None:
    tables = {"t": [{"id": "1", "tags": '["a","u"]'}, {"id": "2", "tags": '["u","a"]'}, {"id": "3", "tags": "[]"}]}
    for source in (
        "FROM t, json_each(t.tags) AS x (place, tag) WHERE x.tag = auth.user_id() AND x.place = 1",
        'FROM t JOIN json_each(t.tags) AS x ("Place", tag) ON x."Place" = 1 WHERE x.tag = auth.user_id()',
        "FROM t WHERE t.id IN (SELECT t.id FROM t, json_each(t.tags) x(p, v) WHERE x.v = auth.user_id() AND x.p = 1)",
    ):
        store = RuleStore(plan_of(f"SELECT t.* {source}"), tables)
        assert store.visible({"sub": "u"}) == {("t", "1")}, source


def test_element_names_keep_bucket() -> None:
    named = plan_of("SELECT t.* FROM t, json_each(t.tags) AS x (k, v) WHERE x.v = auth.user_id()")
    plain = plan_of("SELECT t.* FROM t, json_each(t.tags) AS x WHERE x.value = auth.user_id()")
    assert named == plain


@pytest.mark.parametrize("names", ["(a)", "(a, a)", "(a, b, c)", "(a int, b int)"])
def test_wrong_element_names(names: str) -> None:
    (error,) = errors_of(stream(f"SELECT t.* FROM t, json_each(t.tags) AS x {names}")).errors
    assert error.code is RuleCode.UNSUPPORTED
    assert "two different names" in error.suggestion


def test_column_names_of_tables() -> None:
    (error,) = errors_of(stream("SELECT x.* FROM t AS x (a, b)")).errors
    assert (error.code, error.span and error.span.column) == (RuleCode.UNSUPPORTED, 29)


# IS TRUE


@pytest.mark.parametrize(
    "condition",
    [
        "t.owner = auth.user_id()",
        "t.owner = auth.user_id() AND t.a",
        "t.a = 1 OR t.owner = auth.user_id()",
        "t.id IN (SELECT id FROM u)",
        "EXISTS (SELECT 1 FROM u WHERE u.id = t.id)",
        "t.tags && auth.parameter('x')",
        "t.id IN auth.parameter('x')",
        "auth.parameter('x') = 1 OR auth.parameter('y') = 2",
        "t.owner IN mine",
    ],
)
def test_is_true(condition: str) -> None:
    head = "config: {edition: 3}\nwith: {mine: SELECT id FROM u WHERE o = auth.user_id()}\nstreams: {s: {query: "
    plans = [
        compile_config(head + json.dumps(f"SELECT t.* FROM t WHERE {each}") + "}}\n").plan
        for each in (condition, f"({condition}) IS TRUE", f"NOT (({condition}) IS NOT TRUE)")
    ]
    assert plans[0] == plans[1] == plans[2]


def test_is_true_keeps_bucket() -> None:
    plan = plan_of("SELECT * FROM t WHERE (a = b) IS TRUE")
    assert [bucket.name for bucket in plan.buckets] == ["s.aa58d68d"]  # as devices know it
    rows: list[dict[str, Value]] = [
        {"id": "1", "a": 1, "b": 1},
        {"id": "2", "a": 1, "b": None},
        {"id": "3", "a": 1, "b": 2},
    ]
    assert RuleStore(plan, {"t": rows}).visible({"sub": "u"}) == {("t", "1")}


def test_opposite_of_a_link() -> None:
    (error,) = errors_of(stream("SELECT t.* FROM t WHERE (t.owner = auth.user_id()) IS NOT TRUE")).errors
    assert error.code is RuleCode.MIXED_FILTER


# YAML


@pytest.mark.parametrize("style", ["|", ">", "|-", ">+"])
@pytest.mark.parametrize("blank", ["", "  ", "     ", "      ", " \n\n   "])
def test_leading_blank_lines(style: str, blank: str) -> None:
    found = compile_config(f"{HEAD}{style}\n{blank}\n      SELECT *\n      FROM t\n")
    (error,) = errors_of(f"{HEAD}{style}\n{blank}\n      SELECT nonsense(id)\n      FROM t\n").errors
    assert found.plan == compile_config(stream("SELECT * FROM t")).plan
    assert place_of(error).source_line.startswith("      SELECT")
    assert place_of(error).source_line[place_of(error).column - 1 :].startswith("nonsense")


def test_wide_blank_line() -> None:
    (error,) = errors_of(f"{HEAD}|\n          \n      SELECT * FROM t\n").errors
    assert error.code is RuleCode.YAML
    assert "a blank line has more spaces than the text below it" in error.message


def test_blank_block() -> None:
    (error,) = errors_of(f"{HEAD}|\n          \n    priority: 1\n").errors
    assert error.code is RuleCode.SQL_SYNTAX


def test_escaped_pair() -> None:
    escaped = HEAD + r'''"SELECT '\uD83D\uDE00' AS \"\ud83d\udca9\", id FROM t WHERE a = '\U0001F600'"''' + "\n"
    assert (
        compile_config(escaped).plan == compile_config(stream("SELECT '😀' AS \"💩\", id FROM t WHERE a = '😀'")).plan
    )


def test_escaped_names() -> None:
    plain, escaped = (
        f'config: {{edition: 3}}\nstreams: {{"{name}": {{query: SELECT * FROM t}}}}\n'
        for name in ("😀", r"\uD83D\uDE00")
    )
    assert compile_config(plain).plan == compile_config(escaped).plan


@pytest.mark.parametrize(
    ("written", "half"),
    [
        (r"\uD83D", r"\uD83D"),
        (r"\uDE00", r"\uDE00"),
        (r"\uDE00\uD83D", r"\uDE00"),
        (r"\U0000D83D", r"\U0000D83D"),
        (r"\uD83D \uDE00", r"\uD83D"),
        (r"\\\uD83D", r"\uD83D"),
    ],
)
@pytest.mark.parametrize("before", ["", r"\uD83D\uDE00", r"\\uD83D", r"\x41\n"])
def test_escaped_half_pair(before: str, written: str, half: str) -> None:
    start = f"{HEAD}\"SELECT * FROM t WHERE a = '{before}"
    (error,) = errors_of(f"{start}{written}'\"\n").errors
    assert error.code is RuleCode.YAML
    assert (place_of(error).text, place_of(error).start) == (half, len(start) + written.index(half))


def test_escaped_backslash() -> None:
    (error,) = errors_of(HEAD + r'''"SELECT '\\u0041\\\u00e9\\' AS v FROM t WHERE nonsense(id)"''' + "\n").errors
    assert place_of(error).text == "nonsense(id)"


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\"'\\"), max_size=8))
def test_places_behind_escapes(text: str) -> None:
    units = text.encode("utf-16-be")
    escaped = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    (error,) = errors_of(f"{HEAD}\"SELECT * FROM t WHERE a = '{escaped}' AND nonsense(id)\"\n").errors
    assert place_of(error).text == "nonsense(id)"
