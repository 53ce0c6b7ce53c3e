"""Many devices in one process, over each transport and in each format: as much of a client as a load needs.

Lines are not read, only counted, by what ends a checkpoint in every format.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tests.support import rsocket_client as rsocket

MARK = b"checkpoint_complete"
CREDIT = 10
"""Payloads that a websocket's device asks for at first; at half of it, it asks again, as the SDKs do."""

_PING, _PONG, _BINARY, _STREAM = 0x9, 0xA, 0x2, 1


class Device(asyncio.Protocol):
    """One device, connected for as long as its transport is open."""

    def __init__(self, opening: bytes) -> None:
        self._opening = opening
        self._tail = b""
        self.completed = 0
        """Checkpoints that it has whole."""
        self.at = 0.0
        """When it had the last of them."""
        self.size = 0
        """Bytes of lines."""
        self.last = b""
        """The end of what it has heard."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one
        self.transport = transport
        transport.write(self._opening)

    def data_received(self, data: bytes) -> None:
        self.last = data[-300:]
        self.count(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.last = self.last or str(exc).encode()

    def count(self, lines: bytes) -> None:
        self.size += len(lines)
        seen = self._tail + lines
        found = seen.count(MARK)
        self._tail = seen[1 - len(MARK) :]
        if found:
            self.completed += found
            self.at = time.perf_counter()


class WebsocketDevice(Device):
    """RSocket over a websocket, with its credit, and answers to pings."""

    def __init__(self, setup: bytes, request: bytes) -> None:
        key = b64encode(b"a key of a bench").decode()
        upgrade = (
            "GET /sync/stream HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
        )
        super().__init__(upgrade.encode())
        self._frames = setup, request
        self._buffer = bytearray()
        self._is_open = False
        self._credit = CREDIT

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_open:
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            assert b" 101 " in head, head
            self._is_open, self._buffer = True, rest
            for each in self._frames:
                self._send(_BINARY, each)
        for opcode, content in self._messages():
            if opcode == _BINARY:
                self.count(content)
                if not int.from_bytes(content[4:6], "big") & rsocket.FOLLOWS:  # fragments make one payload
                    self._pay()
            elif opcode == _PING:
                self._send(_PONG, content)

    def _messages(self) -> Iterator[tuple[int, bytes]]:
        while len(self._buffer) >= 2:
            length, start = self._buffer[1], 2
            if length >= 126:
                size = 2 if length == 126 else 8
                start += size
                length = int.from_bytes(self._buffer[2:start], "big")
            if len(self._buffer) < start + length:
                return
            opcode, content = self._buffer[0] & 0xF, bytes(self._buffer[start : start + length])
            del self._buffer[: start + length]
            yield opcode, content

    def _pay(self) -> None:
        self._credit -= 1
        if self._credit <= CREDIT // 2:
            self._send(_BINARY, rsocket.frame(_STREAM, rsocket.REQUEST_N, 0, struct.pack(">I", CREDIT - self._credit)))
            self._credit = CREDIT

    def _send(self, opcode: int, content: bytes) -> None:
        size = len(content)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        self.transport.write(bytes([0x80 | opcode]) + length + bytes(4) + content)


def _over_http(token: str, request: Mapping[str, object], accept: str) -> Device:
    body = json.dumps(request).encode()
    head = (
        "POST /sync/stream HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        f"Accept: {accept}\r\nAuthorization: Token {token}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Device(head.encode() + body)


def _over_websocket(token: str, request: Mapping[str, object]) -> Device:
    setup = rsocket.setup({"token": f"Token {token}", "user_agent": "bench"})
    content = struct.pack(">I", CREDIT) + rsocket.with_metadata({"path": "/sync/stream"}, json.dumps(request).encode())
    return WebsocketDevice(setup, rsocket.frame(_STREAM, rsocket.REQUEST_STREAM, rsocket.METADATA, content))


@dataclass(frozen=True, slots=True)
class Form:
    """A transport and a format. `device` makes one from a token and the body of its request."""

    name: str
    device: Callable[[str, Mapping[str, object]], Device]


FORMS = (
    Form("HTTP NDJSON", partial(_over_http, accept="application/x-ndjson")),
    Form("HTTP BSON", partial(_over_http, accept="application/vnd.powersync.bson-stream")),
    Form("websocket", _over_websocket),
)


async def connect(port: int, devices: Sequence[Device], at_once: int) -> None:
    """Connect all of them, so many at a time, until each has its first checkpoint."""
    loop = asyncio.get_running_loop()
    for first in range(0, len(devices), at_once):
        some = devices[first : first + at_once]
        await asyncio.gather(*(loop.create_connection(partial(_itself, each), "127.0.0.1", port) for each in some))
        await completed(some, 1)


def _itself(device: Device) -> Device:
    return device


async def completed(devices: Sequence[Device], times: int) -> None:
    """Wait until each of them has so many checkpoints."""
    deadline = time.monotonic() + 120
    while any(device.completed < times for device in devices):
        gone = [device for device in devices if device.transport.is_closing()]
        assert not gone, f"{len(gone)} streams ended early, the first with {gone[0].last!r}"
        assert time.monotonic() < deadline, f"{sum(device.completed < times for device in devices)} devices still wait"
        await asyncio.sleep(0.005)
