"""One RSocket connection over a websocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import bson
import orjson
from bson.errors import BSONError
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from headwater.api.auth.verify import Principal, Verifier
from headwater.api.error_answers import error_details
from headwater.api.errors import ApiError, GoneError
from headwater.api.http.requests import RequestName, name_of
from headwater.api.http.takeover import take_over
from headwater.api.http.websocket import BoundedWebSocket
from headwater.api.refusals import Refusals, facts_of
from headwater.api.rsocket.frames import (
    CONNECTION,
    Cancel,
    ErrorCode,
    Flag,
    Fragment,
    Frame,
    FrameError,
    Keepalive,
    RequestMore,
    RequestStream,
    Setup,
    error,
    keepalive,
    read_frame,
)
from headwater.api.rsocket.sink import LAST_SECONDS, RSocketSink, message_of
from headwater.api.streams.encoding import IDENTITY, WireForm
from headwater.api.streams.service import MAX_AGENT, Opening, Streams
from headwater.api.streams.stream import ClientInfo
from headwater.api.tasks import Tasks
from headwater.errors import HeadwaterError
from headwater.sync.formats import Bson
from headwater.sync.request import (
    BodyLimits,
    InvalidRequestError,
    StreamRequest,
    parse_stream_request,
    stream_request,
)

SETUP_SECONDS = 10.0
"""How long a client may take for its first frame."""

LONGEST_LIFETIME = 300.0
"""How long a silent connection stays open, whatever the client requests, in seconds."""

MOST_STREAMS = 4
"""The most streams of one connection. Clients have one."""

IDLE_SECONDS = 30.0
"""How long a connection stays open without a stream. Clients open one for each stream."""

MAX_REQUEST = 1024 * 1024
"""The most bytes of all requests of a connection whose streams have not begun, in all their fragments together."""

REQUEST_SECONDS = 30.0
"""How long the fragments of a request may take to arrive."""

MOST_MARKS = 1000
"""The most characters of the metadata of a frame that may begin a value. That of the SDKs has two or three values."""

PATH = "/sync/stream"

_JSON, _BSON = "application/json", "application/bson"
_FORM = WireForm(Bson(), IDENTITY)

log = logging.getLogger(__name__)


class UnsupportedSetupError(ApiError):
    """The client asks for an RSocket feature or media type that is not supported."""

    code = "PSYNC_S2004"


@dataclass(slots=True)
class _Stream:
    """A stream that runs, or whose request is still arriving in fragments."""

    sink: RSocketSink
    metadata: bytearray
    data: bytearray
    task: asyncio.Task[None] | None = None
    deadline: asyncio.TimerHandle | None = None  # for the rest of the request

    def stop_waiting(self) -> None:
        """Wait no longer for the rest of the request."""
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def drop_request(self) -> None:
        """Free what has arrived of the request, and wait for no more."""
        self.stop_waiting()
        self.metadata.clear()
        self.data.clear()


@dataclass(frozen=True, slots=True)
class _SetupResult:
    """Who the client is, and the media types of its metadata and data."""

    user: Principal
    user_agent: str | None
    types: tuple[str, str]


@dataclass(slots=True)
class Connection:
    """Reads the client's frames and runs its streams. `facts` describe the client for the log."""

    websocket: BoundedWebSocket
    request: RequestName
    facts: Mapping[str, object]
    verifier: Verifier
    streams: Streams
    refusals: Refusals
    _open: dict[int, _Stream] = field(default_factory=dict)
    _client: _SetupResult | None = None
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _answering: asyncio.Task[None] | None = None
    _task: asyncio.Task[object] | None = None
    _admitted: bool = False
    _idle_since: float = 0.0

    async def run(self) -> None:
        """Serve until the client disconnects, breaks the protocol, or can't be sent the end of a stream."""
        self._task = asyncio.current_task()
        try:
            lifetime = await self._set_up()
            if lifetime is not None:
                self._rest()
                await self._read(lifetime)
        except GoneError:
            pass
        except Exception:
            log.exception("a websocket failed")
        finally:
            try:
                await self._close()
            finally:
                self.websocket.finish()

    def _abort(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _rest(self) -> None:
        """Note that no stream is open from now on."""
        self._idle_since = asyncio.get_running_loop().time()

    @property
    def _is_unused(self) -> bool:
        """Whether no stream has been open for IDLE_SECONDS."""
        return not self._open and asyncio.get_running_loop().time() >= self._idle_since + IDLE_SECONDS

    async def _set_up(self) -> float | None:
        """Read the SETUP frame. Returns the lifetime of the silent connection in seconds; None when it was refused."""
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                frame = _frame_in(await self.websocket.next_message())
            if not isinstance(frame, Setup):
                raise FrameError("the first frame must be SETUP")
            await self._admit(frame)
        except TimeoutError:
            await self._end(ErrorCode.INVALID_SETUP, "the client sent no SETUP frame in time")
        except FrameError as failure:
            await self._end(ErrorCode.INVALID_SETUP, str(failure))
        except UnsupportedSetupError as failure:
            self._note(failure)
            await self._refuse(ErrorCode.UNSUPPORTED_SETUP, message_of(failure))
        except HeadwaterError as failure:
            self._note(failure)
            await self._refuse(ErrorCode.REJECTED_SETUP, message_of(failure))
        else:
            return min(max(frame.lifetime, SETUP_SECONDS), LONGEST_LIFETIME)
        return None

    async def _admit(self, setup: Setup) -> None:
        if setup.flags & (Flag.RESUME | Flag.LEASE):
            raise UnsupportedSetupError("resuming and leases are not supported", fix="set up without them")
        if {setup.metadata_type, setup.data_type} - {_JSON, _BSON}:
            raise UnsupportedSetupError("the media type is not supported", fix=f"use {_JSON}")
        fields = _few_fields(setup.metadata, setup.metadata_type)
        token, agent = fields.get("token"), fields.get("user_agent") or self.facts.get("user_agent")
        user = await self.verifier.authorize(token if isinstance(token, str) else None)
        agent = agent[:MAX_AGENT] if isinstance(agent, str) else None
        self._client = _SetupResult(user, agent, (setup.metadata_type, setup.data_type))
        self.streams.raise_unless_admitted(user.user_id)
        self.streams.websockets.take(user.user_id)
        self._admitted = True

    async def _read(self, lifetime: float) -> None:
        while not self._is_unused:
            try:
                async with asyncio.timeout(lifetime if self._open else min(lifetime, IDLE_SECONDS)):
                    frame = _frame_in(await self.websocket.next_message())
                await self._take(frame)
                del frame  # it may be large, and the next one may be long in coming
            except TimeoutError:
                if not self._is_unused:
                    return await self._end(ErrorCode.CONNECTION_ERROR, "the client was silent for too long")
            except FrameError as failure:
                return await self._end(ErrorCode.CONNECTION_ERROR, str(failure))
        return await self._refuse(ErrorCode.CONNECTION_CLOSE, "the connection has no stream")

    async def _take(self, frame: Frame | None) -> None:
        match frame:
            case Keepalive(answer_wanted=True, data=data):
                await self._answer(keepalive(data))
            case RequestStream():
                await self._begin(frame)
            case Fragment(stream=number) if number in self._open:
                self._extend(number, frame)
            case RequestMore(stream=number, credit=credit) if number in self._open:
                self._open[number].sink.add_credit(credit)
            case Cancel(stream=number) if number in self._open:
                self._cancel(number)
            case Setup():
                raise FrameError("the client sent SETUP a second time")
            case _:
                pass  # nothing, or of a stream that has ended

    def _cancel(self, number: int) -> None:
        stream = self._open[number]
        stream.sink.leave()
        if stream.task is None:
            stream.drop_request()
            del self._open[number]
            self._rest()

    async def _answer(self, answer: bytes) -> None:
        """Send the answer to a keepalive. While the client reads nothing, one answer waits by itself, and later ones
        are dropped: what the client sends has to be read on, or its pongs and cancels would wait, too."""
        if not self._sending.locked() and self.websocket.has_room:
            await self._send(answer)
        elif self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer_later(answer))

    async def _answer_later(self, answer: bytes) -> None:
        with suppress(GoneError):
            await self._send(answer)

    async def _begin(self, request: RequestStream) -> None:
        if request.stream == CONNECTION or request.stream in self._open:
            raise FrameError("the client requested a stream with an id that is in use")
        if len(self._open) >= MOST_STREAMS:
            refused = error(request.stream, ErrorCode.REJECTED, f"this connection already has {MOST_STREAMS} streams")
            return await self._send(refused)
        sink = RSocketSink(request.stream, request.credit, self._send, self._offer, self._abort)
        stream = _Stream(sink, bytearray(request.metadata), bytearray(request.data))
        self._open[request.stream] = stream
        self._bound()
        if request.follows:
            stream.deadline = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self._abort)
        else:
            self._start(request.stream, stream)
        return None

    def _bound(self) -> None:
        """Raise FrameError when requests that have not begun are too large together."""
        if sum(len(each.metadata) + len(each.data) for each in self._open.values()) > MAX_REQUEST:
            raise FrameError(f"requests are larger than {MAX_REQUEST} bytes in all")

    def _extend(self, number: int, fragment: Fragment) -> None:
        stream = self._open[number]
        if stream.task is not None:
            raise FrameError("the client sent a fragment after the end of its request")
        stream.metadata += fragment.metadata
        stream.data += fragment.data
        self._bound()
        if not fragment.follows:
            self._start(number, stream)

    def _start(self, number: int, stream: _Stream) -> None:
        stream.stop_waiting()
        stream.task = asyncio.create_task(self._serve(number, stream))

    async def _serve(self, number: int, stream: _Stream) -> None:
        try:
            await self.streams.serve(await self._opening(stream), stream.sink)
        except GoneError:
            pass
        except Exception as failure:
            if isinstance(failure, HeadwaterError):
                self._note(failure)
            else:
                log.exception("a stream failed")
            with suppress(GoneError):
                await stream.sink.fail(failure)
        finally:
            self._open.pop(number, None)
            self._rest()

    async def _opening(self, stream: _Stream) -> Opening:
        assert self._client is not None
        user, (metadata_type, data_type) = self._client.user, self._client.types
        metadata, data = bytes(stream.metadata), bytes(stream.data)
        stream.drop_request()
        if _few_fields(metadata, metadata_type).get("path") != PATH:
            raise ApiError("there is no stream at this path", fix=f"request {PATH}", code="PSYNC_S2002")
        parse = partial(parse_stream_request if data_type == _JSON else _request_in, limits=self.streams.body_limits)
        body = await self.streams.parsing.parsed(user.user_id, data, parse)
        agent = self._client.user_agent
        return Opening(body, ClientInfo(user, body.client_id, agent, body.app_metadata, self.request), _FORM)

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            await self.websocket.send_message(frame)

    def _offer(self, frames: Iterable[bytes]) -> bool:
        """Send frames now, if nothing else waits to be sent. Returns whether they were."""
        if self._sending.locked() or not self.websocket.has_room:
            return False
        try:
            self.websocket.write_messages(frames)
        except GoneError:
            return False  # the stream finds that out by itself
        return True

    async def _end(self, code: ErrorCode, message: str) -> None:
        """Log a breach of the protocol, and end the connection."""
        self._note(ApiError(message, code="HW_6028"))
        await self._refuse(code, message)

    async def _refuse(self, code: ErrorCode, message: str) -> None:
        with suppress(GoneError, TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self._send(error(CONNECTION, code, message))
                await self.websocket.close()

    def _note(self, failure: HeadwaterError) -> None:
        user = None if self._client is None else self._client.user.user_id
        facts = {"status": error_details(failure).status, "reason": failure.what, **self.facts}
        self.refusals.note(failure.code, user, "request refused", facts)

    async def _close(self) -> None:
        tasks = [stream.task for stream in self._open.values() if stream.task is not None]
        if self._answering is not None:
            self._answering.cancel()
            tasks.append(self._answering)
        for stream in self._open.values():
            stream.sink.leave()
            if stream.task is None:
                stream.drop_request()
        if self._admitted and self._client is not None:
            self.streams.websockets.release(self._client.user.user_id)
        if tasks:
            await asyncio.wait(tasks)


def _frame_in(message: bytes | str) -> Frame | None:
    if isinstance(message, str):
        raise FrameError("the client sent a text message, but frames are binary")
    return read_frame(message)


def _request_in(content: bytes, limits: BodyLimits) -> StreamRequest:
    return stream_request(_fields(content, _BSON), limits)


def _few_fields(content: bytes, media_type: str) -> Mapping[str, object]:
    """Decode an object of few values, at once: the client may be anybody. Raises InvalidRequestError."""
    # each element of BSON has a name that ends with NUL
    marks = b"\0" if media_type == _BSON else b",[{"
    if sum(content.count(mark) for mark in marks) > MOST_MARKS:
        raise InvalidRequestError("the metadata has too many values", "metadata", "send what the SDKs send")
    return _fields(content, media_type)


def _fields(content: bytes, media_type: str) -> Mapping[str, object]:
    """Decode an object; empty when there is no content. Raises InvalidRequestError."""
    if not content:
        return {}
    try:
        found = orjson.loads(content) if media_type == _JSON else _decoded(content)
    except ValueError as failure:
        raise InvalidRequestError("the metadata can't be read", "metadata", f"send it as {media_type}") from failure
    if not isinstance(found, dict):
        raise InvalidRequestError("the metadata is not an object", "metadata", "send an object")
    return found


def _decoded(content: bytes) -> object:
    try:
        return bson.decode(content)
    except BSONError as failure:
        raise ValueError from failure


class RSocketEndpoint:
    """The ASGI endpoint. A connection goes on in a task of its own when its request is over."""

    def __init__(self, streams: Streams, verifier: Verifier, refusals: Refusals, tasks: Tasks) -> None:
        self._streams = streams
        self._verifier = verifier
        self._refusals = refusals
        self._tasks = tasks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connecting = WebSocket(scope, receive, send)
        await connecting.accept()
        websocket = take_over(scope, BoundedWebSocket)
        name, facts = name_of(scope), facts_of(connecting)
        connection = Connection(websocket, name, facts, self._verifier, self._streams, self._refusals)
        self._tasks.start(connection.run())
