"""Waiting for at most so long neither loses results nor cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater_client.timeouts import within


def test_cancelled_with_the_result() -> None:
    async def trial() -> bool:
        came = asyncio.get_running_loop().create_future()

        async def waiting() -> None:
            await within(60, came)
            await asyncio.sleep(0)  # where one that was lost would go on

        task = asyncio.ensure_future(waiting())
        await asyncio.sleep(0)
        came.set_result(1)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(trial())


def test_cancelled_work_has_ended() -> None:
    async def trial() -> list[str]:
        told = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.01)
                told.append("work ended")

        task = asyncio.ensure_future(within(60, work()))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        return [*told, "who waited ended"]

    assert asyncio.run(trial()) == ["work ended", "who waited ended"]


@pytest.mark.parametrize("work", [lambda: asyncio.sleep(60), lambda: asyncio.Event().wait()])
def test_timeout(work: Callable[[], Awaitable[object]]) -> None:
    async def trial() -> None:
        await within(0.01, work())

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(trial())
