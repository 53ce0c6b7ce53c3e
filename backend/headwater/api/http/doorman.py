"""Accepts or refuses connections: counts them, in all and per client address, and logs refusals."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import uvicorn

from headwater.api.errors import ApiError
from headwater.api.http.crowd import Crowd, address_of, network_of
from headwater.api.http.errors import CrowdedAddressError, TooManyConnectionsError
from headwater.api.http.limits import HttpLimits
from headwater.api.http.pace import Turns
from headwater.api.refusals import Refusals

_LATER = "try again later"

_PROXY = ""
"""The place of connections from trusted proxies, to which the limit per address does not apply."""


class Doorman:
    """Counts the connections of a process. Not thread-safe: use it in one event loop."""

    def __init__(self, limits: HttpLimits, refusals: Refusals) -> None:
        self.limits = limits
        self._refusals = refusals
        self._crowd = Crowd(limits.max_connections_per_address)
        self._inside = 0

    def enter(self, host: str) -> str | ApiError:
        """Accept a connection, or return the error to refuse it with. Give the returned place back with `leave`."""
        if self._inside >= self.limits.max_connections:
            return TooManyConnectionsError(f"{self.limits.max_connections} connections are open already", fix=_LATER)
        place = _PROXY if self._is_proxy(host) else network_of(host)
        if place != _PROXY and not self._crowd.enter(place):
            most = self.limits.max_connections_per_address
            return CrowdedAddressError(f"{most} connections from this address are open already", fix=_LATER)
        self._inside += 1
        return place

    def leave(self, place: str) -> None:
        self._inside -= 1
        if place != _PROXY:
            self._crowd.leave(place)

    def note(self, error: ApiError, host: str | None) -> None:
        """Count and log a refusal. The log line contains nothing that the client sent."""
        facts = {"status": error.status, "reason": error.what, "address": host}
        self._refusals.note(error.code, None, "request refused", facts)

    def _is_proxy(self, host: str) -> bool:
        if not self.limits.trusted_proxies:
            return False
        address = address_of(host)
        return address is not None and any(address in network for network in self.limits.trusted_proxies)


class DoorConfig(uvicorn.Config):
    """Uvicorn's settings, with the doorman and the turns that connections share. `beside` has the doormen of our other
    ports, so that operators get in when all connections of devices are taken."""

    doorman: Doorman
    turns: Turns
    beside: Mapping[int, Doorman] = MappingProxyType({})

    def doorman_at(self, address: tuple[str, int | None] | None) -> Doorman:
        """Whom to ask at an address of ours."""
        return self.beside.get((address and address[1]) or 0, self.doorman)
