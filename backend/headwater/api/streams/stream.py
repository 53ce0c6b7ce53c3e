"""One open stream, from its first line to its end.

A stream holds one batch of lines at a time and reads the next only when the client has taken it. It ends in one of
three ways: normally, with a complete answer, so that the client connects again; cut off, after an error that occurred
too late for a status; or at once, when the client disconnects. It does not wait for the store to end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from headwater.api.auth.verify import Principal
from headwater.api.bell import Bell
from headwater.api.errors import GoneError
from headwater.api.streams.codings import Piece
from headwater.api.streams.connected import Caller, Connected
from headwater.api.streams.dialogue import Dialogue
from headwater.api.streams.encoding import Batch, WireForm
from headwater.api.streams.ends import EXPIRED, OVER, Named, tell, tell_of_cut
from headwater.api.streams.hub import Hub
from headwater.api.streams.patience import GivenUpError, Patience
from headwater.api.streams.sink import Sink
from headwater.api.streams.threads import Failure, StoreThreads
from headwater.api.streams.traffic import CLIENT_GONE, NOT_READING, Traffic
from headwater.errors import HeadwaterError
from headwater.sync import lines
from headwater.sync.interest import Change, Interest, News
from headwater.sync.ticks import next_tick

Read = TypeVar("Read")

STUCK_SECONDS = 2.0
"""How long an ending stream waits for a client that does not read."""


class Stream:
    """One open stream. The hub and timers change fields and set `_wake`; one task reads the fields between batches."""

    __slots__ = (
        "_bytes", "_caller", "_change", "_cut_off", "_dialogue", "_done", "_error", "_first", "_form", "_hub",
        "_news", "_ops", "_patience", "_reason", "_resting", "_sending_since", "_sink", "_stalled_seconds",
        "_task", "_threads", "_tick_due", "_ticker", "_traffic", "_turning", "_user", "_wake", "_watched",
    )  # fmt: skip

    def __init__(
        self,
        dialogue: Dialogue,
        form: WireForm,
        user: Principal,
        caller: Caller,
        threads: StoreThreads,
        hub: Hub,
        traffic: Traffic,
        stalled_seconds: float,
    ) -> None:
        self._dialogue = dialogue
        self._form = form
        self._user = user
        self._caller = caller
        self._threads = threads
        self._hub = hub
        self._traffic = traffic
        self._stalled_seconds = stalled_seconds
        self._sending_since: float | None = None
        self._sink: Sink | None = None
        self._wake = Bell()
        self._patience = Patience()  # with the store
        self._news: News | None = None
        self._change: Change | None = None  # what the client is being sent
        self._first: Batch | None = None
        self._done = True
        self._resting = False  # whether the task waits for something to do
        self._turning = False  # whether the next lines are read meanwhile
        self._error: Exception | None = None  # of that reading
        self._watched: Interest | None = None
        self._reason: str | None = None
        self._tick_due = False
        self._ticker: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None  # while it may be cut off
        self._cut_off = False
        self._ops = 0
        self._bytes = 0

    @property
    def connected(self) -> Connected:
        """The stream's description for operators."""
        dialogue, user = self._dialogue, self._user
        buckets = len(dialogue.interest.buckets)
        return Connected(user, self._caller, self._ops, self._bytes, dialogue.op_id, buckets)

    # the hub's side (Follower)

    @property
    def write_key(self) -> str:
        return self._dialogue.write_key

    @property
    def config_id(self) -> int | None:
        return self._dialogue.config_id

    def tell(self, news: News) -> None:
        self._news = news if self._news is None else self._news.also(news)
        if self._resting:
            self._turn_ahead()
        else:
            self._wake.ring()

    def end(self, reason: str) -> None:
        """End normally, at the next line boundary."""
        if self._reason is not None:
            return
        self._reason = reason
        self._patience.end()
        if self._sink is not None:
            self._sink.stop()
        self._wake.ring()
        asyncio.get_running_loop().call_later(STUCK_SECONDS, self._cut)

    # its life

    async def run(self, sink: Sink) -> None:
        """Serve until the end. Raises errors before the first line, when a status can still be sent."""
        started = time.monotonic()
        self._sink = sink
        self._schedule_tick()
        sink.when_gone(self._leave)
        try:
            with suppress(GivenUpError):
                await self._begin()
            reason = CLIENT_GONE if self._reason == CLIENT_GONE else await self._until_over(sink)
        finally:
            self._sink = None
            if self._ticker is not None:
                self._ticker.cancel()
        self._traffic.end(reason)
        Named(self._user, self._caller).closed(reason, time.monotonic() - started, self._ops, self._bytes)

    async def _begin(self) -> None:
        """Read the first checkpoint. Raises GivenUpError when the stream is over before."""
        resolving = partial(self._threads.resolving, self._user.user_id, self._dialogue.open)
        self._first = await self._patience.wait(resolving)
        self._watch()
        if self._dialogue.awaited is not None:
            self._hub.expect(self._dialogue.awaited)
        Named(self._user, self._caller).left_out(self._traffic.refusals, self._dialogue.left_out)

    async def _until_over(self, sink: Sink) -> str:
        """Send lines until the stream ends. Returns the reason for the end."""
        try:
            await self._send_all(sink)
        except GoneError:
            return CLIENT_GONE
        except asyncio.CancelledError:
            return await self._after_cut(sink)
        except Exception as error:  # noqa: BLE001 - it is logged, and the device is told
            await tell(sink, error)
            return Named(self._user, self._caller).failed(error)
        return self._reason or "ended"

    async def _send_all(self, sink: Sink) -> None:
        self._task = asyncio.current_task()
        try:
            await sink.open()
            while (pieces := await self._pieces()) is not None:
                self._resting = not pieces
                await (self._send(pieces, sink) if pieces else self._wake.next())
                self._resting = False
                del pieces  # while it waits, a stream must not keep what it sent last
            await (sink.expire() if self._reason == EXPIRED else sink.end())
        finally:
            self._task, self._resting = None, False

    async def _send(self, pieces: Sequence[Piece], sink: Sink) -> None:
        for piece in pieces:
            self._sending_since = time.monotonic()
            sent = await sink.send(piece)
            self._bytes += sent
            self._traffic.sent(piece.length, sent)
        self._sending_since = None
        if self._done and self._reason is None:
            self._deliver()

    def _deliver(self) -> None:
        """Record that the client was sent its whole checkpoint."""
        change, self._change = self._change, None
        if change is not None:
            self._traffic.delivered(change, self._user.user_id, self._caller.client_id)

    async def _pieces(self) -> Sequence[Piece] | None:
        """The next lines to send. Empty when there are none yet, None at the end."""
        while not self._tick_due:
            if self._reason is not None:
                return None
            if self._error is not None:
                error, self._error = self._error, None  # which keeps this stream alive
                raise error
            if self._idle:
                return ()
            batch = await self._next()
            self._ops += batch.ops
            self._traffic.operations += batch.ops
            before, self._done = self._done, batch.done
            if batch.pieces:
                return batch.pieces
            if batch.done and before:
                self._change = None  # it was none for this client
            elif batch.done and self._reason is None:
                self._deliver()
        return (self._tick(),)

    @property
    def _idle(self) -> bool:
        return self._turning or (self._first is None and self._done and self._news is None)

    async def _next(self) -> Batch:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._dialogue.interruptible and (news := self._take_news()):
            self._change = self._change or news.change
            return await self._turn(news)
        if self._dialogue.overtaken:
            return await self._turn(News(self._dialogue.op_id))
        if not self._done:
            return await self._unless_over(partial(self._threads.reading, self._user.user_id, self._dialogue.more))
        return Batch()

    async def _turn(self, news: News) -> Batch:
        user, job = self._user.user_id, partial(self._dialogue.turn, news=news)
        if news.lookups:
            read = partial(self._threads.resolving, user, job)
        else:
            read = partial(self._threads.shared, job) if self._done else partial(self._threads.reading, user, job)
        batch = await self._unless_over(read)
        if batch is None:
            return await self._turn(replace(news, lookups=True))  # which waits its turn
        self._watch()
        return batch

    def _watch(self) -> None:
        if self._dialogue.interest != self._watched:
            self._watched = self._dialogue.interest
            self._hub.watch(self, self._watched, self._dialogue.op_id)

    async def _unless_over(self, read: Callable[[], Awaitable[Read]]) -> Read | Batch:
        try:
            return await self._patience.wait(read)
        except GivenUpError:
            pass
        except HeadwaterError as error:
            if type(error) not in OVER:
                raise
            self.end(OVER[type(error)])
        return Batch()

    # while its task rests

    def _turn_ahead(self) -> None:
        """Have the next lines read without waking the task: most of what a small change costs would be that."""
        if self._news is not None and self._news.lookups:
            self._waken()  # its request is resolved anew, for which the task waits its turn
        elif not self._turning and (news := self._take_news()) is not None:
            self._turning, self._change = True, news.change
            self._threads.soon(partial(self._dialogue.turn, news=news), partial(self._turned, news))

    def _turned(self, news: News, batch: Batch | Failure | None) -> None:
        """Send what was read, or leave it to the task when it is much, or has to wait."""
        if self._task is not None and isinstance(batch, Batch):
            self._watch()  # while this turn lasts: what the hub tells at once comes after these lines
        self._turning = False
        if self._task is None:
            return  # the stream has ended meanwhile
        if isinstance(batch, Failure):
            self._fail(batch.error)
        elif batch is None:
            self.tell(replace(news, lookups=True))  # which the task does, in its turn
        elif self._resting and self._reason is None and self._offer(batch):
            if self._news is not None:
                self._turn_ahead()
        else:
            self._first = batch
            self._waken()

    def _waken(self) -> None:
        """Wake the task, which takes turns itself from now on: lines that are left to it are not overtaken."""
        self._resting = False
        self._wake.ring()

    def _offer(self, batch: Batch) -> bool:
        """Send a complete checkpoint, if that takes no time. Returns whether it was sent."""
        if not batch.done or len(batch.pieces) > 1:
            return False
        for piece in batch.pieces:
            sent = self._sink.offer(piece) if self._sink is not None else None
            if sent is None:
                return False
            self._ops += batch.ops
            self._bytes += sent
            self._traffic.operations += batch.ops
            self._traffic.sent(piece.length, sent)
            self._deliver()
        self._change = None  # without pieces, it was none for this client
        return True

    def _fail(self, error: Exception) -> None:
        if type(error) in OVER:
            self.end(OVER[type(error)])
        else:
            self._error = error
            self._waken()

    def _take_news(self) -> News | None:
        """The news since the last view. None when that view was newer than the hub's news."""
        news, self._news = self._news, None
        if news is None or (news.write_checkpoint is None and news.upto <= self._dialogue.op_id):
            return None
        return news

    # the token's timer

    def _schedule_tick(self) -> None:
        remaining = self._user.expires_in()
        if remaining <= 0:
            self._on_tick()
        else:
            self._look_again(next_tick(remaining, random.uniform(-1, 1)))

    def _on_tick(self) -> None:
        self._tick_due = True
        self._wake.ring()
        if self._user.expires_in() <= 0:
            self.end(EXPIRED)
        elif self._sending_since is not None:
            self._cut_if_stalled(self._sending_since)
        else:
            self._look_again(self._stalled_seconds)  # what is being read now may be sent before the tick is

    def _look_again(self, seconds: float) -> None:
        """Have the next tick so many seconds from now, or when the token expires."""
        soon = max(0.0, min(seconds, self._user.expires_in()))
        self._ticker = asyncio.get_running_loop().call_later(soon, self._on_tick)

    def _cut_if_stalled(self, since: float) -> None:
        taken_at = since if self._sink is None else max(since, self._sink.taken_at)
        left = taken_at + self._stalled_seconds - time.monotonic()
        if left > 0:
            self._look_again(left)
            return
        Named(self._user, self._caller).stalled(self._traffic.refusals)
        self._cut()

    def _tick(self) -> Piece:
        self._tick_due = False
        if self._ticker is not None:
            self._ticker.cancel()
        if self._reason is None:
            self._schedule_tick()
        return self._form.piece(lines.token_expires_in(self._user.expires_in()))

    # its end

    def _leave(self) -> None:
        self._reason = CLIENT_GONE
        self._patience.end()
        self._cut()

    def _cut(self) -> None:
        if self._task is not None and not self._cut_off:
            self._cut_off = True
            self._task.cancel()

    async def _after_cut(self, sink: Sink) -> str:
        task = asyncio.current_task()
        assert task is not None
        if not self._cut_off or task.uncancel():
            raise asyncio.CancelledError  # the task was cancelled from outside
        if self._reason == CLIENT_GONE:
            return CLIENT_GONE
        await tell_of_cut(sink, self._reason)
        return ", ".join(filter(None, (self._reason, NOT_READING)))
