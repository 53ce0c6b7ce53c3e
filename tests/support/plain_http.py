"""A client of an endpoint of the tests."""

from __future__ import annotations

from collections.abc import Mapping

import httpx


def plain_http(port: int, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Speaks to a port of this machine. It loads no certificates, which would take 25 ms of each test."""
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, verify=False)
