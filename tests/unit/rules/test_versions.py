"""What an edit of a sync config costs: only the row sides that it touches, and those by name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.compiler import variants
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import SyncConfigError
from headwater_rules.evaluate import naming
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import (
    ChangeKind,
    Comparison,
    DefinitionKind,
    StreamChange,
    check_names,
    compare,
    definitions_of,
    of_tag,
    only,
    tables_of,
    without,
)
from tests.support.examples import examples
from tests.unit.rules.rules_store import bound


@dataclass(frozen=True)
class Written:
    """A stream as somebody writes it: a projection, row filters, and one condition that says who gets the rows."""

    name: str
    table: str
    columns: str
    filters: tuple[str, ...]
    access: str
    gate: str = ""
    auto: bool = True
    priority: int = 3

    def text(self, comment: str = "") -> str:
        conditions = [*self.filters, self.access, *([self.gate] if self.gate else [])]
        return (
            f"  {self.name}:{comment}\n    auto_subscribe: {str(self.auto).lower()}\n    priority: {self.priority}\n"
            "    accept_potentially_dangerous_queries: true\n"
            f"    query: SELECT {self.columns} FROM {self.table} WHERE {' AND '.join(conditions)}\n"
        )


def config(*streams: Written, options: str = "edition: 3", comment: str = "") -> str:
    return f"config: {{{options}}}{comment}\nstreams:\n" + "".join(stream.text(comment) for stream in streams)


def plan(*streams: Written, options: str = "edition: 3", comment: str = "") -> SyncPlan:
    return compile_config(config(*streams, options=options, comment=comment)).plan


MEMBERS = "list_id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())"
# Ways to find the same buckets, by the owner of a row or by its list.
ACCESS = (
    ("owner = auth.user_id()", "owner = auth.parameter('boss')", "owner IN auth.parameter('staff')"),
    (MEMBERS, "list_id = subscription.parameter('list')", f"{MEMBERS} AND {MEMBERS}"),
)
GATES = ("", "auth.parameter('role') = 'admin'", "connection.parameter('app') = 'x'")
FILTERS = ("done = 0", "title IS NOT NULL", "size > 3", "kind IN ('a', 'b')")

written = st.builds(
    Written,
    name=st.just(""),
    table=st.sampled_from(["todos", "lists", "other.todos"]),
    columns=st.sampled_from(["*", "id, title", "id, upper(title) AS title"]),
    filters=st.lists(st.sampled_from(FILTERS), max_size=3, unique=True).map(tuple),
    access=st.sampled_from([access for group in ACCESS for access in group]),
    gate=st.sampled_from(GATES),
    auto=st.booleans(),
    priority=st.integers(0, 3),
)
configs = st.lists(written, min_size=1, max_size=4).map(
    lambda streams: [replace(stream, name=f"s{number}") for number, stream in enumerate(streams)]
)


def equivalent(access: str) -> tuple[str, ...]:
    return next(group for group in ACCESS if access in group)


@given(streams=configs, data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_untouched_buckets(streams: list[Written], data: st.DataObject) -> None:
    edited = [
        replace(
            stream,
            access=data.draw(st.sampled_from(equivalent(stream.access))),
            gate=data.draw(st.sampled_from(GATES)),
            filters=tuple(data.draw(st.permutations(stream.filters))),
            priority=data.draw(st.integers(0, 3)),
            auto=data.draw(st.booleans()),
        )
        for stream in data.draw(st.permutations(streams))
    ]
    edited.insert(0, Written("new", "lists", "id, id AS twin", (), "owner = auth.user_id()"))
    old, new = plan(*streams), plan(*edited, comment="  # touched")
    found = compare(old, new)
    buckets = found.having(*ChangeKind, kind=DefinitionKind.BUCKET)
    assert {side.name for side in buckets if side.change is ChangeKind.UNCHANGED} == {side.name for side in old.buckets}
    assert {side.change for side in buckets} == {ChangeKind.UNCHANGED, ChangeKind.ADDED}
    assert [side.streams for side in buckets if side.change is ChangeKind.ADDED] == [("new",)]
    assert not any(stream.rows for stream in found.streams)


@given(first=configs, second=configs)
@settings(max_examples=examples(60), deadline=None)
def test_same_name_same_rows(first: list[Written], second: list[Written]) -> None:
    old, new = plan(*first), plan(*second)
    common = definitions_of(old).keys() & definitions_of(new).keys()
    assert {each.name: each for each in only(old, common).buckets} == {
        each.name: each for each in only(new, common).buckets
    }
    assert {each.name: each for each in only(old, common).lookups} == {
        each.name: each for each in only(new, common).lookups
    }


TODOS = Written("todos", "todos", "*", ("done = 0",), MEMBERS)
LISTS = Written("lists", "lists", "*", (), "owner = auth.user_id()")


def fates(found: Comparison) -> dict[str, str]:
    """Stream (or `lookup`) to what became of its one row side."""
    assert len({side.name.partition(".")[0] for side in found.definitions}) == len(found.definitions)
    return {side.name.partition(".")[0]: side.change.value for side in found.definitions}


def stream(found: Comparison, name: str) -> StreamChange:
    return next(stream for stream in found.streams if stream.name == name)


def test_same_config() -> None:
    assert compare(plan(TODOS, LISTS), plan(TODOS, LISTS, comment=" # seen")).same
    assert compare(plan(TODOS, LISTS), plan(LISTS, TODOS)).same
    assert not compare(plan(TODOS), plan(replace(TODOS, priority=1))).same


@pytest.mark.parametrize(
    "edited",
    [
        replace(TODOS, columns="id"),
        replace(TODOS, filters=()),
        replace(TODOS, filters=("done = 1",)),
        replace(TODOS, access="owner = auth.user_id()"),
        replace(TODOS, table="other.todos"),
    ],
    ids=lambda edited: edited.text().rpartition("query: ")[2].strip(),
)
def test_row_side_replaced(edited: Written) -> None:
    old, new = plan(TODOS, LISTS), plan(edited, LISTS)
    found = compare(old, new)
    (changed,) = found.having(ChangeKind.CHANGED, kind=DefinitionKind.BUCKET)
    assert (changed.name, changed.before) == (new.buckets[0].name, old.buckets[0].name)
    assert fates(found)["lists"] == "unchanged"
    assert stream(found, "todos").rows
    assert stream(found, "lists") == StreamChange("lists", ChangeKind.UNCHANGED)


def test_stream_added_or_removed() -> None:
    assert fates(compare(plan(LISTS), plan(TODOS, LISTS))) == {
        "todos": "added",
        "lists": "unchanged",
        "lookup": "added",
    }
    assert fates(compare(plan(TODOS, LISTS), plan(LISTS))) == {
        "todos": "removed",
        "lists": "unchanged",
        "lookup": "removed",
    }


def test_renamed_stream() -> None:
    found = compare(plan(LISTS), plan(replace(LISTS, name="all_lists")))
    assert fates(found) == {"lists": "removed", "all_lists": "added"}


@pytest.mark.parametrize(
    ("edited", "said"),
    [
        (replace(TODOS, gate=GATES[1]), {"request": True}),
        (replace(TODOS, access="list_id = subscription.parameter('list')"), {"lookups": True, "request": True}),
        (replace(TODOS, access=MEMBERS.replace("WHERE", "WHERE active AND")), {"lookups": True}),
        (replace(TODOS, priority=1), {"priority": True}),
        (replace(TODOS, auto=False), {"auto_subscribe": True}),
        (replace(TODOS, columns="id"), {"rows": True}),
        (replace(TODOS, columns="id", gate=GATES[1]), {"rows": True, "request": True}),
    ],
    ids=str,
)
def test_changed_parts(edited: Written, said: dict[str, bool]) -> None:
    found = compare(plan(LISTS, TODOS), plan(LISTS, edited))
    assert stream(found, "todos") == StreamChange("todos", ChangeKind.CHANGED, **said)


def test_changed_lookup() -> None:
    old, new = plan(TODOS), plan(replace(TODOS, access=MEMBERS.replace("WHERE", "WHERE active AND")))
    assert fates(compare(old, new)) == {"todos": "unchanged", "lookup": "changed"}


def test_other_options() -> None:
    found = compare(plan(LISTS), plan(LISTS, options="edition: 3, timestamps_iso8601: false"))
    assert fates(found) == {"lists": "changed"}


def test_several_queries() -> None:
    def both(name: str, *queries: str) -> SyncPlan:
        lines = "".join(f"      - {query}\n" for query in queries)
        return compile_config(f"config: {{edition: 3}}\nstreams:\n  {name}:\n    queries:\n{lines}").plan

    old = both("s", "SELECT * FROM a", "SELECT * FROM b", "SELECT * FROM c")
    new = both("s", "SELECT id FROM c", "SELECT * FROM b", "SELECT id FROM d", "SELECT id FROM e")
    places = {side.tables[0].name: (side.change, side.before) for side in compare(old, new).definitions}
    names = {bucket.sources[0].table.name: bucket.name for bucket in old.buckets}
    assert places == {
        "b": (ChangeKind.UNCHANGED, None),
        "c": (ChangeKind.CHANGED, names["c"]),  # before `a`, which comes first but is another table
        "d": (ChangeKind.CHANGED, names["a"]),
        "e": (ChangeKind.ADDED, None),
    }


def test_row_sides_alone() -> None:
    whole = plan(TODOS, LISTS)
    todos, lists, lookup = whole.buckets[0].name, whole.buckets[1].name, whole.lookups[0].name
    assert definitions_of(only(whole, {lists, lookup})).keys() == {lists, lookup}
    assert definitions_of(without(whole, {lists, lookup, "of another config"})).keys() == {todos}
    assert without(whole, {todos}).streams == ()
    assert without(whole, {todos}).options == whole.options
    assert [table.name for table in tables_of(whole, {lookup})] == ["members"]
    (put,) = bound(without(whole, {todos}), "lists", ["id", "owner"]).evaluate(["l1", "u1"], "l1").puts
    assert (put.definition, put.bucket) == (0, f'{lists}["u1"]')


def test_short_name_collision(monkeypatch: pytest.MonkeyPatch) -> None:
    real = naming.bucket_digest
    monkeypatch.setattr(
        variants, "bucket_digest", lambda *side: "0" * 8 + hashlib.sha256(real(*side).encode()).hexdigest()[8:]
    )
    old, new = plan(LISTS), plan(replace(LISTS, columns="id"))
    with pytest.raises(SyncConfigError, match=r"would share the name lists\.00000000; add a condition"):
        compare(old, new)
    with pytest.raises(SyncConfigError, match="would share the name"):
        check_names(new, definitions_of(old))
    check_names(new, definitions_of(new))


def test_part_of_a_tag() -> None:
    plan = compile_config(
        """
config: {edition: 3}
streams:
  orders: {query: 'SELECT * FROM "shop.public".orders WHERE buyer IN (SELECT id FROM "people.public".users)'}
  users: {query: 'SELECT * FROM "people.public".users'}
"""
    ).plan
    orders, users = (bucket.name for bucket in plan.buckets)
    (lookup,) = (each.name for each in plan.lookups)
    assert definitions_of(of_tag(plan, "shop")).keys() == {orders}
    assert definitions_of(of_tag(plan, "people")).keys() == {users, lookup}
    assert definitions_of(of_tag(plan, "default")) == {}
