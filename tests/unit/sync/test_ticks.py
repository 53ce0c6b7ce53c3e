"""When a client hears how long its token lives."""

from __future__ import annotations

import pytest

from headwater.sync.lines import token_expires_in
from headwater.sync.ticks import next_tick


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
