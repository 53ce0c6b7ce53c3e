"""Sends the pieces of a stream to its client, over HTTP or another transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from starlette.types import Scope, Send

from headwater.api.http.endless import EndlessBody
from headwater.api.http.handover import take_over
from headwater.api.streams.codings import IDENTITY, Piece
from headwater.api.streams.encoding import WireForm
from headwater.api.streams.negotiation import content_type

SLICE_BYTES = 64 * 1024
"""How much is handed to the server at once. The server keeps a copy of what the client has not read yet."""


class Sink(Protocol):
    """Sends a stream to one client. `send` returns when there is room for the next piece. All methods that send may
    raise GoneError."""

    @property
    def taken_at(self) -> float:
        """When the client last read something of what is being sent, by time.monotonic()."""

    async def open(self) -> None:
        """Begin the answer. From here on, no error status can be sent."""

    async def send(self, piece: Piece) -> int:
        """Send a piece. Returns the number of bytes sent."""

    def offer(self, piece: Piece) -> int | None:
        """Send a small piece now, if there is room for it. Returns the number of bytes sent, None when nothing was."""

    async def end(self) -> None:
        """End the stream normally; the client may connect again at once."""

    async def expire(self) -> None:
        """End the stream because its token has expired; the client needs another one."""

    async def fail(self, error: Exception) -> None:
        """Cut the stream off after `open`, because of an error. Waits only a moment for a client that does not read."""

    def stop(self) -> None:
        """Do not wait for the client to ask for more: `send` leaves out the lines that it has not asked for."""

    def when_gone(self, then: Callable[[], None]) -> None:
        """Call `then` when the client disconnects, before `open` or after it."""


class HttpSink:
    """Sends a stream as the body of an HTTP answer. `open` takes the connection over from the request. `opened` is done
    when the head of the answer was sent, or when the stream ended before that, with its error."""

    __slots__ = (
        "_body", "_form", "_head", "_left", "_scope", "_send", "_taken", "_then", "_wrapping", "opened", "taken_at",
    )  # fmt: skip

    _body: EndlessBody

    def __init__(self, form: WireForm, scope: Scope, send: Send) -> None:
        self._form = form
        self._scope = scope
        self._send = send
        self._wrapping = form.coding.open()
        self._head = self._wrapping.begin()
        self._taken = False
        self._left = False
        self._then: Callable[[], None] | None = None
        self.taken_at = 0.0
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        headers = [
            (b"content-type", content_type(self._form.format).encode()),
            (b"x-accel-buffering", b"no"),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        if self._form.coding is not IDENTITY:
            headers.append((b"content-encoding", self._form.coding.name.encode()))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._body = take_over(self._scope, EndlessBody)
        self._taken = True
        del self._send, self._scope
        if self._then is not None:
            self._body.when_lost(self._then)
            self._then = None
        if not self.opened.done():  # cancelled with its request
            self.opened.set_result(None)

    async def send(self, piece: Piece) -> int:
        body = self._wrapping.wrap(piece)
        for start in range(0, len(body), SLICE_BYTES):
            head, self._head = self._head, b""
            await self._body.send(head + body[start : start + SLICE_BYTES])
            self.taken_at = time.monotonic()
        return len(body)

    def offer(self, piece: Piece) -> int | None:
        if len(piece) > SLICE_BYTES or not self._body.has_room:
            return None
        body = self._wrapping.wrap(piece)
        head, self._head = self._head, b""
        self._body.write(head + body)
        self.taken_at = time.monotonic()
        return len(body)

    async def end(self) -> None:
        last = self._head + self._wrapping.end()
        if last:
            await self._body.send(last)
        await self._body.end()

    async def expire(self) -> None:
        await self.end()

    async def fail(self, error: Exception) -> None:
        """Close the connection. The client notices that the body is incomplete."""
        self.close()

    def stop(self) -> None:
        """Do nothing: what waits is at most one batch, and only the client's reading makes room for it."""

    def when_gone(self, then: Callable[[], None]) -> None:
        if self._left:
            then()
        else:
            self._then = then

    def leave(self) -> None:
        """Note that the client has disconnected before `open`."""
        self._left = True
        if self._then is not None:
            self._then()

    def close(self) -> None:
        """Close the connection, whatever was sent."""
        if self._taken:
            self._body.close()

    def over(self, stream: asyncio.Task[None]) -> None:
        """The stream's task has ended: close the connection, or tell the request why nothing was sent."""
        self.close()
        if self.opened.done():
            return
        error = asyncio.CancelledError() if stream.cancelled() else stream.exception()
        if error is None:
            self.opened.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            self.opened.cancel()
        else:
            self.opened.set_exception(error)
