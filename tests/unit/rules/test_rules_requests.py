"""Requests to buckets: subscriptions, provenance, limits, and errors that stay with their subscription."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import default_stream_names, resolve
from headwater_rules.results import Subscription, SyncRequest
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


def test_default_streams_come_by_themselves_unless_declined() -> None:
    plan = compile_config(CONFIG).plan

    found = resolve(plan, SyncRequest({"sub": "u1"}), nothing)
    declined = resolve(plan, SyncRequest({"sub": "u1"}, include_defaults=False), nothing)

    assert default_stream_names(plan) == ("mine",)
    assert [(b.name.partition("[")[2], b.priority, b.reasons) for b in found.buckets] == [
        ('"u1"]', 1, ({"default": 0},))
    ]
    assert [(s.name, s.is_default) for s in found.streams] == [("mine", True)]
    assert (declined.buckets, declined.streams) == ((), ())


def test_a_subscription_without_parameters_takes_the_place_of_the_default() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest({"sub": "u1"}, subscriptions=(Subscription("mine", None, 2),))

    found = resolve(plan, request, nothing)

    assert [(b.priority, b.reasons) for b in found.buckets] == [(2, ({"sub": 0},))]


def test_a_subscription_with_parameters_is_additional_and_the_best_priority_wins() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest({"sub": "u1"}, subscriptions=(Subscription("mine", {}, 0),))

    found = resolve(plan, request, nothing)

    assert [(b.priority, b.reasons) for b in found.buckets] == [(0, ({"default": 0}, {"sub": 0}))]


def test_each_subscription_gets_its_own_parameters_and_unknown_streams_nothing() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest(
        {"sub": "u1"},
        subscriptions=(
            Subscription("gone"),
            Subscription("by_list", {"list": 1}),
            Subscription("by_list", {"list": 1.0}),
            Subscription("by_list", {"list": "1"}),
            Subscription("by_list", {}),
        ),
        include_defaults=False,
    )

    found = resolve(plan, request, nothing)

    assert [(b.name.partition("[")[2], b.reasons) for b in found.buckets] == [
        ('1,"u1"]', ({"sub": 1}, {"sub": 2})),
        ('"1","u1"]', ({"sub": 3},)),
    ]
    assert [s.name for s in found.streams] == ["by_list"]


def test_a_failing_subscription_is_reported_and_the_others_go_on() -> None:
    plan = compile_config(CONFIG).plan
    request = SyncRequest(
        {"sub": "u1"},
        subscriptions=(Subscription("several", {"lists": "no array"}), Subscription("several", {"lists": [1]})),
    )

    found = resolve(plan, request, nothing)

    assert found.streams[1].errors == ({"subscription": 0, "message": "Error evaluating bucket ids: malformed JSON"},)
    assert found.buckets[-1].reasons == ({"sub": 1},)


@pytest.mark.parametrize(
    ("claims", "suffix"),
    [
        ({"sub": "é"}, '["é"]'),
        ({"sub": 12}, "[12]"),
        ({"sub": 12.5}, "[12.5]"),
        ({"sub": 2**53}, "[9007199254740992]"),
        ({"sub": True}, "[1]"),
        ({"sub": None}, None),
        ({}, None),
    ],
)
def test_the_user_id_is_the_claim_sub(claims: dict[str, object], suffix: str | None) -> None:
    plan = plan_of("SELECT * FROM t WHERE owner = auth.user_id()")

    names = [bucket.name for bucket in resolve(plan, SyncRequest(claims), nothing).buckets]

    assert names == ([plan.buckets[0].name + suffix] if suffix else [])


def test_a_claim_that_is_no_text_anywhere_is_an_error_of_the_stream() -> None:
    plan = plan_of("SELECT * FROM t WHERE owner = auth.user_id()")

    found = resolve(plan, SyncRequest({"sub": "\ud800"}), nothing)

    assert found.buckets == ()
    assert "not valid Unicode" in str(found.streams[0].errors[0]["message"])


@pytest.mark.parametrize(("claims", "open_"), [({"admin": True}, True), ({"admin": False}, False), ({}, False)])
def test_a_condition_on_the_request_alone_opens_or_closes_the_stream(claims: dict[str, object], open_: bool) -> None:
    plan = plan_of("SELECT * FROM t WHERE auth.parameter('admin')")

    assert bool(resolve(plan, SyncRequest({"sub": "u", **claims}), nothing).buckets) is open_


def test_nested_claims_are_reached_by_a_path() -> None:
    plan = plan_of(
        "SELECT * FROM t WHERE org = auth.parameter('$.app.org')",
        "SELECT * FROM u WHERE org = auth.parameters() -> 'app' ->> 'org'",
    )

    found = resolve(plan, SyncRequest({"app": {"org": "o1"}}), nothing)

    assert [bucket.name.partition("[")[2] for bucket in found.buckets] == ['"o1"]', '"o1"]']


def test_values_of_one_row_are_never_combined_with_those_of_another() -> None:
    plan = plan_of("SELECT t.* FROM t, m WHERE t.a = m.a AND t.b = m.b AND m.u = auth.user_id()")
    tables: Rows = {
        "m": [{"u": "u1", "a": 1, "b": 1}, {"u": "u1", "a": 2, "b": 2}],
        "t": [{"id": "same", "a": 1, "b": 1}, {"id": "mixed", "a": 1, "b": 2}],
    }

    assert RuleStore(plan, tables).visible({"sub": "u1"}) == {("t", "same")}


def test_an_alternative_over_arrays_does_not_take_rows_without_elements_away() -> None:
    plan = plan_of("SELECT id FROM t WHERE t.a = 1 OR t.tags && t.labels")
    tables: Rows = {"t": [{"id": "1", "a": 1, "tags": "[]", "labels": None}]}

    assert RuleStore(plan, tables).visible({}) == {("t", "1")}


def test_withdrawing_a_membership_takes_the_rows_away() -> None:
    plan = plan_of("SELECT * FROM todos WHERE list_id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())")
    todos = [{"id": "1", "list_id": "a"}, {"id": "2", "list_id": "b"}]
    member = {"id": "m", "user_id": "u1", "list_id": "a"}

    with_it = RuleStore(plan, {"todos": todos, "members": [member]})
    without = RuleStore(plan, {"todos": todos, "members": [{**member, "user_id": "u2"}]})

    assert with_it.visible({"sub": "u1"}) == {("todos", "1")}
    assert without.visible({"sub": "u1"}) == set()


def test_the_answer_names_every_lookup_key_that_could_change_it() -> None:
    plan = plan_of(
        "SELECT * FROM t WHERE k IN (SELECT k FROM m WHERE u IN (SELECT x FROM n WHERE n.u = auth.user_id()))"
    )
    store = RuleStore(plan, {"n": [{"u": "u1", "x": 1}, {"u": "u1", "x": 2}], "m": [{"k": 5, "u": 1}]})

    asked = store.resolve({"sub": "u1"}).lookup_keys

    assert {key[key.index("[") :] for key in asked} == {'["u1"]', "[1]", "[2]"}


def test_an_empty_lookup_gives_no_bucket() -> None:
    plan = plan_of("SELECT * FROM t WHERE auth.user_id() IN (SELECT id FROM admins)")
    rows = {"t": [{"id": "1"}], "admins": [{"id": "root"}]}

    assert RuleStore(plan, rows).visible({"sub": "root"}) == {("t", "1")}
    assert RuleStore(plan, rows).visible({"sub": "u1"}) == set()


def test_rows_of_a_subquery_in_from_and_of_a_shared_query_are_joined_alike() -> None:
    tables: Rows = {"m": [{"u": "u1", "k": 1}], "t": [{"id": "in", "k": 1}, {"id": "out", "k": 2}]}
    derived = plan_of(
        "SELECT t.* FROM t, (SELECT k AS key FROM m WHERE u = auth.user_id()) AS mine WHERE t.k = mine.key"
    )
    joined = plan_of("SELECT t.* FROM t JOIN m ON t.k = m.k WHERE m.u = auth.user_id()")
    shared = compile_config(
        "config: {edition: 3}\nwith: {mine: SELECT k FROM m WHERE u = auth.user_id()}\n"
        "streams: {s: {auto_subscribe: true, query: SELECT * FROM t WHERE k IN mine}}"
    ).plan

    for plan in (derived, joined, shared):
        assert RuleStore(plan, tables).visible({"sub": "u1"}) == {("t", "in")}


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
def test_elements_of_an_array_of_the_request_are_rows_like_others(query: str, seen: str) -> None:
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


def test_the_queries_of_a_stream_count_as_one_bucket() -> None:
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
def test_columns_need_no_table_where_only_one_has_them(query: str) -> None:
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
def test_ways_of_postgres_to_say_it(query: str, seen: str) -> None:
    tables: Rows = {
        "t": [
            {"id": "a", "k": 1, "kind": "x", "users": '["u1"]'},
            {"id": "b", "k": 2, "kind": "y", "users": None},
            {"id": "c", "k": 3, "kind": "x", "users": '["u2","u1"]'},
        ],
        "m": [{"u": "u1", "k": 1, "kind": "x"}, {"u": "u2", "k": 3, "kind": "x"}, {"u": "u2", "k": 2, "kind": "x"}],
    }

    assert RuleStore(plan_of(query), tables).visible({"sub": "u1", "ks": [2, 3]}) == {("t", key) for key in seen}
