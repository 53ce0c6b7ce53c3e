"""Calls an app's connector for the sync thread: in threads that may outlive the connection, and in the app's loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, Final

from headwater_client.errors import ConnectError, RetiredError
from headwater_client.sync.options import AppCalls
from headwater_client.transport.http import Credentials

_GRACE: Final = 5.0
"""Seconds that a call of the app's may go on while sync ends. After that it goes on alone."""

_LOOK: Final = 0.1
"""Seconds between looks at whether an upload of an earlier connection has ended."""

_LONGEST_WAIT: Final = 10.0
"""Seconds of such looks until the status shows an error. After that they begin again as after any failure."""

_log = logging.getLogger("headwater_client")

_within: Final = ContextVar[threading.Event | None]("headwater_within_app_call", default=None)


def app_calls(
    fetch_credentials: Callable[[], Any],
    upload_data: Callable[[], Any],
    app_loop: asyncio.AbstractEventLoop | None,
    uploading: threading.Lock,
) -> AppCalls:
    """A connector's methods as coroutines for the sync thread: those of the app run in its own loop if it has one.

    `uploading` is held by an upload that runs: it may outlive its connection, and the next waits for it.
    """
    retired = threading.Event()

    async def fetch() -> Credentials:
        found = await _call(fetch_credentials, app_loop, retired)
        if not isinstance(found, Credentials):
            raise ConnectError(f"fetch_credentials gave {type(found).__name__}, not Credentials")
        return found

    async def upload() -> None:
        until = time.monotonic() + _LONGEST_WAIT
        while uploading.locked():
            if time.monotonic() > until:
                raise ConnectError("an upload of an earlier connection still runs; the next waits for its end")
            await asyncio.sleep(_LOOK)
        await _call(upload_data, app_loop, retired, alone=uploading)

    return AppCalls(fetch, upload, retired)


def within_app_call() -> bool:
    """Whether a connector's method runs for the sync thread, also where it went on to another thread or loop."""
    return _within.get() is not None


def raise_if_retired() -> None:
    """Raise `RetiredError` within a connector's method whose connection was ended."""
    retired = _within.get()
    if retired is not None and retired.is_set():
        raise RetiredError("the connection of this upload was ended; what waits is for the next one")


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
