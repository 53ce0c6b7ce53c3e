"""Sends an HTTP answer that goes on for hours, over a connection that keeps nothing of its request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn.server import ServerState

from headwater.api.bell import Bell
from headwater.api.errors import GoneError

LINGER_SECONDS = 5.0
"""How long a closed connection waits for its client to read the rest of the answer."""

MOST_IGNORED = 64 * 1024
"""Bytes that are read and thrown away of what a client sends behind its request."""


class EndlessBody(asyncio.Protocol):
    """The body of an answer, in HTTP/1.1 chunks. It takes the connection over once the head was sent, which must say
    `transfer-encoding: chunked` and `connection: close`. Nothing that the client sends meanwhile is answered."""

    __slots__ = ("_connections", "_full", "_ignored", "_lost", "_room", "_then", "_transport")

    def __init__(self, transport: asyncio.Transport, state: ServerState, *, full: bool) -> None:
        """`full` says whether the transport's buffer is full, so that `send` has to wait."""
        self._transport = transport
        self._connections = state.connections
        self._connections.add(self)  # type: ignore[arg-type]  # uvicorn's shutdown waits for these
        self._full = full
        self._ignored = 0
        self._room = Bell()
        self._then: tuple[Callable[[], None], ...] = ()
        self._lost = False

    def when_lost(self, then: Callable[[], None]) -> None:
        """Call `then` once the connection is lost, or now if it is lost already."""
        if self._lost:
            then()
        else:
            self._then += (then,)

    @property
    def has_room(self) -> bool:
        """Whether `write` may be called now."""
        return not (self._full or self._lost or self._transport.is_closing())

    def write(self, content: bytes) -> None:
        """Send at least one byte at once."""
        self._transport.write(_chunk(content))

    async def send(self, content: bytes) -> None:
        """Send at least one byte, once there is room. Raises GoneError when the client has disconnected."""
        await self._write(_chunk(content))

    async def end(self) -> None:
        """End the body normally, and close the connection. Raises as `send` does."""
        await self._write(b"0\r\n\r\n")
        self.close()

    def close(self) -> None:
        """Close the connection. Without `end` before, the client notices that the body is incomplete."""
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

    # called by the transport and the server

    def data_received(self, data: bytes) -> None:
        self._ignored += len(data)
        if self._ignored > MOST_IGNORED:  # then it is noticed only by what is sent that the client has left
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
        """Do nothing: streams are ended by the application."""


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)
