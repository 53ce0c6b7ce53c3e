"""Cases in a file: what is wrong in it is said with its place, and none passes that says nothing."""

from __future__ import annotations

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import SyncConfigError
from headwater_rules.testing.cases import read_cases, run_cases

PLAN = compile_config("""
config: {edition: 3}
streams:
  recent:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner = auth.user_id() AND at > now() - interval '7 days'
  boards: {query: "SELECT * FROM boards WHERE id = subscription.parameter('board') AND owner = auth.user_id()"}
""").plan


def problems(text: str) -> dict[str, tuple[str, ...]]:
    return {outcome.case: outcome.problems for outcome in run_cases(read_cases(text), PLAN)}


def test_time_of_a_file_and_of_a_case() -> None:
    found = problems("""
rules: sync.yaml
now: 2026-03-07T12:00:00Z
rows: {notes: [{id: 1, owner: ann, at: 2026-03-01T12:00:00Z}]}
cases:
  a week: {user: ann, gets: {notes: [1]}}
  later: {user: ann, now: 2026-03-08T14:00:00+02:00, gets: {}}
  a moment before: {user: ann, now: 2026-03-08T11:59:59.999999, gets: {notes: [1]}}
  by day: {user: ann, now: 2026-03-09, gets: {}}
""")
    assert found == dict.fromkeys(("a week", "later", "a moment before", "by day"), ())


def test_without_a_time_the_key_is_named() -> None:
    (found,) = problems(
        "rules: s\nrows: {notes: [{id: 1, owner: ann, at: 2026-03-01}]}\ncases: {a: {user: ann, gets: {}}}"
    )["a"]
    assert "`now:`" in found


def test_parameters_of_several_subscriptions() -> None:
    found = problems("""
rules: sync.yaml
rows: {boards: [{id: 1, owner: ann}, {id: 2, owner: ann}, {id: 3, owner: ann}]}
cases:
  two: {user: ann, subscriptions: {boards: [{board: 1}, {board: 2}]}, gets: {boards: [1, 2]}}
  one: {user: ann, subscriptions: {boards: {board: 3}}, gets: {boards: [3]}}
""")
    assert found == {"two": (), "one": ()}


@pytest.mark.parametrize(
    ("case", "said", "place"),
    [
        ("{user: ann, subscriptions: {boards: [1, 2]}, gets: {}}", "parameters of `boards` must be a mapping", "1"),
        ("{user: ann, subscriptions: {boards: 1}, gets: {}}", "parameters of `boards` must be a mapping", "1"),
        ("{user: ann, subscriptions: [[boards]], gets: {}}", "a stream must be a text", "["),
        ("{user: ann, subscriptions: 5, gets: {}}", "subscriptions are a list of names", "5"),
        ("{user: ann, gets: {boards: [null]}}", "must be its id, or a mapping", "null"),
        ("{user: ann, gets: {boards: [[1]]}}", "must be its id, or a mapping", "["),
        ("{user: true, gets: {}}", "`user` must be an id", "true"),
        ("{user: ann, now: today, gets: {}}", "`now` must be a time", "today"),
        ("{user: ann, now: 2026-13-01, gets: {}}", "can't be read: month must be in 1..12", "2026-13-01"),
        ("{user: !!python/object/apply:os.getcwd [], gets: {}}", "can't be read: could not determine", "!"),
        ("{user: {sub: ann, sub: bob}, gets: {}}", "can't be read: found duplicate key", "{"),
    ],
)
def test_what_is_wrong_is_said_where_it_is(case: str, said: str, place: str) -> None:
    with pytest.raises(SyncConfigError) as caught:
        problems(f"rules: sync.yaml\ncases:\n  a: {case}\n")
    (found,) = caught.value.findings
    assert said in found.message
    assert found.span is not None
    assert case[found.span.column - 6 :].startswith(place)
