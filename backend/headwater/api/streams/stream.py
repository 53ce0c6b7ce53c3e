"""One open stream, from its first line to its end.

A stream holds one batch of lines at a time and reads the next only when the client has taken it. `sync.states` has the
table of what it does next. It ends in one of three ways: normally, with a complete answer, so that the client connects
again; cut off, after an error that occurred too late for a status; or at once, when the client disconnects. It does not
wait for the store to end.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, Protocol

from headwater.api.auth.claims import Principal
from headwater.api.auth.errors import TokenExpiredError
from headwater.api.errors import GoneError, NoActiveConfigError
from headwater.api.http.requests import RequestName
from headwater.api.streams.encoding import Batch, EncodedPiece
from headwater.api.streams.hub import REPLACED, Hub
from headwater.api.streams.session import ConfigReplacedError, LimitCrossedError, SyncSession
from headwater.api.streams.threads import Failure, StoreThreads
from headwater.api.streams.traffic import CLIENT_GONE, FAILED, NOT_READING, Traffic
from headwater.errors import HeadwaterError
from headwater.sync import lines
from headwater.sync.interest import News, SourceChange
from headwater.sync.states import TRANSITIONS, StreamAction, StreamEvent, StreamState, next_tick
from headwater.telemetry.log_facts import log_extra
from headwater_rules.evaluate.limits import LIMIT_CODE

STUCK_SECONDS = 2.0
"""How long an ending stream waits for a client that does not read."""

OTHER_STREAMS = "other streams fit into the limits"
"""Why a stream ends when limits now leave out other subscriptions than its device was sent."""

EXPIRED = "token expired"

OVER: Final[Mapping[type[Exception], str]] = {
    ConfigReplacedError: REPLACED,
    NoActiveConfigError: REPLACED,
    LimitCrossedError: OTHER_STREAMS,
}
"""Errors of reading that end a stream normally, and the reasons that they are."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The client of a stream, and since when it is connected, in seconds since 1970."""

    user: Principal
    client_id: str | None
    user_agent: str | None
    app_metadata: Mapping[str, str]
    request: RequestName
    since: float = field(default_factory=time.time)

    @property
    def log_names(self) -> dict[str, object]:
        """What identifies the stream in the log."""
        return {**self.request._asdict(), "user_id": self.user.user_id, "client_id": self.client_id}


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A stream as operators see it: how many ops and bytes its client was sent, the op id of the checkpoint that the
    client has or is being sent, and its number of buckets."""

    client: ClientInfo
    operations: int
    bytes: int
    op_id: int
    buckets: int


class Sink(Protocol):
    """Sends a stream to one client. `send` returns when there is room for the next piece. All methods that send may
    raise GoneError."""

    @property
    def is_open(self) -> bool:
        """Whether `open` was called."""

    @property
    def sent_bytes(self) -> int:
        """How much was sent, as it went out."""

    @property
    def waits_since(self) -> float | None:
        """Since when the client has read nothing of what is being sent, by time.monotonic(). None while nothing is."""

    async def open(self) -> None:
        """Begin the answer. From here on, no error status can be sent."""

    async def send(self, piece: EncodedPiece) -> int:
        """Send a piece. Returns the number of bytes sent."""

    def offer(self, piece: EncodedPiece) -> int | None:
        """Send a small piece now, if there is room for it. Returns the number of bytes sent, None when nothing was."""

    async def end(self) -> None:
        """End the stream normally; the client may connect again at once."""

    async def expire(self) -> None:
        """End the stream because its token has expired; the client needs another one."""

    async def fail(self, error: Exception) -> None:
        """Cut the stream off after `open`, because of an error. Waits only a moment for a client that does not read."""

    def stop(self) -> None:
        """Do not wait for the client to ask for more: `send` leaves out the lines that it has not asked for."""

    def on_disconnect(self, then: Callable[[], None]) -> None:
        """Call `then` when the client disconnects, before `open` or after it."""


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What all streams of a process share. `client_read_timeout` is how many seconds a client may read nothing of what
    is being sent."""

    threads: StoreThreads
    hub: Hub
    traffic: Traffic
    client_read_timeout: float


class Ending(NamedTuple):
    """Why a stream ends, until when, by the loop's clock, it waits for a client that does not read, and whether the
    client has read nothing for too long already."""

    reason: str
    limit: float
    stalled: bool = False


class SyncStream:
    """One open stream. The hub, timers and finished reads call it; one task runs it."""

    __slots__ = (
        "_change", "_client", "_context", "_deadline", "_ending", "_news", "_session", "_sink", "_state", "_tick_due",
        "_timer", "_wakeup",
    )  # fmt: skip

    def __init__(self, session: SyncSession, client: ClientInfo, context: StreamContext) -> None:
        self._session = session
        self._client = client
        self._context = context
        self._sink: Sink | None = None
        self._state = StreamState.READING
        self._news: News | None = None
        self._change: SourceChange | None = None  # at the source, that the client is being sent
        self._ending: Ending | None = None  # once it is to end
        self._tick_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._wakeup: asyncio.Future[Batch | None] | None = None  # what the sleeping task waits for
        self._deadline: asyncio.Timeout | None = None  # of what the task does

    @property
    def description(self) -> OpenStream:
        """May be called in any thread."""
        session, sink = self._session, self._sink
        sent = 0 if sink is None else sink.sent_bytes
        return OpenStream(self._client, session.operations, sent, session.op_id, len(session.interest.buckets))

    # called by the hub (Follower)

    @property
    def write_key(self) -> str:
        return self._session.write_key

    @property
    def config_id(self) -> int | None:
        return self._session.config_id

    def notify(self, news: News) -> None:
        self._news = news if self._news is None else self._news.also(news)
        match self._on(StreamEvent.LOOKUPS if self._news.lookups else StreamEvent.NEWS):
            case StreamAction.READ_AHEAD:
                self._read_ahead()
            case StreamAction.WAKE:
                self._wake(None)
            case _:
                pass  # the task looks at the news when it gets to it

    def end(self, reason: str) -> None:
        """End normally, at the next line boundary."""
        if self._ending is not None:
            return
        now = asyncio.get_running_loop().time()
        self._ending = Ending(reason, now + STUCK_SECONDS)
        if self._sink is not None:
            self._sink.stop()
        self._interrupt(self._ending.limit if self._on(StreamEvent.END) is StreamAction.LIMIT else now)

    # the task

    async def run(self, sink: Sink) -> None:
        """Serve until the end. Raises errors before the first line, when a status can still be sent."""
        started = time.monotonic()
        self._sink = sink
        self._schedule_tick()
        sink.on_disconnect(self._on_gone)
        try:
            reason = await self._serve(sink)
        finally:
            self._state = StreamState.ENDING
            self._sink = self._deadline = self._wakeup = None  # which would keep the task, and it this stream
            if self._timer is not None:
                self._timer.cancel()
        self._context.traffic.end(reason)
        facts = {
            **self._client.log_names,
            "user_agent": self._client.user_agent,
            "app_metadata": self._client.app_metadata or None,
            "close_reason": reason,
            "duration_ms": round((time.monotonic() - started) * 1000),
            "operations": self._session.operations,
            "bytes": sink.sent_bytes,
        }
        log.info("sync stream closed", extra=log_extra(facts))

    async def _serve(self, sink: Sink) -> str:
        """Serve until the end. Returns the reason for it."""
        try:
            in_time = await self._send_lines(sink) and await self._finish(sink)
        except GoneError:
            return CLIENT_GONE
        except Exception as error:
            if not sink.is_open:
                raise
            await _fail(sink, error)
            return self._log_failed(error)
        assert self._ending is not None
        if in_time or self._ending.reason == CLIENT_GONE:
            return self._ending.reason
        return await self._cut_off(sink, self._ending.reason)

    async def _send_lines(self, sink: Sink) -> bool:
        """Send lines until the stream is to end. Returns whether it can end normally: whether its client reads."""
        deadline = self._deadline = asyncio.timeout(None)
        try:
            async with deadline:
                if self._ending is None:
                    await self._send_all(sink, await self._open())  # no variable of this long frame keeps the batch
        except Exception as error:
            if isinstance(error, GoneError) or not deadline.expired():  # otherwise `_interrupt` was called
                raise
        assert self._ending is not None
        return not self._ending.stalled and not (deadline.expired() and self._state is StreamState.SENDING)

    async def _open(self) -> Batch:
        """Read the first checkpoint."""
        session, hub = self._session, self._context.hub
        batch = await self._context.threads.resolving(self._client.user.user_id, session.open)
        self._on(StreamEvent.READ)
        hub.watch(self, session.interest, session.op_id)
        if session.awaited is not None:
            hub.expect(session.awaited)
        if session.left_out:
            facts = {
                "client_id": self._client.client_id,
                "subscriptions": len(session.left_out),
                "first": session.left_out[0].message,
            }
            self._context.traffic.refusals.note(LIMIT_CODE, self._client.user.user_id, "streams left out", facts)
        return batch

    async def _send_all(self, sink: Sink, batch: Batch | None) -> None:
        """Begin the answer, and send lines until the stream is to end."""
        if self._ending is None:
            await sink.open()
        complete = True  # whether the client was sent its whole checkpoint
        while self._ending is None:
            if batch is not None:
                await self._send_batch(sink, batch, was_complete=complete)
                complete, batch = batch.done, None  # a sleeping stream must not keep what it sent last
            elif self._tick_due:
                await self._send_tick(sink)
            elif (read := self._next_read(complete)) is not None:
                batch = await self._read(read)
            else:
                self._on(StreamEvent.SENT)
                self._wakeup = asyncio.get_running_loop().create_future()
                batch = await self._wakeup

    async def _send_batch(self, sink: Sink, batch: Batch, *, was_complete: bool) -> None:
        self._count(batch)
        for piece in batch.pieces:
            self._context.traffic.sent(piece.length, await sink.send(piece))
        if batch.done and was_complete and not batch.pieces:
            self._change = None  # the change did not concern this client
        elif batch.done and self._ending is None:
            self._deliver()

    def _count(self, batch: Batch) -> None:
        self._session.operations += batch.ops
        self._context.traffic.operations += batch.ops

    def _deliver(self) -> None:
        """Record that the client was sent its whole checkpoint."""
        change, self._change = self._change, None
        if change is not None:
            self._context.traffic.delivered(change, self._client.user.user_id, self._client.client_id)

    def _next_read(self, complete: bool) -> Callable[[], Awaitable[Batch]] | None:
        """What to read next. None when the client has everything."""
        session = self._session
        if session.interruptible and (news := self._take_news()) is not None:
            self._change = self._change or news.change
            return partial(self._turn, news, complete)
        if session.overtaken:
            return partial(self._turn, News(session.op_id), complete)
        if not complete:
            return partial(self._context.threads.download, self._client.user.user_id, session.more)
        return None

    async def _read(self, read: Callable[[], Awaitable[Batch]]) -> Batch | None:
        self._on(StreamEvent.MORE)
        try:
            batch = await read()
        except HeadwaterError as error:
            if type(error) not in OVER:
                raise
            self.end(OVER[type(error)])
            return None
        self._on(StreamEvent.READ)
        return batch

    async def _turn(self, news: News, complete: bool) -> Batch:
        """Read the next checkpoint. If that changes lookups, the request is resolved, for which it waits its turn."""
        session, threads, user_id = self._session, self._context.threads, self._client.user.user_id
        if not news.lookups:
            turn = partial(session.turn, news=news)
            batch = await (threads.shared(turn) if complete else threads.download(user_id, turn))
            if batch is not None:
                return batch
        before = session.interest
        batch = await threads.resolving(user_id, partial(session.turn, news=replace(news, lookups=True)))
        if session.interest != before:
            self._context.hub.watch(self, session.interest, session.op_id)
        assert batch is not None
        return batch

    async def _finish(self, sink: Sink) -> bool:
        """End normally. Returns whether the client has read all in time."""
        assert self._ending is not None
        reason, limit, _ = self._ending
        if reason == CLIENT_GONE:
            return True
        deadline = self._deadline = asyncio.timeout_at(limit)
        try:
            async with deadline:
                if not sink.is_open:
                    await sink.open()
                if self._tick_due:
                    await self._send_tick(sink)
                await (sink.expire() if reason == EXPIRED else sink.end())
        except TimeoutError:
            if not deadline.expired():
                raise
            return False
        return True

    async def _cut_off(self, sink: Sink, reason: str) -> str:
        """Cut the stream off, since its client does not read. Returns the reason for the end."""
        if reason == EXPIRED:  # `sink.expire` may wait for the client without limit
            await _fail(sink, TokenExpiredError("the token has expired", fix="fetch a new one"))
        else:
            what = "the stream was cut off, since the client did not read it"
            await _fail(sink, HeadwaterError(what, fix="connect again", code="HW_6020"))
        return reason if reason == NOT_READING else f"{reason}, {NOT_READING}"

    def _log_failed(self, error: Exception) -> str:
        """Log that an error cut the stream off. Returns the reason for the end."""
        if isinstance(error, HeadwaterError):
            log.error("a stream was cut off: %s", error, extra=log_extra(self._client.log_names))
            return f"{FAILED}: {error.code}"
        log.error("a stream was cut off", extra=log_extra(self._client.log_names), exc_info=error)
        return FAILED

    # while the task sleeps

    def _read_ahead(self) -> None:
        """Have the next lines read without waking the task: most of what a small change costs would be that."""
        news = self._take_news()
        if news is None:
            self._on(StreamEvent.SENT)
            return
        self._change = news.change
        self._context.threads.soon(partial(self._session.turn, news=news), partial(self._on_read, news))

    def _on_read(self, news: News, read: Batch | Failure | None) -> None:
        """Send what was read, or leave it to the task if it is much or has to wait."""
        if self._state is not StreamState.AHEAD:
            return  # the stream is ending
        if isinstance(read, Failure):
            self._on_failure(read.error)
            return
        try:
            self._on_batch(news, read)
        except Exception as error:  # noqa: BLE001 - nobody else would end the stream
            self._on_failure(error)

    def _on_batch(self, news: News, read: Batch | None) -> None:
        if read is None:
            self._on(StreamEvent.SENT)
            self.notify(replace(news, lookups=True))
        elif self._offer_batch(read):
            self._on(StreamEvent.SENT)
            if self._news is not None:
                later, self._news = self._news, None
                self.notify(later)
        else:
            self._on(StreamEvent.READ)
            self._wake(read)

    def _on_failure(self, error: Exception) -> None:
        """End the stream because of an error while its task sleeps."""
        if type(error) in OVER:
            self.end(OVER[type(error)])
            return
        wakeup, self._wakeup = self._wakeup, None
        if self._on(StreamEvent.FAILED) is StreamAction.WAKE and wakeup is not None and not wakeup.done():
            wakeup.set_exception(error)

    def _wake(self, batch: Batch | None) -> None:
        """Wake the task, and give it what to send."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(batch)

    def _offer_batch(self, batch: Batch) -> bool:
        """Send a complete checkpoint, if that takes no time. Returns whether it was sent."""
        if not batch.done or len(batch.pieces) > 1 or self._tick_due:
            return False
        if not batch.pieces:
            self._change = None  # the change did not concern this client
            return True
        if not self._offer(batch.pieces[0]):
            return False
        self._count(batch)
        self._deliver()
        return True

    def _offer(self, piece: EncodedPiece) -> bool:
        sent = self._sink.offer(piece) if self._sink is not None else None
        if sent is None:
            return False
        self._context.traffic.sent(piece.length, sent)
        return True

    def _take_news(self) -> News | None:
        """The news since the last view. None when that view was newer than the hub's news."""
        news, self._news = self._news, None
        if news is None or (news.write_checkpoint is None and news.upto <= self._session.op_id):
            return None
        return news

    # ticks tell the client for how long its token is valid

    def _schedule_tick(self) -> None:
        remaining = self._client.user.expires_in()
        if remaining <= 0:
            self._on_tick()
        else:
            self._call_on_tick(next_tick(remaining, random.uniform(-1, 1)))

    def _call_on_tick(self, seconds: float) -> None:
        """Call `_on_tick` so many seconds from now, or when the token expires."""
        if self._timer is not None:
            self._timer.cancel()
        soon = max(0.0, min(seconds, self._client.user.expires_in()))
        self._timer = asyncio.get_running_loop().call_later(soon, self._on_tick)

    def _on_tick(self) -> None:
        self._tick_due = True
        if self._client.user.expires_in() <= 0:
            self.end(EXPIRED)
            return
        again = self._context.client_read_timeout  # what is being read now may be sent before the tick is
        self._call_on_tick(again)  # first: whatever fails here, the stream must not outlive its token
        match self._on(StreamEvent.TICK):
            case StreamAction.OFFER:
                self._offer_tick()
            case StreamAction.CHECK_CLIENT if self._sink is not None and self._sink.waits_since is not None:
                again += self._sink.waits_since - time.monotonic()
                if again > 0:
                    self._call_on_tick(again)
                else:
                    self._on_stalled()

    def _offer_tick(self) -> None:
        try:
            offered = self._offer(self._tick())
        except Exception as error:  # noqa: BLE001 - nobody else would end the stream
            self._on_failure(error)
            return
        if offered:
            self._tick_due = False
            self._schedule_tick()
        elif self._on(StreamEvent.FULL) is StreamAction.WAKE:
            self._wake(None)

    async def _send_tick(self, sink: Sink) -> None:
        self._tick_due = False
        if self._timer is not None:
            self._timer.cancel()
        if self._ending is None:
            self._schedule_tick()
        tick = self._tick()
        self._context.traffic.sent(tick.length, await sink.send(tick))

    def _tick(self) -> EncodedPiece:
        return self._session.form.piece(lines.token_expires_in(self._client.user.expires_in()))

    # its end

    def _on_gone(self) -> None:
        now = asyncio.get_running_loop().time()
        self._ending = Ending(CLIENT_GONE, now)
        self._on(StreamEvent.GONE)
        self._interrupt(now)

    def _on_stalled(self) -> None:
        """Cut the stream off, since its client has read nothing for too long."""
        now = asyncio.get_running_loop().time()
        self._ending = Ending(NOT_READING if self._ending is None else self._ending.reason, now, stalled=True)
        self._interrupt(now)
        facts = {"reason": "not reading"}
        self._context.traffic.refusals.note("HW_6020", self._client.user.user_id, "a stream was cut off", facts)

    def _interrupt(self, at: float) -> None:
        """Interrupt the task at a time of the loop."""
        if self._deadline is not None:
            with suppress(RuntimeError):  # it is interrupted already, or is not waiting
                self._deadline.reschedule(at)

    def _on(self, event: StreamEvent) -> StreamAction:
        self._state, action = TRANSITIONS[self._state][event]
        return action


async def _fail(sink: Sink, error: Exception) -> None:
    """Cut a stream off, and send its client the error as far as possible."""
    with suppress(GoneError):
        await sink.fail(error)
