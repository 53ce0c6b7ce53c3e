"""An answer that goes on for hours, on a connection that keeps nothing of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.server import ServerState

from headwater.api.bell import Bell
from headwater.api.errors import GoneError

LINGER_SECONDS = 5.0
"""How long a client may take for what is left when the answer has ended."""


class EndlessBody(asyncio.Protocol):
    """The body of an answer, in chunks of HTTP/1.1. Its connection was taken once the head was out, which said
    `transfer-encoding: chunked` and `connection: close`. What a client sends meanwhile is not read."""

    __slots__ = ("_connections", "_full", "_lost", "_room", "_then", "_transport")

    def __init__(self, transport: asyncio.Transport, state: ServerState, *, full: bool) -> None:
        """`full` says whether so much waits to be sent already that the next has to wait."""
        self._transport = transport
        self._connections = state.connections
        self._connections.add(self)  # type: ignore[arg-type]  # uvicorn's end waits until all are gone
        self._full = full
        self._room = Bell()
        self._then: tuple[Callable[[], None], ...] = ()
        self._lost = False

    def when_lost(self, then: Callable[[], None]) -> None:
        """Call this once the connection is lost; at once if it is."""
        if self._lost:
            then()
        else:
            self._then += (then,)

    async def send(self, content: bytes) -> None:
        """Send some bytes, at least one, once there is room. Raises GoneError when the client has left."""
        await self._write(b"%x\r\n%b\r\n" % (len(content), content))

    async def end(self) -> None:
        """Say that it is whole, and end the connection. Raises as `send` does."""
        await self._write(b"0\r\n\r\n")
        self.close()

    def close(self) -> None:
        """End the connection; where that was not said, the client knows that something is missing."""
        if not self._lost and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._abort)

    async def _write(self, content: bytes) -> None:
        while self._full and not self._lost:
            await self._room.next()
        if self._lost or self._transport.is_closing():
            raise GoneError
        self._transport.write(content)

    def _abort(self) -> None:
        if not self._lost:
            self._transport.abort()

    # what the transport calls, and the server

    def data_received(self, data: bytes) -> None:
        self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._room.ring()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        self._room.ring()
        then, self._then = self._then, ()
        for each in then:
            each()

    def shutdown(self) -> None:
        """Nothing: whoever sends is told of the end by other ways."""
