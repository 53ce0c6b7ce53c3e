"""Counts what strangers hold open, by the network that they come from."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

_LONGEST = 64  # of what a proxy says that is no address


class Crowd:
    """How many are in, by key. Lives in the event loop."""

    def __init__(self, most: int) -> None:
        """At most so many of one key; 0 for no limit."""
        self._most = most
        self._inside: dict[str, int] = {}

    def enter(self, key: str) -> bool:
        """Count one in, unless there are too many of this key."""
        inside = self._inside.get(key, 0)
        if self._most and inside >= self._most:
            return False
        self._inside[key] = inside + 1
        return True

    def leave(self, key: str) -> None:
        """Count one out that was counted in."""
        inside = self._inside[key] - 1
        if inside:
            self._inside[key] = inside
        else:
            del self._inside[key]


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """Who is taken for one and the same: an address, or all of an IPv6 network of 64 bits, which one customer of a
    provider has to itself."""
    address = address_of(host)
    match address:
        case None:
            return host[:_LONGEST]
        case IPv4Address():
            return str(address)
        case IPv6Address():
            return address.exploded[:19] + "::/64"


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """An IP address, that of IPv4 where IPv6 carries one; None for anything else."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
