"""Left joins that filter are the queries with EXISTS that say the same, and the rest is refused."""

from __future__ import annotations

import pytest

from tests.unit.rules.rules_store import errors_of, plan_of

SAME = {
    "an optional parent that opens": (
        "SELECT t.* FROM t LEFT JOIN m ON m.t = t.id WHERE t.owner = auth.user_id() OR m.u = auth.user_id()",
        "SELECT * FROM t WHERE owner = auth.user_id() OR id IN (SELECT t FROM m WHERE u = auth.user_id())",
    ),
    "nothing reads it": (
        "SELECT t.* FROM t LEFT OUTER JOIN m ON m.t = t.id AND m.live WHERE t.owner = auth.user_id()",
        "SELECT * FROM t WHERE owner = auth.user_id()",
    ),
    "two conditions on one row": (
        "SELECT t.* FROM t LEFT JOIN m ON m.t = t.id AND m.live WHERE m.u = auth.user_id() AND m.role IN ('a', 'b')",
        "SELECT t.* FROM t JOIN m ON m.t = t.id AND m.live WHERE m.u = auth.user_id() AND m.role IN ('a', 'b')",
    ),
    "a row that is there": (
        "SELECT t.* FROM t LEFT JOIN m ON m.t = t.id AND m.u = auth.user_id() WHERE m.id IS NOT NULL",
        "SELECT t.* FROM t JOIN m ON m.t = t.id AND m.u = auth.user_id() WHERE m.id IS NOT NULL",
    ),
    "through another": (
        "SELECT t.* FROM t LEFT JOIN m ON m.t = t.id LEFT JOIN o ON o.id = m.o WHERE t.open OR o.u = auth.user_id()",
        (
            "SELECT t.* FROM t WHERE t.open OR EXISTS"
            " (SELECT 1 FROM m JOIN o ON o.id = m.o WHERE m.t = t.id AND o.u = auth.user_id())"
        ),
    ),
    "an inner join after it": (
        "SELECT t.* FROM t LEFT JOIN m ON m.t = t.id JOIN o ON o.id = m.o WHERE o.u = auth.user_id()",
        "SELECT t.* FROM t JOIN m ON m.t = t.id JOIN o ON o.id = m.o WHERE o.u = auth.user_id()",
    ),
    "its array": (
        "SELECT t.* FROM t LEFT JOIN m ON m.id = t.m WHERE auth.user_id() IN m.users",
        "SELECT t.* FROM t JOIN m ON m.id = t.m WHERE auth.user_id() IN m.users",
    ),
    "an element of its array": (
        (
            "SELECT t.* FROM t LEFT JOIN m ON m.id = t.m WHERE t.own OR EXISTS"
            " (SELECT 1 FROM json_each(m.users) AS e WHERE e.value = auth.user_id())"
        ),
        "SELECT t.* FROM t LEFT JOIN m ON m.id = t.m WHERE t.own OR auth.user_id() IN m.users",
    ),
    "within a subquery": (
        "SELECT * FROM t WHERE id IN (SELECT a.t FROM a LEFT JOIN m ON m.a = a.id WHERE a.o OR m.u = auth.user_id())",
        (
            "SELECT * FROM t WHERE id IN"
            " (SELECT t FROM a WHERE o OR EXISTS (SELECT 1 FROM m WHERE m.a = a.id AND m.u = auth.user_id()))"
        ),
    ),
    "a subquery that compares with it": (
        "SELECT t.* FROM t LEFT JOIN m ON m.id = t.m WHERE t.own OR m.o IN (SELECT id FROM o WHERE u = auth.user_id())",
        (
            "SELECT t.* FROM t WHERE t.own OR EXISTS"
            " (SELECT 1 FROM m JOIN o ON o.id = m.o WHERE m.id = t.m AND o.u = auth.user_id())"
        ),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_left_join_is_the_query_with_exists(name: str) -> None:
    joined, exists = (plan_of(query) for query in SAME[name])
    assert {each.digest for each in joined.buckets} == {each.digest for each in exists.buckets}
    assert {each.digest for each in joined.lookups} == {each.digest for each in exists.lookups}


TABLE = "only a table can be the right side"
FROM = "SELECT t.id FROM t LEFT JOIN m ON m.id = t.m"
REFUSED = {
    f"{FROM} WHERE auth.user_id() IN coalesce(m.users, '[\"kim\"]')": "may hold where the left join finds no row",
    f"{FROM} LEFT JOIN o ON o.id = coalesce(m.o, 0) WHERE o.n IS NULL": "compares with a row that is joined itself",
    f"{FROM} WHERE m.n > auth.parameter('n')": "combines the request with a table",
    f"{FROM} AND m.u = auth.user_id() WHERE m.id IS NULL": "compares with the request",
    f"{FROM} OR m.o = t.o WHERE m.id IS NULL": "has alternatives",
    f"{FROM} AND t.open WHERE m.id IS NULL": "a condition on the row itself",
    "SELECT t.id FROM t LEFT JOIN m ON m.n > t.n WHERE m.id IS NULL": "only by `=`",
    f"{FROM}, json_each(m.users) AS e WHERE e.value = auth.user_id()": "an array of a left join can't stand in FROM",
    "SELECT m.* FROM t LEFT JOIN m ON m.id = t.m": "`*` of `m`, a left join, can't be selected",
    "SELECT t.id FROM t LEFT JOIN (SELECT id FROM m) AS s ON s.id = t.m": TABLE,
    "SELECT t.id FROM t LEFT JOIN json_each(t.users) AS e ON true": TABLE,
    "SELECT t.id FROM t LEFT JOIN (m JOIN o ON o.id = m.o) ON m.id = t.m": TABLE,
    "SELECT t.id FROM t LEFT JOIN m JOIN o ON o.id = m.o ON m.id = t.m": TABLE,
    "SELECT t.id FROM t LEFT JOIN m USING (id)": "needs ON",
    "SELECT t.id FROM t NATURAL LEFT JOIN m": "only inner and left joins",
    "SELECT t.id FROM t RIGHT JOIN m ON m.id = t.m": "only inner and left joins",
    "SELECT t.id FROM t FULL JOIN m ON m.id = t.m": "only inner and left joins",
}


@pytest.mark.parametrize("query", REFUSED)
def test_left_join_that_cannot_be_followed_is_refused(query: str) -> None:
    found = errors_of(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n")
    assert REFUSED[query] in str(found)
