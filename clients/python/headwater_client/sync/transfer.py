"""One connection of a device: what its stream's lines say is done to the file, and the app uploads its queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from enum import Enum
from functools import partial
from typing import Any, Final

from headwater_client.errors import (
    ChecksumMismatchError,
    ProtocolError,
    RetiredError,
    TokenRefusedError,
    UploadStuckError,
)
from headwater_client.protocol.lines import Data
from headwater_client.protocol.session import (
    BeginCheckpoint,
    Close,
    Finish,
    FinishOutcome,
    Instruction,
    RenewToken,
    RequestedStream,
    Save,
    StreamSession,
    Tick,
    request_body,
)
from headwater_client.storage import store as files
from headwater_client.storage import streams, uploads
from headwater_client.storage.store import DeviceStore
from headwater_client.sync.options import SyncSetup, Tokens
from headwater_client.timeouts import Backoff, happens
from headwater_client.transport.http import Credentials, Http, ServerStream

_BATCH_OPS: Final = 10_000
_BATCH_LINES: Final = 16
"""Of rows of a megabyte, a few lines are a batch."""

_BATCH_SECONDS: Final = 0.5

_REQUESTS: Final = 3
"""So often a checkpoint is requested in a row: once after a file was restored it is another number's turn."""

_log = logging.getLogger("headwater_client")


class Uploader:
    """The upload side of a device. `confirmed` is called when the queue is empty and its write checkpoint known."""

    def __init__(
        self, setup: SyncSetup, store: DeviceStore, http: Http, tokens: Tokens, confirmed: Callable[[], None]
    ) -> None:  # fmt: skip
        self._setup, self._store, self._http, self._tokens = setup, store, http, tokens
        self._confirmed = confirmed
        self._wanted, self._hurried = asyncio.Event(), asyncio.Event()

    def want(self) -> None:
        """Look at the queue, soon. After a failure its wait comes first: an app may write all the time."""
        self._wanted.set()

    def hurry(self) -> None:
        """Look at the queue, soon, also after a failure: there is a connection again."""
        self._wanted.set()
        self._hurried.set()

    async def run(self) -> None:
        """Upload whenever that is wanted, until cancelled."""
        backoff = Backoff(self._setup.options.retry_delay)
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            used = self._tokens.known
            try:
                if await self._drain():
                    self._confirmed()
                    self._setup.board.update(upload_error=None)
                backoff.succeeded()
            except RetiredError:
                return
            except Exception as error:  # noqa: BLE001 - the app's own code may raise anything, and is tried again
                _log.warning("upload failed, trying again: %s", error)
                if isinstance(error, TokenRefusedError):
                    self._tokens.invalidate(used)
                self._setup.board.update(upload_error=error, uploading=False)
                self._hurried.clear()
                await happens(self._hurried, backoff.next(error))
                self._wanted.set()
            finally:
                self._setup.board.update(uploading=False)
            await asyncio.sleep(self._setup.options.upload_throttle)

    async def _drain(self) -> bool:
        """Upload all that waits; whether there was anything to do."""
        connection = self._store.connection
        worked = False
        while True:
            worked = await self._empty_queue() or worked
            sequence = uploads.unconfirmed_sequence(connection)
            if sequence is None:
                if uploads.first_waiting(connection) is None:
                    return worked
                continue
            worked = True
            number = await self._write_checkpoint()
            if uploads.set_target(connection, number, sequence):
                return True

    async def _empty_queue(self) -> bool:
        connection = self._store.connection
        last: int | None = None
        while (first := uploads.first_waiting(connection)) is not None:
            if first == last:
                raise UploadStuckError(
                    f"upload_data left the write {first} at the head of the queue: call complete() on what it uploaded"
                )
            self._setup.board.update(uploading=True)
            last = first
            await self._setup.app.upload()
        return last is not None

    async def _write_checkpoint(self) -> int:
        http, client_id = self._http, self._store.client_id()
        if self._setup.options.checkpoint_mode == "legacy":
            return await self._tokens.using(lambda each: http.write_checkpoint(each, client_id))
        for _ in range(_REQUESTS):
            number = uploads.next_request(self._store.connection)
            known = await self._tokens.using(partial(http.request_checkpoint, client_id=client_id, number=number))
            if known <= number:
                return number
            # The server knows a later request, as of a file that was restored. It may stand before these writes
            uploads.seed_request(self._store.connection, known)
        raise ProtocolError(
            "each checkpoint request is answered with a later one: does another device use this client id?"
        )


class Event(Enum):
    """What may happen while a stream is open, beside its lines."""

    UPLOADED = "local writes are uploaded"
    RENEWED = "there is a new token"
    STREAMS = "other streams are requested"


class _Batch:
    """Operations that are stored together."""

    def __init__(self) -> None:
        self.chunks: list[Data] = []
        self._ops = 0
        self._since = 0.0

    def add(self, data: Data) -> bool:
        """Add operations; whether it is time to store the batch."""
        if not self.chunks:
            self._since = time.monotonic()
        self.chunks.append(data)
        self._ops += len(data.data)
        full = self._ops >= _BATCH_OPS or len(self.chunks) >= _BATCH_LINES
        return full or time.monotonic() - self._since > _BATCH_SECONDS


class Downloader:
    """One sync stream. `upload` is to hurry once the server sends something."""

    def __init__(self, setup: SyncSetup, store: DeviceStore, http: Http, tokens: Tokens, upload: Uploader) -> None:
        self._setup, self._store, self._http, self._tokens = setup, store, http, tokens
        self._upload = upload
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._session = StreamSession()
        self._requested: list[RequestedStream] = []
        self._batch = _Batch()
        self._heard = False
        self._used: Credentials | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def begun(self) -> bool:
        """Whether the server has sent a checkpoint."""
        return self._session.target is not None

    def notify(self, event: Event) -> None:
        """Something happened beside the lines."""
        self._events.put_nowait(event)

    async def run(self) -> bool:
        """Follow the stream to its end; whether the next is to be opened at once."""
        try:
            if self._setup.options.checkpoint_mode == "requests":
                await self._ask_for_checkpoint()
            credentials = self._used = await self._tokens.get()
            async with self._http.stream(credentials, self._request()) as stream:
                self._setup.board.update(connected=True, connecting=False)
                return await self._follow(stream)
        except TokenRefusedError:
            self._tokens.invalidate(self._used)
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            if not self._store.retired.is_set():
                self._save()
            self._setup.board.update(buckets=None)

    def _request(self) -> bytes:
        self._requested = self._store.requested_streams(self._setup.subscribed(), time.time())
        store, options = self._store, self._setup.options
        return request_body(
            store.client_id(), store.positions(), self._requested, include_defaults=options.include_defaults,
            parameters=options.parameters, app_metadata=options.app_metadata,
        )  # fmt: skip

    async def _follow(self, stream: ServerStream) -> bool:
        pieces = stream.pieces.__aiter__()
        reading = asyncio.ensure_future(pieces.__anext__())
        waiting = asyncio.ensure_future(self._events.get())
        try:
            while True:
                await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    if self._react(waiting.result()):
                        return True
                    waiting = asyncio.ensure_future(self._events.get())
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
            for task in (reading, waiting):
                task.cancel()
            await asyncio.gather(reading, waiting, return_exceptions=True)

    def _react(self, event: Event) -> bool:
        """React to an event; whether to open another stream."""
        if event is Event.UPLOADED:
            if self._session.blocked is not None:
                self._finish(self._session.blocked)
            return False
        return event is Event.RENEWED or self._other_streams()

    def _read(self, stream: ServerStream, piece: bytes) -> bool | None:
        """Do what a piece of the body says; an answer ends the stream, and says whether to open the next at once."""
        for line in stream.framing.feed(piece):
            if not self._heard:
                self._heard = True
                self._upload.hurry()
            for instruction in self._session.receive(line):
                closing = self._do(instruction)
                if closing is not None:
                    return closing
        return None

    def _do(self, instruction: Instruction) -> bool | None:
        match instruction:
            case Save():
                if self._batch.add(instruction.data):
                    self._save()
                    self._report()
            case BeginCheckpoint():
                self._save()
                self._store.begin(instruction, include_defaults=self._setup.options.include_defaults)
                self._report()
            case Finish():
                self._finish(instruction)
            case RenewToken(expired=True):
                self._tokens.invalidate(self._used)
            case RenewToken():
                self._start(self._renew())
            case Tick():
                self._save()
                return True if self._tick() else None
            case Close():
                return False
        return None

    def _save(self) -> None:
        batch, self._batch = self._batch, _Batch()
        if batch.chunks:
            self._store.save(batch.chunks)

    def _finish(self, what: Finish) -> None:
        self._save()
        applied = self._store.finish(what, time.time())
        self._session.finished(what, applied.outcome)
        if applied.outcome is FinishOutcome.MISMATCH:
            raise ChecksumMismatchError(applied.mismatched)
        connection = self._store.connection
        if applied.outcome is FinishOutcome.APPLIED:
            self._setup.show()
            self._setup.board.update(synced=tuple(files.synced(connection)), streams=tuple(streams.stored(connection)))
        if what.priority is None:
            self._setup.board.update(buckets=None, download_error=None)

    def _report(self) -> None:
        if self._session.target is not None:
            self._setup.board.update(buckets=self._store.progress(self._session.target))

    def _tick(self) -> bool:
        self._upload.want()
        if self._setup.options.checkpoint_mode == "requests":
            connection = self._store.connection
            if uploads.current_request(connection) > uploads.applied(connection):
                self._start(self._ask_for_checkpoint())
        return self._other_streams()

    def _other_streams(self) -> bool:
        return self._store.requested_streams(self._setup.subscribed(), time.time()) != self._requested

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("beside the stream, trying again: %s", error)

    async def _renew(self) -> None:
        if await self._tokens.renew(self._used):
            self.notify(Event.RENEWED)

    async def _ask_for_checkpoint(self) -> None:
        """Agree with the server on the number of the newest checkpoint that was requested."""
        connection = self._store.connection
        number = max(1, uploads.current_request(connection))
        known = await self._tokens.using(
            partial(self._http.request_checkpoint, client_id=self._store.client_id(), number=number)
        )
        uploads.seed_request(connection, known)
