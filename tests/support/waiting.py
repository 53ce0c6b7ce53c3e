"""Waiting for a condition that no event announces."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE = 120.0


def wait_until(
    condition: Callable[[], object], what: str, seconds: float = DEADLINE, pause: float = 0.01, longest: float = 0.1
) -> None:
    """Poll until the condition holds, more seldom the longer it takes: each look takes processor time from what is
    waited for. `pause` seconds grow up to `longest`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
