"""The state of replication, and the progress of snapshots, comparisons and deploys as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from importlib.metadata import version

import msgspec
from msgspec import Struct
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from headwater.api.admin.route import BUSY, AdminSettings, AdminThreads
from headwater.api.admin.versions import VersionResponse, version_response
from headwater.api.auth.keys import Unfetched
from headwater.api.errors import ApiError
from headwater.api.studio.tokens import Operator, Role
from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError
from headwater.replication.status import Compared, ReplicationState, SourceStatus, SourceStatuses
from headwater.replication.versions import why_served
from headwater.storage.contract.reader import StoreReader


class KeysStatus(Struct, frozen=True):
    """An address whose keys of tokens this process can't fetch: why, and since when, in seconds since 1970."""

    address: str
    cause: str
    since: float


class Status(Struct, frozen=True):
    """The state of this deployment. `versions` of the sync config are those that are active or being processed, and
    `served` says which devices are served and why. `keys` are those of tokens that can't be fetched."""

    sources: tuple[SourceStatus, ...]
    versions: tuple[VersionResponse, ...]
    served: str
    checkpoint: int | None
    replicator: bool
    headwater: str
    keys: tuple[KeysStatus, ...] = ()


class StatusHandler:
    """Reads the state of replication."""

    def __init__(
        self, settings: AdminSettings, reader: StoreReader, unfetched: Callable[[], Sequence[Unfetched]]
    ) -> None:
        self._unfetched = unfetched
        self._settings = settings
        self._reader = reader
        self._standings = SourceStatuses(reader, settings.sources)

    def status(self) -> Status:
        """Report the state of sources, slots, comparisons and versions of the sync config."""
        with self._settings.store() as store:
            versions, served = store.versions(), why_served(store)
        checkpoint = self._reader.newest()
        sources = tuple(self._standings.find())
        return Status(
            sources,
            tuple(version_response(each) for each in versions if each.state.value in {"processing", "active"}),
            served,
            None if checkpoint is None else checkpoint.checkpoint.op_id,
            any(source.runs for source in sources),
            version("headwater"),
            tuple(KeysStatus(each.address, str(each.error), each.since) for each in self._unfetched()),
        )


LOOK_SECONDS = 0.5
BEAT_SECONDS = 15.0
"""A comment is sent after this long without an event, so that no proxy closes the connection as idle."""

MOST_WATCHERS, MOST_VIEWERS = 20, 12
"""How many may watch progress, and up to how many watchers one more may be of the role `view`: who deploys finds a
place."""


class SourceProgress(Struct, frozen=True):
    """Progress of bulk work on one source. `compared` are the tables whose rows devices may still see as they were
    before."""

    source: str
    state: ReplicationState
    work: str
    done: BulkProgress | None
    compared: tuple[Compared, ...]


class ProgressResponse(Struct, frozen=True):
    """One event: all sources, and the versions of the sync config that are active or being processed."""

    sources: tuple[SourceProgress, ...]
    versions: tuple[VersionResponse, ...]


class ProgressEvents(StreamingResponse):
    """Server-sent events named `progress`, with a ProgressResponse as data: one at once, one after each change."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. HEAD, which Starlette adds to GET, gets the headers only: the events never end."""
        if scope["method"] == "HEAD":
            self.body_iterator = _nothing()
        await super().__call__(scope, receive, send)


class ProgressHandler:
    """Answers who watches progress. Not thread-safe: use it in one event loop."""

    def __init__(self, status: StatusHandler, threads: AdminThreads) -> None:
        self._status = status
        self._threads = threads
        self._watchers = 0
        self._seen = b""
        self._looked_at = 0.0
        self._looking = asyncio.Lock()
        self._closing = asyncio.Event()

    def close(self) -> None:
        self._closing.set()

    async def events(self, operator: Operator) -> ProgressEvents:
        """Stream the progress of snapshots, comparisons and deploys as server-sent events."""
        if self._watchers >= (MOST_VIEWERS if operator.role is Role.VIEW else MOST_WATCHERS):
            raise ApiError(f"{self._watchers} clients watch progress already", fix="close one", code=BUSY)
        return ProgressEvents(self._follow(operator), headers={"cache-control": "no-store", "x-accel-buffering": "no"})

    async def _follow(self, operator: Operator) -> AsyncIterator[bytes]:
        """The events, until the session ends that asks for them."""
        self._watchers += 1
        try:
            sent, sent_at = b"", time.monotonic()
            while not self._closing.is_set() and not operator.ended():
                now = await self._look()
                if now != sent:
                    sent, sent_at = now, time.monotonic()
                    yield b"event: progress\ndata: %b\n\n" % now
                elif time.monotonic() - sent_at >= BEAT_SECONDS:
                    sent_at = time.monotonic()
                    yield b": still here\n\n"
                await self._rest()
        finally:
            self._watchers -= 1

    async def _look(self) -> bytes:
        """The progress as JSON, read at most once per LOOK_SECONDS for all; the last one if it can't be read now."""
        async with self._looking:
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                try:
                    status = await self._threads.run(self._status.status)
                    progress = ProgressResponse(tuple(map(_progress, status.sources)), status.versions)
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


def _progress(status: SourceStatus) -> SourceProgress:
    done = None if status.done is None else replace(status.done, over=False)
    return SourceProgress(status.source, status.state, status.work, done, status.compared)
