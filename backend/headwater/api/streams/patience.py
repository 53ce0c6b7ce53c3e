"""Waiting that can be given up from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


class GivenUpError(Exception):
    """Nobody needs any more what was waited for."""


class Patience:
    """Lets one task wait, one thing at a time, until `end`."""

    __slots__ = ("_over", "_task")

    def __init__(self) -> None:
        self._over = False
        self._task: asyncio.Task[object] | None = None  # while it waits

    @property
    def is_over(self) -> bool:
        """Whether `end` was called."""
        return self._over

    async def wait(self, begin: Callable[[], Awaitable[Result]]) -> Result:
        """Begin something and wait for its result. Raises GivenUpError once `end` was called, and begins nothing
        then."""
        if self._over:
            raise GivenUpError
        self._task = task = asyncio.current_task()
        assert task is not None
        try:
            return await begin()
        except asyncio.CancelledError:
            if self.is_over and not task.uncancel():
                raise GivenUpError from None
            raise  # the task was cancelled from outside, too
        finally:
            self._task = None

    def end(self) -> None:
        """Give up what is being waited for, and all that would be."""
        if not self._over:
            self._over = True
            if self._task is not None:
                self._task.cancel()
