"""A requester of RSocket over a websocket, from the protocol's specification. Shares no code with the service."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import bson
from websockets.sync.client import ClientConnection, connect

SETUP, KEEPALIVE, REQUEST_STREAM, REQUEST_N, CANCEL, PAYLOAD, ERROR = 1, 3, 6, 8, 9, 10, 11
METADATA, FOLLOWS, RESPOND, COMPLETE, NEXT = 0x100, 0x80, 0x80, 0x40, 0x20


@dataclass(frozen=True)
class Received:
    stream: int
    kind: int
    flags: int
    body: bytes

    @property
    def document(self) -> dict[str, object]:
        found: dict[str, object] = bson.decode(self.body)
        return found

    @property
    def error(self) -> tuple[int, str]:
        return struct.unpack(">I", self.body[:4])[0], self.body[4:].decode()

    @property
    def completes(self) -> bool:
        return self.kind == PAYLOAD and bool(self.flags & COMPLETE)


def frame(stream: int, kind: int, flags: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">IH", stream, kind << 10 | flags) + body


def with_metadata(metadata: object, data: bytes = b"") -> bytes:
    text = json.dumps(metadata).encode()
    return len(text).to_bytes(3, "big") + text + data


def setup(metadata: object, *, mime: str = "application/json", lifetime_ms: int = 90_000, flags: int = 0) -> bytes:
    kind = bytes([len(mime)]) + mime.encode()
    head = struct.pack(">HHII", 1, 0, 20_000, lifetime_ms)
    return frame(0, SETUP, METADATA | flags, head + kind + kind + with_metadata(metadata))


class Requester:
    """One websocket."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self._fragments: dict[int, bytes] = {}

    def send(self, content: bytes) -> None:
        self.websocket.send(content)

    def set_up(self, token: str) -> None:
        self.send(setup({"token": f"Token {token}", "user_agent": "tests/1"}))

    def request(self, credit: int = 10, body: Mapping[str, object] | None = None, stream: int = 1) -> None:
        data = json.dumps(body or {}).encode()
        content = struct.pack(">I", credit) + with_metadata({"path": "/sync/stream"}, data)
        self.send(frame(stream, REQUEST_STREAM, METADATA, content))

    def more(self, credit: int, stream: int = 1) -> None:
        self.send(frame(stream, REQUEST_N, 0, struct.pack(">I", credit)))

    def cancel(self, stream: int = 1) -> None:
        self.send(frame(stream, CANCEL))

    def receive(self, seconds: float = 60.0) -> Received:
        """The next frame, or a payload put together from its fragments. Raises TimeoutError, and ConnectionClosed when
        the connection has ended."""
        while (frame := self.receive_frame(seconds)).kind == PAYLOAD and frame.flags & FOLLOWS:
            self._fragments[frame.stream] = self._fragments.get(frame.stream, b"") + frame.body
        before = self._fragments.pop(frame.stream, b"") if frame.kind == PAYLOAD else b""
        return replace(frame, body=before + frame.body)

    def receive_frame(self, seconds: float = 60.0) -> Received:
        """The next frame, which may be a fragment. Raises as `receive` does."""
        content = self.websocket.recv(timeout=seconds)
        assert isinstance(content, bytes)
        stream, kind_and_flags = struct.unpack_from(">IH", content)
        return Received(stream, kind_and_flags >> 10, kind_and_flags & 0x3FF, content[6:])

    def documents(self, until: str) -> Iterator[dict[str, object]]:
        """The payloads of a stream up to the first of a kind, each asked for by itself once the first are used up."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            received = self.receive()
            assert received.kind == PAYLOAD, received
            self.more(1, received.stream)
            yield received.document
            if until in received.document:
                return
        raise AssertionError(f"no {until} came")


@contextmanager
def requester(base_url: str, path: str = "/sync/stream", held: int = 16) -> Iterator[Requester]:
    """A connection that is not set up yet. `base_url` is that of HTTP. `held` is how many unread frames it holds before
    it stops reading from the socket, and so answering pings."""
    url = base_url.replace("http", "ws", 1).rstrip("/") + path
    with connect(url, max_size=None, compression=None, max_queue=held) as websocket:
        yield Requester(websocket)
