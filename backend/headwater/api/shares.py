"""Limits what one user may hold at once, so that one user can't take everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.api.errors import TooManyRequestsError


class Shares:
    """Counts what each user holds; `what` names it in messages. Not thread-safe: use it in one event loop."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._taken: Counter[str] = Counter()

    def check(self, user_id: str) -> None:
        """Raise TooManyRequestsError when the user is at the limit."""
        if self._taken[user_id] >= self._limit:
            raise TooManyRequestsError(f"this user already has {self._limit} {self._what}")

    @contextmanager
    def take(self, user_id: str) -> Iterator[None]:
        """Count one more while the context is open. Raises as `check` does."""
        self.enter(user_id)
        try:
            yield
        finally:
            self.leave(user_id)

    def enter(self, user_id: str) -> None:
        """Count one more until `leave`. Raises as `check` does."""
        self.check(user_id)
        self._taken[user_id] += 1

    def leave(self, user_id: str) -> None:
        self._taken[user_id] -= 1
        if not self._taken[user_id]:
            del self._taken[user_id]
