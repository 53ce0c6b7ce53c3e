"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass

from headwater_client.errors import Refused

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
        asked = error.retry_after if isinstance(error, Refused) else None
        return wait if asked is None else max(wait, min(self.longest, asked * random.uniform(1.0, 1.5)))
