"""Runs admin requests in threads, with limits on their number and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from headwater.api.admin.errors import AdminBusyError, TakesTooLongError
from headwater.api.quota import Quota

RUNNING, WAITING = 10, 20
"""How many admin requests run at once, and how many may wait, as in the published service."""

LONG_RUNNING, LONG_WAITING = 2, 8
"""The same for requests that may read all rows: more at once would take CPU from devices."""

MOST_SECONDS = 30.0
"""The time limit of a request that may read all rows."""

Result = TypeVar("Result")


class AdminThreads:
    """A pool of threads for admin requests, so that devices never wait behind them. Use it in one event loop."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self._pool = ThreadPoolExecutor(running, thread_name_prefix="headwater-admin")
        self._quota = Quota(running + waiting, 0, _busy)

    async def run(self, job: Callable[[], Result]) -> Result:
        """Run a job in a thread. Raises AdminBusyError when too many wait already."""
        self._quota.take()
        future = asyncio.get_running_loop().run_in_executor(self._pool, job)
        future.add_done_callback(self._done)  # the job goes on when its client disconnects
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._quota.release()
        if not future.cancelled():
            future.exception()  # mark it as retrieved: the client may have disconnected

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _busy(*, of_key: bool) -> AdminBusyError:
    return AdminBusyError("too many admin requests are in progress or waiting", fix="try again in a moment")


class Patience:
    """A time limit for a long job, which has to call `check` now and then. `instead` is the command without a limit."""

    def __init__(self, instead: str, seconds: float = MOST_SECONDS) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._instead = instead

    def check(self) -> None:
        """Raise TakesTooLongError once the time is over."""
        if time.monotonic() > self._until:
            raise TakesTooLongError(
                f"the request takes longer than the {self._seconds:.0f} s allowed", fix=f"use `{self._instead}`"
            )

    def watch(self, _what: str, _pages: int) -> AbstractContextManager[Callable[[], None]]:
        """A context that gives `check`, for functions that report their progress."""
        return nullcontext(self.check)
