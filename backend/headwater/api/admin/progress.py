"""Streams the progress of snapshots, comparisons and deploys as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headwater.api.admin.errors import AdminBusyError
from headwater.api.admin.status import StatusDesk
from headwater.api.admin.versions import VersionTold
from headwater.api.admin.work import AdminThreads
from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError
from headwater.replication.health.model import Compared, State
from headwater.replication.health.standing import Standing

LOOK_SECONDS = 0.5
BEAT_SECONDS = 15.0
"""A comment is sent after this long without an event, so that no proxy closes the connection as idle."""

MOST_WATCHERS = 20


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Progress of bulk work on one source. `compared` are the tables whose rows devices may still see as they were
    before."""

    source: str
    state: State
    work: str
    done: BulkProgress | None
    compared: tuple[Compared, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """One event: all sources, and the versions of the sync config that are active or being processed."""

    sources: tuple[SourceProgress, ...]
    versions: tuple[VersionTold, ...]


class ProgressEvents(StreamingResponse):
    """Server-sent events named `progress`, each with a Progress as its data: one at once, and one after each change."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. HEAD, which Starlette adds to GET, gets the headers only: the events never end."""
        if scope["method"] == "HEAD":
            self.body_iterator = _nothing()
        await super().__call__(scope, receive, send)


class ProgressDesk:
    """Answers who watches progress. Not thread-safe: use it in one event loop."""

    def __init__(self, status: StatusDesk, threads: AdminThreads) -> None:
        self._status = status
        self._threads = threads
        self._watchers = 0
        self._seen = b""
        self._looked_at = 0.0
        self._looking = asyncio.Lock()
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all streams of events."""
        self._closing.set()

    async def events(self) -> ProgressEvents:
        """Stream the progress of snapshots, comparisons and deploys as server-sent events."""
        if self._watchers >= MOST_WATCHERS:
            raise AdminBusyError(f"{self._watchers} clients watch progress already", fix="close one")
        return ProgressEvents(self._follow(), headers={"cache-control": "no-store", "x-accel-buffering": "no"})

    async def _follow(self) -> AsyncIterator[bytes]:
        self._watchers += 1
        try:
            told, told_at = b"", time.monotonic()
            while not self._closing.is_set():
                now = await self._look()
                if now != told:
                    told, told_at = now, time.monotonic()
                    yield b"event: progress\ndata: %b\n\n" % now
                elif time.monotonic() - told_at >= BEAT_SECONDS:
                    told_at = time.monotonic()
                    yield b": still here\n\n"
                await self._rest()
        finally:
            self._watchers -= 1

    async def _look(self) -> bytes:
        """The progress as JSON, read at most once per LOOK_SECONDS for all watchers. The last one when the store can't
        be read now."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                try:
                    status = await self._threads.run(self._status.status)
                    progress = Progress(tuple(map(_progress, status.sources)), status.versions)
                    self._seen = msgspec.json.encode(progress)
                except HeadwaterError:
                    pass  # the next read may succeed
                self._looked_at = time.monotonic()
            return self._seen

    async def _rest(self) -> None:
        try:
            await asyncio.wait_for(self._closing.wait(), LOOK_SECONDS)
        except TimeoutError:
            pass


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield


def _progress(status: Standing) -> SourceProgress:
    done = None if status.done is None else replace(status.done, over=False)
    return SourceProgress(status.source, status.state, status.work, done, status.compared)
