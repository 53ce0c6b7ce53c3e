"""The table of what an open stream does next."""

from __future__ import annotations

import pytest

from headwater.sync.states import TRANSITIONS, StreamAction, StreamEvent, StreamState

FROM_OUTSIDE = (
    StreamEvent.NEWS, StreamEvent.LOOKUPS, StreamEvent.TICK, StreamEvent.END, StreamEvent.GONE,
)  # fmt: skip
SLEEPING = {StreamState.RESTING, StreamState.AHEAD}


@pytest.mark.parametrize("state", StreamState)
@pytest.mark.parametrize("event", FROM_OUTSIDE)
def test_what_comes_from_outside_may_come_in_any_state(state: StreamState, event: StreamEvent) -> None:
    assert event in TRANSITIONS[state]


@pytest.mark.parametrize("state", StreamState)
def test_the_task_is_woken_exactly_where_its_sleep_ends(state: StreamState) -> None:
    for after, action in TRANSITIONS[state].values():
        woken = state in SLEEPING and after not in SLEEPING
        assert (action in {StreamAction.WAKE, StreamAction.INTERRUPT}) == woken or after is StreamState.ENDING


@pytest.mark.parametrize("state", StreamState)
def test_a_client_that_has_gone_ends_the_stream_at_once(state: StreamState) -> None:
    assert TRANSITIONS[state][StreamEvent.GONE] == (StreamState.ENDING, StreamAction.INTERRUPT)


def test_a_line_that_is_being_sent_is_not_cut_before_it_takes_long() -> None:
    for state in set(StreamState) - {StreamState.ENDING}:
        _, action = TRANSITIONS[state][StreamEvent.END]
        assert action is (StreamAction.LIMIT if state is StreamState.SENDING else StreamAction.INTERRUPT)


def test_an_ending_stream_does_nothing_else() -> None:
    assert {state for state, _ in TRANSITIONS[StreamState.ENDING].values()} == {StreamState.ENDING}


def test_each_state_is_reached() -> None:
    reached, left = {StreamState.READING}, [StreamState.READING]
    while left:
        found = {after for after, _ in TRANSITIONS[left.pop()].values()} - reached
        reached |= found
        left += found
    assert reached == set(StreamState)
