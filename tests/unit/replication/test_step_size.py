"""Steps between flushes last about as long as they may."""

from __future__ import annotations

import pytest

from headwater.replication.stream.step_size import BESIDE_COMMITS, FEWEST, MOST, SECONDS, StepSize


def after(steps: int, seconds_a_row: float, limit: float, step: StepSize | None = None) -> StepSize:
    """The size after so many whole steps."""
    step = step or StepSize()
    for _ in range(steps):
        step.took(step.rows, step.rows * seconds_a_row, limit)
    return step


@pytest.mark.parametrize("limit", [SECONDS, BESIDE_COMMITS])
@pytest.mark.parametrize("seconds_a_row", [20e-6, 40e-6, 75e-6])
def test_steps_last_as_long_as_they_may(limit: float, seconds_a_row: float) -> None:
    taken = after(10, seconds_a_row, limit).rows * seconds_a_row
    assert 0.9 * limit <= taken <= 1.01 * limit


def test_limits() -> None:
    assert after(10, 1e-3, SECONDS).rows == FEWEST
    assert after(10, 1e-6, SECONDS).rows == MOST


def test_first_commit_makes_steps_short_at_once() -> None:
    """Each step that is too long holds a commit up."""
    step = after(10, 40e-6, SECONDS)
    assert after(3, 40e-6, BESIDE_COMMITS, step).rows * 40e-6 <= 1.01 * BESIDE_COMMITS


def test_last_rows_of_many_say_nothing_of_the_size() -> None:
    step = after(10, 40e-6, SECONDS)
    before = step.rows
    step.took(3, 0.0001)
    assert step.rows == before
