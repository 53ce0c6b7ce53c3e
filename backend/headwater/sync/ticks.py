"""When a stream sends how long its token is still valid."""

from __future__ import annotations

KEEPALIVE = 20.0
"""Seconds between two signs of life, give or take `JITTER` of it, so that clients do not come in step."""
JITTER = 0.1

WARNING = 20.0
"""Seconds before a token's end at which the client is notified, so that it fetches the next one in time."""


def next_tick(expires_in: float, jitter: float) -> float:
    """Seconds until the next `token_expires_in`. `expires_in` is what the token has left, `jitter` in [-1, 1]."""
    regular = KEEPALIVE * (1 + JITTER * jitter)
    if expires_in > WARNING:
        return min(regular, expires_in - WARNING)
    return max(0.0, min(regular, expires_in))
