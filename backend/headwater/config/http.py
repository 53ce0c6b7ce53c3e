"""Reads `api.http` and `api.trusted_proxies`: limits on connections and requests."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from headwater.api.http.limits import HttpLimits, Network
from headwater.config.errors import shown
from headwater.config.section import Section

_MOST_BYTES = 1024 * 1024
_MOST_FIELDS = 1000
_MOST_CONNECTIONS = 1_000_000
_HOUR = 3600
_MOST_DRAIN = 20
"""Seconds that `drain_seconds` may be at most. A supervisor such as systemd has to wait longer before it kills the
process."""


def read_http(api: Section, streams: int) -> HttpLimits:
    """Read the limits. By default there is room for twice as many connections as `streams`, even from one address: all
    may come through a load balancer that `trusted_proxies` does not name."""
    section = api.section("http")
    default = HttpLimits()
    limits = HttpLimits(
        max_header_bytes=section.integer("max_header_bytes", default.max_header_bytes, 1024, _MOST_BYTES),
        max_header_fields=section.integer("max_header_fields", default.max_header_fields, 10, _MOST_FIELDS),
        max_url_bytes=section.integer("max_url_bytes", default.max_url_bytes, 256, _MOST_BYTES),
        header_seconds=section.integer("header_seconds", int(default.header_seconds), 1, _HOUR),
        body_seconds=section.integer("body_seconds", int(default.body_seconds), 1, _HOUR),
        keep_alive_seconds=section.integer("keep_alive_seconds", default.keep_alive_seconds, 1, _HOUR),
        max_connections=section.integer(
            "max_connections", max(default.max_connections, 2 * streams), 1, _MOST_CONNECTIONS
        ),
        max_connections_per_address=section.integer(
            "max_connections_per_address",
            max(default.max_connections_per_address, 2 * streams),
            0,
            _MOST_CONNECTIONS,
        ),
        trusted_proxies=tuple(_networks(api, "trusted_proxies")),
        drain_seconds=section.integer("drain_seconds", int(default.drain_seconds), 0, _MOST_DRAIN),
    )
    section.warn_unknown()
    return limits


def _networks(section: Section, key: str) -> Iterator[Network]:
    for text in section.texts(key):
        try:
            yield ip_network(text, strict=False)
        except ValueError:
            section.error(f"{shown(text)} is neither an IP address nor a network", key, fix="write 10.0.0.0/8")
