"""Sends one stream of an RSocket connection, within the client's credit."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator

from headwater.api.auth.errors import TokenExpiredError
from headwater.api.error_answers import UNEXPECTED_CODE, error_details
from headwater.api.rsocket.frames import MAX_CREDIT, ErrorCode, complete, error, payload
from headwater.api.streams.encoding import EncodedPiece
from headwater.api.tasks import Waiters

LAST_SECONDS = 1.0
"""How long sending the end of a stream waits for a client that does not read."""

FRAGMENT_BYTES = 64 * 1024
"""The most bytes of a payload in one frame. The transport keeps a copy of what the client has not read yet."""

SendFrame = Callable[[bytes], Awaitable[None]]
OfferFrames = Callable[[Iterable[bytes]], bool]


class RSocketSink:
    """Sends BSON documents, each as one payload. Sends no more of them than the client has requested. `offer` sends
    frames at once, or returns False; `abort` ends the connection."""

    __slots__ = (
        "_abort", "_credit", "_left", "_more", "_offer", "_send", "_stopped", "_stream", "_then", "is_open",
        "sent_bytes", "waits_since",
    )  # fmt: skip

    def __init__(
        self, stream: int, credit: int, send: SendFrame, offer: OfferFrames, abort: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._credit = credit
        self._send = send
        self._offer = offer
        self._abort = abort
        self._more = Waiters()
        self._left = False
        self._stopped = False
        self._then: Callable[[], None] | None = None
        self.is_open = False
        self.sent_bytes = 0
        self.waits_since: float | None = None

    def add_credit(self, credit: int) -> None:
        self._credit = min(self._credit + credit, MAX_CREDIT)
        self._more.wake()

    def leave(self) -> None:
        """Note that the client has left the stream."""
        self._left = True
        if self._then is not None:
            self._then()

    async def open(self) -> None:
        """Send nothing: RSocket has no head before the first payload."""
        self.is_open = True

    async def send(self, piece: EncodedPiece) -> int:
        sent = 0
        for document in documents(piece.content):
            self.waits_since = time.monotonic()
            if not await self._take_credit():
                break
            sent += len(document)
            for start in range(0, len(document), FRAGMENT_BYTES):
                end = start + FRAGMENT_BYTES
                await self._send(payload(self._stream, document[start:end], follows=end < len(document)))
                self.waits_since = time.monotonic()
                if end < len(document):
                    await asyncio.sleep(0)  # while there is room, nobody else would have a turn
        self.waits_since = None
        self.sent_bytes += sent
        return sent

    def offer(self, piece: EncodedPiece) -> int | None:
        if len(piece) > FRAGMENT_BYTES:
            return None
        frames = [payload(self._stream, each, follows=False) for each in documents(piece.content)]
        if len(frames) > self._credit or not self._offer(frames):
            return None
        if self._credit < MAX_CREDIT:
            self._credit -= len(frames)
        self.sent_bytes += len(piece)
        return len(piece)

    async def end(self) -> None:
        await self._send(complete(self._stream))

    async def expire(self) -> None:
        """End with an error. The stock SDKs drop what they have not handled yet when a stream completes, and so would
        often miss the line that says that the token has expired, and connect with the same token again."""
        await self.fail(TokenExpiredError("the token has expired", fix="fetch a new one"))

    async def fail(self, failure: Exception) -> None:
        last = error(self._stream, ErrorCode.APPLICATION_ERROR, message_of(failure))
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._send(last)
        except TimeoutError:
            self._abort()  # without the error frame, the client would wait forever

    def stop(self) -> None:
        self._stopped = True
        self._more.wake()

    def on_disconnect(self, then: Callable[[], None]) -> None:
        self._then = then
        if self._left:
            then()

    async def _take_credit(self) -> bool:
        """Wait for credit for one payload, and take it. Returns False when there is none and sending was stopped."""
        while self._credit == 0:
            if self._stopped:
                return False
            await self._more.next()
        if self._credit < MAX_CREDIT:
            self._credit -= 1
        return True


def message_of(failure: Exception) -> str:
    """The text of an error for clients, which look for its code in brackets. At an error without a published code the
    stock SDKs drop their credentials, so each code of our own has one beside it."""
    known = error_details(failure)
    code = known.code if known.code.startswith("PSYNC_") else f"{known.code}, {UNEXPECTED_CODE}"
    return f"[{code}] {known.description}" + (f"\n  {known.details}" if known.details else "")


def documents(content: bytes) -> Iterator[memoryview]:
    """Split joined BSON documents, without a copy: many streams share the content."""
    view, start = memoryview(content), 0
    while start < len(content):
        end = start + struct.unpack_from("<i", content, start)[0]
        yield view[start:end]
        start = end
