"""Waiting: for at most so long, and before the next attempt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from headwater_client.errors import RefusedError

T = TypeVar("T")


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """What the work comes to. Raises `asyncio.TimeoutError` after so many seconds, and cancels it.

    Unlike `asyncio.wait_for` before Python 3.12, it never drops a cancellation that arrives together with the result.
    """
    running = asyncio.ensure_future(work)
    try:
        ended, _ = await asyncio.wait({running}, timeout=seconds)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
    if not ended:
        raise asyncio.TimeoutError
    return running.result()


async def happens(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so many seconds."""
    try:
        await within(seconds, event.wait())
    except asyncio.TimeoutError:
        pass


LONGEST = 60.0
"""Seconds that a wait grows to."""


@dataclass
class Backoff:
    """Waits that double with each failure, from `first` seconds on. Each takes between half of that and all of it, so
    that the devices of a server that was away do not come back at the same moment."""

    first: float
    longest: float = LONGEST
    _failures: int = 0

    def succeeded(self) -> None:
        """The next wait is a short one again."""
        self._failures = 0

    def next(self, error: BaseException | None = None) -> float:
        """Seconds until the next attempt, after this error: no fewer than the server named, up to `longest`."""
        wait = min(self.longest, self.first * 2.0 ** min(self._failures, 20)) * random.uniform(0.5, 1.0)
        self._failures += 1
        asked = error.retry_after if isinstance(error, RefusedError) else None
        return wait if asked is None else max(wait, min(self.longest, asked * random.uniform(1.0, 1.5)))
