"""Uvicorn's websocket protocol, with limits that connections from the open internet need.

Uvicorn itself limits the size of a message, and waits with sending while the peer does not read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable
from contextlib import suppress
from http import HTTPStatus

import uvicorn
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import DATA_OPCODES, Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

from headwater.api.errors import ApiError, GoneError
from headwater.api.http.connections import LimitedConfig, PieceBudget
from headwater.api.http.requests import MAX_BODY
from headwater.api.http.takeover import TakenConnection, offer
from headwater.api.tasks import Waiters

MAX_FIRST_MESSAGE = 64 * 1024
"""The most bytes of the first message, which contains the token: before it, a client may be anybody."""

MAX_MESSAGE = 2 * MAX_BODY
"""The most bytes of a later message, which may hold a whole request and its framing."""

MOST_FRAMES = 1024
"""The most frames of one message: empty frames add nothing to its size, but take memory."""

MOST_FIRST_FRAMES = 64
"""The most frames up to the end of the first message, pings and all."""

FRAMES_AT_ONCE = 32
"""The most frames of a connection that are parsed in one turn of the event loop."""

LINGER_SECONDS = 5.0
"""How long a closed connection waits for its peer to read the remaining data."""

LAST_SECONDS = 1.0
"""How long streams may take to send their end after the drain."""

_TOO_BIG = 1009
_POLICY = 1008
_PIECE = 64 * 1024  # bytes of a frame that count as another piece


class _Received(StreamReader):
    """What was received. The parser asks it before each frame, and waits when it has parsed enough for now."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = 0
        """How many frames may be parsed."""

    @property
    def waits(self) -> bool:
        """Whether there may be more frames."""
        return not self.frames and bool(self.buffer)

    def at_eof(self) -> Generator[None, None, bool]:
        while not self.frames:
            yield
        return (yield from super().at_eof())


class _Conversation(ServerProtocol):
    """Limits the first message of a client more than those that follow, and the frames that are parsed at once."""

    def __init__(self) -> None:
        super().__init__(max_size=MAX_FIRST_MESSAGE, logger=logging.getLogger("uvicorn.error"))
        self.reader: _Received = _Received()
        self.parser = self.parse()  # with this reader
        next(self.parser)
        self.pieces = 0.0  # of the frames that were parsed last
        self._first_frames: int | None = 0

    def recv_frame(self, frame: Frame) -> None:
        self.reader.frames -= 1
        self.pieces += 1 + len(frame.data) / _PIECE
        if self._first_frames is not None:
            self._first_frames += 1
            if self._first_frames > MOST_FIRST_FRAMES:
                raise ProtocolError("too many frames before the end of the first message")
        super().recv_frame(frame)
        if frame.fin and frame.opcode in DATA_OPCODES:
            self.max_message_size = MAX_MESSAGE
            self._first_frames = None


class _Queue:
    """Replaces asyncio.Queue in uvicorn, with the methods that it uses."""

    __slots__ = ("_held", "_more")

    def __init__(self) -> None:
        self._held: list[ASGIReceiveEvent] = []  # few, since reading pauses while there is one
        self._more = Waiters()

    def put_nowait(self, message: ASGIReceiveEvent) -> None:
        self._held.append(message)
        self._more.wake()

    def empty(self) -> bool:
        return not self._held

    def filled(self) -> asyncio.Future[None]:
        """A future that is done when the next message arrives."""
        return self._more.next()

    async def get(self) -> ASGIReceiveEvent:
        while not self._held:
            await self.filled()
        return self._held.pop(0)


class _Gate:
    """Replaces asyncio.Event in uvicorn, with the methods that it uses. It is set at first."""

    __slots__ = ("_opened", "_shut")

    def __init__(self) -> None:
        self._shut = False
        self._opened = Waiters()

    def is_set(self) -> bool:
        return not self._shut

    def set(self) -> None:
        self._shut = False
        self._opened.wake()

    def clear(self) -> None:
        self._shut = True

    async def wait(self) -> None:
        while self._shut:
            await self._opened.next()


class BoundedWebSocket(TakenConnection, WebSocketsSansIOProtocol):
    """One websocket connection, upgraded from HTTP. Once taken over, it stays open after its request, until
    `finish`."""

    __slots__ = ("_alive_at", "_held", "_pace", "_queue", "_taken", "_turn_due")
    config: LimitedConfig

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        TakenConnection.__init__(self)
        WebSocketsSansIOProtocol.__init__(self, config, server_state, app_state, _loop)
        self.conn: _Conversation = _Conversation()
        self.queue = self._queue = _Queue()  # type: ignore[assignment]  # with all that uvicorn uses
        self.writable = _Gate()  # type: ignore[assignment]  # likewise
        self._alive_at = 0.0  # when the peer last sent anything or took what waited, by the loop's time
        self._pace = PieceBudget(self.loop.time())
        self._held = False  # whether nothing is read until the frames that wait are parsed
        self._turn_due = False  # whether they are parsed once the application has taken the messages before them
        self._taken = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed()

    # after it was taken over

    def release(self) -> BoundedWebSocket:
        """Stay open after the request, and drop all references to it."""
        if self.disconnected:
            raise GoneError
        self._taken = True
        self.request.headers.clear()  # the parser keeps the request as long as the connection
        del self.scope, self.request, self.response
        self.__dict__ = dict(self.__dict__)  # half as large: it had grown for more attributes than it has
        return self

    async def next_message(self) -> bytes | str:
        """Wait for the next message. Raises GoneError when the connection is closed."""
        while self.queue.empty():
            await self._queue.filled()
        message = await self.receive()
        if message["type"] != "websocket.receive":
            raise GoneError
        content = message.get("bytes")
        return message.get("text") or "" if content is None else content

    @property
    def has_room(self) -> bool:
        """Whether `send_message` sends at once."""
        return self.writable.is_set()

    async def send_message(self, content: bytes) -> None:
        """Send a message once there is room. Raises GoneError when the connection is closed."""
        await self.writable.wait()
        self.write_messages([content])

    def write_messages(self, messages: Iterable[bytes]) -> None:
        """Send messages at once. Raises GoneError when the connection is closed."""
        if self.disconnected or self.close_sent:
            raise GoneError
        try:
            for each in messages:
                self.conn.send_binary(each)
        except InvalidState:
            raise GoneError from None
        self.transport.write(b"".join(self.conn.data_to_send()))

    async def close(self) -> None:
        if not self.disconnected and not self.close_sent:
            await self.send({"type": "websocket.close"})

    def finish(self) -> None:
        """Close the connection, after its last message."""
        if self.close_timer is None:
            self.transport.close()
        self._linger()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._note(ApiError(f"a websocket handshake was answered with {self.response.status_code}", code="HW_6029"))

    def handle_parser_exception(self) -> None:
        if not self.close_sent and self.conn.close_sent is not None:
            self._note(ApiError(f"a websocket was closed with code {self.conn.close_sent.code}", code="HW_6030"))
        super().handle_parser_exception()

    def _note(self, error: ApiError) -> None:
        self.config.limiter_at(self.server).refusals.note_refused(error, self.client[0] if self.client else None)

    async def run_asgi(self) -> None:
        """Run the application. Unlike uvicorn's method, this leaves a connection open that was taken over."""
        offer(self.scope, self.transport)
        try:
            await self.app(self.scope, self.receive, self.send)
        except ClientDisconnected:
            pass
        except BaseException:
            self.logger.exception("Exception in ASGI application\n")
        if not self._taken:
            self.send_500_response()  # does nothing if it was answered
            self.finish()

    def data_received(self, data: bytes) -> None:
        self._alive_at = self.loop.time()
        if self._held:
            self.conn.reader.feed_data(data)
        else:
            self._parse(data)

    def _parse(self, data: bytes = b"") -> None:
        """Parse what was received, as far as one turn and the connection's pace allow it."""
        self.conn.pieces, self.conn.reader.frames = 0.0, FRAMES_AT_ONCE
        super().data_received(data)
        now = self.loop.time()
        self._pace.spend(self.conn.pieces, now)
        pause = self._pace.pause(now, more=self.conn.reader.waits)
        self._held = not self.transport.is_closing() and (pause != 0 or self.conn.reader.waits)
        if not self._held:
            if not self.read_paused:
                self.transport.resume_reading()
        elif pause is None:
            self._fail(_POLICY, "too many frames")
        else:
            self.transport.pause_reading()
            self._go_on_after(pause)

    def _go_on_after(self, pause: float) -> None:
        if pause:
            self.loop.call_later(pause, self._go_on)
        else:
            self.config.turns.wait(self._go_on)

    def _go_on(self) -> None:
        if self.disconnected or self.transport.is_closing():
            return
        if self.read_paused:
            self._turn_due = True
        else:
            self._parse()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        if self._held and not self.read_paused:
            self.transport.pause_reading()  # which uvicorn has just resumed
            if self._turn_due:
                self._turn_due = False
                self._go_on_after(0)
        return message

    def _fail(self, code: int, reason: str) -> None:
        """Close the connection, since the peer sends what it must not."""
        if self.close_sent or self.conn.close_rcvd is not None:
            self._abort()
            return
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        self._linger()

    def resume_writing(self) -> None:
        self._alive_at = self.loop.time()
        super().resume_writing()

    def keepalive_timeout(self) -> None:
        """Close the connection, unless its peer is alive: on a slow line, the ping waits behind what was sent before,
        and a peer that reads slowly answers late."""
        assert self.ping_timeout is not None
        left = max(self.ping_sent_at, self._alive_at) + self.ping_timeout - self.loop.time()
        if left > 0:
            self.pong_timer = self.loop.call_later(left, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._linger()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        self._linger()

    def _linger(self) -> None:
        """Abort the connection if it is still closing after LINGER_SECONDS. A closing transport waits without limit for
        its peer to read the remaining data."""
        if self.transport.is_closing() and not self.disconnected:
            self.loop.call_later(LINGER_SECONDS, self._abort)

    def _abort(self) -> None:
        if not self.disconnected:
            self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        with suppress(InvalidState):  # a text that is none came with a close, and needs no other one
            super().send_receive_event_to_app()

    async def send(self, message: ASGISendEvent) -> None:
        if self.close_sent:  # for what the peer did; the application has not heard of it yet
            raise ClientDisconnected
        await super().send(message)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:  # the peer does not read, so drop the pong: pongs would pile up in memory
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < MOST_FRAMES:
            super().handle_cont(event)
            return
        self._fail(_TOO_BIG, "too many frames")

    def shutdown(self) -> None:
        """Close the connection after the drain. Until then its streams end by themselves."""
        drain = self.config.limiter.limits.drain_seconds + LAST_SECONDS
        self.loop.call_later(drain if self.handshake_complete else 0, self._end)

    def _end(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()
