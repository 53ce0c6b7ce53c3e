"""What does not fit into the limits of a request: it is left out whole and told, and everything else is given."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.results import Resolution, StreamSubscription, SyncRequest
from tests.unit.rules.rules_store import RuleStore, plan_of

CONFIG = """
config: {edition: 3}
streams:
  many:
    auto_subscribe: true
    query: SELECT * FROM t WHERE k IN auth.parameter('many')
  more:
    auto_subscribe: true
    query: SELECT * FROM u WHERE k IN auth.parameter('more')
  urgent:
    auto_subscribe: true
    priority: 1
    query: SELECT * FROM v WHERE k IN auth.parameter('urgent')
  chosen:
    accept_potentially_dangerous_queries: true
    query: SELECT * FROM w WHERE k IN subscription.parameter('ks')
"""
PLAN = compile_config(CONFIG).plan


def nothing(keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
    return {}


def resolved(
    *subscriptions: StreamSubscription, limit: int = 10, left_out: Set[str] = frozenset(), **claims: int
) -> Resolution:
    """Asked for so many buckets of each stream."""
    request = SyncRequest({name: list(range(number)) for name, number in claims.items()}, None, True, subscriptions)
    return resolve(PLAN, request, nothing, max_buckets=limit, left_out=left_out)


def given(found: Resolution) -> dict[str, int]:
    names = [bucket.name.partition(".")[0] for bucket in found.buckets]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def keys(found: Resolution) -> frozenset[str]:
    return frozenset(each.key for each in found.left_out)


def test_limit_is_exact() -> None:
    assert given(resolved(many=6, more=4)) == {"many": 6, "more": 4}
    found = resolved(many=6, more=5)
    assert given(found) == {"many": 6}
    assert [(status.name, status.errors) for status in found.streams] == [
        ("many", ()),
        (
            "more",
            (
                {
                    "subscription": "default",
                    "message": "left out by a limit: the 5 buckets of stream more would make 11 in all; "
                    "api.parameters.max_buckets_per_connection allows 10; narrow its query, or raise the setting",
                },
            ),
        ),
        ("urgent", ()),
    ]
    assert [each.stream for each in found.left_out] == ["more"]


def test_order_of_streams() -> None:
    assert given(resolved(many=5, more=4, urgent=5)) == {"many": 5, "urgent": 5}
    assert given(resolved(many=6, more=4, urgent=5)) == {"more": 4, "urgent": 5}
    assert given(resolved(many=1, more=1, urgent=11)) == {"many": 1, "more": 1}
    wish = StreamSubscription("chosen", {"ks": list(range(8))}, 0)
    assert given(resolved(wish, many=1, more=1, urgent=3)) == {"many": 1, "more": 1, "chosen": 8}


def test_subscriptions_fit_alone() -> None:
    subscriptions = [StreamSubscription("chosen", {"ks": list(range(first, first + 4))}) for first in (0, 4, 8, 2)]
    found = resolved(*subscriptions)
    assert given(found) == {"chosen": 8}
    assert {reason["sub"] for bucket in found.buckets for reason in bucket.reasons} >= {0, 1, 3}
    chosen = found.streams[-1]
    assert [error["subscription"] for error in chosen.errors] == [2]


def test_shared_buckets_cost_nothing() -> None:
    same = StreamSubscription("chosen", {"ks": list(range(10))})
    assert given(resolved(same, same, same)) == {"chosen": 10}


def test_left_out_returns_below_nine_tenths() -> None:
    out = keys(resolved(many=6, more=5))
    assert given(resolved(many=6, more=4, left_out=out)) == {"many": 6}
    held = resolved(many=6, more=3, left_out=out)
    assert (given(held), keys(held)) == ({"many": 6}, out)
    (message,) = (error["message"] for status in held.streams for error in status.errors)
    assert "the 3 buckets of stream more would make 9 in all" in str(message)
    assert "allows 10, and it comes back at 8 or less" in str(message)
    back = resolved(many=6, more=2, left_out=out)
    assert (given(back), back.left_out) == ({"many": 6, "more": 2}, ())


def test_nine_tenths_only_for_the_left_out() -> None:
    out = keys(resolved(many=6, more=5))
    assert given(resolved(many=10, more=0, left_out=out)) == {"many": 10}
    other = StreamSubscription("chosen", {"ks": [1, 2, 3, 4]})
    assert given(resolved(other, many=6, left_out=out)) == {"many": 6, "chosen": 4}


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 1000])
def test_way_back_from_any_limit(limit: int) -> None:
    out = keys(resolved(many=limit + 1, limit=limit))
    assert len(out) == 1
    assert given(resolved(many=1, limit=limit, left_out=out)) == {"many": 1}


def test_stream_with_too_many_lookups() -> None:
    text = CONFIG + "  found: {auto_subscribe: true, query: SELECT * FROM x WHERE k IN (SELECT k FROM m WHERE u = 1)}\n"
    plan = compile_config(text).plan
    request = SyncRequest({"many": [1, 2]})

    def outcome(number: int, left_out: Set[str] = frozenset()) -> Resolution:
        store = RuleStore(plan, {"m": [{"u": 1, "k": k} for k in range(number)]})
        return resolve(plan, request, store.read, max_results=10, left_out=left_out)

    assert given(outcome(10)) == {"many": 2, "found": 10}
    found = outcome(11)
    assert given(found) == {"many": 2}
    assert found.streams[-1].errors[0]["message"] == (
        "left out by a limit: a step of stream found needs more than 10 lookup rows; "
        "api.parameters.max_parameter_query_results allows 10; narrow its query, or raise the setting"
    )
    assert len(found.lookup_keys) == 1, "a change there can bring it back"
    assert given(outcome(9, keys(found))) == {"many": 2}
    assert given(outcome(8, keys(found))) == {"many": 2, "found": 8}


def test_lookup_limit() -> None:
    plan = plan_of("SELECT * FROM t WHERE k IN (SELECT k FROM m WHERE u IN auth.parameter('us'))")
    (left,) = resolve(plan, SyncRequest({"us": list(range(11))}), nothing, max_results=10).left_out
    assert "needs more than 10 lookups;" in left.message


def test_huge_request() -> None:
    config = CONFIG + (
        "  pairs:\n"
        "    accept_potentially_dangerous_queries: true\n"
        "    query: SELECT * FROM w WHERE a IN subscription.parameter('a') AND b IN subscription.parameter('b')\n"
    )
    plan = compile_config(config).plan
    grid = {"a": list(range(3_000)), "b": list(range(3_000))}
    request = SyncRequest(
        {"many": [1]}, subscriptions=tuple(StreamSubscription("pairs", grid | {"n": n}) for n in range(20))
    )
    started = time.process_time()
    found = resolve(plan, request, nothing)
    assert time.process_time() - started < 5
    assert given(found) == {"many": 1}
    messages = [str(error["message"]) for error in found.streams[-1].errors]
    assert len(messages) == 20
    assert all("the at least " in message for message in messages)
    assert "the at least 10,001 buckets of stream pairs would make at least 10,002 in all" in messages[0]


def test_huge_subscriptions() -> None:
    greedy = [StreamSubscription("chosen", {"ks": list(range(n, n + 1_001))}) for n in range(0, 500_000, 1_001)]
    started = time.process_time()
    found = resolve(PLAN, SyncRequest({"more": [1]}, subscriptions=tuple(greedy)), nothing)
    assert time.process_time() - started < 2
    assert given(found) == {"more": 1}
    assert len(found.left_out) == len(greedy)
    assert "stream chosen was not evaluated" in found.left_out[-1].message


def test_many_small_subscriptions() -> None:
    small = [StreamSubscription("chosen", {"ks": [n]}) for n in range(2_500)]
    found = resolve(PLAN, SyncRequest({}, subscriptions=tuple(small)), nothing)
    assert given(found) == {"chosen": 1_000}
    assert len(found.left_out) == 1_500
    assert not any("not evaluated" in each.message for each in found.left_out)


def test_left_out_names() -> None:
    wide = [StreamSubscription("chosen", {"ks": list(range(11)), "n": n}) for n in range(3)]
    found = resolved(*wide, many=11)
    assert len(keys(found)) == 4
    assert all(len(key) < 40 for key in keys(found))
    assert keys(resolved(*reversed(wide), many=11)) == keys(found)


SHARED = """
config: {edition: 3}
streams:
  theirs:
    query: SELECT * FROM t WHERE k IN (SELECT k FROM m WHERE m.u = auth.user_id())
  connected:
    accept_potentially_dangerous_queries: true
    query: SELECT * FROM t WHERE k = connection.parameter('k') AND n = subscription.parameter('n')
"""


class CountedParameters(Mapping[str, object]):
    """Counts how often somebody reads them all."""

    def __init__(self, **values: object) -> None:
        self._values = values
        self.read = 0

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        self.read += 1
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def test_shared_lookups_are_read_once() -> None:
    plan = compile_config(SHARED).plan
    counts = []
    for number in (1, 100):
        parameters = CountedParameters(k="a")
        subscriptions = tuple(StreamSubscription("connected", {"n": n}) for n in range(number))
        found = resolve(plan, SyncRequest({"sub": "u"}, parameters, True, subscriptions), nothing)
        assert len(found.buckets) == number
        counts.append(parameters.read)
    assert counts[0] == counts[1] > 0


def test_shared_failure() -> None:
    plan = compile_config(SHARED).plan
    subscriptions = tuple(StreamSubscription("connected", {"n": n}) for n in range(3))
    found = resolve(plan, SyncRequest({"sub": "u"}, {"k": 2**60}, True, subscriptions), nothing)
    assert [error["subscription"] for status in found.streams for error in status.errors] == [0, 1, 2]


def test_reasons_are_bounded() -> None:
    plan = compile_config(SHARED).plan

    def rows(keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return {key: [f'["{number}"]' for number in range(10)] for key in keys}

    def reasons(number: int) -> tuple[int, int]:
        subscriptions = tuple(StreamSubscription("theirs", {"n": n}) for n in range(number))
        request = SyncRequest({"sub": "u"}, None, True, subscriptions)
        found = resolve(plan, request, rows, max_buckets=10, max_results=10)
        assert len(found.buckets) == 10
        return sum(len(bucket.reasons) for bucket in found.buckets), len(found.left_out)

    assert reasons(100) == (1000, 0)
    assert reasons(500) == (1000, 400)
