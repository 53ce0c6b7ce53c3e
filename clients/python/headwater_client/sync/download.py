"""One sync stream after another: what lines say is done to the file."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine
from enum import Enum
from functools import partial
from typing import Any, Final

from headwater_client.errors import ChecksumMismatch, TokenRefused
from headwater_client.protocol.lines import Data
from headwater_client.protocol.request import StreamRequest, SyncRequest
from headwater_client.protocol.session import (
    FETCH_AHEAD,
    Begin,
    Close,
    Closing,
    Finish,
    Instruction,
    Outcome,
    RenewToken,
    Save,
    Session,
    Tick,
)
from headwater_client.storage import store as files
from headwater_client.storage import streams, uploads
from headwater_client.storage.store import Store
from headwater_client.storage.streams import StreamKey
from headwater_client.sync.options import ConnectOptions, Tokens
from headwater_client.sync.status import StatusBoard
from headwater_client.sync.upload import Upload
from headwater_client.transport.endpoint import Credentials, Stream
from headwater_client.transport.http import Http

_BATCH_OPS: Final = 10_000
_BATCH_LINES: Final = 16
"""Of rows of a megabyte, a few lines are a batch."""

_BATCH_SECONDS: Final = 0.5


_log = logging.getLogger("headwater_client")


class Event(Enum):
    """What may happen while a stream is open, beside its lines."""

    UPLOADED = "local writes are uploaded"
    RENEWED = "there is a new token"
    STREAMS = "other streams are asked for"


class Download:
    """The download side of a device. `shown` is called with the tables whose rows changed.

    `upload` is told when the server speaks.
    """

    def __init__(
        self,
        store: Store,
        http: Http,
        tokens: Tokens,
        options: ConnectOptions,
        board: StatusBoard,
        *,
        held: Callable[[], Collection[StreamKey]],
        shown: Callable[[frozenset[str]], None],
        upload: Upload,
    ) -> None:
        self._store, self._http, self._tokens, self._options = store, http, tokens, options
        self._board, self._held, self._shown = board, held, shown
        self._upload = upload
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._session = Session()
        self._requested: list[StreamRequest] = []
        self._batch: list[Data] = []
        self._batch_ops = 0
        self._batch_since = 0.0
        self._spoken = self._begun = False
        self._renewed_at = -math.inf
        self._used: Credentials | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def begun(self) -> bool:
        """Whether the server has sent a checkpoint on the newest stream."""
        return self._begun

    def tell(self, event: Event) -> None:
        """Something happened beside the lines."""
        self._events.put_nowait(event)

    async def once(self) -> bool:
        """Follow one stream to its end; whether the next is to be opened at once."""
        self._spoken = self._begun = False
        self._events, self._session = asyncio.Queue(), Session()
        try:
            if self._options.checkpoint_mode == "requests":
                await self._ask_for_checkpoint()
            credentials = self._used = await self._tokens.get()
            async with self._http.stream(credentials, self._request().body()) as stream:
                self._board.update(connected=True, connecting=False)
                return await self._follow(stream)
        except TokenRefused:
            self._tokens.invalidate(self._used)
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            if not self._store.retired.is_set():
                self._save()
            self._board.update(buckets=None)

    def _request(self) -> SyncRequest:
        self._requested = self._store.requested_streams(self._held(), time.time())
        return SyncRequest(
            client_id=self._store.client_id(),
            positions=self._store.positions(),
            subscriptions=self._requested,
            include_defaults=self._options.include_defaults,
            parameters=self._options.parameters,
            app_metadata=self._options.app_metadata,
        )

    async def _follow(self, stream: Stream) -> bool:
        pieces = stream.pieces.__aiter__()
        reading = asyncio.ensure_future(pieces.__anext__())
        hearing = asyncio.ensure_future(self._events.get())
        try:
            while True:
                await asyncio.wait({reading, hearing}, return_when=asyncio.FIRST_COMPLETED)
                if hearing.done():
                    if self._hear(hearing.result()):
                        return True
                    hearing = asyncio.ensure_future(self._events.get())
                if reading.done():
                    try:
                        piece = reading.result()
                    except StopAsyncIteration:
                        stream.framing.end()
                        return False
                    closing = self._read(stream, piece)
                    if closing is not None:
                        return closing
                    reading = asyncio.ensure_future(pieces.__anext__())
        finally:
            for task in (reading, hearing):
                task.cancel()
            await asyncio.gather(reading, hearing, return_exceptions=True)

    def _hear(self, event: Event) -> bool:
        """React to an event; whether to open another stream."""
        if event is Event.UPLOADED:
            for instruction in self._session.uploads_finished():
                self._do(instruction)
            return False
        return event is Event.RENEWED or self._other_streams()

    def _read(self, stream: Stream, piece: bytes) -> bool | None:
        """Do what a piece of the body says; an answer ends the stream, and says whether to open the next at once."""
        for line in stream.framing.feed(piece):
            if not self._spoken:
                self._spoken = True
                self._upload.hurry()
            for instruction in self._session.receive(line):
                closing = self._do(instruction)
                if closing is not None:
                    return closing
        return None

    def _do(self, instruction: Instruction) -> bool | None:
        match instruction:
            case Save():
                self._take(instruction.data)
            case Begin():
                self._save()
                self._store.begin(instruction, include_defaults=self._options.include_defaults)
                self._begun = True
                self._report()
            case Finish():
                return self._finish(instruction)
            case RenewToken(expired=True):
                self._tokens.invalidate(self._used)
            case RenewToken():
                # Where all tokens are of so short a life, another is no better
                if time.monotonic() - self._renewed_at > FETCH_AHEAD:
                    self._tokens.invalidate(self._used)
                    self._start(self._renew())
            case Tick():
                self._save()
                return True if self._tick() else None
            case Close():
                return instruction.reason is Closing.MISMATCH
        return None

    def _take(self, data: Data) -> None:
        if not self._batch:
            self._batch_since = time.monotonic()
        self._batch.append(data)
        self._batch_ops += len(data.data)
        full = self._batch_ops >= _BATCH_OPS or len(self._batch) >= _BATCH_LINES
        if full or time.monotonic() - self._batch_since > _BATCH_SECONDS:
            self._save()
            self._report()

    def _save(self) -> None:
        batch, self._batch, self._batch_ops = self._batch, [], 0
        if batch:
            self._store.save(batch)

    def _finish(self, what: Finish) -> bool | None:
        self._save()
        applied = self._store.finish(what, time.time())
        for instruction in self._session.finished(what, applied.outcome):
            if isinstance(instruction, Close):
                raise ChecksumMismatch(applied.mismatched)
        connection = self._store.connection
        if applied.outcome is Outcome.APPLIED:
            self._shown(applied.tables)
            self._board.update(synced=tuple(files.synced(connection)), streams=tuple(streams.stored(connection)))
        if what.priority is None:
            self._board.update(buckets=None, download_error=None)
        return None

    def _report(self) -> None:
        if self._session.target is not None:
            self._board.update(buckets=self._store.progress(self._session.target))

    def _tick(self) -> bool:
        self._upload.want()
        if self._options.checkpoint_mode == "requests":
            connection = self._store.connection
            if uploads.current_request(connection) > uploads.applied(connection):
                self._start(self._ask_for_checkpoint())
        return self._other_streams()

    def _other_streams(self) -> bool:
        return self._store.requested_streams(self._held(), time.time()) != self._requested

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("beside the stream, trying again: %s", error)

    async def _renew(self) -> None:
        renewed = await self._tokens.get()
        self._renewed_at = time.monotonic()
        if renewed != self._used:
            self.tell(Event.RENEWED)

    async def _ask_for_checkpoint(self) -> None:
        """Agree with the server on the number of the newest checkpoint that was asked for."""
        connection = self._store.connection
        number = max(1, uploads.current_request(connection))
        known = await self._tokens.using(
            partial(self._http.request_checkpoint, client_id=self._store.client_id(), number=number)
        )
        uploads.seed_request(connection, known)
