"""Rows that a request looks up, compared with its values and with each other other than by `=`."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.explain import explain
from headwater_rules.errors import RuleCode
from headwater_rules.plan import Value
from headwater_rules.results import StreamSubscription
from headwater_rules.testing.rules_test import RulesTest
from tests.unit.rules.rules_store import Rows, RuleStore, errors_of, plan_of

LEVEL = "auth.parameter('level')"
DAY = "subscription.parameter('day')"
OWN = "m.u = auth.user_id()"
MEMBER = f"JOIN m ON m.p = p.id WHERE {OWN}"
SPANS = "json_each(auth.parameter('spans')) AS s"
WITHIN = "p.start >= s.value ->> 'from' AND p.start < s.value ->> 'to'"
QUERIES = (
    f"SELECT t.* FROM t WHERE p IN (SELECT id FROM p WHERE level <= {LEVEL})",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND p.start >= {DAY}",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND {DAY} BETWEEN p.start AND p.until",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND (p.start IS NULL OR p.start <= {DAY})",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND coalesce(p.until, '2020-01-05') > {DAY}",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND p.start < m.until",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND (m.admin = 1 OR p.level + m.n <= {LEVEL})",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND (p.level < {LEVEL} OR p.start = m.until)",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND p.level + m.n = {LEVEL}",
    f"SELECT t.* FROM t WHERE p IN (SELECT m.p FROM m JOIN p ON p.id = m.p WHERE {OWN} AND m.n < p.level)",
    f"SELECT t.* FROM t WHERE p IN (SELECT m.p FROM m JOIN p ON p.id = m.p, {SPANS} WHERE {OWN} AND {WITHIN})",
)  # fmt: skip
DAYS = (None, *(f"2020-01-{day:02}" for day in range(1, 8)))
NUMBERS = (None, 0, 1, 2, 2.5, 3, 0.1 + 0.2)
COLUMNS = {"t": ("id", "p"), "p": ("id", "level", "start", "until"), "m": ("id", "p", "u", "n", "until", "admin")}


def random_rows(chance: random.Random) -> dict[str, list[dict[str, Value]]]:
    projects = [str(number) for number in range(6)]
    return {
        "t": [{"id": str(number), "p": chance.choice([None, *projects])} for number in range(20)],
        "p": [
            {"id": each, "level": chance.choice(NUMBERS), "start": chance.choice(DAYS), "until": chance.choice(DAYS)}
            for each in projects
        ],
        "m": [
            {"id": str(number), "p": chance.choice(projects), "u": chance.choice("ab"), "n": chance.choice(NUMBERS),
             "until": chance.choice(DAYS), "admin": chance.choice([None, 0, 1])}
            for number in range(10)
        ],
    }  # fmt: skip


def of_sqlite(query: str, rows: Rows, claims: Mapping[str, object], day: str | None) -> set[tuple[str, str]]:
    """What SQLite answers, with the request's values in the query."""
    with sqlite3.connect(":memory:") as connection:
        for table, columns in COLUMNS.items():
            connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            for row in rows[table]:
                connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", list(row.values()))
        for written, name in (("auth.user_id()", ":sub"), (LEVEL, ":level"), (DAY, ":day")):
            query = query.replace(written, name)
        query = query.replace("auth.parameter('spans')", ":spans")
        found = connection.execute(query, {**claims, "day": day}).fetchall()
    return {("t", row[0]) for row in found}


@pytest.mark.parametrize("query", QUERIES)
def test_ranges_give_what_sql_gives(query: str) -> None:
    chance = random.Random(query)
    plan = plan_of(query)
    seen = set[int]()
    for _ in range(60):
        rows = random_rows(chance)
        store = RuleStore(plan, rows)
        for user in "ab":
            spans = '[{"from": "2020-01-02", "to": "2020-01-04"}, {"from": "2020-01-06", "to": "2020-01-07"}]'
            claims = {"sub": user, "level": chance.choice(NUMBERS[1:]), "spans": spans}
            day = chance.choice(DAYS)
            shown = store.visible(claims, StreamSubscription("s", {"day": day}))
            assert shown == of_sqlite(query, rows, claims, day), (rows, claims, day)
            seen.add(len(shown))
    assert len(seen) > 2  # it does depend on rows and request


REFUSED = {
    f"SELECT * FROM t WHERE day > {DAY} AND owner = auth.user_id()": "combines the request with a table",
    f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND t.n + p.n < {LEVEL}": "combines several tables",
    f"SELECT t.* FROM t LEFT JOIN p ON p.id = t.p WHERE t.o = auth.user_id() OR p.n < {LEVEL}": "the request with",
    f"SELECT * FROM t WHERE p NOT IN (SELECT id FROM p WHERE level < {LEVEL})": "compares with the request",
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_would_need_a_bucket_for_each_value_is_refused(query: str) -> None:
    found = errors_of(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n")
    assert REFUSED[query] in str(found)


@pytest.mark.parametrize("condition", ["p.level <= auth.parameter('level')", "t.due >= p.start"])
def test_range_is_no_error_beside_another_one(condition: str) -> None:
    query = f"SELECT t.* FROM t JOIN p ON p.id = t.p JOIN m ON m.p = p.id WHERE missing.u = 1 AND {condition}"
    found = errors_of(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n")
    assert [error.code for error in found.errors] == [RuleCode.UNKNOWN_NAME]


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        (f"level <= {LEVEL}", None),
        ("level <= connection.parameter('level')", RuleCode.DANGEROUS),
        ("level <= connection.parameter('level') AND u = auth.user_id()", None),
        ("level <= connection.parameter('level') OR id = auth.user_id()", RuleCode.DANGEROUS),
        (
            "level || auth.user_id() = connection.parameter('level') || auth.user_id()",
            RuleCode.DANGEROUS,
        ),
        ("id IN (SELECT p FROM m WHERE m.n < p.level)", RuleCode.EVERYBODY),
    ],
)
def test_who_decides_is_told(condition: str, code: RuleCode | None) -> None:
    query = f"SELECT * FROM t WHERE p IN (SELECT id FROM p WHERE {condition})"
    text = f"config: {{edition: 3}}\nstreams:\n  s:\n    auto_subscribe: true\n    query: |\n      {query}\n"
    compiled = compile_config(text)
    found = {warning.code for warning in compiled.warnings}
    assert (RuleCode.DANGEROUS in found) is (code is RuleCode.DANGEROUS)
    assert bool(compiled.everybody) is (code is RuleCode.EVERYBODY)


def test_comparison_is_explained() -> None:
    text = explain(plan_of(f"SELECT t.* FROM t JOIN p ON p.id = t.p {MEMBER} AND p.start >= {DAY} AND m.n < p.n"))
    (way,) = text.streams[0].ways
    (found,) = [step for step in way.steps if step.table == "p"]
    assert found.filters == ("m.n < p.n", "p.start >= subscription.parameter('day')")
    assert "subscription.parameter('day')" in text.streams[0].reads
    assert not any("quote" in word for step in way.steps for word in step.outputs)


def test_missing_row_is_explained() -> None:
    rules = RulesTest(
        plan_of("SELECT * FROM t WHERE p IN (SELECT id FROM p WHERE u = auth.user_id() AND n < auth.parameter('n'))")
    )
    rules.insert("t", id="1", p="a")
    rules.insert("p", id="a", u="kim", n=5)
    rules.client({"sub": "kim", "n": 6}).assert_synced("t", [{"id": "1", "p": "a"}])
    with pytest.raises(AssertionError, match=r"rows of `p` count only where p\.n < auth\.parameter\('n'\)"):
        rules.client({"sub": "kim", "n": 5}).assert_synced("t", [{"id": "1", "p": "a"}])


def test_value_that_cannot_be_read_gives_nothing_and_says_so() -> None:
    plan = plan_of(f"SELECT * FROM t WHERE p IN (SELECT id FROM p WHERE level <= {LEVEL})")
    rows: Rows = {"t": [{"id": "1", "p": "a"}], "p": [{"id": "a", "level": 1}]}
    found = RuleStore(plan, rows).resolve({"sub": "kim", "level": 2**60})
    assert not found.buckets
    assert "beyond 2^53" in str(found.streams[0].errors)


@pytest.mark.parametrize(("rows", "told"), [(2000, ""), (20_001, "more than 20,000 lookup rows to be compared")])
def test_rows_that_are_compared_are_bounded(rows: int, told: str) -> None:
    plan = plan_of(f"SELECT * FROM t WHERE p IN (SELECT id FROM p WHERE level = 7 OR level < {LEVEL})")
    levels: list[dict[str, Value]] = [
        {"id": str(number), "level": 7 if number == 3 else 9 + number} for number in range(rows)
    ]
    found = RuleStore(plan, {"t": [{"id": "1", "p": "3"}], "p": levels}).resolve({"sub": "kim", "level": 5})
    assert told in str(found.streams[0].errors)
    assert bool(found.buckets) is not bool(told)


def test_comparisons_of_many_subscriptions_are_bounded() -> None:
    plan = plan_of(f"SELECT * FROM t WHERE p IN (SELECT id FROM p WHERE level < {DAY})")
    store = RuleStore(plan, {"t": [{"id": "1", "p": "3"}], "p": [{"id": str(n), "level": n} for n in range(1_000)]})
    many = [StreamSubscription("s", {"day": -number}) for number in range(1_000)]
    found = store.resolve({"sub": "kim"}, *many)
    assert len(found.left_out) == 601  # each, and the implicit one, compares 1,000 rows, of which none passes
    assert "other subscriptions compare too many rows" in found.left_out[0].message
