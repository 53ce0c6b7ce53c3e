"""Limits how many streams are open, in all and per user."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.api.errors import ShuttingDownError, TooManyRequestsError
from headwater.api.shares import Shares


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits per process. A device has one stream, or two for a moment when it connects again. `stalled_seconds` is how
    long a client may read nothing while data waits for it."""

    streams: int = 200
    per_user: int = 50
    stalled_seconds: float = 60.0


class Admission:
    """Counts open streams. Not thread-safe: use it in one event loop."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._shares = Shares("open streams", limits.per_user)
        self._closed = False
        self.open_streams = 0

    def close(self) -> None:
        """Refuse new streams from now on."""
        self._closed = True

    def check(self, user_id: str) -> None:
        """Raise TooManyRequestsError or ShuttingDownError when the user can't open a stream now."""
        if self._closed:
            raise ShuttingDownError("the service is shutting down", fix="connect again")
        if self.open_streams >= self._limits.streams:
            raise TooManyRequestsError(f"{self._limits.streams} streams are open already")
        self._shares.check(user_id)

    def enter(self, user_id: str) -> None:
        """Count a stream until `leave`. Raises as `check` does."""
        self.check(user_id)
        self._shares.enter(user_id)
        self.open_streams += 1

    def leave(self, user_id: str) -> None:
        self._shares.leave(user_id)
        self.open_streams -= 1
