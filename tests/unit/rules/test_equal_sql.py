"""What users see through buckets is what the same query gives in plain SQLite, for values of every kind."""

from __future__ import annotations

import json
from dataclasses import dataclass

import apsw
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.plan import Value
from tests.support.examples import examples
from tests.unit.rules.rules_store import RuleStore, plan_of, truthy


@dataclass(frozen=True)
class Condition:
    """The same condition as a rule and as SQLite's own SQL."""

    rule: str
    sql: str


ROW_CONDITIONS = [
    Condition("t.a = 1", "ifnull(t.a = 1, 0)"),
    Condition("t.a != 'a'", "NOT ifnull(t.a = 'a', 0)"),
    Condition("t.a < t.b", "ifnull(t.a < t.b, 0)"),
    Condition("t.a >= 'a'", "ifnull(t.a >= 'a', 0)"),
    Condition("t.b IS NULL", "t.b IS NULL"),
    Condition("t.b IS NOT TRUE", "t.b IS NOT 1"),
    Condition("t.f", "truthy(t.f)"),
    Condition("t.a IN (1, 'a', 2.5)", "ifnull(t.a IN (1, 'a', 2.5), 0)"),
    Condition("t.a NOT IN ('a', 'b')", "NOT ifnull(t.a IN ('a', 'b'), 0)"),
    Condition("t.a BETWEEN 1 AND 2", "ifnull(t.a BETWEEN 1 AND 2, 0)"),
    Condition(
        "(CASE WHEN t.f THEN t.a ELSE t.b END) = 1", "ifnull((CASE WHEN truthy(t.f) THEN t.a ELSE t.b END) = 1, 0)"
    ),
    Condition("'a' IN t.tags", "EXISTS (SELECT 1 FROM json_each(t.tags) WHERE value = 'a')"),
]
ACCESS_CONDITIONS = [
    Condition("t.owner = auth.user_id()", "ifnull(t.owner = :uid, 0)"),
    Condition("auth.user_id() IN t.tags", "EXISTS (SELECT 1 FROM json_each(t.tags) WHERE value = :uid)"),
    Condition("t.k IN auth.parameter('ids')", "t.k IN (SELECT value FROM json_each(:ids))"),
    Condition("t.tags && auth.parameter('ids')",
              "EXISTS (SELECT 1 FROM json_each(t.tags) x, json_each(:ids) y WHERE x.value = y.value)"),
    Condition("t.tags && t.tags",
              "EXISTS (SELECT 1 FROM json_each(t.tags) x, json_each(t.tags) y WHERE x.value = y.value)"),
    Condition("auth.parameter('role') = 'a'", "ifnull(:role = 'a', 0)"),
    Condition("t.k IN (SELECT k FROM m WHERE m.u = auth.user_id())",
              "ifnull(t.k IN (SELECT k FROM m WHERE m.u = :uid), 0)"),
    Condition("t.k IN (SELECT k FROM m WHERE m.u = auth.user_id() AND (m.f OR m.k = 1))",
              "ifnull(t.k IN (SELECT k FROM m WHERE m.u = :uid AND (truthy(m.f) OR m.k = 1)), 0)"),
    Condition("t.k IN (SELECT m.k FROM m WHERE m.u = auth.user_id() AND m.f = t.a)",
              "ifnull(t.k IN (SELECT k FROM m WHERE m.u = :uid AND m.f = t.a), 0)"),
    Condition("t.k IN (SELECT k FROM m WHERE m.u IN (SELECT x FROM n WHERE n.u = auth.user_id()))",
              "ifnull(t.k IN (SELECT k FROM m WHERE m.u IN (SELECT x FROM n WHERE n.u = :uid)), 0)"),
    Condition("auth.user_id() IN (SELECT u FROM m WHERE m.f = 1)",
              "ifnull(:uid IN (SELECT u FROM m WHERE m.f = 1), 0)"),
    Condition("t.a IN (auth.user_id(), 'b')", "ifnull(t.a = :uid, 0) OR ifnull(t.a = 'b', 0)"),
]  # fmt: skip

values = st.sampled_from([None, 0, 1, 2, 1.0, 2.5, "", "a", "b", "1", "0.9", "1x", "é", b"a"])
arrays = st.sampled_from([None, "[]", '["a"]', '["a","b","a"]', '[1,"1",2.5]', "[null,true]"])
keys = values.filter(lambda value: not isinstance(value, bytes))  # where rows are joined, no blob equals another
users = st.sampled_from([None, "a", "b", "1", 1, 2.5, "é"])


def conditions() -> st.SearchStrategy[Condition]:
    leaves = st.sampled_from(ROW_CONDITIONS + ACCESS_CONDITIONS)
    negated = st.sampled_from(ROW_CONDITIONS).map(lambda c: Condition(f"NOT ({c.rule})", f"NOT ({c.sql})"))
    either = st.one_of(leaves, leaves, negated)
    return st.recursive(
        either, lambda inner: st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(_joined), max_leaves=5
    )


def _joined(parts: tuple[Condition, str, Condition]) -> Condition:
    left, word, right = parts
    return Condition(f"({left.rule} {word} {right.rule})", f"(({left.sql}) {word} ({right.sql}))")


rows_of_t = st.lists(
    st.fixed_dictionaries({"a": values, "b": values, "f": values, "k": values, "owner": values, "tags": arrays}),
    max_size=5,
)
rows_of_m = st.lists(st.fixed_dictionaries({"k": keys, "u": keys, "f": values}), max_size=4)
rows_of_n = st.lists(st.fixed_dictionaries({"x": keys, "u": keys}), max_size=3)


@settings(deadline=None, max_examples=examples(400))
@given(
    conditions(), rows_of_t, rows_of_m, rows_of_n, users, st.sampled_from([None, "a", "b"]), st.lists(users, max_size=3)
)
def test_visible_rows_equal_sql(
    condition: Condition,
    t: list[dict[str, Value]],
    m: list[dict[str, Value]],
    n: list[dict[str, Value]],
    user: Value,
    role: str | None,
    ids: list[Value],
) -> None:
    t = [{"id": str(number), **row} for number, row in enumerate(t)]
    plan = plan_of(f"SELECT t.id, t.a FROM t WHERE {condition.rule}")
    store = RuleStore(plan, {"t": t, "m": m, "n": n})

    claims: dict[str, object] = {"sub": user, "role": role, "ids": ids}
    assert store.errors == []
    assert all(not status.errors for status in store.resolve(claims).streams)
    bindings = {"uid": user, "role": role, "ids": json.dumps(ids)}
    assert store.visible(claims) == _plain_sqlite(condition.sql, {"t": t, "m": m, "n": n}, bindings)


def _plain_sqlite(
    condition: str, tables: dict[str, list[dict[str, Value]]], bindings: dict[str, Value]
) -> set[tuple[str, str]]:
    connection = apsw.Connection(":memory:")
    connection.create_scalar_function("truthy", truthy, 1)
    for name, columns in {"t": "id, a, b, f, k, owner, tags", "m": "k, u, f", "n": "x, u"}.items():
        connection.execute(f"CREATE TABLE {name} ({columns})")
        names = columns.split(", ")
        for row in tables[name]:
            values_ = tuple(row[column] for column in names)
            connection.execute(f"INSERT INTO {name} VALUES ({','.join('?' * len(names))})", values_)
    found = connection.execute(f"SELECT id FROM t WHERE {condition}", bindings)
    return {("t", row[0]) for row in found}
