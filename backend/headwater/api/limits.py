"""The limits of the API on connections and requests, before a token is verified, and on streams."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Annotated

from msgspec import Meta

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes are in bytes, times in seconds, counts per process. `max_connections_per_address` (0: no limit) applies to
    the address of a connection, or to the address that one of `trusted_proxies` reports for a request. At shutdown,
    streams end spread over `drain_seconds`."""

    max_header_bytes: Annotated[int, Meta(ge=1024, le=1024 * 1024)] = 32 * 1024
    max_header_fields: Annotated[int, Meta(ge=10, le=1000)] = 100
    max_url_bytes: Annotated[int, Meta(ge=256, le=1024 * 1024)] = 8 * 1024
    header_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10
    body_seconds: Annotated[float, Meta(ge=1, le=3600)] = 30
    keep_alive_seconds: Annotated[int, Meta(ge=1, le=3600)] = 75
    max_connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    max_connections_per_address: Annotated[int, Meta(ge=0, le=1_000_000)] = 1000
    trusted_proxies: tuple[Network, ...] = ()
    drain_seconds: Annotated[float, Meta(ge=0, le=20)] = 3  # supervisors such as systemd have to wait longer

    @property
    def most_per_address(self) -> int | None:
        return self.max_connections_per_address or None


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits per process, in all and per user. Open streams, websockets, and HTTP requests for a stream that are being
    read are each counted by themselves. A device has one stream, or two for a moment when it connects again.
    `client_read_timeout_seconds` is how long a client may read nothing while data waits for it."""

    streams: Annotated[int, Meta(ge=1, extra={"key": "max_concurrent_connections"})] = 200
    per_user: Annotated[int, Meta(ge=1, extra={"key": "max_streams_per_user"})] = 50
    client_read_timeout_seconds: Annotated[float, Meta(ge=1)] = 60.0


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
