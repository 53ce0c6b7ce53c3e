"""Work that goes on when the request is over that began it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Tasks:
    """Tasks that run, until `close`. Lives in the event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run it in a task of its own, which is kept until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel what still runs, and wait for its end."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
