"""Bucket definitions of editions 1 and 2, and what these editions read in another way than edition 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson
import pytest

from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode, SyncConfigError
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import ConversionOptions
from headwater_rules.results import StreamSubscription, SyncRequest
from headwater_rules.schema import SourceSchema
from tests.unit.rules.rules_store import Rows, RuleStore, place_of

LISTS: Rows = {
    "lists": [
        {"id": "l1", "owner_id": "u1", "archived": 0, "shared_with": '["u2","u3"]'},
        {"id": "l2", "owner_id": "u2", "archived": 0, "shared_with": None},
        {"id": "l3", "owner_id": "u1", "archived": 1, "shared_with": "[]"},
    ],
    "todos": [
        {"id": "t1", "list_id": "l1", "done": 0},
        {"id": "t2", "list_id": "l2", "done": None},
        {"id": "t3", "list_id": "l3", "done": 1},
    ],
}


def compiled(*, parameters: Sequence[str] = (), data: Sequence[str], head: str = "", tail: str = "") -> Compiled:
    lines = [head, "bucket_definitions:", "  b:"]
    for name, queries in (("parameters", parameters), ("data", data)):
        if queries:
            lines += [f"    {name}:", *(f"      - {orjson.dumps(query).decode()}" for query in queries)]
    return compile_config("\n".join([*lines, tail]))


def ids(found: set[tuple[str, str]]) -> str:
    return " ".join(sorted(row_id for _, row_id in found))


def data_of(query: str, row: Mapping[str, int | float | str | bytes | None], head: str = "") -> dict[str, object]:
    store = RuleStore(compiled(data=[query], head=head).plan, {"t": [row]})
    assert store.errors == []
    found: dict[str, object] = orjson.loads(store.puts[0].data)
    return found


def test_parameters_only_if_there_is_a_row() -> None:
    parameters = ["SELECT request.user_id() AS u FROM lists WHERE owner_id = request.user_id() AND archived"]
    store = RuleStore(compiled(parameters=parameters, data=["SELECT id FROM todos WHERE 'u1' = bucket.u"]).plan, LISTS)
    assert ids(store.visible({"sub": "u1"})) == "t1 t2 t3"
    assert ids(store.visible({"sub": "u2"})) == ""


def test_client_parameters_warn() -> None:
    found = compiled(
        parameters=["SELECT request.parameters() ->> 'list' AS list_id", "SELECT user_parameters.other AS list_id"],
        data=["SELECT * FROM todos WHERE list_id = bucket.list_id"],
    )
    store = RuleStore(found.plan, LISTS)
    request = SyncRequest({"sub": "u1"}, {"list": "l1", "other": "l2"})
    names = {bucket.name for bucket in resolve(found.plan, request, store.read).buckets}
    assert {put.id for put in store.puts if put.bucket in names} == {"t1", "t2"}
    assert [warning.code for warning in found.warnings] == [RuleCode.DANGEROUS, RuleCode.DANGEROUS]


@pytest.mark.parametrize(
    "condition",
    ["request.parameters() ->> 'code' = 'x'", "owner_id = request.parameter('owner')", "user_parameters.code = 'x'"],
)
def test_lookup_of_client_parameters_warns(condition: str) -> None:
    parameters = [f"SELECT id AS list_id FROM lists WHERE {condition}"]
    data = ["SELECT * FROM todos WHERE list_id = bucket.list_id"]
    accepted = "    accept_potentially_dangerous_queries: true\n"
    assert [each.code for each in compiled(parameters=parameters, data=data).warnings] == [RuleCode.DANGEROUS]
    assert compiled(parameters=parameters, data=data, tail=accepted).warnings == ()
    with pytest.raises(SyncConfigError, match="clients can send any value"):
        compiled(parameters=parameters, data=data, head="config: {edition: 1, strict: true}")


def test_definition_is_a_default_stream() -> None:
    plan = compiled(
        parameters=["SELECT request.user_id() AS u"],
        data=["SELECT * FROM lists WHERE owner_id = bucket.u", "SELECT * FROM todos WHERE list_id = bucket.u"],
    ).plan
    store = RuleStore(plan, LISTS)
    found = resolve(plan, SyncRequest({"sub": "u1"}), store.read, max_buckets=1)
    declined = resolve(plan, SyncRequest({"sub": "u1"}, include_defaults=False), store.read)
    unknown = store.resolve({"sub": "u1"}, StreamSubscription("other"))
    assert [(bucket.priority, bucket.reasons) for bucket in found.buckets] == [(3, ({"default": 0},))] * 2
    assert [(stream.name, stream.is_default) for stream in found.streams] == [("b", True)]
    assert (declined.buckets, unknown.buckets) == ((), found.buckets)


def test_edited_query_keeps_the_other_buckets() -> None:
    parameters = ["SELECT request.user_id() AS u"]
    lists, todos = "SELECT * FROM lists WHERE owner_id = bucket.u", "SELECT * FROM todos WHERE list_id = bucket.u"
    before = compiled(parameters=parameters, data=[lists, todos]).plan
    after = compiled(parameters=["SELECT request.jwt() ->> 'x' AS u"], data=[lists, f"{todos} AND done = 1"]).plan
    assert before.buckets[0].name == after.buckets[0].name
    assert before.buckets[1].name != after.buckets[1].name


def test_priority_of_a_parameter_query() -> None:
    plan = compiled(
        parameters=["SELECT id AS l, 1 AS _priority FROM lists WHERE owner_id = request.user_id()",
                    "SELECT id AS l FROM lists WHERE request.user_id() IN shared_with"],
        data=["SELECT * FROM todos WHERE list_id = bucket.l"],
    ).plan  # fmt: skip
    found = RuleStore(plan, LISTS).resolve({"sub": "u2"})
    assert {bucket.name.partition("[")[2]: bucket.priority for bucket in found.buckets} == {'"l2"]': 1, '"l1"]': 3}


@pytest.mark.parametrize(
    ("parameters", "data", "tail", "message", "marked"),
    [
        ("SELECT request.user_id() AS u", "SELECT * FROM t", "", "does not use `bucket.u`", "SELECT * FROM t"),
        ("SELECT request.user_id() AS u", "SELECT * FROM t WHERE a = bucket.v AND b = bucket.u", "",
         "the parameter queries give no `v`", "bucket.v"),
        ("SELECT * FROM lists", "SELECT * FROM t WHERE a = bucket.u", "", "`*` is not supported", "*"),
        ("SELECT request.user_id() AS u", "SELECT * FROM t WHERE a = request.user_id() AND b = bucket.u", "",
         "select it in a query under `parameters`", "request.user_id()"),
        ("SELECT auth.user_id() AS u", "SELECT * FROM t WHERE b = bucket.u", "",
         "write `request.user_id()`", "auth.user_id()"),
        ("SELECT request.user() AS u", "SELECT * FROM t WHERE b = bucket.u", "",
         "unknown use of `request.user`", "request.user()"),
        ("SELECT request.user_id() AS u, 5 AS _priority", "SELECT * FROM t WHERE b = bucket.u", "",
         "`_priority` must be one of 0, 1, 2, 3", "5"),
        ("SELECT request.user_id() AS u, 1 AS _priority", "SELECT * FROM t WHERE b = bucket.u", "    priority: 2\n",
         "sets its priority twice", "1"),
        ("SELECT request.user_id() AS u", "SELECT * FROM t WHERE b > bucket.u", "", "other than by `=`",
         "b > bucket.u"),
        ("SELECT request.user_id() AS u", "SELECT * FROM t WHERE b = bucket.u LIMIT 5", "", "`LIMIT` is not", "5"),
    ],
)  # fmt: skip
def test_wrong_definition(parameters: str, data: str, tail: str, message: str, marked: str) -> None:
    with pytest.raises(SyncConfigError) as caught:
        compiled(parameters=[parameters], data=[data], tail=tail)
    (error,) = caught.value.errors
    assert message in str(error)
    assert place_of(error).text == marked


def test_parameter_names_differ() -> None:
    with pytest.raises(SyncConfigError, match=r"this query gives `bucket\.b`, the first one `bucket\.a`"):
        compiled(
            parameters=["SELECT request.user_id() AS a", "SELECT request.user_id() AS b"],
            data=["SELECT * FROM t WHERE x = bucket.a"],
        )


def test_null_and_unequal_by_edition() -> None:
    query = "SELECT id FROM todos WHERE done != 1"
    streams = "streams: {s: {auto_subscribe: true, query: " + query + "}}"
    assert ids(RuleStore(compiled(data=[query]).plan, LISTS).visible({})) == "t1"
    second = compile_config(f"config: {{edition: 2}}\n{streams}")
    assert ids(RuleStore(second.plan, LISTS).visible({})) == "t1"
    assert [warning.code for warning in second.warnings] == [RuleCode.OLD_EDITION]
    third = compile_config(f"config: {{edition: 3}}\n{streams}")
    assert ids(RuleStore(third.plan, LISTS).visible({})) == "t1 t2"


@pytest.mark.parametrize(
    ("query", "row", "data"),
    [
        ("SELECT * FROM t", {"id": "1", "_hidden": 1, "b": 2}, {"id": "1", "b": 2}),
        ("SELECT _hidden, * FROM t", {"id": "1", "_hidden": 1}, {"_hidden": 1, "id": "1"}),
        ("SELECT b AS id, * FROM t", {"id": "1", "b": 2}, {"id": 2, "b": 2}),
        ("SELECT b AS id, * FROM t", {"id": "1", "b": None}, {"id": "1", "b": None}),
        ("SELECT upper(id) AS id, * FROM t", {"id": "a", "b": 1}, {"id": "A", "b": 1}),
        ("SELECT *, b AS id FROM t", {"id": "1", "b": None}, {"id": None, "b": None}),
    ],
)
def test_star_by_edition(query: str, row: Mapping[str, int | str | None], data: dict[str, object]) -> None:
    assert data_of(query, row) == data


def test_row_id() -> None:
    plan = compiled(data=["SELECT b AS id, * FROM t"]).plan
    store = RuleStore(plan, {"t": [{"id": "1", "b": 2}, {"id": "3", "b": None}]})
    assert [put.id for put in store.puts] == ["2", "3"]


def test_wildcard_suffix() -> None:
    plan = compiled(
        parameters=["SELECT request.jwt() ->> 'year' AS year"],
        data=['SELECT id, _table_suffix AS year FROM "events_%" WHERE _table_suffix = bucket.year'],
    ).plan
    store = RuleStore(plan, {"events_2025": [{"id": "a"}], "events_2026": [{"id": "b"}], "other": [{"id": "c"}]})
    assert store.visible({"year": "2026"}) == {("events_2026", "b")}
    assert store.puts[0].data == '{"id":"a","year":"2025"}'


@pytest.mark.parametrize("edition", [2, 3])
def test_wildcard_suffix_in_streams(edition: int) -> None:
    plan = compile_config(
        f"config: {{edition: {edition}}}\n"
        "streams:\n"
        "  s:\n"
        "    auto_subscribe: true\n"
        "    query: SELECT id, _table_suffix AS year FROM \"events_%\" WHERE _table_suffix != '2024'\n"
    ).plan
    store = RuleStore(plan, {"events_2024": [{"id": "a"}], "events_2025": [{"id": "b"}]})
    assert store.visible({}) == {("events_2025", "b")}
    assert store.puts[0].data == '{"id":"b","year":"2025"}'


@pytest.mark.parametrize(
    ("expression", "edition_1", "fixed"),
    [
        ("d ->> 'a.b'", 1, "dotted"),
        ("d -> 'a' ->> 'b'", 1, 1),
        ("d ->> '$.a.b'", 1, 1),
        ("d ->> 'n'", "null", None),
        ("json_extract(d, '$.n')", "null", None),
        ("d -> 'n'", None, "null"),
        ("d ->> 'missing'", None, None),
        ("d -> 'missing'", None, None),
        ("d -> 's'", '"null"', '"null"'),
        ("d ->> 's'", "null", "null"),
    ],
)
def test_unfixed_json_paths(expression: str, edition_1: object, fixed: object) -> None:
    row = {"id": "1", "d": '{"a":{"b":1},"a.b":"dotted","n":null,"s":"null"}'}
    query = f"SELECT id, {expression} AS v FROM t"
    assert data_of(query, row)["v"] == edition_1
    assert data_of(query, row, "config: {fixed_json_extract: true}")["v"] == fixed
    assert data_of(query, row, "config: {edition: 2}")["v"] == fixed
    assert data_of(query, row, "config: {edition: 2, fixed_json_extract: false}")["v"] == edition_1


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("", ConversionOptions(timestamps_iso8601=False, custom_postgres_types=False)),
        ("config: {edition: 1}", ConversionOptions(timestamps_iso8601=False, custom_postgres_types=False)),
        ("config: {timestamps_iso8601: true, timestamp_max_precision: milliseconds}",
         ConversionOptions(timestamps_iso8601=True, custom_postgres_types=False, timestamp_digits=3)),
        ("config: {edition: 2}", ConversionOptions()),
        ("config: {edition: 2, custom_postgres_types: false}", ConversionOptions(custom_postgres_types=False)),
    ],
)  # fmt: skip
def test_conversion_by_edition(config: str, options: ConversionOptions) -> None:
    assert compiled(data=["SELECT * FROM t"], head=config).plan.options == options


def test_edition_2_has_both() -> None:
    plan = compile_config(
        "config: {edition: 2}\n"
        "bucket_definitions: {all: {data: [SELECT id FROM lists]}}\n"
        "streams:\n  mine:\n    query: SELECT id FROM todos WHERE list_id = subscription.parameter('list') "
        "AND list_id IN (SELECT id FROM lists WHERE owner_id = auth.user_id())\n"
    ).plan
    store = RuleStore(plan, LISTS)
    assert ids(store.visible({"sub": "u1"})) == "l1 l2 l3"
    assert ids(store.visible({"sub": "u1"}, StreamSubscription("mine", {"list": "l1"}))) == "l1 l2 l3 t1"
    assert ids(store.visible({"sub": "u1"}, StreamSubscription("mine", {"list": "l2"}))) == "l1 l2 l3"


def test_edition_2_subscription_without_parameters() -> None:
    query = "SELECT id FROM lists WHERE subscription.parameters() = '{}'"
    streams = f'streams: {{s: {{accept_potentially_dangerous_queries: true, query: "{query}"}}}}'
    second = compile_config(f"config: {{edition: 2}}\n{streams}").plan
    third = compile_config(f"config: {{edition: 3}}\n{streams}").plan
    assert RuleStore(second, LISTS).visible({}, StreamSubscription("s"))
    assert not RuleStore(third, LISTS).visible({}, StreamSubscription("s"))


def test_events_have_no_effect() -> None:
    event = "event_definitions:\n  e:\n    payloads:\n      - SELECT id, {} FROM todos\n"
    found = compiled(data=["SELECT * FROM t"], tail=event.format("done"))
    with pytest.raises(SyncConfigError, match="unknown function `bad`"):
        compiled(data=["SELECT * FROM t"], tail=event.format("bad(done) AS x"))
    assert [warning.code for warning in found.warnings] == [RuleCode.NO_EFFECT]
    assert {pattern.name for pattern in found.plan.tables()} == {"t"}


@pytest.mark.parametrize("name", ["write_checkpoints", "checkpoint_requests"])
def test_waiting_events_are_refused(name: str) -> None:
    event = f"event_definitions:\n  {name}:\n    payloads: [SELECT user_id, client_id, checkpoint FROM writes]\n"
    with pytest.raises(SyncConfigError, match=f"event `{name}` would number the writes"):
        compiled(data=["SELECT * FROM t"], tail=event)


def test_lost_case_warns() -> None:
    found = compiled(data=['SELECT id, createdAt, "updatedAt" FROM Todos'])
    assert [(warning.code, warning.span and warning.span.text) for warning in found.warnings] == [
        (RuleCode.LOWERED, "createdAt"), (RuleCode.LOWERED, "Todos"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id AS a FROM lists WHERE owner > request.user_id()",
        "SELECT l.id AS a FROM lists l, members m WHERE l.size > m.size",
        "SELECT request.user_id() || id AS a FROM lists WHERE owner = request.user_id()",
        "SELECT request.parameters() ->> 'a' AS a",
        "SELECT id AS a, owner AS b FROM lists WHERE token_parameters.user_id = owner AND size > 1",
        "SELECT id AS a FROM lists WHERE gone IS NULL AND owner = request.user_id()",
        "SELECT id AS a, 1 AS _priority FROM list WHERE owner = request.user_id()",
        "SELECT request.user_id() AS a",
    ],
)
def test_parameters_without_data_are_checked(query: str) -> None:
    schema = SourceSchema.from_json(
        '{"format": 1, "tables": [{"name": "lists", "columns": {"id": "uuid", "owner": "text", "size": "integer"}},'
        ' {"name": "members", "columns": {"id": "uuid", "size": "integer"}},'
        ' {"name": "todos", "columns": {"id": "uuid", "a": "uuid", "b": "text"}}]}'
    )

    def found(data: str) -> set[tuple[RuleCode, str, str]]:
        text = f"bucket_definitions:\n  mine:\n    parameters: {query}\n    data: {data}\n"
        try:
            told = compile_config(text, schema=schema).warnings
        except SyncConfigError as errors:
            told = (*errors.errors, *errors.warnings)
        return {(each.code, each.severity.value, each.message) for each in told if each.code is not RuleCode.NO_EFFECT}

    both = " AND b = bucket.b" if "AS b" in query else ""
    assert found("[]") == found(f"[SELECT * FROM todos WHERE a = bucket.a{both}]")
