"""For random rules, rows, changes and requests: a device that follows its buckets holds at every moment exactly the
rows that the same query gives in plain SQLite over all tables.

The rules come from a grammar of what means the same in both: where plain SQL reads null differently (`!=`, NOT), its
form here says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.errors import RuleCode, SyncConfigError
from headwater_rules.plan import Value
from headwater_rules.testing import RulesTest
from tests.support.examples import examples
from tests.unit.rules.rules_store import truthy

TABLES = ("t", "m", "n")
COLUMNS = ("id", "a", "b", "k", "tags")
Draw = st.DrawFn
Change = tuple[str, str, int, dict[str, Value]]
"""What is done, to which table, with which row."""


@dataclass(frozen=True)
class Pair:
    """The same piece of a query as a rule and as SQLite's own SQL."""

    rule: str
    sql: str

    def of(self, alias: str, column: str = "") -> Pair:
        return Pair(*(each.replace("$x", alias).replace("$c", column) for each in (self.rule, self.sql)))


@dataclass(frozen=True)
class Request:
    user: Value
    role: str | None
    ids: tuple[Value, ...]

    def claims(self) -> dict[str, object]:
        return {"sub": self.user, "role": self.role, "ids": list(self.ids)}

    def bindings(self) -> dict[str, Value]:
        return {"user": self.user, "role": self.role, "ids": json.dumps(self.ids)}


@dataclass(frozen=True)
class Query:
    """`ctes` are the `with` queries that it names."""

    text: Pair
    ctes: tuple[tuple[str, Pair], ...] = ()

    def config(self) -> str:
        streams = {"s": {"auto_subscribe": True, "query": self.text.rule}}
        ctes = {name: text.rule for name, text in self.ctes}
        return json.dumps({"config": {"edition": 3}, "with": ctes, "streams": streams}, ensure_ascii=False)

    def plain(self) -> str:
        ctes = ", ".join(f"{name} AS ({text.sql})" for name, text in self.ctes)
        return (f"WITH {ctes} " if ctes else "") + self.text.sql


# The grammar. `$x` stands for the alias of a table, `$c` for one of its columns.

ROW = [
    Pair("$x.a = 1", "$x.a = 1"),
    Pair("$x.a != 'a'", "NOT ifnull($x.a = 'a', 0)"),
    Pair("$x.a < $x.b", "$x.a < $x.b"),
    Pair("$x.a >= 'a'", "$x.a >= 'a'"),
    Pair("$x.$c IS NULL", "$x.$c IS NULL"),
    Pair("$x.$c IS NOT NULL", "$x.$c IS NOT NULL"),
    Pair("$x.b IS NOT TRUE", "$x.b IS NOT 1"),
    Pair("$x.$c", "truthy($x.$c)"),
    Pair("$x.a = $x.b", "$x.a = $x.b"),
    Pair("$x.$c IN (1, 'a', 2.5)", "$x.$c IN (1, 'a', 2.5)"),
    Pair("$x.$c NOT IN ('a', 'b')", "NOT ifnull($x.$c IN ('a', 'b'), 0)"),
    Pair("$x.a BETWEEN 1 AND 2", "$x.a BETWEEN 1 AND 2"),
    Pair("CASE WHEN $x.a THEN $x.b ELSE $x.k END = 'a'", "CASE WHEN truthy($x.a) THEN $x.b ELSE $x.k END = 'a'"),
    Pair("'a' IN $x.tags", "'a' IN (SELECT value FROM json_each($x.tags))"),
    Pair("json_array_length($x.tags) = 1", "json_array_length($x.tags) = 1"),
]
GATES = [
    Pair("auth.parameter('role') = 'a'", ":role = 'a'"),
    Pair("auth.parameter('role') != 'a'", "NOT ifnull(:role = 'a', 0)"),
    Pair("auth.user_id() IN auth.parameter('ids')", ":user IN (SELECT value FROM json_each(:ids))"),
]
LINKS = [
    Pair("$x.$c = auth.user_id()", "$x.$c = :user"),
    Pair("auth.user_id() = $x.$c", ":user = $x.$c"),
    Pair("$x.$c IN auth.parameter('ids')", "$x.$c IN (SELECT value FROM json_each(:ids))"),
    Pair("$x.$c IN (auth.user_id(), 'b')", "$x.$c IN (:user, 'b')"),
    Pair("$x.$c = auth.user_id() || ''", "$x.$c = hw_text(:user)"),
    Pair("auth.user_id() IN $x.tags", ":user IN (SELECT value FROM json_each($x.tags))"),
    Pair(
        "$x.tags && auth.parameter('ids')",
        "EXISTS (SELECT 1 FROM json_each($x.tags) v, json_each(:ids) w WHERE v.value = w.value)",
    ),
    Pair(
        "$x.tags && $x.tags",
        "EXISTS (SELECT 1 FROM json_each($x.tags) v, json_each($x.tags) w WHERE v.value = w.value)",
    ),
]
columns = st.sampled_from(("a", "b", "k"))


@st.composite
def conditions(draw: Draw, alias: str, depth: int, ctes: tuple[str, ...] = ()) -> Pair:
    """A condition on the rows of one alias, on the request, and on rows of other tables."""
    kinds = ["true", "row", "link", "link", "gate", "not"] + (
        ["in", "in", "exists", "overlap", "same"] if depth else []
    )
    kinds += ["cte"] * bool(ctes) + (["and", "or"] * 2 if depth else [])
    kind = draw(st.sampled_from(kinds))
    column = draw(columns)
    if kind in {"and", "or"}:
        left, right = (draw(conditions(alias, depth - 1, ctes)) for _ in range(2))
        word = kind.upper()
        return Pair(f"({left.rule} {word} {right.rule})", f"({left.sql} {word} {right.sql})")
    if kind == "true":
        return Pair("$x.a IS NOT NULL", "$x.a IS NOT NULL").of(alias)
    if kind in {"row", "link", "gate"}:
        return draw(st.sampled_from({"row": ROW, "link": LINKS, "gate": GATES}[kind])).of(alias, column)
    if kind == "not":
        piece = draw(st.sampled_from(ROW + GATES)).of(alias, column)
        return Pair(f"NOT ({piece.rule})", f"NOT ifnull({piece.sql}, 0)")
    if kind == "cte":
        name = draw(st.sampled_from(ctes))
        return Pair(f"{alias}.{column} IN {name}", f"{alias}.{column} IN (SELECT * FROM {name})")
    other = f"{alias}{draw(st.sampled_from('uvw'))}"
    head = f"SELECT {other}.{draw(columns)} FROM {draw(st.sampled_from(TABLES))} AS {other} WHERE "
    link = f" AND {other}.{draw(columns)} = {alias}.{draw(columns)}" if kind == "same" else ""
    inner = draw(conditions(other, depth - 1))
    select = Pair(*(f"{head}({each}){link}" for each in (inner.rule, inner.sql)))
    if kind == "exists":
        return Pair(f"auth.user_id() IN ({select.rule})", f":user IN ({select.sql})")
    if kind == "overlap":
        elements = f"SELECT 1 FROM json_each({alias}.tags) v WHERE v.value IN ({select.sql})"
        return Pair(f"{alias}.tags && ({select.rule})", f"EXISTS ({elements})")
    return Pair(f"{alias}.{column} IN ({select.rule})", f"{alias}.{column} IN ({select.sql})")


@st.composite
def queries(draw: Draw) -> Query:
    form = draw(st.sampled_from(["one", "one", "join", "chain", "self", "derived", "each", "request each", "ctes"]))
    names = ("c1", "c2") if form == "ctes" else ()
    x, y = draw(columns), draw(columns)
    on_t = draw(conditions("t", 2, names))
    on_m = draw(conditions("m", 1))
    match form:
        case "one" | "ctes":
            tail = on_t
        case "join":
            tail = _both("$1", on_t, on_m)
        case "chain":
            tail = _both(f"m.{x} = n.{y} AND $1", on_t, _both("$1", on_m, draw(conditions("n", 0))))
        case "self":
            other = draw(conditions("other", 1))
            tail = _both("$1", on_t, other)
        case "derived":
            tail = Pair(f"s.k = t.{x} AND ({on_t.rule})", f"s.k = t.{x} AND ({on_t.sql})")
        case _:
            tail = Pair(f"e.value = t.{x} AND ({on_t.rule})", f"e.value = t.{x} AND ({on_t.sql})")
    source = {
        "one": Pair("t", "t"), "ctes": Pair("t", "t"),
        "join": Pair(f"t JOIN m ON t.{x} = m.{y}", f"t JOIN m ON t.{x} = m.{y}"),
        "chain": Pair("t, m, n", "t, m, n"),
        "self": Pair(f"t JOIN t AS other ON t.{x} = other.{y}", f"t JOIN t AS other ON t.{x} = other.{y}"),
        "derived": Pair(*(f"t, (SELECT m.{y} AS k FROM m WHERE {each}) AS s" for each in (on_m.rule, on_m.sql))),
        "each": Pair("t, json_each(t.tags) AS e", "t, json_each(t.tags) AS e"),
        "request each": Pair("t, json_each(auth.parameter('ids')) AS e", "t, json_each(:ids) AS e"),
    }[form]  # fmt: skip
    if form == "chain":
        tail = Pair(f"t.{y} = m.{x} AND {tail.rule}", f"t.{y} = m.{x} AND {tail.sql}")
    ctes = tuple((name, draw(selections())) for name in names)
    text = Pair(
        *(f"SELECT t.id, t.a FROM {a} WHERE {b}" for a, b in ((source.rule, tail.rule), (source.sql, tail.sql)))
    )
    return Query(text, ctes)


@st.composite
def selections(draw: Draw) -> Pair:
    """What a `with` query may be: one column of one table."""
    table, column = draw(st.sampled_from(TABLES)), draw(columns)
    condition = draw(conditions(table, 1))
    return Pair(*(f"SELECT {table}.{column} FROM {table} WHERE {each}" for each in (condition.rule, condition.sql)))


def _both(extra: str, left: Pair, right: Pair) -> Pair:
    return Pair(*(extra.replace("$1", f"({a}) AND ({b})") for a, b in ((left.rule, right.rule), (left.sql, right.sql))))


# few values, so that rows meet; and what is often true, so that some are found
common = st.sampled_from(["a", "a", "a", "b", 1])
values = st.one_of(common, common, common, st.sampled_from([None, 0, 1.0, 2, 2.5, "", "1", "0.9", "1x", "é"]))
arrays = st.sampled_from([None, "[]", '["a"]', '["b","a"]', '["a","b","a"]', '[1,"1",2.5,"a"]', "[null,1]"])
users = st.sampled_from(["a", "a", "a", "b", 1, "1", 2.5, None])
rows = st.fixed_dictionaries({"a": values, "b": values, "k": values, "tags": arrays})
requests = st.builds(Request, users, st.sampled_from(["a", "a", "b", None]), st.lists(users, max_size=3).map(tuple))
several = st.lists(queries(), min_size=4, max_size=4)
filled = st.tuples(*(st.tuples(st.just("insert"), st.just(table), st.just(number), rows)
                     for table in TABLES for number in range(3))).map(list)  # fmt: skip
changes = st.tuples(st.sampled_from(["insert", "insert", "update", "delete"]), st.sampled_from(TABLES),
                    st.integers(0, 3), rows)  # fmt: skip


class Plain:
    """The same rows in a database of their own."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        self._connection.create_scalar_function("truthy", truthy, 1, deterministic=True)
        self._connection.create_scalar_function("hw_text", _text, 1, deterministic=True)
        for table in TABLES:
            self._connection.execute(f"CREATE TABLE {table} (id PRIMARY KEY, {', '.join(COLUMNS[1:])})")

    def put(self, table: str, row: dict[str, Value]) -> None:
        self._connection.execute(f"INSERT OR REPLACE INTO {table} VALUES (:id, :a, :b, :k, :tags)", row)

    def delete(self, table: str, row_id: str) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))

    def rows(self, query: Query, request: Request) -> set[tuple[Value, ...]]:
        return set(self._connection.execute(query.plain(), request.bindings()))


def _text(*arguments: Value) -> Value:
    (value,) = arguments
    return f"{value:g}" if isinstance(value, int | float) else value


def check(query: Query, steps: list[Change], asked: list[Request]) -> None:
    try:
        rules = RulesTest.of_text(query.config())
    except SyncConfigError as refused:
        if {error.code for error in refused.errors} == {RuleCode.TOO_MANY}:
            return
        raise
    clients = [(request, rules.client(request.claims())) for request in asked]
    read = {pattern.name for pattern in rules.plan.tables()}
    plain, there = Plain(), set[tuple[str, str]]()
    for action, table, number, values_ in steps:
        row_id = str(number)
        if table not in read or (action != "insert" and (table, row_id) not in there):
            continue
        if action == "delete":
            rules.delete(table, id=row_id)
            plain.delete(table, row_id)
            there.remove((table, row_id))
        else:
            if (table, row_id) in there:
                rules.update(table, {"id": row_id}, **values_)
            else:
                rules.insert(table, id=row_id, **values_)
            plain.put(table, {"id": row_id, **values_})
            there.add((table, row_id))
        for request, client in clients:
            held = {(row["id"], row["a"]) for row in client.table("t")}
            assert held == plain.rows(query, request), (table, row_id, request)
            assert client.errors == []
    assert rules.world.errors == []


@settings(max_examples=examples(70))
@given(several, filled, st.lists(changes, min_size=6, max_size=12), st.lists(requests, min_size=3, max_size=3))
def test_device_holds_what_the_query_gives(
    several: list[Query], first: list[Change], steps: list[Change], asked: list[Request]
) -> None:
    for query in several:
        check(query, first + steps, asked)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(max_examples=3_000)
@given(several, filled, st.lists(changes, max_size=30), st.lists(requests, min_size=1, max_size=4))
def test_many_devices_hold_what_many_queries_give(
    several: list[Query], first: list[Change], steps: list[Change], asked: list[Request]
) -> None:
    for query in several:
        check(query, first + steps, asked)
