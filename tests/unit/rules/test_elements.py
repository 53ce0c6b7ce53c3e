"""What a query may do with the elements of an array: compare them, not sync them."""

from __future__ import annotations

import pytest

from headwater_rules.errors import RuleCode
from tests.unit.rules.rules_store import RuleStore, errors_of, plan_of

FROM = "FROM t, json_each(t.tags) AS tag WHERE t.owner = auth.user_id()"


def findings(query: str) -> list[tuple[RuleCode, str]]:
    """Code and marked text of each error of a query."""
    found = errors_of(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n")
    return [(error.code, error.span.text if error.span else "") for error in found.errors]


@pytest.mark.parametrize(
    ("query", "marked"),
    [
        (f"SELECT t.id, tag.value {FROM}", ["tag.value"]),
        (f"SELECT t.id, tag.key {FROM}", ["tag.key"]),
        (f"SELECT t.id || tag.key AS id, tag.value {FROM}", ["t.id || tag.key", "tag.value"]),
        (f"SELECT t.*, tag.value ->> 'a' AS a {FROM}", ["tag.value ->> 'a'"]),
        (f"SELECT t.*, CASE WHEN tag.key = 0 THEN t.a END AS a {FROM}", ["tag.key = 0 THEN t.a"]),
        (f"SELECT tag.value {FROM}", ["tag.value"]),
        ("SELECT s.id, s.v FROM (SELECT t.id, e.value AS v FROM t, json_each(t.tags) AS e) AS s", ["e.value"]),
        ("SELECT s.* FROM (SELECT t.id, e.key AS k FROM t, json_each(t.tags) AS e) AS s", ["e.key"]),
        ("SELECT t.id, e.value FROM t, json_each('[1]') AS e", ["e.value"]),
        ("SELECT t.id, e.value FROM t, u, json_each(u.tags) AS e WHERE u.id = t.u", ["e.value"]),
    ],
)
def test_selected_elements(query: str, marked: list[str]) -> None:
    assert findings(query) == [(RuleCode.SINGLE_TABLE, text) for text in marked]


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (f"config: {{edition: 3}}\nstreams: {{s: {{query: 'SELECT t.id, tag.* {FROM}'}}}}\n", RuleCode.UNSUPPORTED),
        (("config: {edition: 3}\nwith: {e: 'SELECT t.id, x.value AS v FROM t, json_each(t.tags) AS x'}\n"
         "streams: {s: {query: SELECT e.v FROM e}}\n"), RuleCode.SINGLE_TABLE),
        ("bucket_definitions: {b: {data: ['SELECT t.id, e.value FROM t, json_each(t.tags) AS e']}}\n",
         RuleCode.SINGLE_TABLE),
    ],
    ids=["everything", "with", "bucket definition"],
)  # fmt: skip
def test_elements_are_refused_elsewhere(config: str, code: RuleCode) -> None:
    assert [error.code for error in errors_of(config).errors] == [code]


def test_compared_elements() -> None:
    plan = plan_of(
        "SELECT t.id, t.tags FROM t, json_each(t.tags) AS tag WHERE tag.value = auth.user_id()",
        "SELECT id FROM u WHERE id IN (SELECT e.value FROM t, json_each(t.tags) AS e WHERE t.id = auth.user_id())",
    )
    store = RuleStore(plan, {"t": [{"id": "a", "tags": '["a","b"]'}], "u": [{"id": "a"}, {"id": "b"}, {"id": "c"}]})
    assert store.visible({"sub": "a"}) == {("t", "a"), ("u", "a"), ("u", "b")}


@pytest.mark.parametrize(
    ("query", "marked"),
    [
        ("SELECT t.* FROM t, (SELECT a, b AS a FROM u) AS s WHERE t.id = s.a", "b"),
        ("SELECT * FROM t WHERE (x, y) IN (SELECT a, u.a FROM u)", "u.a"),
        ("SELECT s.* FROM (SELECT id, upper(id) AS id FROM t) AS s", "upper(id)"),
    ],
)
def test_duplicate_columns(query: str, marked: str) -> None:
    assert findings(query) == [(RuleCode.UNKNOWN_NAME, marked)]


def test_duplicate_parameters() -> None:
    found = errors_of(
        "bucket_definitions:\n  b:\n    parameters: SELECT a AS x, b AS x FROM u WHERE c = request.user_id()\n"
        "    data: [SELECT * FROM t WHERE x = bucket.x]\n"
    )
    assert [(error.code, error.span and error.span.text) for error in found.errors] == [(RuleCode.UNKNOWN_NAME, "b")]
