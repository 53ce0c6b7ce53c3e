"""Limits how many streams are open, in all and per user."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits per process, in all and per user. Open streams, websockets, and HTTP requests for a stream that are being
    read are each counted by themselves. A device has one stream, or two for a moment when it connects again.
    `stalled_seconds` is how long a client may read nothing while data waits for it."""

    streams: int = 200
    per_user: int = 50
    stalled_seconds: float = 60.0
