"""The thread that keeps one device in sync, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from headwater_client.errors import ClientError, RetiredError, SyncedElsewhereError, TokenRefusedError, UnreachableError
from headwater_client.storage import streams
from headwater_client.storage.connection import Turn
from headwater_client.storage.store import DeviceStore
from headwater_client.sync.options import SyncSetup, Tokens
from headwater_client.sync.transfer import Downloader, Event, Uploader
from headwater_client.timeouts import Backoff, happens
from headwater_client.transport.http import Http
from headwater_client.transport.websocket import Websocket

_log = logging.getLogger("headwater_client")

_EXPECTED = (ClientError,)
_BROKEN_OFF = (UnreachableError, TokenRefusedError)
"""What the next stream may mend. All else, as nonsense or a full disk, comes again: the server is asked less and less
often, since each time much may be downloaded for nothing."""

_TURN_SECONDS = 0.5
"""Between looks at whether another process still syncs the file."""

_SOON = 0.05
"""Seconds before a stream is opened again that was left on purpose."""


class SyncThread:
    """Syncs one device in a thread of its own. `app.retired` of its setup ends all writing."""

    def __init__(self, setup: SyncSetup) -> None:
        self._setup = setup
        self._thread = threading.Thread(target=self._run, name="headwater-client", daemon=True)
        self._ready = threading.Event()
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._download: Downloader | None = None
        self._upload: Uploader | None = None

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self, *, wait: bool = True) -> None:
        """End the thread, and wait until it has ended. From now on it begins no write of downloaded rows."""
        self._setup.app.retired.set()
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
        self._call(self._hurry.set)
        self._call(lambda: self._notify(Event.STREAMS))

    def _notify(self, event: Event) -> None:
        if self._download is not None:
            self._download.notify(event)

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
            self._setup.board.update(connected=False, connecting=False, uploading=False, buckets=None)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        backoff = Backoff(self._setup.options.retry_delay)
        while not self._stopping.is_set():
            await self._sync()
            if not self._stopping.is_set():
                await happens(self._stopping, backoff.next())
        # What hangs in the loop's threads, as the look-up of a name may, ends alone: asyncio waits for these only
        self._loop.set_default_executor(ThreadPoolExecutor())

    async def _sync(self) -> None:
        """Sync until that is to end, or until it fails, as where the disk is full."""
        try:
            await self._open_and_work()
        except RetiredError:
            self._ready.set()
        except Exception as error:  # noqa: BLE001 - there may be room later
            self._ready.set()  # before the app hears of it, since who connects holds a lock until then
            _log.warning("sync cannot start, trying again: %s", error, exc_info=not isinstance(error, _EXPECTED))
            self._setup.board.update(connecting=False, download_error=error)

    async def _open_and_work(self) -> None:
        store = self._setup.open_store(self._setup.app.retired)
        try:
            with closing(Turn(self._setup.path)) as turn:
                await self._wait_for(turn)
                kind = Websocket if self._setup.options.transport == "websocket" else Http
                async with kind(self._setup.user_agent, bson=self._setup.options.bson) as http:
                    await self._work(store, http)
        finally:
            store.connection.close()

    async def _wait_for(self, turn: Turn) -> None:
        waited = False
        while not self._stopping.is_set() and not turn.take():
            if not waited:
                self._ready.set()
                text = f"{self._setup.path} is synced by another process or another Database here: waiting for it"
                self._setup.board.update(connecting=False, download_error=SyncedElsewhereError(text))
            waited = True
            await happens(self._stopping, _TURN_SECONDS)
        if waited:
            self._setup.board.update(connecting=True, download_error=None)

    async def _work(self, store: DeviceStore, http: Http) -> None:
        tokens = Tokens(self._setup.app.fetch_credentials)
        upload = self._upload = Uploader(
            self._setup, store, http, tokens, confirmed=lambda: self._notify(Event.UPLOADED)
        )  # fmt: skip
        downloading = self._keep_connected(lambda: Downloader(self._setup, store, http, tokens, upload))
        tasks = [asyncio.ensure_future(upload.run()), asyncio.ensure_future(downloading)]
        self._ready.set()
        await self._stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._setup.board.update(streams=tuple(streams.stored(store.connection)))

    async def _keep_connected(self, new_download: Callable[[], Downloader]) -> None:
        backoff = Backoff(self._setup.options.retry_delay)
        while True:
            at_once, failure = False, None
            download = self._download = new_download()
            self._setup.board.update(connecting=not self._setup.board.status.connected)
            try:
                at_once = await download.run()
            except RetiredError:
                return
            except Exception as error:  # noqa: BLE001 - whatever it was, a device goes on trying, and says so
                _log.warning("sync failed, trying again: %s", error, exc_info=not isinstance(error, _EXPECTED))
                self._setup.board.update(download_error=error)
                failure = error
            if download.begun and (failure is None or isinstance(failure, _BROKEN_OFF)):
                backoff.succeeded()
            if at_once:
                await asyncio.sleep(_SOON)
                continue
            self._setup.board.update(connected=False, connecting=False)
            await self._pause(backoff.next(failure))

    async def _pause(self, seconds: float) -> None:
        self._hurry.clear()
        await happens(self._hurry, seconds)
