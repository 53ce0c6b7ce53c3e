"""Threads for what blocks, and bounds for what could take long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from headwater.api.admin.errors import AdminBusyError, TakesTooLongError

RUNNING, WAITING = 10, 20
"""Operators' requests that are worked on at once, and that wait behind them, as published."""

LONG_RUNNING, LONG_WAITING = 2, 8
"""The same of requests that may read all rows: more of them at once would take the processor from devices."""

MOST_SECONDS = 30.0
"""What a request may take of a thread."""

Result = TypeVar("Result")


class AdminThreads:
    """Lives in the event loop. Threads of their own, so that devices never wait behind an operator."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self._pool = ThreadPoolExecutor(running, thread_name_prefix="headwater-admin")
        self._most = running + waiting
        self._taken = 0

    async def run(self, job: Callable[[], Result]) -> Result:
        """Run a job. Raises AdminBusyError."""
        if self._taken >= self._most:
            raise AdminBusyError(f"{self._taken} requests of operators are under way", fix="try again in a moment")
        self._taken += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, job)
        future.add_done_callback(self._done)  # a job goes on when whoever asked for it has gone
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._taken -= 1
        if not future.cancelled():
            future.exception()  # nobody may be left to hear of it

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Patience:
    """Ends a long job: `check` is called now and then by whoever does it, and raises once the time is over."""

    def __init__(self, instead: str, seconds: float = MOST_SECONDS) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._instead = instead

    def check(self) -> None:
        """Raises TakesTooLongError."""
        if time.monotonic() > self._until:
            raise TakesTooLongError(
                f"it takes longer than the {self._seconds:.0f} s that a request may", fix=f"use `{self._instead}`"
            )

    def watch(self, _what: str, _pages: int) -> AbstractContextManager[Callable[[], None]]:
        """For those who tell how far they are."""
        return nullcontext(self.check)
