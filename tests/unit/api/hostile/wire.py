"""Connections to an endpoint over sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import cast

from tests.unit.api.hostile.line import Line

_RESET = struct.pack("ii", 1, 0)


class WireLine(Line, asyncio.Protocol):
    """A client's end of a TCP connection. Most hang up with a reset, which leaves no port of ours waiting."""

    def __init__(self, *, polite: bool) -> None:
        super().__init__(patience=0.25)
        self._polite = polite
        self._takes = asyncio.Event()
        self._takes.set()
        self._transport: asyncio.Transport | None = None

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    # what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._polite:
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def data_received(self, data: bytes) -> None:
        self.hear(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._takes.set()
        self.end()

    def pause_writing(self) -> None:
        self._takes.clear()

    def resume_writing(self) -> None:
        self._takes.set()

    # a line

    def send(self, piece: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(piece)

    @property
    def takes(self) -> bool:
        return self._takes.is_set()

    async def writable(self) -> None:
        await self._takes.wait()

    def hang_up(self) -> None:
        self.transport.abort()

    @property
    def idle(self) -> bool:
        return False

    def turn_away(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()


class Wire:
    """Connects to an address."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._connected = 0

    async def __call__(self) -> Line:
        self._connected += 1
        loop = asyncio.get_running_loop()
        polite = self._connected % 20 == 0
        _, line = await loop.create_connection(lambda: WireLine(polite=polite), *self._address)
        return line
