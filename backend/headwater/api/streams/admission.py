"""Limits how many streams are open, in all and per user."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.api.errors import ShuttingDownError, TooManyRequestsError
from headwater.api.shares import Shares


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits per process, in all and per user. Open streams, websockets, and HTTP requests for a stream that are being
    read are each counted by themselves. A device has one stream, or two for a moment when it connects again.
    `stalled_seconds` is how long a client may read nothing while data waits for it."""

    streams: int = 200
    per_user: int = 50
    stalled_seconds: float = 60.0


class Admission(Shares):
    """Counts open streams, or what leads to one, in all and per user."""

    def __init__(self, limits: StreamLimits, what: str = "open streams") -> None:
        super().__init__(what, limits.per_user)
        self._streams = limits.streams
        self._closed = False
        self.inside = 0

    def close(self) -> None:
        """Refuse new streams from now on."""
        self._closed = True

    def check(self, user_id: str) -> None:
        """Raise TooManyRequestsError or ShuttingDownError when the user can't enter now."""
        if self._closed:
            raise ShuttingDownError("the service is shutting down", fix="connect again")
        if self.inside >= self._streams:
            raise TooManyRequestsError(f"the service already has {self._streams} {self._what}")
        super().check(user_id)

    def enter(self, user_id: str) -> None:
        """Count one more until `leave`. Raises as `check` does."""
        super().enter(user_id)
        self.inside += 1

    def leave(self, user_id: str) -> None:
        super().leave(user_id)
        self.inside -= 1
