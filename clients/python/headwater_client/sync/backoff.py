"""How long to wait before the next attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass

LONGEST = 60.0
"""Seconds that a wait grows to."""


@dataclass
class Backoff:
    """Waits that double with each failure, from `first` seconds on, each a little shorter or longer than that."""

    first: float
    longest: float = LONGEST
    _failures: int = 0

    def succeeded(self) -> None:
        """The next wait is a short one again."""
        self._failures = 0

    def next(self) -> float:
        """Seconds until the next attempt."""
        wait = min(self.longest, self.first * 2.0 ** min(self._failures, 20))
        self._failures += 1
        return wait * random.uniform(0.9, 1.1)
