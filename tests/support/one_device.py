"""A device at a running service, by the protocol alone."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from tests.support.fix_service import token_for
from tests.support.model_client import ModelClient


def sees(port: int, written: Callable[[], object], *, user: str = "ann", **body: object) -> ModelClient:
    """Connect, take what there is, and stay until what is `written` then has come, too."""
    headers = {"authorization": f"Token {token_for(user)}", "accept-encoding": "gzip"}
    url, request = f"http://127.0.0.1:{port}/sync/stream", {"raw_data": True, **body}
    client = ModelClient()
    with httpx.stream("POST", url, json=request, headers=headers, timeout=60, verify=False) as response:
        lines = response.iter_lines()
        while client.completed < 1:
            client.receive(next(lines).encode() + b"\n")
        written()
        while client.completed < 2:
            client.receive(next(lines).encode() + b"\n")
    return client
