"""Parses what users send, so that nobody else waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakValueDictionary

SMALL = 16 * 1024
"""Bytes of content that is parsed at once, in the event loop. Handing it to a thread would cost more."""

LARGE = 256 * 1024
"""Bytes of content that is parsed in a thread for such alone: what an upload may hold takes seconds to parse."""

Result = TypeVar("Result")


class Parsing:
    """Parses contents that are not small in two threads, one of them for large ones, of each user one at a time. The
    next one of a user waits for as long as the last one took, so that the event loop has its share however much one
    user sends."""

    def __init__(self) -> None:
        self._usual = ThreadPoolExecutor(1, thread_name_prefix="headwater-parsing")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="headwater-parsing-large")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def parsed(self, user_id: str, content: bytes, parse: Callable[[bytes], Result]) -> Result:
        """What `parse` makes of a user's content. Raises what it raises."""
        if len(content) <= SMALL:
            return parse(content)
        turn, loop = self._turns.setdefault(user_id, asyncio.Lock()), asyncio.get_running_loop()
        took = 0.0

        def job() -> Result:
            nonlocal took
            began = time.monotonic()
            try:
                return parse(content)
            finally:
                took = time.monotonic() - began

        def over(_: Future[Result]) -> None:
            loop.call_soon_threadsafe(lambda: loop.call_later(took, turn.release))

        await turn.acquire()
        running = (self._large if len(content) > LARGE else self._usual).submit(job)
        running.add_done_callback(over)  # also if nobody waits for it any more
        return await asyncio.wrap_future(running)

    def close(self) -> None:
        """Wait for what is being parsed; what waits is dropped."""
        for thread in (self._usual, self._large):
            thread.shutdown(cancel_futures=True)
