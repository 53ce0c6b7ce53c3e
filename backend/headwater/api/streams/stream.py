"""`POST /sync/stream`: an endless answer of lines, one stream per client.

A stream holds one batch of lines at a time and reads the next only when the client has taken it. It ends in three
ways: normally, with a complete body, so that the client connects again; cut off, after an error that came too late
for a status; or at once, when the client goes away.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from headwater.api.auth.verify import Principal, Verifier
from headwater.api.errors import NoActiveConfigError, NotAcceptableError, ShuttingDownError, TooManyRequestsError
from headwater.api.http.body import read_body
from headwater.api.refusals import Refusals, one_line, prove
from headwater.api.streams.codings import IDENTITY, Coding, Piece, Wrapping
from headwater.api.streams.dialogue import Batch, ConfigReplacedError, Dialogue, LimitCrossedError, Resolver
from headwater.api.streams.encoding import choose_coding, encode
from headwater.api.streams.hub import REPLACED, Hub
from headwater.api.streams.left_out import LeftOutMemory
from headwater.api.streams.reading import StoreThreads
from headwater.errors import HeadwaterError
from headwater.sync import lines
from headwater.sync.interest import News
from headwater.sync.request import StreamRequest, parse_stream_request, write_key
from headwater.sync.ticks import next_tick
from headwater_rules.evaluate.limits import LIMIT_CODE
from headwater_rules.results import SyncRequest

NDJSON = "application/x-ndjson"
BSON = "application/vnd.powersync.bson-stream"

STUCK_SECONDS = 2.0
"""How long a stream that should end waits for a client that does not read."""

OTHER_STREAMS = "other streams fit into the limits"
"""Why a stream ends whose device is to be told that streams are left out, or not any more."""

_HEADERS = ((b"content-type", NDJSON.encode()), (b"x-accel-buffering", b"no"), (b"cache-control", b"no-store"))

log = logging.getLogger(__name__)


class SyncStream:
    """The ASGI endpoint. Holds what all streams of the process share."""

    def __init__(
        self,
        threads: StoreThreads,
        hub: Hub,
        resolver: Resolver,
        verifier: Verifier,
        refusals: Refusals,
        limit: int,
    ) -> None:
        self._threads = threads
        self._hub = hub
        self._resolver = resolver
        self._verifier = verifier
        self._refusals = refusals
        self._limit = limit
        self._left_out = LeftOutMemory()
        self._open = 0
        self._closing = False

    @property
    def open_streams(self) -> int:
        return self._open

    def begin_shutdown(self) -> None:
        """End all streams normally and take no more."""
        self._closing = True
        self._hub.end_all("shutting down")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        asked = parse_stream_request(await read_body(request))
        user = await self._verifier.authorize(request.headers.get("authorization"))
        prove(request, user.user_id)
        require_ndjson(request.headers.get("accept"))
        coding = choose_coding(request.headers.get("accept-encoding"))
        if self._closing:
            raise ShuttingDownError("the service is shutting down", fix="connect again")
        if self._open >= self._limit:
            raise TooManyRequestsError(f"{self._limit} streams are open already")
        self._open += 1
        try:
            agent = request.headers.get("x-user-agent") or request.headers.get("user-agent")
            await self._serve(asked, user, agent, coding, receive, send)
        finally:
            self._open -= 1

    async def _serve(
        self, asked: StreamRequest, user: Principal, agent: str | None, coding: Coding, receive: Receive, send: Send
    ) -> None:
        dialogue = Dialogue(
            asked,
            SyncRequest(user.claims, asked.parameters, asked.include_defaults, asked.subscriptions),
            write_key(user.user_id, asked.client_id),
            self._resolver,
            self._left_out,
            coding,
        )
        caller = _Caller(user.user_id, asked.client_id, agent, asked.app_metadata)
        stream = _Stream(dialogue, coding, user, caller, self._threads, self._hub, self._refusals)
        self._hub.join(stream)
        try:
            await stream.run(receive, send)
        finally:
            self._hub.leave(stream)


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who is at the other end, for the log."""

    user_id: str
    client_id: str | None
    user_agent: str | None
    app_metadata: Mapping[str, str]


class _Stream:
    """One open stream. The hub and timers leave word and set `_wake`; one task looks at it between batches."""

    __slots__ = (
        "_bytes",
        "_caller",
        "_coding",
        "_dialogue",
        "_done",
        "_first",
        "_hub",
        "_news",
        "_ops",
        "_pump",
        "_reason",
        "_refusals",
        "_threads",
        "_tick_due",
        "_ticker",
        "_user",
        "_wake",
    )

    def __init__(
        self,
        dialogue: Dialogue,
        coding: Coding,
        user: Principal,
        caller: _Caller,
        threads: StoreThreads,
        hub: Hub,
        refusals: Refusals,
    ) -> None:
        self._dialogue = dialogue
        self._coding = coding
        self._user = user
        self._caller = caller
        self._threads = threads
        self._hub = hub
        self._refusals = refusals
        self._wake = asyncio.Event()
        self._news: News | None = None
        self._first: Batch | None = None
        self._done = True
        self._reason: str | None = None
        self._tick_due = False
        self._ticker: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None
        self._ops = 0
        self._bytes = 0

    # what the hub sees

    @property
    def write_key(self) -> str:
        return self._dialogue.write_key

    @property
    def config_id(self) -> int | None:
        return self._dialogue.config_id

    def tell(self, news: News) -> None:
        self._news = news if self._news is None else self._news.also(news)
        self._wake.set()

    def end(self, reason: str) -> None:
        """End normally, at the next line boundary."""
        if self._reason is not None:
            return
        self._reason = reason
        self._wake.set()
        asyncio.get_running_loop().call_later(STUCK_SECONDS, self._cut)

    # its life

    async def run(self, receive: Receive, send: Send) -> None:
        """Serve until the end. What fails before the first line is raised, for there is still a status to give."""
        started = time.monotonic()
        self._schedule_tick()
        try:
            if self._reason is None:
                self._first = await self._threads.reading(self._dialogue.open)
                self._follow()
                self._tell_of_left_out()
            reason = await self._until_over(receive, send)
        finally:
            if self._ticker is not None:
                self._ticker.cancel()
        self._log(reason, time.monotonic() - started)

    async def _until_over(self, receive: Receive, send: Send) -> str:
        pump = self._pump = asyncio.create_task(self._send_all(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
            return self._outcome(pump)
        finally:
            await _stop(pump, gone)

    async def _send_all(self, send: Send) -> None:
        coding = [] if self._coding is IDENTITY else [(b"content-encoding", self._coding.name.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *coding]})
        wrapping = self._coding.open()
        while (pieces := await self._pieces()) is not None:
            await self._send_pieces(pieces, wrapping, send)
            del pieces  # an idle stream must not keep what it sent last
        await send({"type": "http.response.body", "body": wrapping.end(), "more_body": False})

    async def _send_pieces(self, pieces: Sequence[Piece], wrapping: Wrapping, send: Send) -> None:
        for piece in pieces:
            body = wrapping.wrap(piece)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._bytes += len(body)

    async def _pieces(self) -> Sequence[Piece] | None:
        """The next lines to send, None at the end."""
        while True:
            if self._tick_due:
                return (self._tick(),)
            if self._reason is not None:
                return None
            batch = await self._next()
            self._ops += batch.ops
            self._done = batch.done
            if batch.pieces:
                return batch.pieces

    async def _next(self) -> Batch:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._dialogue.interruptible and (news := self._take_news()):
            return await self._turn(news)
        if self._dialogue.overtaken:
            return await self._turn(News(self._dialogue.op_id))
        if not self._done:
            return await self._unless_over(self._threads.reading(self._dialogue.more))
        if self._news is None:
            await self._wake.wait()
        self._wake.clear()
        return Batch()

    async def _turn(self, news: News) -> Batch:
        before = self._dialogue.interest
        job = partial(self._dialogue.turn, news=news)
        batch = await self._unless_over(
            self._threads.shared(job) if self._done else self._threads.reading(job),
        )
        if self._dialogue.interest != before:
            self._hub.watch(self, self._dialogue.interest, self._dialogue.op_id)
        return batch

    async def _unless_over(self, reading: Awaitable[Batch]) -> Batch:
        try:
            return await reading
        except (ConfigReplacedError, NoActiveConfigError):
            self.end(REPLACED)
        except LimitCrossedError:
            self.end(OTHER_STREAMS)
        return Batch()

    def _take_news(self) -> News | None:
        """What is still news: a view that went further than the hub may have shown it already."""
        news, self._news = self._news, None
        if news is None or (news.write_checkpoint is None and news.upto <= self._dialogue.op_id):
            return None
        return news

    def _follow(self) -> None:
        self._hub.watch(self, self._dialogue.interest, self._dialogue.op_id)
        if self._dialogue.awaited is not None:
            self._hub.expect(self._dialogue.awaited)

    def _tell_of_left_out(self) -> None:
        left_out = self._dialogue.left_out
        if left_out:
            names = {"client_id": self._caller.client_id, "subscriptions": len(left_out), "first": left_out[0].message}
            self._refusals.note(LIMIT_CODE, self._caller.user_id, "streams left out", names)

    # the token's clock

    def _schedule_tick(self) -> None:
        remaining = self._user.expires_in()
        if remaining <= 0:
            self._on_tick()
            return
        delay = next_tick(remaining, random.uniform(-1, 1))
        self._ticker = asyncio.get_running_loop().call_later(delay, self._on_tick)

    def _on_tick(self) -> None:
        self._tick_due = True
        self._wake.set()
        if self._user.expires_in() <= 0:
            self.end("token expired")

    def _tick(self) -> Piece:
        self._tick_due = False
        if self._reason is None:
            self._schedule_tick()
        return encode(self._coding, lines.token_expires_in(self._user.expires_in()))

    # its end

    def _cut(self) -> None:
        if self._pump is not None:
            self._pump.cancel()

    def _outcome(self, pump: asyncio.Task[None]) -> str:
        if not pump.done():
            return "client gone"
        if pump.cancelled():
            return f"{self._reason or 'cancelled'}, client not reading"
        error = pump.exception()
        if error is None:
            return self._reason or "ended"
        if isinstance(error, HeadwaterError):
            log.error("a stream was cut off: %s", error)
            return f"failed: {error.code}"
        log.error("a stream was cut off", exc_info=error)
        return "failed"

    def _log(self, reason: str, seconds: float) -> None:
        facts = {
            "user_id": self._caller.user_id,
            "client_id": self._caller.client_id,
            "user_agent": self._caller.user_agent,
            "app_metadata": self._caller.app_metadata or None,
            "close_reason": reason,
            "duration_ms": round(seconds * 1000),
            "operations": self._ops,
            "bytes": self._bytes,
        }
        log.info("sync stream closed %s", one_line(facts))


def require_ndjson(accept: str | None) -> None:
    """Refuse a client that takes the BSON form only. A header that names neither gets NDJSON."""
    if not accept:
        return
    ranges = [_media_range(item) for item in accept.split(",")]
    wanted = {name for name, quality in ranges if quality > 0}
    if BSON in wanted and wanted.isdisjoint({NDJSON, "application/*", "*/*"}):
        raise NotAcceptableError(f"{BSON} is not offered", "Accept header", f"accept {NDJSON} too")


def _media_range(item: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in item.lower().split(";"))
    weights = [match[1] for text in parameters if (match := re.fullmatch(r"q=([01](?:\.[0-9]{0,3})?)", text))]
    return name, float(weights[0]) if weights else 1.0


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
