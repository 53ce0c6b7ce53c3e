"""Lets an answer take over the connection of its request, so that the request can end before the answer does.

Most streams are idle, and most of the memory of an idle one would be its request: parser, headers, routes, tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from starlette.types import Scope
from uvicorn._types import HTTPScope, WebSocketScope
from uvicorn.server import ServerState

from headwater.api.errors import GoneError
from headwater.api.tasks import Waiters

_EXTENSION, _TRANSPORT, _TAKEN = "headwater", "transport", "taken"  # names in an ASGI scope


class TakenConnection:
    """A connection that was taken over."""

    __slots__ = ("_then",)

    def __init__(self) -> None:
        self._then: tuple[Callable[[], None], ...] | None = ()  # None once the connection is lost

    def on_close(self, then: Callable[[], None]) -> None:
        """Call `then` once the connection is lost, or now if it is lost already."""
        if self._then is None:
            then()
        else:
            self._then += (then,)

    def _closed(self) -> None:
        then, self._then = self._then, None
        for each in then or ():
            each()


class RequestConnection(Protocol):
    """The protocol of a connection during a request."""

    def release(self) -> TakenConnection:
        """Give the connection away. Raises GoneError when the client has disconnected or was refused."""


Taken = TypeVar("Taken", bound=TakenConnection)


def offer(scope: HTTPScope | WebSocketScope, transport: asyncio.BaseTransport) -> None:
    """Allow `take_over` for a request. The transport's protocol must be a RequestConnection."""
    scope.setdefault("extensions", {})[_EXTENSION] = {_TRANSPORT: transport}


def take_over(scope: Scope, kind: type[Taken]) -> Taken:
    """Take over the connection of a request. `kind` is the type that its protocol hands over. Raises GoneError."""
    extension = scope["extensions"][_EXTENSION]
    before = extension[_TRANSPORT].get_protocol()
    if before is None:
        raise GoneError
    taken = cast(RequestConnection, before).release()
    assert isinstance(taken, kind)
    extension[_TAKEN] = taken
    return taken


def on_request_end(scope: Scope, then: Callable[[], None]) -> None:
    """Call `then` once a request is over: now, or when its connection is lost if that was taken over. Call this after
    the application has returned."""
    taken: TakenConnection | None = scope.get("extensions", {}).get(_EXTENSION, {}).get(_TAKEN)
    if taken is None:
        then()
    else:
        taken.on_close(then)


LINGER_SECONDS = 5.0
"""How long a closed connection waits for its client to read the rest of the answer."""

MOST_IGNORED = 64 * 1024
"""Bytes that are read and thrown away of what a client sends behind its request."""


class StreamingResponseProtocol(TakenConnection, asyncio.Protocol):
    """The body of an answer, in HTTP/1.1 chunks. It takes the connection over after the head, which must have
    `transfer-encoding: chunked` and `connection: close`. Whatever the client sends is ignored."""

    __slots__ = ("_connections", "_full", "_ignored", "_lost", "_room", "_transport")

    def __init__(self, transport: asyncio.Transport, state: ServerState, *, full: bool) -> None:
        """`full` says whether the transport's buffer is full, so that `send` has to wait."""
        TakenConnection.__init__(self)
        self._transport = transport
        self._connections = state.connections
        self._connections.add(self)  # type: ignore[arg-type]  # uvicorn's shutdown waits for these
        self._full = full
        self._ignored = 0
        self._room = Waiters()
        self._lost = False

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
        self._room.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._connections.discard(self)
        self._room.wake()
        self._closed()

    def shutdown(self) -> None:
        """Do nothing: streams are ended by the application."""


def _chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)
