"""Jobs of the store's threads that fail."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NoReturn

import pytest

from headwater.api.streams.cache import ChunkCache
from headwater.api.streams.threads import SHARED_JOBS, SnapshotCache, StoreThreads
from headwater.storage.contract.store import StoreBusyError
from tests.support.memory_store import MemoryStore


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the garbage collector, what a cycle holds is held for ever."""
    gc.disable()
    yield
    gc.enable()


def fail(_: SnapshotCache) -> NoReturn:
    raise StoreBusyError("the store is busy", "here", "wait")


async def failure_of(threads: StoreThreads) -> weakref.ref[BaseException]:
    try:
        await threads.shared(fail)
    except StoreBusyError as error:
        return weakref.ref(error)
    raise AssertionError


@pytest.mark.usefixtures("uncollected")
def test_failure_is_freed(memory_store: MemoryStore) -> None:
    async def story() -> bool:
        with closing(StoreThreads(ChunkCache(memory_store, 0), 1)) as threads:
            failure = await failure_of(threads)
            await threads.shared(lambda _: None)
            return failure() is None

    assert asyncio.run(story())


def test_no_thread_for_a_job(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> tuple[Sequence[object], Sequence[object]]:
        with closing(StoreThreads(ChunkCache(memory_store, 0), 1)) as threads:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", no_thread)
                lost = [threads.shared(lambda _: 1) for _ in range(200)]  # more than fit into all threads
                failed = await asyncio.wait_for(asyncio.gather(*lost, return_exceptions=True), 30)
            later = [threads.shared(lambda _: 1) for _ in range(200)]
            return failed, await asyncio.wait_for(asyncio.gather(*later, return_exceptions=True), 30)

    failed, later = asyncio.run(story())
    assert [str(each) for each in failed] == ["can't start new thread"] * 200
    assert later == [1] * 200


def test_prompt_jobs_wait_for_no_stream(memory_store: MemoryStore) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def long_job(_: SnapshotCache) -> None:
        begun.release()
        assert go.wait(60)

    async def story() -> int:
        with closing(StoreThreads(ChunkCache(memory_store, 0), 1)) as threads:
            jobs = [asyncio.ensure_future(threads.shared(long_job)) for _ in range(10 * SHARED_JOBS)]
            await asyncio.to_thread(begun.acquire, timeout=30)
            try:
                return await asyncio.wait_for(threads.promptly(lambda: 1), 10)
            finally:
                go.set()
                await asyncio.gather(*jobs)

    assert asyncio.run(story()) == 1


def test_turn_of_a_user_lasts_while_its_thread_works(memory_store: MemoryStore) -> None:
    begun, go, second = threading.Event(), threading.Event(), threading.Event()

    def long_job(_: SnapshotCache) -> None:
        begun.set()
        assert go.wait(60)

    async def story() -> tuple[bool, bool]:
        with closing(StoreThreads(ChunkCache(memory_store, 0), 1)) as threads:
            left = asyncio.ensure_future(threads.resolving("ann", long_job))
            await asyncio.to_thread(begun.wait, 30)
            left.cancel()
            waiting = asyncio.ensure_future(threads.resolving("ann", lambda _: second.set()))
            await threads.resolving("ben", lambda _: None)
            await threads.resolving("ben", lambda _: None)
            early = second.is_set()
            go.set()
            await asyncio.wait_for(waiting, 30)
            return early, second.is_set()

    assert asyncio.run(story()) == (False, True)


def no_thread(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")
