"""`headwater explain` says to people and programs what a user is sent, and what keeps a row away."""

from __future__ import annotations

import json

import pytest

from tests.support.command import Run
from tests.support.ruled_configs import SERVED, STREAM_ADDED
from tests.support.ruled_store import RuledStore


@pytest.fixture
def served(ruled: RuledStore) -> RuledStore:
    ruled.serve(STREAM_ADDED)
    return ruled


@pytest.mark.usefixtures("served")
def test_explain_user(headwater_here: Run) -> None:
    outcome = headwater_here("explain", "user", "u1", "--subscribe", 'one={"list": "l2"}')
    assert (outcome.code, outcome.err) == (0, "")
    first, *lines = outcome.out.splitlines()
    assert first.startswith("u1 gets 6 buckets with 105 rows, ")
    assert first.endswith(" in 111 ops (version 1)")
    (own,) = [line for line in lines if line.startswith("lists.")]
    assert 'priority 3, stream lists (default), owner = "u1": 5 rows, ' in own
    assert sum(line.startswith("todos.") for line in lines) == 5
    assert lines[-1].startswith("stream one gives nothing: no value is the same for subscription.parameter('list') and")


@pytest.mark.usefixtures("served")
def test_explain_user_without_rows(headwater_here: Run) -> None:
    outcome = headwater_here("explain", "user", "nobody")
    assert outcome.out.splitlines()[0].startswith("nobody gets 1 bucket with 0 rows")
    assert "stream todos gives nothing: no row of `members` with user_id = 'nobody'" in outcome.out
    assert "stream one gives nothing: the client is not subscribed to it, and it is no default" in outcome.out


@pytest.mark.parametrize(
    ("user", "table", "row", "code", "said"),
    [
        ("u1", "lists", "l1", 0, "u1 gets row l1 of lists: stream lists gives it, in bucket lists."),
        ("u2", "lists", "l1", 1, "u2 does not get row l1 of lists: stream lists: the row is in bucket lists"),
        ("u1", "public.todos", "t1", 0, "stream todos gives it"),
        ("u1", "todos", "t999", 1, "the store has no row t999 of todos"),
        ("u1", "nothing", "1", 1, "no stream gives rows of nothing, or the store has none of them"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("served")
def test_explain_row(headwater_here: Run, user: str, table: str, row: str, code: int, said: str) -> None:
    outcome = headwater_here("explain", "row", user, table, row)
    assert outcome.code == code
    assert said in outcome.out.splitlines()[0]
    found = json.loads(headwater_here("explain", "row", user, table, row, "--json").out)
    assert found["included"] is (code == 0)


def test_explain_without_version(ruled: RuledStore, headwater_here: Run) -> None:
    outcome = headwater_here("explain", "user", "u1")
    assert outcome.code == 1
    assert "[HW_8108] no sync config is served yet" in outcome.err
    assert SERVED not in [version.yaml for version in ruled.store.versions()]
