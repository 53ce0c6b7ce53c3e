"""What the door takes from strangers, before it knows who they are."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Sizes in bytes, times in seconds; counts are of one process. `max_connections_per_address` is for each client
    (0: no limit): by the address of its connections, or by what `trusted_proxies` say of its requests. Streams end over
    `drain_seconds` when the process is told to stop."""

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
