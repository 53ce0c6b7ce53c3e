"""Sync streams of many devices that only stay open, for what operators see of them. Lines are not read beyond the first
checkpoint: what else comes to an idle device fits into the system's buffers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from tests.support.fix_service import token_for

_MARK = b"checkpoint_complete"


@contextmanager
def held_streams(port: int, users: Iterable[str]) -> Iterator[None]:
    """A device of each user, until the end of the block; each has its first checkpoint."""
    with ExitStack() as stack:
        for user in users:
            _read_first(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120)), user)
        yield


def _read_first(stream: socket.socket, user: str) -> None:
    body = json.dumps({"client_id": f"phone of {user}", "app_metadata": {"app": "7.1"}}).encode()
    head = (
        "POST /sync/stream HTTP/1.1\r\nHost: devices\r\nContent-Type: application/json\r\nX-User-Agent: device/1\r\n"
        f"Authorization: Token {token_for(user)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    stream.sendall(head.encode() + body)
    tail = b""
    while _MARK not in tail:
        part = stream.recv(1 << 16)
        assert part, f"the stream of {user} ended with {tail!r}"
        tail = tail[-len(_MARK) :] + part
