"""One per process: follows the store and tells each open stream what concerns it, and only that.

A commit makes the store's descriptor readable; the hub then reads the new checkpoint with what it touched. A slow
poll beside it covers a lost wake-up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headwater.api.streams.reading import StoreThreads
from headwater.api.streams.traffic import Traffic
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Listener, Newest, StoreReader, Touched, WriteCheckpoint
from headwater.storage.contract.revocations import Revocation
from headwater.sync.interest import AwaitedWrites, Interest, Interests, News, anything

POLL_SECONDS = 1.0

REPLACED = "sync config replaced"

log = logging.getLogger(__name__)


class Follower(Protocol):
    """A stream as the hub sees it. `config_id` is None until it has read the store for the first time."""

    @property
    def write_key(self) -> str: ...

    @property
    def config_id(self) -> int | None: ...

    def tell(self, news: News) -> None: ...

    def end(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Sight:
    """What one look at the store found. `touched` is set when the op id moved."""

    state: Newest | None
    touched: Touched | None = None
    writes: Sequence[WriteCheckpoint] = ()
    revocations: Sequence[Revocation] = ()


class Hub:
    """Lives in the event loop. `start` before the first stream, `close` after the last. `revoked` is told what was
    revoked: all that is in force when the store was read for the first time, then what is new."""

    def __init__(
        self,
        reader: StoreReader,
        threads: StoreThreads,
        traffic: Traffic,
        revoked: Callable[[Sequence[Revocation]], None] = lambda _: None,
    ) -> None:
        self._reader = reader
        self._revoked = revoked
        self._revoked_seq = 0
        self._threads = threads
        self._traffic = traffic
        self._interests: Interests[Follower] = Interests()
        self._writes: AwaitedWrites[Follower] = AwaitedWrites()
        self._state: Newest | None = None
        self._seq = 0
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.looked_at: float | None = None
        """When the store was read last, in seconds since 1970; None before the first time."""

    @property
    def op_id(self) -> OpId:
        """Everything up to here has been told to those concerned."""
        return self._state.checkpoint.op_id if self._state else OpId(0)

    @property
    def active(self) -> bool:
        """Whether there is an active sync config."""
        return self._state is not None

    async def start(self) -> None:
        """Begin to follow the store, and look at it once before anybody is let in. Raises what the store raises when it
        can't be listened to."""
        listener = self._reader.listen()
        await self._look_once()
        self._task = asyncio.get_running_loop().create_task(self._follow(listener))

    async def close(self) -> None:
        """Stop following. Streams are the caller's to end."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])

    def look(self) -> None:
        """Look at the store now; after a write of this process, which makes no descriptor readable here."""
        self._moved.set()

    def join(self, stream: Follower) -> None:
        """Count a stream in, before its first read: from here on nothing that concerns its writes is missed."""
        self._interests.put(stream, Interest())
        self._writes.join(stream.write_key, stream)

    def leave(self, stream: Follower) -> None:
        self._interests.remove(stream)
        self._writes.leave(stream.write_key, stream)

    def watch(self, stream: Follower, interest: Interest, op_id: OpId) -> None:
        """Tell a stream what changes in `interest` after `op_id`, the checkpoint that the interest was read at."""
        self._interests.put(stream, interest)
        if self._state is not None and _older(stream.config_id, self._state.config_id):
            stream.end(REPLACED)
        elif op_id < self.op_id:  # what happened between was told before the hub knew whom to tell
            stream.tell(anything(self.op_id))

    def expect(self, write: WriteCheckpoint) -> None:
        """Tell streams of this key once the write is contained in a checkpoint."""
        self._writes.expect([write])
        self._release()

    def end_all(self, reason: str, over_seconds: float) -> None:
        """End every stream, spread over so many seconds: those that end together connect elsewhere together."""
        loop = asyncio.get_running_loop()
        for stream in self._interests.everyone():
            loop.call_later(random.uniform(0, over_seconds), stream.end, reason)

    async def _follow(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()

        def readable() -> None:
            listener.drain()
            self._moved.set()

        loop.add_reader(listener.fileno(), readable)
        try:
            while True:
                await self._look_once()
                await self._wait()
        finally:
            loop.remove_reader(listener.fileno())
            listener.close()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._moved.wait()
        except TimeoutError:
            pass

    async def _look_once(self) -> None:
        self._moved.clear()
        try:
            self._take(await self._threads.promptly(self._read))
            self.looked_at = time.time()
        except HeadwaterError as error:
            log.warning("the store could not be read, trying again: %s", error)
        except Exception:
            log.exception("following the store failed, trying again")

    def _read(self) -> _Sight:
        """Blocking. Only `_look_once` runs it, so the fields it reads are still."""
        state = self._reader.newest()
        writes = self._reader.write_checkpoints(self._seq)
        is_news = state is None or state.revoked > self._revoked_seq
        revocations = self._reader.revocations(self._revoked_seq) if is_news else ()
        if state is None or self._state is None or state.checkpoint.op_id == self.op_id:
            return _Sight(state, None, writes, revocations)
        return _Sight(state, self._reader.touched(self.op_id, state.checkpoint.op_id), writes, revocations)

    def _take(self, sight: _Sight) -> None:
        before, self._state = self._state, sight.state
        if sight.revocations:
            self._revoked(sight.revocations)
            self._revoked_seq = sight.revocations[-1].seq
        if sight.state is not None:  # some may be over already, and are told to nobody
            self._revoked_seq = max(self._revoked_seq, sight.state.revoked)
        if sight.writes:
            self._seq = sight.writes[-1].seq
            self._writes.expect(sight.writes)
        if sight.state is None:
            return
        if before is None or before.config_id != sight.state.config_id:
            self._end_older(sight.state.config_id)
        # without an earlier checkpoint nobody could say what was touched since
        touched = Touched(None, None) if before is None else sight.touched
        if touched is not None:
            op_id, change = sight.state.checkpoint.op_id, self._traffic.change(touched.flushes)
            for stream, news in self._interests.concerned(touched, op_id, change).items():
                stream.tell(news)
        self._release()

    def _end_older(self, config_id: int) -> None:
        for stream in self._interests.everyone():
            if _older(stream.config_id, config_id):
                stream.end(REPLACED)

    def _release(self) -> None:
        if self._state is None:
            return
        for stream, write_checkpoint in self._writes.release(self._state.checkpoint.lsns).items():
            stream.tell(News(self.op_id, write_checkpoint=write_checkpoint))


def _older(held: int | None, active: int) -> bool:
    return held is not None and held < active
