"""How much work is done between two flushes of the stream: all commits wait meanwhile."""

from __future__ import annotations

FEWEST, MOST = 50, 2_000
"""Rows. Of fewer, most of the time would go into storing the flush."""

SECONDS = 0.03

BESIDE_COMMITS = 0.004
"""Seconds of a step while commits come in, each of which waits for half a step on average: about what it takes to reach
a device."""


class StepSize:
    """How many rows a step takes on, so that it lasts about as long as it may."""

    def __init__(self) -> None:
        self.rows = max(MOST // 4, FEWEST)

    def took(self, rows: int, seconds: float, limit: float = SECONDS) -> None:
        """Make the next step smaller if this one took longer than `limit`, and larger if it was a whole one and
        quick."""
        if seconds > limit or rows >= self.rows:
            fitting = int(self.rows * limit / max(seconds, limit / 2))
            self.rows = min(max(fitting, self.rows // 2, FEWEST), MOST)
