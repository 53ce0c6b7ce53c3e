"""What an app has to say to sync: how to get a token, and how to upload."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

import httpx

from headwater_client.database import refusals
from headwater_client.database.crud import CrudTransaction, as_json
from headwater_client.database.refusals import Refusal
from headwater_client.errors import ConnectError, ProtocolError, Refused, Retired, TokenRefused, Unreachable
from headwater_client.sync.options import AppCalls
from headwater_client.transport.endpoint import Credentials, refusal
from headwater_client.transport.http import trusted

if TYPE_CHECKING:
    from headwater_client.database.database import Database

_AT_ONCE: Final = 100
"""Local transactions in one request."""

_TOO_LARGE: Final = 413
_SECONDS: Final = 60.0

_LONGEST_ANSWER: Final = 4 << 20
"""Bytes: what became of `_AT_ONCE` transactions is far shorter."""

_GRACE: Final = 5.0
"""Seconds that a call of the app's may go on while sync ends. After that it goes on alone."""

_LOOK: Final = 0.1
"""Seconds between looks at whether an upload that was left has ended."""

_PATIENCE: Final = 10.0
"""Seconds of such looks until the app is told. After that they begin again as after any failure."""

_log = logging.getLogger("headwater_client")

_within: Final = ContextVar[threading.Event | None]("headwater_within_app_call", default=None)


class Connector(Protocol):
    """The app's side. Both methods may be coroutines; plain ones run in a thread of their own."""

    def fetch_credentials(self) -> Credentials | Awaitable[Credentials]:
        """The endpoint, and a token that is valid now. Called again when a token ends or is refused."""

    def upload_data(self, database: Database) -> object:
        """Upload the first transaction of the queue, and complete it. After an error it is called again."""


class UploadConnector:
    """Syncs with Headwater and uploads to its `POST /upload`, for apps without a backend of their own.

    `token` is called for each new token; it may also be a token itself. `refused` is called for each local transaction
    that the server put aside, since it can't be applied. Where the schema has `upload_refusals`, it is also kept there.
    """

    def __init__(
        self, endpoint: str, token: str | Callable[[], str], refused: Callable[[Refusal], object] | None = None
    ) -> None:
        self._endpoint, self._token, self._refused = endpoint.rstrip("/"), token, refused
        self._credentials: Credentials | None = None

    def fetch_credentials(self) -> Credentials:
        token = self._token if isinstance(self._token, str) else self._token()
        self._credentials = Credentials(self._endpoint, token)
        return self._credentials

    def upload_data(self, database: Database) -> None:
        transactions = list(islice(database.crud_transactions(), _AT_ONCE))
        if not transactions:
            return
        sent, answers = self._send(database.client_id, transactions)
        told = zip(sent, answers, strict=True)
        refused = [Refusal.of(answer, transaction.crud) for transaction, answer in told if "error" in answer]
        refusals.keep(database, refused)
        sent[-1].complete()
        for each in refused:
            self._tell_refused(each)

    def check_refusals(self, database: Database) -> None:
        """Remove from `upload_refusals` what somebody has applied or discarded at the server since.

        Raises `Refused`, `Unreachable`, `ProtocolError`.
        """
        known = refusals.kept(database)
        if not known:
            return
        found = _list_in(self._ask("GET", f"/upload/refused?client_id={quote(database.client_id)}"), "refused")
        waiting = {str(each.get("dead_letter")) for each in found}
        refusals.forget(database, [letter for letter in known if letter not in waiting])

    def _tell_refused(self, told: Refusal) -> None:
        try:
            if self._refused is not None:
                self._refused(told)
        except Exception:  # noqa: BLE001 - the next one is to be told, too
            _log.exception("what is told of refused writes failed")

    def _send(
        self, client_id: str, transactions: Sequence[CrudTransaction]
    ) -> tuple[Sequence[CrudTransaction], list[dict[str, Any]]]:
        """Send as many as the server takes at once; which these were, and what it says of each."""
        crud = [{"crud": [as_json(entry) for entry in each.crud]} for each in transactions]
        try:
            text = self._ask("POST", "/upload", {"client_id": client_id, "transactions": crud})
        except Refused as error:
            if error.status != _TOO_LARGE or len(transactions) == 1:
                raise
            return self._send(client_id, transactions[: len(transactions) // 2])
        answers = _list_in(text, "transactions")
        if len(answers) != len(transactions):
            raise _untold(text)
        return transactions, answers

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """The server's answer, as text."""
        credentials = self._credentials or self.fetch_credentials()
        url = self._endpoint + path
        headers = {"authorization": f"Token {credentials.token}"}
        try:
            with httpx.stream(method, url, json=body, headers=headers, timeout=_SECONDS, verify=trusted()) as response:
                text = _text(response)
        except httpx.HTTPError as error:
            raise Unreachable(f"{url}: {error or type(error).__name__}") from error
        if response.status_code != 200:
            refused = refusal(path, response.status_code, text, response.headers)
            if isinstance(refused, TokenRefused):
                self._credentials = None
            raise refused
        return text


def _text(response: httpx.Response) -> str:
    """The answer, whole. Raises `Unreachable` where it drips, and where it is longer than the server's ever are."""
    held, until = bytearray(), time.monotonic() + _SECONDS
    for piece in response.iter_bytes():
        held += piece
        if time.monotonic() > until or len(held) > _LONGEST_ANSWER:
            raise Unreachable(f"{response.url} answers without end")
    return str(held, "utf-8", "replace")


def _list_in(text: str, name: str) -> list[dict[str, Any]]:
    """The list of this name in an answer. Others answer 200, too, as the sign-in page of a network does."""
    try:
        found = json.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise _untold(text)
    return found


def _untold(text: str) -> ProtocolError:
    return ProtocolError(f"the server answered without telling of each transaction: {text[:200]}")


class DownloadConnector(UploadConnector):
    """Syncs and uploads nothing. Local writes wait in the queue, and hold back what is downloaded."""

    def upload_data(self, database: Database) -> None:
        raise ConnectError("this device only downloads: its local writes wait for a connector that uploads")


def app_calls(
    connector: Connector,
    database: Database,
    app_loop: asyncio.AbstractEventLoop | None,
    uploading: threading.Lock,
) -> AppCalls:
    """The connector's methods as coroutines for the sync thread: those of the app run in its own loop if it has one.

    `uploading` is held by an upload that runs: it may outlive its connection, and the next waits for it.
    """
    retired = threading.Event()

    async def fetch() -> Credentials:
        found = await _call(connector.fetch_credentials, app_loop, retired)
        if not isinstance(found, Credentials):
            raise ConnectError(f"fetch_credentials gave {type(found).__name__}, not Credentials")
        return found

    async def upload() -> None:
        patient_until = time.monotonic() + _PATIENCE
        while uploading.locked():
            if time.monotonic() > patient_until:
                raise ConnectError("an upload of an earlier connection still runs; the next waits for its end")
            await asyncio.sleep(_LOOK)
        await _call(lambda: connector.upload_data(database), app_loop, retired, alone=uploading)

    return AppCalls(fetch, upload, retired)


def within_app_call() -> bool:
    """Whether a connector's method runs for the sync thread, also where it went on to another thread or loop."""
    return _within.get() is not None


def raise_if_left() -> None:
    """Raise `Retired` within a connector's method whose connection was ended."""
    retired = _within.get()
    if retired is not None and retired.is_set():
        raise Retired("the connection of this upload was ended; what waits is for the next one")


async def _call(
    work: Callable[[], Any],
    app_loop: asyncio.AbstractEventLoop | None,
    retired: threading.Event,
    alone: AbstractContextManager[object] | None = None,
) -> Any:
    loop = app_loop or asyncio.get_running_loop()
    mark = _within.set(retired)
    try:
        return await _in_thread(lambda: _in_full(work, loop), alone or nullcontext())
    finally:
        _within.reset(mark)


def _in_full(work: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> Any:
    """What the work returns, in the loop where that is awaited: its thread waits, so both kinds end alike."""
    found = work()
    if not inspect.isawaitable(found):
        return found
    try:
        return asyncio.run_coroutine_threadsafe(_awaited(found), loop).result()
    except CancelledError as error:
        raise ConnectError("the connector's coroutine was cancelled by its loop") from error


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


async def _in_thread(work: Callable[[], Any], alone: AbstractContextManager[object]) -> Any:
    """As `asyncio.to_thread`, but neither a loop that ends nor a program that exits waits for work that hangs."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = copy_context()

    def run() -> None:
        try:
            with alone:
                found = context.run(work)
        except BaseException as error:  # noqa: BLE001 - who waits for the result gets it
            future.set_exception(error)
        else:
            future.set_result(found)

    threading.Thread(target=run, name="headwater-app-call", daemon=True).start()
    running = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running}, timeout=_GRACE)
        if running.done():
            running.exception()  # taken note of, or asyncio warns of it
        else:
            _log.warning("sync ended while the app's connector had not returned, which goes on alone")
        raise
    finally:
        running.cancel()
