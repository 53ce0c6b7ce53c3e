"""Accepts or refuses connections: counts them, in all and by client address."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import uvicorn

from headwater.api.errors import ApiError
from headwater.api.http.crowd import address_of, network_of
from headwater.api.http.errors import TooManyConnectionsError, TooManyFromAddressError
from headwater.api.http.limits import HttpLimits
from headwater.api.http.pace import Turns
from headwater.api.quota import Quota
from headwater.api.refusals import Refusals


class ConnectionLimiter:
    """Counts the connections of a process, in all and by client address. Those of trusted proxies count in all only.
    Not thread-safe: use it in one event loop."""

    def __init__(self, limits: HttpLimits, refusals: Refusals) -> None:
        self.limits = limits
        self.refusals = refusals
        self._quota = Quota(limits.max_connections, limits.max_connections_per_address, self._too_many)

    def enter(self, host: str) -> str | None:
        """Accept a connection. Returns the key that `leave` needs. Raises TooManyConnectionsError and
        TooManyFromAddressError."""
        key = None if self._is_proxy(host) else network_of(host)
        self._quota.take(key)
        return key

    def leave(self, key: str | None) -> None:
        self._quota.release(key)

    def _too_many(self, *, of_key: bool) -> ApiError:
        if of_key:
            what = f"{self._quota.per_key} connections from this address are open already"
            return TooManyFromAddressError(what, fix="try again later")
        return TooManyConnectionsError(f"{self._quota.total} connections are open already", fix="try again later")

    def _is_proxy(self, host: str) -> bool:
        if not self.limits.trusted_proxies:
            return False
        address = address_of(host)
        return address is not None and any(address in network for network in self.limits.trusted_proxies)


class LimitedConfig(uvicorn.Config):
    """Uvicorn's settings, with the limiter and the turns that connections share. `beside` has the doormen of our other
    ports, so that operators get in when all connections of devices are taken."""

    limiter: ConnectionLimiter
    turns: Turns
    beside: Mapping[int, ConnectionLimiter] = MappingProxyType({})

    def limiter_at(self, address: tuple[str, int | None] | None) -> ConnectionLimiter:
        """Whom to ask at an address of ours."""
        return self.beside.get((address and address[1]) or 0, self.limiter)
