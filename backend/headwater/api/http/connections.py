"""Limits on connections: how many are open, and how many small pieces each may have parsed at once.

A client that sends very many tiny pieces costs far more than its bytes. A piece is a frame of a websocket, or a small
chunk of a body. What is received is parsed bit by bit, in turns of the event loop that all connections share.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType

import uvicorn

from headwater.api.errors import ApiError, TooManyFromAddressError
from headwater.api.limits import HttpLimits, address_of, network_of
from headwater.api.quota import Quota
from headwater.api.refusals import Refusals


class ConnectionLimiter:
    """Counts the connections of a process, in all and by client address. Those of trusted proxies count in all only.
    Not thread-safe: use it in one event loop."""

    def __init__(self, limits: HttpLimits, refusals: Refusals) -> None:
        self.limits = limits
        self.refusals = refusals
        self._quota = Quota(limits.max_connections, limits.most_per_address, self._too_many)

    def enter(self, host: str) -> str | None:
        """Accept a connection. Returns the key that `leave` needs. Raises ApiError."""
        key = None if self._is_proxy(host) else network_of(host)
        self._quota.take(key)
        return key

    def leave(self, key: str | None) -> None:
        self._quota.release(key)

    def _too_many(self, *, of_key: bool) -> ApiError:
        if of_key:
            what = f"{self._quota.per_key} connections from this address are open already"
            return TooManyFromAddressError(what, fix="try again later")
        return ApiError(f"{self._quota.total} connections are open already", fix="try again later", code="HW_6025")

    def _is_proxy(self, host: str) -> bool:
        if not self.limits.trusted_proxies:
            return False
        address = address_of(host)
        return address is not None and any(address in network for network in self.limits.trusted_proxies)


class LimitedConfig(uvicorn.Config):
    """Uvicorn's settings, with the limiter and the turns that connections share. `beside` has the limiters of our
    other ports, so that operators can connect when devices have reached their limit."""

    limiter: ConnectionLimiter
    turns: Turns
    beside: Mapping[int, ConnectionLimiter] = MappingProxyType({})

    def limiter_at(self, address: tuple[str, int | None] | None) -> ConnectionLimiter:
        """The limiter for one of our addresses."""
        return self.beside.get((address and address[1]) or 0, self.limiter)


MOST_AT_ONCE = 1000
"""Pieces that a connection may send at once."""

MOST_PER_SECOND = 100
"""Pieces that a connection may send per second on average."""

LATE_SECONDS = 10.0
"""How long a connection may be behind: it is not read meanwhile, and ended if it still has more than it may send."""

_STEP = 32  # pieces that a connection waits for once it has used up what it had


class PieceBudget:
    """What one connection has sent. `now` is always the time of the event loop."""

    __slots__ = ("_counted_at", "_left", "_used_up_at")

    def __init__(self, now: float) -> None:
        self._left: float = MOST_AT_ONCE
        self._counted_at = now
        self._used_up_at: float | None = None

    def spend(self, pieces: float, now: float) -> None:
        earned = (now - self._counted_at) * MOST_PER_SECOND
        self._left = min(self._left + earned, MOST_AT_ONCE) - pieces
        self._counted_at = now

    def pause(self, now: float, *, more: bool) -> float | None:
        """How many seconds to wait before the connection is read again; None when it has to be closed. `more` says
        whether something of what it sent is not parsed yet."""
        self.spend(0, now)
        if self._left >= 1:
            if not more:
                self._used_up_at = None
            return 0.0
        if self._used_up_at is None:
            self._used_up_at = now
        elif now > self._used_up_at + LATE_SECONDS:
            return None
        return (_STEP - self._left) / MOST_PER_SECOND


class Turns:
    """Connections that have sent more than is parsed at once. One of them goes on in each turn of the event loop, so
    that everything else has its turn, too. Not thread-safe: use it in one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, go_on: Callable[[], None]) -> None:
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        go_on()
