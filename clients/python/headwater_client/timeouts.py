"""Waiting for at most so long, in asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """What the work comes to. Raises `asyncio.TimeoutError` after so many seconds, and cancels it.

    Unlike `asyncio.wait_for` before Python 3.12, it never drops a cancellation that arrives together with the result.
    """
    running = asyncio.ensure_future(work)
    try:
        ended, _ = await asyncio.wait({running}, timeout=seconds)
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
    if not ended:
        raise asyncio.TimeoutError
    return running.result()


async def happens(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most so many seconds."""
    try:
        await within(seconds, event.wait())
    except asyncio.TimeoutError:
        pass
