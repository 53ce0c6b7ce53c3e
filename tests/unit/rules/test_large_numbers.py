"""Numbers around 2^53: exact in rows, and in requests either the ones that were meant or none at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.inputs import readings
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import SyncPlan, Value
from headwater_rules.results import Resolution, StreamSubscription, SyncRequest
from tests.unit.rules.rules_store import RuleStore, plan_of

EDGE = 2**53
BEYOND = "holds a number beyond 2^53"
near = st.builds(lambda sign, step: sign * (EDGE + step), st.sampled_from((1, -1)), st.integers(-3, 3))
far = st.sampled_from((0, 1, 2**63 - 1, -(2**63), 10**18 + 1))
beyond_all = st.sampled_from((2**63, 2**64 + 1, 10**400, -(10**30), 1e300, -1e17, float(EDGE), EDGE + 2.0))


@dataclass(frozen=True)
class Form:
    """A condition that a number of the request leads to rows by, and where in the request it stands."""

    condition: str
    holder: str

    def claims(self, number: float) -> dict[str, object]:
        written = json.dumps(number) if isinstance(number, int) else repr(number)
        return dict(json.loads(self.holder.replace("%", written)))


FORMS = (
    Form("t.n = auth.user_id()", '{"sub": %}'),
    Form("t.n = auth.parameter('n')", '{"n": %, "other": "x"}'),
    Form("t.n = auth.parameters() ->> 'n'", '{"n": %}'),
    Form("t.n = (auth.parameters() -> 'n')::integer", '{"n": %}'),
    Form("t.n = json_extract(auth.parameters(), '$.o.n')", '{"o": {"n": %}}'),
    Form("t.n = auth.parameter('$.l.1')", '{"l": ["x", %]}'),
    Form("t.n = auth.parameter('o') ->> 'n'", '{"o": {"n": %}}'),
    Form("t.n IN auth.parameter('l')", '{"l": [%, 5]}'),
    Form("t.l && auth.parameter('l')", '{"l": [5, %]}'),
    Form("t.n IN (SELECT o.value ->> 'n' FROM json_each(auth.parameter('l')) AS o)", '{"l": [{"n": %}]}'),
    Form(
        "t.n IN (SELECT o.value ->> 'n' FROM json_each(auth.parameter('l')) AS o WHERE o.value ->> 'k' = 1)",
        '{"l": [{"n": %, "k": 1}]}',
    ),
    Form("t.n IN (SELECT n FROM m WHERE m.n = auth.parameter('n'))", '{"n": %}'),
    Form("t.n = t.n AND auth.parameter('n') = t.n", '{"n": %}'),
)


@cache
def plan(condition: str) -> SyncPlan:
    return plan_of(f"SELECT t.id FROM t WHERE {condition}")


def rows_of(numbers: list[int]) -> dict[str, list[dict[str, Value]]]:
    rows: list[dict[str, Value]] = [{"id": str(n), "n": n, "l": f"[{n}]"} for n in numbers]
    return {"t": rows, "m": rows}


def messages(found: Resolution) -> list[str]:
    return [str(error["message"]) for stream in found.streams for error in stream.errors]


@given(st.sampled_from(FORMS), st.one_of(near, near, far, beyond_all), st.lists(near, max_size=5, unique=True))
def test_request_number(form: Form, number: float, numbers: list[int]) -> None:
    store = RuleStore(plan(form.condition), rows_of(numbers))
    claims = form.claims(number)
    exact = isinstance(number, int) and abs(number) <= EDGE
    found = store.resolve(claims)
    if not exact:
        assert found.buckets == ()
        assert all(BEYOND in message for message in messages(found))
        assert messages(found)
        return
    assert messages(found) == []
    database = apsw.Connection(":memory:")
    same = [n for n in numbers if database.execute("SELECT ?1 = ?2", (n, number)).fetchone() == (1,)]
    assert store.visible(claims) == {("t", str(n)) for n in same}


@given(st.lists(st.one_of(near, far), min_size=1, max_size=6, unique=True), st.data())
def test_row_numbers_are_exact(numbers: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(numbers))
    tables: dict[str, list[dict[str, Value]]] = {
        "t": [{"id": str(n), "n": n, "l": f"[{n}]"} for n in numbers],
        "m": [{"u": "u", "n": chosen, "j": f'{{"n": {chosen}}}', "l": f"[{chosen}]"}],
    }
    for condition in (
        "t.n IN (SELECT n FROM m WHERE u = auth.user_id())",
        "t.n IN (SELECT j ->> 'n' FROM m WHERE u = auth.user_id())",
        "t.n IN (SELECT e.value FROM m, json_each(m.l) AS e WHERE m.u = auth.user_id())",
        "t.l && (SELECT n FROM m WHERE u = auth.user_id())",
        "t.n = auth.parameter('n')::integer",
        "t.n::text = auth.parameter('n')",
        "t.n IN auth.parameter('l')",
    ):
        store = RuleStore(plan(condition), tables)
        claims = {"sub": "u", "n": str(chosen), "l": f"[{chosen}]"}  # JSON within a text is not rounded
        assert store.visible(claims) == {("t", str(chosen))}, condition


@pytest.mark.parametrize("number", [EDGE + 1, -EDGE - 1, 2**64, 1e300, EDGE + 0.0])
@pytest.mark.parametrize(
    "condition",
    [
        "auth.parameter('n') != 5",
        "auth.parameter('n') > 5 OR auth.parameter('n') < 5",
        "auth.parameter('n') IS NOT NULL",
        "auth.parameter('n') = connection.parameter('n')",
        "auth.parameters() -> 'n' = connection.parameters() -> 'n'",
        "auth.parameter('n') || '' != ''",
        "auth.parameters() = connection.parameters()",
        "5 NOT IN auth.parameter('l')",
        "EXISTS (SELECT 1 FROM json_each(auth.parameter('l')) AS e)",
        "EXISTS (SELECT 1 FROM json_each(auth.parameter('l')) AS e WHERE e.value != 5)",
    ],
)
def test_condition_on_large_number(condition: str, number: float) -> None:
    claims = {"n": number, "l": [number]}
    found = resolve(plan(condition), SyncRequest(claims, dict(claims)), lambda _: {})
    assert found.buckets == ()
    assert any(BEYOND in message for message in messages(found))


@pytest.mark.parametrize(
    ("condition", "where"),
    [
        ("t.n = auth.user_id()", "the user id"),
        ("t.n = auth.parameter('n')", "`n` of the token"),
        ("t.n = auth.parameter('$.o.n')", "`$.o.n` of the token"),
        ("t.n = connection.parameter('n')", "`n` of the connection's parameters"),
        ("t.n IN (SELECT value FROM json_each(subscription.parameter('l')))", "`l` of the subscription's parameters"),
        ("t.n = auth.parameters()", "the token"),
    ],
)
def test_large_number_error(condition: str, where: str) -> None:
    values = {"sub": EDGE + 1, "n": EDGE + 1, "o": {"n": EDGE + 1}, "l": [EDGE + 1]}
    request = SyncRequest(values, values, include_defaults=False, subscriptions=(StreamSubscription("s", values),))
    found = resolve(plan(condition), request, lambda _: {})
    (message,) = messages(found)
    assert found.buckets == ()
    assert message == (
        f"Error evaluating bucket ids: {where} holds a number beyond 2^53, which JSON rounds: send it as a text"
    )


def test_other_streams_go_on() -> None:
    compiled = compile_config(
        "config: {edition: 3}\n"
        "streams:\n"
        "  ours: {auto_subscribe: true, query: SELECT * FROM t WHERE org = auth.parameter('org')}\n"
        "  mine: {auto_subscribe: true, query: SELECT * FROM t WHERE n = auth.parameter('$.app.n')}\n"
        "  role: {auto_subscribe: true, query: SELECT * FROM t WHERE auth.parameter('$.app.role') = 'x'}\n"
    )
    claims = {"sub": "u", "org": "o1", "stamp": EDGE + 1, "app": {"n": EDGE + 1, "role": "x"}}
    found = resolve(compiled.plan, SyncRequest(claims), lambda _: {})
    assert [bucket.name.split(".")[0] for bucket in found.buckets] == ["ours", "role"]
    assert [bool(stream.errors) for stream in found.streams] == [False, True, False]


@pytest.mark.parametrize(
    ("condition", "claims"),
    [
        ("t.n = auth.parameter('n') * 2", {"n": EDGE}),
        ("t.n = auth.parameter('n')::real", {"n": str(EDGE + 3)}),
        ("t.n IN (SELECT e.value * 2 FROM json_each(auth.parameter('l')) AS e)", {"l": [EDGE]}),
    ],
)
def test_computed_real(condition: str, claims: dict[str, object]) -> None:
    found = resolve(plan(condition), SyncRequest(claims), lambda _: {})
    assert found.buckets == ()
    assert "a computed real is beyond 2^53" in messages(found)[0]


@pytest.mark.parametrize("parameters", ["request.jwt() ->> 'n'", "token_parameters.n", "user_parameters.n"])
def test_large_number_in_bucket_definition(parameters: str) -> None:
    definition = (
        "bucket_definitions:\n  b:\n    accept_potentially_dangerous_queries: true\n"
        f"    parameters: SELECT {parameters} AS n\n    data: [SELECT * FROM t WHERE n = bucket.n]\n"
    )
    values = {"n": EDGE + 1, "parameters": {"n": EDGE + 1}}
    found = resolve(compile_config(definition).plan, SyncRequest(values, values), lambda _: {})
    assert found.buckets == ()
    assert BEYOND in messages(found)[0]


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        ("?1", {(0, ())}),
        ("""(?1 ->> '$."a"')""", {(0, ("a",))}),
        ("""(?2 -> '$."it''s"[3]."c"')""", {(1, ("it's", 3, "c"))}),
        ("""(?1 ->> '$."a\\"b"')""", {(0, ())}),
        ("""(?1 || '(?2 -> ''x'')')""", {(0, ())}),
        ("""nullif(?1, '$."a"')""", {(0, ())}),
        ("""(json_array(?1) ->> '$."a"')""", {(0, ())}),
        ("""coalesce((?1 ->> '$[0]'), (?1 ->> '$."0"'))""", {(0, (0,)), (0, ("0",))}),
        ("""(CASE json_type(?1, '$."a"') WHEN 'null' THEN 'null' ELSE (?1 ->> '$."a"') END)""", {(0, ("a",))}),
    ],
)
def test_inputs_of_an_expression(sql: str, read: set[object]) -> None:
    assert set(readings(sql)) == read
