"""Uvicorn's HTTP protocol, with limits on size and time that connections from the open internet need.

Uvicorn's parser buffers incomplete input without a limit, and uvicorn has no timeout for receiving a request. This
class counts the bytes, and runs a timer from the first byte of a request to the last byte of its body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from http import HTTPStatus

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headwater.api.error_answers import error_response
from headwater.api.errors import ApiError, GoneError
from headwater.api.http.connections import ConnectionLimiter, LimitedConfig, PieceBudget
from headwater.api.http.takeover import StreamingResponseProtocol, TakenConnection, offer
from headwater.api.http.websocket import BoundedWebSocket
from headwater.api.limits import HttpLimits

MOST_AHEAD = 16
"""The most pipelined requests that may wait on a connection for the answer to an earlier one."""

LEAST_RATE = 10_000
"""Bytes per second. A body that arrives at least this fast may take longer than `body_seconds`."""

LINGER_SECONDS = 2.0
"""How long input of a refused client is read and discarded. Closing the connection at once, with unread input, would
reset it before the client has the answer."""

MOST_CALLS = 256
"""The most calls of the parser after which a connection waits for another turn of the event loop."""

SMALL = 256
"""Bytes. Smaller parts of a body are pieces that are counted: each costs as much as one of 64 KB."""

_SLICE = 4 * 1024  # bytes that are parsed before the calls are counted again
_UNREAD_PIECE = 64 * 1024  # bytes that count as a piece where nobody reads the body
_NEXT_TURN = 0.001  # seconds: a timer of the event loop's next turn, which comes after reading
_BODY_AHEAD = 64 * 1024  # bytes that are buffered of the body of a pipelined request
_OVERHEAD = 8  # bytes of chunk headers that are allowed for each byte of a body
_FIELD_OVERHEAD = 4  # bytes of ": " and the line break


class _Reading(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


@dataclass(slots=True)
class _Received:
    """What was received of the request that is being read."""

    began: float  # when its body began
    state: _Reading = _Reading.NOTHING
    stopped: ApiError | None = None  # why it is not read any further
    head: int = 0  # bytes of the headers that were parsed
    fields: int = 0
    hosts: int = 0
    body: int = 0
    overhead: int = 0  # bytes beyond the body and what _OVERHEAD allows for it


class _Flow(FlowControl):
    """Reads while uvicorn wants to, unless something that was received waits to be parsed."""

    def __init__(self, transport: asyncio.Transport, now: float) -> None:
        super().__init__(transport)
        self._plain = transport
        self.held = False
        self.unparsed = memoryview(b"")
        self.calls = 0  # of the parser, in this turn
        self.pace = PieceBudget(now)

    def resume_reading(self) -> None:
        super().resume_reading()
        if self.held:
            self._plain.pause_reading()

    def hold(self) -> None:
        """Read nothing until `release`."""
        self.held = True
        self._plain.pause_reading()

    def release(self) -> None:
        if self.held:
            self.held = False
            if not self.read_paused:
                self._plain.resume_reading()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. A test of its own checks the methods of uvicorn that this class overrides or calls."""

    config: LimitedConfig
    flow: _Flow
    _limiter: ConnectionLimiter
    _received: _Received
    _running: RequestResponseCycle | None = None
    _leave: Callable[[], None] | None = None  # releases the limits
    _clock: asyncio.TimerHandle | None = None
    _over = False

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        # Not uvicorn's own method: it makes two Python sockets for each connection, only to learn its addresses
        self.connections.add(self)
        self.transport = transport
        self.flow = _Flow(transport, self.loop.time())
        self._received = _Received(self.loop.time())
        self.server, self.client = _address(transport, "sockname"), _address(transport, "peername")
        self.scheme = "http"
        host = self.client[0] if self.client else ""
        self._limiter = self.config.limiter_at(self.server)
        try:
            key = self._limiter.enter(host)
        except ApiError as error:
            self._over = True
            self._limiter.refusals.note_refused(error, host)
            transport.write(answer(error))
            transport.close()
            return
        self._leave = partial(self._limiter.leave, key)
        self._start_clock(self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._stop_clock()
        if self._leave is not None:
            self._leave()
        self._notify_gone()  # uvicorn notifies only the last request, which may be waiting behind another
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._clock is None and not self._answering:
            self._start_clock(self._limits.header_seconds)
        self.flow.unparsed = memoryview(bytes(self.flow.unparsed) + data if self.flow.unparsed else data)
        if not self.flow.held:
            self._parse()

    def _parse(self) -> None:
        """Parse what was received, as far as one turn and the connection's pace allow it."""
        self.flow.calls = 0
        while self.flow.unparsed and self.flow.calls < MOST_CALLS and not self._over:
            part, self.flow.unparsed = self.flow.unparsed[:_SLICE], self.flow.unparsed[_SLICE:]
            self._feed(part)
        now = self.loop.time()
        pause = 0.0 if self._over else self.flow.pace.pause(now, more=bool(self.flow.unparsed))
        if pause is None:
            self._refuse(ApiError("the body comes in too many small chunks", fix="send larger ones", code="HW_6032"))
        if self._over or not (pause or self.flow.unparsed):
            self.flow.unparsed = memoryview(b"")
            self.flow.release()
            return
        self.flow.hold()
        if pause:
            self.loop.call_later(pause, self._parse)
        else:
            self.config.turns.wait(self._parse)

    def _feed(self, part: memoryview) -> None:
        before = self._received
        super().data_received(part)  # type: ignore[arg-type]  # which the parser takes as well
        if self._received is before:  # otherwise it is unknown how much of the data belongs to the previous request
            self._received.overhead += len(part)
        if self._received.overhead > self._limits.max_header_bytes + self._limits.max_url_bytes and not self._over:
            self._refuse(self._headers_too_large())

    def release(self) -> StreamingResponseProtocol:
        """Give the connection away for the rest of the current answer, whose head was sent. Pipelined requests are not
        answered. Raises GoneError when the client has disconnected or was refused."""
        if self._over or self._running is None or self.transport.is_closing():
            raise GoneError
        self._over = self._running.response_complete = True
        self._stop_clock()
        self.pipeline.clear()
        self.flow.unparsed = memoryview(b"")
        self.flow.release()
        self.flow.resume_reading()
        self.connections.discard(self)
        body = StreamingResponseProtocol(self.transport, self.server_state, full=self.flow.write_paused)
        self._replace_by(body)
        self.transport.set_protocol(body)
        return body

    # callbacks of the parser; an error raised here leads to send_400_response

    def on_message_begin(self) -> None:
        self.flow.calls += 1
        self._received = _Received(self.loop.time(), _Reading.HEAD)
        self._start_clock(self._limits.header_seconds)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self._limits.max_url_bytes:
            raise self._stop(ApiError(f"the address is longer than {self._limits.max_url_bytes} bytes", code="HW_6023"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.flow.calls += 1
        received, limits = self._received, self._limits
        received.head += len(name) + len(value) + _FIELD_OVERHEAD
        received.fields += 1
        if received.head > limits.max_header_bytes or received.fields > limits.max_header_fields:
            raise self._stop(self._headers_too_large())
        if received.state is _Reading.HEAD:  # after a body they are trailers, which are ignored
            received.hosts += name.lower() == b"host"
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MOST_AHEAD:
            raise self._stop(ApiError(f"more than {MOST_AHEAD} requests wait on this connection", code="HW_6027"))
        if self._received.hosts > 1 or (self._received.hosts == 0 and self.parser.get_http_version() != "1.0"):
            # two proxies could take such a request for one of different hosts
            raise self._stop(ApiError("the request needs one Host header", fix="send exactly one", code="HW_6021"))
        super().on_headers_complete()
        self._received.state = _Reading.BODY
        self._received.overhead = 0
        self._received.began = self.loop.time()
        self._start_clock(self._limits.body_seconds)

    def on_body(self, body: bytes) -> None:
        self.flow.calls += 1
        if len(body) < SMALL and self._received.body:  # the first part may be a whole body, which is small
            self.flow.pace.spend(1, self.loop.time())
        elif not self._answering:
            self.flow.pace.spend(len(body) / _UNREAD_PIECE, self.loop.time())
        self._received.body += len(body)
        self._received.overhead -= len(body) * (1 + _OVERHEAD)
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > _BODY_AHEAD:
            raise self._stop(
                ApiError(f"more than {_BODY_AHEAD} bytes of a body wait on this connection", code="HW_6027")
            )

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._received.state = _Reading.NOTHING
        self._stop_clock()

    # answers

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._received.stopped or ApiError("the request is not HTTP/1.1", code="HW_6021"))

    def handle_websocket_upgrade(self) -> None:
        self._over = True
        self._stop_clock()
        if self._answering:
            self._end()
            return
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, BoundedWebSocket)
        self._replace_by(protocol)
        if not protocol.handshake_initiated:  # its parser refuses headers of 8 KB without an answer
            error = self._headers_too_large()
            self._limiter.refusals.note_refused(error, self.client[0] if self.client else None)
            self.transport.write(answer(error))
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        offer(cycle.scope, self.transport)
        super()._start_asgi_task(cycle, app)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a client that offers an upgrade to HTTP/2 is answered in HTTP/1.1."""

    @property
    def _limits(self) -> HttpLimits:
        return self._limiter.limits

    @property
    def _answering(self) -> bool:
        return bool(self.cycle and not self.cycle.response_complete)

    def _stop(self, error: ApiError) -> ApiError:
        self._received.stopped = error
        return error

    def _headers_too_large(self) -> ApiError:
        limits = self._limits
        what = f"the headers are longer than {limits.max_header_bytes} bytes, or more than {limits.max_header_fields}"
        return ApiError(what, fix="send fewer and shorter ones", code="HW_6022")

    def _refuse(self, error: ApiError) -> None:
        """Refuse the request that is being read, and end the connection. The error is sent only when no earlier request
        still waits for its answer, and no answer has begun."""
        answered = self._answering and self.cycle.response_started
        if self._received.state is _Reading.BODY:
            unanswered = self._answering and not answered and not self.pipeline
        else:
            unanswered = not self._answering
        self._limiter.refusals.note_refused(error, self.client[0] if self.client else None)
        if unanswered:
            self.transport.write(answer(error))
        self._end()

    def _end(self) -> None:
        self._over = True
        self._unset_keepalive_if_required()
        self._notify_gone()
        self.flow.release()
        self.flow.resume_reading()
        self.flow.resume_writing()
        if not self.transport.is_closing():
            self.transport.write_eof()
        self._start_clock(LINGER_SECONDS)

    def _notify_gone(self) -> None:
        """Tell the application that the client has disconnected."""
        self.pipeline.clear()
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()

    def _replace_by(self, other: TakenConnection) -> None:
        """Have the protocol that takes over release the limits of this connection."""
        if self._leave is not None:
            other.on_close(self._leave)
            self._leave = None
        self.parser = None  # type: ignore[assignment]  # breaks a reference cycle, so that both are freed at once

    # the timer

    def _start_clock(self, seconds: float) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(seconds, self._time_may_be_over)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_may_be_over(self) -> None:
        """Look again after the next reading: while this process was busy, more may have arrived."""
        self._clock = self.loop.call_later(_NEXT_TURN, self._time_is_over)

    def _time_is_over(self) -> None:
        self._clock = None
        if self._over:
            self.transport.abort()
        elif self._received.state is _Reading.NOTHING:
            if not self._answering:
                self.transport.close()
        elif self.flow.read_paused or self.flow.held or self._goes_on():
            self._start_clock(1.0)
        else:
            part = "headers" if self._received.state is _Reading.HEAD else "body"
            self._refuse(ApiError(f"the request's {part} did not arrive in time", code="HW_6024"))

    def _goes_on(self) -> bool:
        if self._received.state is not _Reading.BODY:
            return False
        return self._received.body >= LEAST_RATE * (self.loop.time() - self._received.began)


def _address(transport: asyncio.Transport, end: str) -> tuple[str, int] | None:
    """The address of one end of a TCP connection, `sockname` or `peername`; None on a Unix socket."""
    known = transport.get_extra_info(end)
    return (str(known[0]), int(known[1])) if isinstance(known, tuple) else None


def answer(error: ApiError) -> bytes:
    """The answer that the application would give to this error, with CORS headers, and `Connection: close`."""
    response = error_response(error)
    headers = [*response.raw_headers, (b"access-control-allow-origin", b"*"), (b"connection", b"close")]
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += (name + b": " + value for name, value in headers)
    return b"\r\n".join([*lines, b"", bytes(response.body)])
