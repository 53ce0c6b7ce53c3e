"""Follows the store, and notifies each open stream of the process of the changes that concern it.

A commit makes the store's file descriptor readable. The hub then reads the new checkpoint, and which buckets and
lookups it touched. A slow poll covers lost wake-ups.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from headwater.api.errors import NoActiveConfigError
from headwater.api.streams.threads import StoreThreads
from headwater.api.streams.traffic import Traffic
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.replication.status import find_status
from headwater.storage.contract.reader import Listener, Newest, StoreReader, Touched, WriteCheckpoint
from headwater.storage.contract.store import Revocation
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

    def notify(self, news: News) -> None: ...

    def end(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _StoreView:
    """What one read of the store found. `touched` is None when the op id did not change. `progress` is that of the
    first snapshot, before there is any state."""

    state: Newest | None
    touched: Touched | None = None
    writes: Sequence[WriteCheckpoint] = ()
    revocations: Sequence[Revocation] = ()
    progress: str = ""


@dataclass(frozen=True, slots=True)
class LastRead:
    """When the store was read: in seconds since 1970, and by time.monotonic(), since the other clock may be set."""

    wall: float
    monotonic: float


@dataclass(slots=True)
class _Sequences:
    """Up to which write checkpoint and which revocation the store was read."""

    writes: int = 0
    revocations: int = 0


class Hub:
    """Not thread-safe: use it in one event loop. Call `start` before the first stream and `close` after the last.
    `revoked` is called with revocations: first with all in force, which may be none, then with each new one. `sources`
    are the names of the sources that the config has."""

    def __init__(
        self,
        reader: StoreReader,
        threads: StoreThreads,
        traffic: Traffic,
        revoked: Callable[[Sequence[Revocation]], None] = lambda _: None,
        sources: Sequence[str] = (),
    ) -> None:
        self._sources = sources
        self._reader = reader
        self._revoked = revoked
        self._threads = threads
        self._traffic = traffic
        self._interests: Interests[Follower] = Interests()
        self._writes: AwaitedWrites[Follower] = AwaitedWrites()
        self._seen = _StoreView(None)
        self._read_upto = _Sequences()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.last_read: LastRead | None = None
        """When the store was read last; None before the first time."""

    @property
    def op_id(self) -> OpId:
        """The op id up to which streams know about changes."""
        return self._seen.state.checkpoint.op_id if self._seen.state else OpId(0)

    @property
    def followed(self) -> frozenset[str]:
        """The sources of which the store has rows."""
        return frozenset(self._seen.state.checkpoint.lsns) if self._seen.state else frozenset()

    @property
    def active(self) -> bool:
        return self._seen.state is not None

    def raise_unless_active(self) -> None:
        """Raise NoActiveConfigError, with the progress of the first snapshot, while there is no active sync config."""
        if not self.active:
            raise NoActiveConfigError(self._seen.progress)

    async def start(self) -> None:
        """Read the store once, and begin to follow it. Raises what the store raises when it can't be listened to."""
        listener = self._reader.listen()
        # No stream is there yet that could wait for earlier ones. Without an answer, the first look reads all
        with suppress(HeadwaterError):
            self._read_upto.writes = await self._threads.promptly(self._reader.newest_write)
        await self._read_once()
        self._task = asyncio.get_running_loop().create_task(self._follow(listener))

    async def close(self) -> None:
        """Stop following the store. The caller has to end the streams."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])

    def refresh(self) -> None:
        """Read the store now. Call it after a write of this process, which does not make its own descriptor
        readable."""
        self._moved.set()

    def join(self, stream: Follower) -> None:
        """Register a stream before its first read, so that it misses no write checkpoint."""
        self._interests.put(stream, Interest())
        self._writes.join(stream.write_key, stream)

    def leave(self, stream: Follower) -> None:
        self._interests.remove(stream)
        self._writes.leave(stream.write_key, stream)

    def watch(self, stream: Follower, interest: Interest, op_id: OpId) -> None:
        """Tell a stream about changes in `interest` from now on. `op_id` is the checkpoint at which it was read."""
        self._interests.put(stream, interest)
        if self._seen.state is not None and _older(stream.config_id, self._seen.state.config_id):
            stream.end(REPLACED)
        elif op_id < self.op_id:  # the stream missed the changes between the two checkpoints
            stream.notify(anything(self.op_id))

    def expect(self, write: WriteCheckpoint) -> None:
        """Tell the streams of the write's key once a checkpoint contains the write."""
        self._writes.expect([write])
        self._release()

    def end_all(self, reason: str, over_seconds: float) -> None:
        """End every stream at a random time within so many seconds, so that not all clients connect again at once."""
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
                await self._read_once()
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

    async def _read_once(self) -> None:
        self._moved.clear()
        try:
            self._take(await self._threads.promptly(self._read))
            self.last_read = LastRead(time.time(), time.monotonic())
        except HeadwaterError as error:
            log.warning("the store could not be read, trying again: %s", error)
        except Exception:
            log.exception("following the store failed, trying again")

    def _read(self) -> _StoreView:
        """Read the store. Blocking. Only `_read_once` calls it and waits, so that fields do not change meanwhile."""
        state = self._reader.newest()
        writes = self._reader.write_checkpoints(self._read_upto.writes)
        is_news = state is None or state.revoked > self._read_upto.revocations
        revocations = self._reader.revocations(self._read_upto.revocations) if is_news else ()
        if state is None:
            return _StoreView(None, None, writes, revocations, self._read_progress())
        if self._seen.state is None or state.checkpoint.op_id == self.op_id:
            return _StoreView(state, None, writes, revocations)
        return _StoreView(state, self._reader.touched(self.op_id, state.checkpoint.op_id), writes, revocations)

    def _read_progress(self) -> str:
        """How far the first snapshot is. Anybody may read it, so it reveals nothing about the source."""
        for tag in self._sources:
            standing = find_status(tag, self._reader.replicator_status(tag), None, time.time())
            if standing.done is not None:
                return f"{standing.done} are read so far; try again"
            if standing.cause is not None or any(finding.fatal for finding in standing.findings):
                return "it is blocked; see `headwater source status`"
        return ""

    def _take(self, seen: _StoreView) -> None:
        before, self._seen = self._seen.state, seen
        if seen.revocations or self.last_read is None:
            self._revoked(seen.revocations)
        if seen.revocations:
            self._read_upto.revocations = seen.revocations[-1].seq
        if seen.state is not None:  # some may have expired already
            self._read_upto.revocations = max(self._read_upto.revocations, seen.state.revoked)
        if seen.writes:
            self._read_upto.writes = seen.writes[-1].seq
            self._writes.expect(seen.writes)
        if seen.state is None:
            return
        if before is None or before.config_id != seen.state.config_id:
            self._end_older(seen.state.config_id)
        # without an earlier checkpoint it is unknown what was touched since
        touched = Touched(None, None) if before is None else seen.touched
        if touched is not None:
            op_id, change = seen.state.checkpoint.op_id, self._traffic.change(touched.flushes)
            for stream, news in self._interests.concerned(touched, op_id, change).items():
                stream.notify(news)
        self._release()

    def _end_older(self, config_id: int) -> None:
        for stream in self._interests.everyone():
            if _older(stream.config_id, config_id):
                stream.end(REPLACED)

    def _release(self) -> None:
        if self._seen.state is None:
            return
        released = self._writes.release(self._seen.state.checkpoint.lsns, self._sources or None)
        for stream, write_checkpoint in released.items():
            stream.notify(News(self.op_id, write_checkpoint=write_checkpoint))


def _older(held: int | None, active: int) -> bool:
    return held is not None and held < active
