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


HOLDS = "may hold where the left join finds no row of `m`"
SELECTED = "columns of `m`, a left join, can't be selected"
TABLE = "only a table can be the right side"
FROM = "SELECT t.id FROM t LEFT JOIN m ON m.id = t.m"
REFUSED = {
    f"{FROM} WHERE m.id IS NULL": HOLDS,
    f"{FROM} WHERE t.open AND (m.id IS NULL OR m.u = auth.user_id())": HOLDS,
    f"{FROM} WHERE coalesce(m.n, 1) = 1": HOLDS,
    f"{FROM} WHERE coalesce(m.u, 'nobody') = auth.user_id()": HOLDS,
    f"{FROM} WHERE coalesce(m.n, t.n) = t.o": HOLDS,
    f"{FROM} WHERE NOT (m.n = 1)": HOLDS,
    f"{FROM} WHERE NOT (m.n = 1 AND t.open)": HOLDS,
    f"{FROM} WHERE m.n IS DISTINCT FROM 1": HOLDS,
    f"{FROM} WHERE auth.user_id() IN coalesce(m.users, '[\"kim\"]')": HOLDS,
    f"{FROM} WHERE EXISTS (SELECT 1 FROM o WHERE o.id = coalesce(m.o, 0))": HOLDS,
    f"{FROM} LEFT JOIN o ON o.id = coalesce(m.o, 0) WHERE o.u = auth.user_id()": HOLDS,
    f"{FROM} WHERE m.n > t.n": "combines several tables",
    f"{FROM}, json_each(m.users) AS e WHERE e.value = auth.user_id()": "an array of a left join can't stand in FROM",
    "SELECT t.id, m.n FROM t LEFT JOIN m ON m.id = t.m": SELECTED,
    "SELECT t.id, t.n + m.n AS n FROM t LEFT JOIN m ON m.id = t.m": SELECTED,
    "SELECT m.* FROM t LEFT JOIN m ON m.id = t.m": SELECTED,
    "SELECT * FROM o WHERE id IN (SELECT m.o FROM t LEFT JOIN m ON m.id = t.m)": SELECTED,
    "SELECT o.* FROM o, (SELECT t.id, m.n FROM t LEFT JOIN m ON m.id = t.m) AS s WHERE s.id = o.id": SELECTED,
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
