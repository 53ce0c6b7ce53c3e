"""Requests to buckets: subscriptions, provenance, limits, and errors that stay with their subscription."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.results import StreamSubscription, SyncRequest
from tests.unit.rules.rules_store import Rows, RuleStore, plan_of

CONFIG = """
config: {edition: 3}
streams:
  mine:
    auto_subscribe: true
    priority: 1
    query: SELECT * FROM todos WHERE owner_id = auth.user_id()
  by_list:
    query: SELECT * FROM todos WHERE list_id = subscription.parameter('list') AND owner_id = auth.user_id()
  several:
    accept_potentially_dangerous_queries: true
    query: SELECT * FROM todos WHERE list_id IN subscription.parameter('lists')
"""


def nothing(keys: Sequence[str]) -> dict[str, list[str]]:
    return {}


def test_default_streams() -> None:
    plan = compile_config(CONFIG).plan
    found = resolve(plan, SyncRequest({"sub": "u1"}), nothing)
    declined = resolve(plan, SyncRequest({"sub": "u1"}, include_defaults=False), nothing)
    assert [(b.name.partition("[")[2], b.priority, b.reasons) for b in found.buckets] == [
        ('"u1"]', 1, ({"default": 0},))
    ]
    assert [(s.name, s.is_default) for s in found.streams] == [("mine", True)]
    assert (declined.buckets, declined.streams) == ((), ())


def test_subscription_replaces_default() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest({"sub": "u1"}, subscriptions=(StreamSubscription("mine", None, 2),))
    found = resolve(plan, request, nothing)
    assert [(b.priority, b.reasons) for b in found.buckets] == [(2, ({"sub": 0},))]


def test_subscription_beside_default() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest({"sub": "u1"}, subscriptions=(StreamSubscription("mine", {}, 0),))
    found = resolve(plan, request, nothing)
    assert [(b.priority, b.reasons) for b in found.buckets] == [(0, ({"default": 0}, {"sub": 0}))]


def test_subscription_parameters() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest(
        {"sub": "u1"},
        subscriptions=(
            StreamSubscription("gone"),
            StreamSubscription("by_list", {"list": 1}),
            StreamSubscription("by_list", {"list": 1.0}),
            StreamSubscription("by_list", {"list": "1"}),
            StreamSubscription("by_list", {}),
        ),
        include_defaults=False,
    )
    found = resolve(plan, request, nothing)
    assert [(b.name.partition("[")[2], b.reasons) for b in found.buckets] == [
        ('1,"u1"]', ({"sub": 1}, {"sub": 2})),
        ('"1","u1"]', ({"sub": 3},)),
    ]
    assert [s.name for s in found.streams] == ["by_list"]


def test_failing_subscription() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest(
        {"sub": "u1"},
        subscriptions=(
            StreamSubscription("several", {"lists": "no array"}),
            StreamSubscription("several", {"lists": [1]}),
        ),
    )
    found = resolve(plan, request, nothing)
    assert found.streams[1].errors == ({"subscription": 0, "message": "Error evaluating bucket ids: malformed JSON"},)
    assert found.buckets[-1].reasons == ({"sub": 1},)


@pytest.mark.parametrize(
    ("claims", "suffix"),
    [
        ({"sub": "é"}, '["é"]'), ({"sub": 12}, "[12]"), ({"sub": 12.5}, "[12.5]"),
        ({"sub": 2**53}, "[9007199254740992]"), ({"sub": True}, "[1]"), ({"sub": None}, None), ({}, None),
    ],
)  # fmt: skip
def test_user_id(claims: dict[str, object], suffix: str | None) -> None:
    plan = plan_of("SELECT * FROM t WHERE owner = auth.user_id()")
    names = [bucket.name for bucket in resolve(plan, SyncRequest(claims), nothing).buckets]
    assert names == ([plan.buckets[0].name + suffix] if suffix else [])


def test_surrogate_claim() -> None:
    plan = plan_of("SELECT * FROM t WHERE owner = auth.user_id()")
    found = resolve(plan, SyncRequest({"sub": "\ud800"}), nothing)
    assert found.buckets == ()
    assert "not valid Unicode" in str(found.streams[0].errors[0]["message"])


def test_or_over_empty_arrays() -> None:
    plan = plan_of("SELECT id FROM t WHERE t.a = 1 OR t.tags && t.labels")
    tables: Rows = {"t": [{"id": "1", "a": 1, "tags": "[]", "labels": None}]}
    assert RuleStore(plan, tables).visible({}) == {("t", "1")}


def test_lookup_keys() -> None:
    plan = plan_of(
        "SELECT * FROM t WHERE k IN (SELECT k FROM m WHERE u IN (SELECT x FROM n WHERE n.u = auth.user_id()))"
    )
    store = RuleStore(plan, {"n": [{"u": "u1", "x": 1}, {"u": "u1", "x": 2}], "m": [{"k": 5, "u": 1}]})
    asked = store.resolve({"sub": "u1"}).lookup_keys
    assert {key[key.index("[") :] for key in asked} == {'["u1"]', "[1]", "[2]"}


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("SELECT t.* FROM t, json_each(auth.parameter('p')) AS p WHERE t.k = p.value ->> 'id'", "ab"),
        (("SELECT t.* FROM t, json_each(auth.parameter('p')) AS p "
         "WHERE t.k = p.value ->> 'id' AND p.value ->> 'role' = 'admin'"), "a"),
        (("SELECT t.* FROM t, json_each(auth.parameter('p')) AS p "
         "WHERE t.k = p.value ->> 'id' AND p.value ->> 'role' = auth.parameter('wanted')"), "b"),
        (("SELECT t.* FROM t, json_each(auth.parameter('p')) AS p "
         "WHERE t.k = p.value ->> 'id' AND t.role = p.value ->> 'role'"), "b"),
        ("SELECT t.* FROM t, json_each(auth.parameter('roles')) AS r WHERE t.k = r.key AND t.role = r.value", "a"),
        (("SELECT t.* FROM t, json_each(auth.parameter('p')) AS p, json_each(auth.parameter('roles')) AS r "
         "WHERE t.k = p.value ->> 'id' AND p.value ->> 'role' = r.value AND r.key = 'b'"), "a"),
        ("SELECT t.* FROM t, json_each(auth.parameter('p')) AS p WHERE p.value ->> 'role' = 'admin'", "abc"),
        ("SELECT t.* FROM t, json_each(auth.parameter('p')) AS p WHERE p.value ->> 'role' = 'nobody'", ""),
        (("SELECT t.* FROM t, m, json_each(auth.parameter('p')) AS p "
         "WHERE m.role = p.value ->> 'role' AND m.k = t.k AND t.k = p.value ->> 'id'"), "b"),
        ("SELECT t.* FROM t, json_each(auth.parameter('gone')) AS p WHERE t.k = p.value ->> 'id'", ""),
    ],
)  # fmt: skip
def test_request_elements(query: str, seen: str) -> None:
    claims = {
        "p": [{"id": "a", "role": "admin"}, {"id": "b", "role": "guest"}, {"role": "admin"}],
        "roles": {"a": "owner", "b": "admin"},
        "wanted": "guest",
    }
    tables: Rows = {
        "t": [{"id": k, "k": k, "role": role} for k, role in (("a", "owner"), ("b", "guest"), ("c", "admin"))],
        "m": [{"role": "guest", "k": "b"}, {"role": "guest", "k": "a"}, {"role": "admin", "k": "b"}],
    }
    store = RuleStore(plan_of(query), tables)
    assert store.visible(claims) == {("t", key) for key in seen}
    assert store.errors == []


def test_bucket_count() -> None:
    plan = plan_of("SELECT * FROM t WHERE o = auth.user_id()", "SELECT * FROM v WHERE p = auth.user_id()")
    found = resolve(plan, SyncRequest({"sub": "u1"}), nothing, max_buckets=1)
    assert [bucket.name.partition("[")[2] for bucket in found.buckets] == ['"u1"]', '"u1"]']


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t JOIN json_each(auth.parameter('ks')) AS e ON t.k = e.value",
        "SELECT id, k FROM t, json_each(auth.parameter('ks')) AS e WHERE k = e.value",
        "SELECT * FROM t, (SELECT k AS mine FROM m WHERE u = auth.user_id()) AS d WHERE k = d.mine",
        "SELECT * FROM t, json_each(t.users) AS e WHERE e.value = auth.user_id()",
    ],
)
def test_unqualified_columns(query: str) -> None:
    tables: Rows = {
        "t": [{"id": "in", "k": 1, "users": '["u1"]'}, {"id": "out", "k": 2, "users": "[]"}],
        "m": [{"u": "u1", "k": 1}],
    }
    assert RuleStore(plan_of(query), tables).visible({"sub": "u1", "ks": [1]}) == {("t", "in")}


@pytest.mark.parametrize(
    ("query", "seen"),
    [
        ("SELECT * FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = t.k AND m.u = auth.user_id())", "a"),
        ("SELECT * FROM t WHERE EXISTS (SELECT * FROM m WHERE m.u = auth.user_id() AND m.k = 1)", "abc"),
        ("SELECT * FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.u = auth.user_id() AND m.k = 2)", ""),
        ("SELECT * FROM t WHERE id = 'b' OR EXISTS (SELECT 1 FROM m WHERE m.k = t.k AND u = auth.user_id())", "ab"),
        ("SELECT * FROM t WHERE auth.user_id() = ANY(users)", "ac"),
        ("SELECT * FROM t WHERE ANY(auth.parameter('ks')) = k", "bc"),
        ("SELECT * FROM t WHERE k = ANY (SELECT k FROM m WHERE u = auth.user_id())", "a"),
        ("SELECT * FROM t WHERE NOT (k = ANY(ARRAY[1, 2]))", "c"),
        ("SELECT * FROM t WHERE (k, kind) IN (SELECT k, kind FROM m)", "ac"),
        ("SELECT * FROM t WHERE (k, kind) IN (SELECT k, kind FROM m WHERE u = auth.user_id())", "a"),
    ],
)
def test_postgres_forms(query: str, seen: str) -> None:
    tables: Rows = {
        "t": [
            {"id": "a", "k": 1, "kind": "x", "users": '["u1"]'},
            {"id": "b", "k": 2, "kind": "y", "users": None},
            {"id": "c", "k": 3, "kind": "x", "users": '["u2","u1"]'},
        ],
        "m": [{"u": "u1", "k": 1, "kind": "x"}, {"u": "u2", "k": 3, "kind": "x"}, {"u": "u2", "k": 2, "kind": "x"}],
    }
    assert RuleStore(plan_of(query), tables).visible({"sub": "u1", "ks": [2, 3]}) == {("t", key) for key in seen}
