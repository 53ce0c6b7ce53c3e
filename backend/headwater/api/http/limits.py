"""Limits on connections and requests that apply before a token is verified."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes are in bytes, times in seconds, counts per process. `max_connections_per_address` (0: no limit) applies to
    the address of a connection, or to the address that one of `trusted_proxies` reports for a request. At shutdown,
    streams end spread over `drain_seconds`."""

    max_header_bytes: int = 32 * 1024
    max_header_fields: int = 100
    max_url_bytes: int = 8 * 1024
    header_seconds: float = 10
    body_seconds: float = 30
    keep_alive_seconds: int = 75
    max_connections: int = 10_000
    max_connections_per_address: int = 1000
    trusted_proxies: tuple[Network, ...] = ()
    drain_seconds: float = 3
