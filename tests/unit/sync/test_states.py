"""The table of what an open stream does next, and when a client hears how long its token lives."""

from __future__ import annotations

import pytest

from headwater.sync.lines import token_expires_in
from headwater.sync.states import TRANSITIONS, StreamAction, StreamEvent, StreamState, next_tick

IN_ANY_STATE = (
    StreamEvent.NEWS, StreamEvent.LOOKUPS, StreamEvent.TICK, StreamEvent.FAILED, StreamEvent.END, StreamEvent.GONE,
)  # fmt: skip
SLEEPING = {StreamState.RESTING, StreamState.AHEAD}


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("event", IN_ANY_STATE)
def test_events_that_may_come_in_any_state(state: StreamState, event: StreamEvent) -> None:
    assert event in TRANSITIONS[state]


@pytest.mark.parametrize("state", StreamState)
def test_wake(state: StreamState) -> None:
    for after, action in TRANSITIONS[state].values():
        woken = state in SLEEPING and after not in SLEEPING
        assert (action in {StreamAction.WAKE, StreamAction.INTERRUPT}) == woken or after is StreamState.ENDING


@pytest.mark.parametrize("state", StreamState)
def test_gone(state: StreamState) -> None:
    assert TRANSITIONS[state][StreamEvent.GONE] == (StreamState.ENDING, StreamAction.INTERRUPT)


def test_end_while_sending() -> None:
    for state in set(StreamState) - {StreamState.ENDING}:
        _, action = TRANSITIONS[state][StreamEvent.END]
        assert action is (StreamAction.LIMIT if state is StreamState.SENDING else StreamAction.INTERRUPT)


def test_ending() -> None:
    assert {state for state, _ in TRANSITIONS[StreamState.ENDING].values()} == {StreamState.ENDING}


def test_each_state_is_reached() -> None:
    reached, left = {StreamState.READING}, [StreamState.READING]
    while left:
        found = {after for after, _ in TRANSITIONS[left.pop()].values()} - reached
        reached |= found
        left += found
    assert reached == set(StreamState)


@pytest.mark.parametrize(
    ("expires_in", "jitter", "expected"),
    [
        (3600, 0, 20),
        (3600, 1, 22),
        (3600, -1, 18),
        (30, 0, 10),  # 20 s before the end
        (20, 0, 20),  # at the end
        (20, -1, 18),
        (5, 0, 5),
        (0, 0, 0),
        (-30, 1, 0),
    ],
)
def test_next_tick(expires_in: float, jitter: float, expected: float) -> None:
    assert next_tick(expires_in, jitter) == pytest.approx(expected)


@pytest.mark.parametrize(("seconds", "said"), [(1179.2, 1180), (20.0, 20), (0.01, 1), (0, 0), (-59, 0)])
def test_token_expires_in(seconds: float, said: int) -> None:
    assert token_expires_in(seconds) == {"token_expires_in": said}
