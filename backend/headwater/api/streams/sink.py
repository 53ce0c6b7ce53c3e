"""Where a stream's pieces go, whatever carries them."""

from __future__ import annotations

from typing import Protocol

from starlette.types import Receive, Send

from headwater.api.streams.codings import IDENTITY, Piece
from headwater.api.streams.encoding import WireForm
from headwater.api.streams.negotiation import content_type

SLICE_BYTES = 64 * 1024
"""What is handed to the server at once. It keeps a copy of what the client has not taken yet."""


class GoneError(Exception):
    """The client left while something was sent."""


class Sink(Protocol):
    """One client's end of a stream. One piece at a time: `send` returns when there is room for the next. Whatever sends
    may raise GoneError."""

    async def open(self) -> None:
        """Before the first piece: from here on there is no status to give any more."""

    async def send(self, piece: Piece) -> int:
        """Returns the number of bytes that go out."""

    async def end(self) -> None:
        """The stream is whole: the client may connect again at once."""

    async def fail(self, error: Exception) -> None:
        """The stream is cut off after `open`, by an error. Waits a moment at most for a client that does not read."""

    async def gone(self) -> None:
        """Returns when the client has left."""


class HttpSink:
    """A body of an HTTP answer."""

    def __init__(self, form: WireForm, receive: Receive, send: Send) -> None:
        self._form = form
        self._receive = receive
        self._send = send
        self._wrapping = form.coding.open()
        self._head = self._wrapping.begin()

    async def open(self) -> None:
        headers = [
            (b"content-type", content_type(self._form.format).encode()),
            (b"x-accel-buffering", b"no"),
            (b"cache-control", b"no-store"),
        ]
        if self._form.coding is not IDENTITY:
            headers.append((b"content-encoding", self._form.coding.name.encode()))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send(self, piece: Piece) -> int:
        body = self._wrapping.wrap(piece)
        for start in range(0, len(body), SLICE_BYTES):
            head, self._head = self._head, b""
            await self._body(head + body[start : start + SLICE_BYTES])
        return len(body)

    async def end(self) -> None:
        last = self._head + self._wrapping.end()
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def fail(self, error: Exception) -> None:
        """Nothing: the server cuts a body off that was not ended."""

    async def gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _body(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
