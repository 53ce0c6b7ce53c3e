"""Absence that differs by user: a column that must equal a value of the request stands for it; the rest is refused."""

from __future__ import annotations

import pytest

from headwater_rules.describe.explain import explain
from headwater_rules.testing.rules_test import RulesTest
from tests.unit.rules.rules_store import errors_of, plan_of

OWN = "owner = auth.user_id()"
HIDDEN = "SELECT t FROM hidden WHERE u = auth.user_id()"
MEMBER = "SELECT room FROM members WHERE u = auth.user_id()"
BLOCKED = "SELECT sender FROM blocks WHERE u = auth.user_id()"
SAME = {
    "the row has the user": (
        f"SELECT * FROM t WHERE {OWN} AND id NOT IN ({HIDDEN})",
        f"SELECT * FROM t WHERE {OWN} AND id NOT IN (SELECT h.t FROM hidden h WHERE h.u = t.owner)",
    ),
    "nothing else is compared": (
        f"SELECT * FROM t WHERE {OWN} AND NOT EXISTS (SELECT 1 FROM banned WHERE u = auth.user_id() AND hard)",
        f"SELECT * FROM t WHERE {OWN} AND NOT EXISTS (SELECT 1 FROM banned b WHERE b.u = t.owner AND hard)",
    ),
    "a looked-up row has the user": (
        f"SELECT * FROM t WHERE room IN ({MEMBER}) AND room NOT IN (SELECT room FROM muted WHERE u = auth.user_id())",
        (
            "SELECT * FROM t WHERE room IN (SELECT room FROM members m WHERE m.u = auth.user_id()"
            " AND m.room NOT IN (SELECT x.room FROM muted x WHERE x.u = m.u))"
        ),
    ),
    "written by a join": (
        (
            "SELECT t.* FROM t JOIN members m ON m.room = t.room WHERE m.u = auth.user_id()"
            " AND NOT EXISTS (SELECT 1 FROM muted x WHERE x.u = auth.user_id() AND x.room = t.room)"
        ),
        (
            'SELECT * FROM t WHERE room IN (SELECT room FROM members m WHERE m.u = auth.user_id()'
            " AND NOT EXISTS (SELECT 1 FROM muted x WHERE x.u = m.u AND x.room = m.room))"
        ),
    ),
    "in one of two alternatives": (
        f"SELECT * FROM t WHERE ({OWN} AND id NOT IN ({HIDDEN})) OR list = auth.parameter('l')",
        (
            f"SELECT * FROM t WHERE ({OWN} AND id NOT IN (SELECT h.t FROM hidden h WHERE h.u = t.owner))"
            " OR list = auth.parameter('l')"
        ),
    ),
    "two values of the request": (
        (
            f"SELECT * FROM t WHERE {OWN} AND tenant = auth.parameter('tenant') AND NOT EXISTS"
            " (SELECT 1 FROM hidden h WHERE h.tenant = auth.parameter('tenant') AND h.u = auth.user_id())"
        ),
        (
            f"SELECT * FROM t WHERE {OWN} AND tenant = auth.parameter('tenant') AND NOT EXISTS"
            " (SELECT 1 FROM hidden h WHERE h.tenant = t.tenant AND h.u = t.owner)"
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_column_stands_for_the_request(name: str) -> None:
    by_request, by_column = (plan_of(query) for query in SAME[name])
    assert {each.digest for each in by_request.buckets} == {each.digest for each in by_column.buckets}
    assert {each.digest for each in by_request.lookups} == {each.digest for each in by_column.lookups}
    assert by_request.joins == by_column.joins
    assert by_request.joins


ROOMS = "SELECT room FROM p"
OTHER_TABLE = "a subquery here reads another table"
DIFFER = "other users have other rows here"
REFUSED = {
    f"SELECT * FROM t WHERE id NOT IN ({HIDDEN})": DIFFER,
    f"SELECT * FROM t WHERE auth.user_id() IN users AND id NOT IN ({HIDDEN})": DIFFER,
    f"SELECT * FROM t WHERE room IN ({MEMBER}) AND sender NOT IN ({BLOCKED})": DIFFER,
    f"SELECT * FROM t WHERE ({OWN} OR open) AND id NOT IN ({HIDDEN})": DIFFER,
    f"SELECT * FROM t WHERE ({OWN} AND a) OR (open AND id NOT IN ({HIDDEN}))": DIFFER,
    f"SELECT * FROM t WHERE owner = auth.parameter('x') AND id NOT IN ({HIDDEN})": DIFFER,
    f"SELECT * FROM t WHERE owner > auth.user_id() AND id NOT IN ({HIDDEN})": "",
    f"SELECT * FROM t WHERE {OWN} AND NOT EXISTS (SELECT 1 FROM m WHERE m.n > auth.parameter('n') AND m.u = t.owner)": (
        DIFFER
    ),
    f"SELECT t.* FROM t LEFT JOIN l ON l.id = t.l WHERE {OWN} AND l.id NOT IN ({HIDDEN})": "a row of a left join",
    f"SELECT * FROM t WHERE {OWN} AND NOT EXISTS (SELECT 1 FROM a WHERE a.t = t.id AND a.id NOT IN ({HIDDEN}))": (
        "within another NOT EXISTS"
    ),
    f"SELECT * FROM t WHERE {OWN} AND NOT EXISTS (SELECT 1 FROM h WHERE h.room IN ({ROOMS}))": OTHER_TABLE,
    f"SELECT * FROM t WHERE {OWN} AND NOT EXISTS (SELECT 1 FROM h WHERE h.t = t.id AND EXISTS ({ROOMS}))": OTHER_TABLE,
    f"SELECT * FROM t WHERE {OWN} AND id NOT IN (SELECT t FROM h WHERE u = auth.user_id() AND EXISTS ({ROOMS}))": (
        OTHER_TABLE
    ),
    f"SELECT t.* FROM t LEFT JOIN m ON m.id = t.m WHERE t.{OWN} AND m.n NOT IN (SELECT n FROM h)": (
        "may find other rows where the left join finds none"
    ),
}  # fmt: skip


@pytest.mark.parametrize("query", REFUSED)
def test_what_no_column_stands_for_is_refused(query: str) -> None:
    found = errors_of(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n")
    assert REFUSED[query] in str(found)


def test_absence_is_explained_as_such() -> None:
    (way,) = explain(plan_of(f"SELECT * FROM t WHERE {OWN} AND NOT EXISTS ({HIDDEN})")).streams[0].ways
    assert way.rows[0].filters == ("NOT EXISTS(SELECT 1 FROM hidden WHERE hidden.u = t.owner)",)
    (way,) = explain(plan_of("SELECT t.* FROM t JOIN l ON l.id = t.l WHERE l.n > t.n")).streams[0].ways
    assert all(not each.startswith("NOT") for each in way.rows[0].filters)


def test_row_that_an_absence_finds_itself_is_evaluated() -> None:
    rules = RulesTest(plan_of(f"SELECT * FROM t WHERE {OWN} AND room NOT IN (SELECT room FROM t WHERE hides)"))
    rules.insert("t", id="1", room="a", owner="kim", hides=0)
    rules.insert("t", id="2", room="b", owner="kim", hides=1)
    rules.insert("t", id="3", room="b", owner="kim", hides=1)
    rules.client("kim").assert_synced("t", ["1"])
    rules.update("t", {"room": "b"}, hides=0)
    rules.client("kim").assert_synced("t", ["1", "2", "3"])


def test_left_join_finds_no_row_that_is_absent() -> None:
    query = (
        f"SELECT t.* FROM t LEFT JOIN m ON m.id = t.m WHERE t.{OWN} AND NOT EXISTS (SELECT 1 FROM h WHERE h.n = m.n)"
    )
    rules = RulesTest(plan_of(query))
    rules.insert("t", {"id": "1", "owner": "kim", "m": None}, {"id": "2", "owner": "kim", "m": "a"})
    rules.insert("m", id="a", n=1)
    rules.client("kim").assert_synced("t", ["1", "2"])
    rules.insert("h", id="x", n=1)
    rules.client("kim").assert_synced("t", ["1"])
