"""The thread that keeps one device in sync, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from headwater_client.errors import ClientError, Retired, SyncedElsewhere, TokenRefused, Unreachable
from headwater_client.storage import streams
from headwater_client.storage.store import Store
from headwater_client.storage.streams import StreamKey
from headwater_client.storage.turn import Turn
from headwater_client.sync.backoff import Backoff
from headwater_client.sync.download import Download, Event
from headwater_client.sync.options import AppCalls, ConnectOptions, Tokens
from headwater_client.sync.status import StatusBoard
from headwater_client.sync.upload import Upload
from headwater_client.timeouts import happens
from headwater_client.transport.http import Http
from headwater_client.transport.websocket import Websocket

_log = logging.getLogger("headwater_client")

_EXPECTED = (ClientError,)
_BROKEN_OFF = (Unreachable, TokenRefused)
"""What the next stream may mend. All else, as nonsense or a full disk, comes again: the server is asked less and less
often, since each time much may be downloaded for nothing."""

_TURN_SECONDS = 0.5
"""Between looks at whether another process still syncs the file."""

_SOON = 0.05
"""Seconds before a stream is opened again that was left on purpose."""


class Engine:
    """Syncs in a thread of its own, which opens its own connection by `open_store`; its event ends all writing."""

    def __init__(
        self,
        path: Path,
        open_store: Callable[[threading.Event], Store],
        app: AppCalls,
        options: ConnectOptions,
        board: StatusBoard,
        *,
        held: Callable[[], Collection[StreamKey]],
        shown: Callable[[frozenset[str]], None],
        user_agent: str,
    ) -> None:
        self._path = path
        self._open_store, self._app, self._options, self._board = open_store, app, options, board
        self._held, self._shown, self._user_agent = held, shown, user_agent
        self._thread = threading.Thread(target=self._run, name="headwater-client", daemon=True)
        self._ready, self._retired = threading.Event(), app.retired
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._download: Download | None = None
        self._upload: Upload | None = None
        self._hurry: asyncio.Event | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that the thread runs."""
        return self._loop

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread, and wait until it has ended. From now on it begins no write of downloaded rows."""
        self._retired.set()
        if self._stopping is not None:
            self._call(self._stopping.set)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive()

    def wrote(self) -> None:
        """The app has written: look at the upload queue."""
        if self._upload is not None:
            self._call(self._upload.want)

    def streams_changed(self) -> None:
        """The app has subscribed to something, or given it up."""
        if self._download is not None:
            self._call(self._streams_changed)

    def _streams_changed(self) -> None:
        if self._download is not None:
            self._download.tell(Event.STREAMS)
        if self._hurry is not None:
            self._hurry.set()

    def _call(self, work: Callable[[], object]) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(work)
        except RuntimeError:  # the loop has ended meanwhile
            pass

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        finally:
            self._ready.set()
            self._board.update(connected=False, connecting=False, uploading=False, buckets=None)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        backoff = Backoff(self._options.retry_delay)
        while not self._stopping.is_set():
            await self._sync(self._stopping)
            if not self._stopping.is_set():
                await happens(self._stopping, backoff.next())
        # What hangs in the loop's threads, as the look-up of a name may, ends alone: asyncio waits for these only
        self._loop.set_default_executor(ThreadPoolExecutor())

    async def _sync(self, stopping: asyncio.Event) -> None:
        """Sync until that is to end, or until it fails, as where the disk is full."""
        try:
            await self._open_and_work(stopping)
        except Retired:
            self._ready.set()
        except Exception as error:  # noqa: BLE001 - there may be room later
            self._ready.set()  # before the app hears of it, since who connects holds a lock until then
            _log.warning("sync cannot start, trying again: %s", error, exc_info=not isinstance(error, _EXPECTED))
            self._board.update(connecting=False, download_error=error)

    async def _open_and_work(self, stopping: asyncio.Event) -> None:
        store = self._open_store(self._retired)
        try:
            with closing(Turn(self._path)) as turn:
                await self._wait_for(turn, stopping)
                kind = Websocket if self._options.transport == "websocket" else Http
                async with kind(self._user_agent, bson=self._options.bson) as http:
                    await self._work(store, http, stopping)
        finally:
            store.connection.close()

    async def _wait_for(self, turn: Turn, stopping: asyncio.Event) -> None:
        waited = False
        while not stopping.is_set() and not turn.take():
            if not waited:
                self._ready.set()
                text = (
                    f"{self._path} is synced by another process, or by another Database of this one; waiting for that"
                )
                self._board.update(connecting=False, download_error=SyncedElsewhere(text))
            waited = True
            await happens(stopping, _TURN_SECONDS)
        if waited:
            self._board.update(connecting=True, download_error=None)

    async def _work(self, store: Store, http: Http, stopping: asyncio.Event) -> None:
        tokens = Tokens(self._app.fetch_credentials)
        upload = self._upload = Upload(
            store, http, tokens, self._app, self._options, self._board,
            confirmed=lambda: download.tell(Event.UPLOADED),
        )  # fmt: skip
        download = self._download = Download(
            store, http, tokens, self._options, self._board,
            held=self._held, shown=self._shown, upload=upload,
        )  # fmt: skip
        tasks = [asyncio.ensure_future(upload.run()), asyncio.ensure_future(self._keep_connected(download))]
        self._ready.set()
        await stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._board.update(streams=tuple(streams.stored(store.connection)))

    async def _keep_connected(self, download: Download) -> None:
        backoff = Backoff(self._options.retry_delay)
        while True:
            at_once, failure = False, None
            self._board.update(connecting=not self._board.status.connected)
            try:
                at_once = await download.once()
            except Retired:
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, a device goes on trying, and says so
                _log.warning("sync failed, trying again: %s", error, exc_info=not isinstance(error, _EXPECTED))
                self._board.update(download_error=error)
                failure = error
            if download.begun and (failure is None or isinstance(failure, _BROKEN_OFF)):
                backoff.succeeded()
            if at_once:
                await asyncio.sleep(_SOON)
                continue
            self._board.update(connected=False, connecting=False)
            await self._pause(backoff.next(failure))

    async def _pause(self, seconds: float) -> None:
        assert self._hurry is not None
        self._hurry.clear()
        await happens(self._hurry, seconds)
