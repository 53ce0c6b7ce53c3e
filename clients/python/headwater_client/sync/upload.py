"""Has the app upload its queue, then finds out which write checkpoint will contain that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from headwater_client.errors import ProtocolError, RetiredError, TokenRefusedError, UploadStuckError
from headwater_client.storage import uploads
from headwater_client.storage.store import DeviceStore
from headwater_client.sync.options import SyncSetup, Tokens
from headwater_client.timeouts import Backoff, happens
from headwater_client.transport.http import Http

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
