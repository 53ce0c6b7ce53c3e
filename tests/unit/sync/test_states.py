"""The table of what an open stream does next."""

from __future__ import annotations

import pytest

from headwater.sync.states import TRANSITIONS, StreamAction, StreamEvent, StreamState

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
