"""The key by which connections and requests of a client address are counted."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

_LONGEST = 64  # characters that are kept of a host that is no address: a proxy may forward anything


def network_of(host: str) -> str:
    """The key under which a host is counted: its IPv4 address, or its IPv6 /64 network, since providers give each
    customer a whole /64."""
    return _network_of(host[:_LONGEST])


@lru_cache(maxsize=4096)
def _network_of(host: str) -> str:
    address = address_of(host)
    match address:
        case None:
            return host
        case IPv4Address():
            return str(address)
        case IPv6Address():
            return address.exploded[:19] + "::/64"


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address. An IPv4-mapped IPv6 address becomes the IPv4 one. None for anything else."""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
