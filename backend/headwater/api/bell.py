"""How a task is woken that waits for something to change."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes the one task that waits, which then looks for itself at what has changed. It remembers nothing, and unlike
    asyncio.Event has no queue, which takes 700 bytes when it is empty."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake whoever waits."""
        if self._heard is not None and not self._heard.done():
            self._heard.set_result(None)

    def next(self) -> asyncio.Future[None]:
        """Done at the next ring."""
        self._heard = asyncio.get_running_loop().create_future()
        return self._heard
