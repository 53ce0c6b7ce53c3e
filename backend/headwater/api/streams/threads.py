"""Threads that read the store.

Streams that are woken by the same change, or connect at the same moment, ask the store the same questions. Their jobs
are collected and run in one thread over one snapshot, so a change costs a few reads, not one per client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast
from weakref import WeakValueDictionary

from headwater.api.errors import NoActiveConfigError
from headwater.api.streams.cache import ChunkCache, Written
from headwater.api.streams.encoding import Batch, WireForm
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import (
    BucketMarks,
    BucketTotal,
    Checkpoint,
    StoredConfig,
    StoreSnapshot,
    Touched,
    WriteCheckpoint,
)
from headwater.sync.client_state import BucketDownload, BucketStep, Reasons

SHARED_JOBS = 64
"""The most jobs that run over one snapshot."""

DELIVER_SECONDS = 0.01
"""Results are delivered once they have been collected for this long, so that the first clients do not wait for the
last."""

_WIDTH = 3
"""Threads for woken streams, and as many for those whose request is resolved. More would wait for each other: most of a
short job is Python."""

_PROMPT = 2
"""Threads for the hub and for write checkpoints, each of which does one thing at a time."""

Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in the place of a result."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Job(Generic[Result]):
    """What to read of a snapshot, and what is called with the result."""

    run: Callable[[SnapshotCache], Result]
    then: Callable[[Result | Failure], None]


_Results = list[tuple[_Job[object], object]]


class _SharedPool:
    """Collects short jobs and runs many over one snapshot. Jobs that come while all threads are at work wait, and are
    many at once when it is their turn. Not thread-safe: use it in one event loop."""

    def __init__(self, cache: ChunkCache, name: str) -> None:
        self._cache = cache
        self._threads = ThreadPoolExecutor(_WIDTH, thread_name_prefix=name)
        self._waiting: list[_Job[object]] = []
        self._at_work = 0
        self._called = False

    def put(self, job: _Job[object]) -> None:
        """Run a job together with all others that come in this turn of the loop."""
        self._waiting.append(job)
        self._call()

    def close(self) -> None:
        """Wait for running jobs; those not begun fail."""
        self._threads.shutdown(cancel_futures=True)
        jobs, self._waiting = self._waiting, []
        _deliver([(job, _CLOSED) for job in jobs])

    def _call(self) -> None:
        if self._waiting and not self._called and self._at_work < _WIDTH:
            self._called = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._called = False
        loop = asyncio.get_running_loop()
        while self._waiting and self._at_work < _WIDTH:
            jobs, self._waiting = self._waiting[:SHARED_JOBS], self._waiting[SHARED_JOBS:]
            self._at_work += 1
            left = deque(jobs)
            try:
                running = loop.run_in_executor(self._threads, self._run, left, loop)
            except Exception as error:  # noqa: BLE001 - no thread can be started; it is raised where the jobs came from
                self._at_work -= 1
                left.clear()  # what was to run them may still be queued
                _deliver([(job, _failure(error)) for job in jobs])
                continue
            running.add_done_callback(partial(self._over, left))

    def _run(self, left: deque[_Job[object]], loop: asyncio.AbstractEventLoop) -> _Results:
        """Run jobs in a thread. Returns the results that are not delivered yet."""
        results: _Results = []
        began = time.monotonic()
        try:
            with open_snapshot(self._cache) as snapshot:
                while left:
                    job = left.popleft()
                    results.append((job, _result(job, snapshot)))
                    if time.monotonic() >= began + DELIVER_SECONDS:
                        loop.call_soon_threadsafe(_deliver, results)
                        results, began = [], time.monotonic()
        except Exception as error:  # noqa: BLE001 - there is no snapshot: it is raised where the jobs came from
            results += [(job, _failure(error)) for job in left]
        return results

    def _over(self, left: deque[_Job[object]], done: asyncio.Future[_Results]) -> None:
        self._at_work -= 1
        ran = not done.cancelled() and done.exception() is None
        _deliver(done.result() if ran else [(job, _CLOSED) for job in left])
        self._call()


class StoreThreads:
    """Runs jobs over the store in threads. At most `width` downloads are read at once. Streams whose request has to be
    resolved, as when they connect, have threads of their own, and so have other woken streams: none of them wait behind
    downloads. What all depend on, such as the hub's look at changes and revocations, waits behind no stream."""

    def __init__(self, cache: ChunkCache, width: int) -> None:
        self._cache = cache
        self._bulk = ThreadPoolExecutor(width, thread_name_prefix="headwater-download")
        self._live = _SharedPool(cache, "headwater-live")
        self._resolving = _SharedPool(cache, "headwater-resolving")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._share = max(1, width - 1)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._prompt = ThreadPoolExecutor(_PROMPT, thread_name_prefix="headwater-prompt")

    async def promptly(self, run: Callable[[], Result]) -> Result:
        """Run a short job ahead of those of all streams."""
        return await asyncio.get_running_loop().run_in_executor(self._prompt, run)

    async def download(self, user_id: str, run: Callable[[SnapshotCache], Result]) -> Result:
        """Run a job of a download, over a snapshot of its own. One thread is left to others than this user, whose jobs
        count until no thread works on them, also if nobody waits for them."""

        def job() -> Result:
            with open_snapshot(self._cache) as snapshot:
                return run(snapshot)

        share, loop = self._shares.setdefault(user_id, asyncio.Semaphore(self._share)), asyncio.get_running_loop()
        await share.acquire()
        running = self._bulk.submit(job)
        running.add_done_callback(lambda _: loop.call_soon_threadsafe(share.release))
        return await asyncio.wrap_future(running)

    async def resolving(self, user_id: str, run: Callable[[SnapshotCache], Result]) -> Result:
        """Run a job that resolves the request of a stream, over one snapshot together with others of that kind. That
        can be expensive, so only one request of each user is resolved at a time, and nobody waits behind many of
        one user."""
        turn = self._turns.setdefault(user_id, asyncio.Lock())
        await turn.acquire()
        return await _awaited(self._resolving, run, turn.release)

    async def shared(self, run: Callable[[SnapshotCache], Result]) -> Result:
        """Run a short job of a woken stream, over one snapshot together with others of that kind."""
        return await _awaited(self._live, run)

    def soon(self, run: Callable[[SnapshotCache], Result], then: Callable[[Result | Failure], None]) -> None:
        """Like `shared`, for callers that do not wait: `then` is called in the event loop. Costs less than a future."""
        self._live.put(cast("_Job[object]", _Job(run, then)))

    def close(self) -> None:
        """Wait for running jobs; those not begun are dropped."""
        self._bulk.shutdown(cancel_futures=True)
        self._prompt.shutdown(cancel_futures=True)
        self._resolving.close()
        self._live.close()


class _LeftError(Exception):
    """Nobody waits for the result any more."""


_CLOSED = Failure(RuntimeError("the store threads are closed"))


async def _awaited(
    gathering: _SharedPool, run: Callable[[SnapshotCache], Result], over: Callable[[], object] = lambda: None
) -> Result:
    """The result of the job. `over` is called when no thread works on it any more, also if nobody waits for it."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcome: list[Result | Failure] = []

    def unless_left(snapshot: SnapshotCache) -> Result:
        if future.cancelled():
            raise _LeftError
        return run(snapshot)

    def then(result: Result | Failure) -> None:
        over()
        if not future.done():
            outcome.append(result)
            future.set_result(None)

    gathering.put(cast("_Job[object]", _Job(unless_left, then)))
    await future
    result = outcome.pop()
    if not isinstance(result, Failure):
        return result
    try:
        raise result.error
    finally:
        del result  # an error that its own traceback leads to is freed by the garbage collector only, and late


def _result(job: _Job[object], snapshot: SnapshotCache) -> object:
    try:
        return job.run(snapshot)
    except Exception as error:  # noqa: BLE001 - it is raised again where the job came from
        return _failure(error)


def _failure(error: Exception) -> Failure:
    """Without the traceback, unless it is a bug: its frames hold the job and the snapshot."""
    expected = isinstance(error, HeadwaterError | _LeftError)
    return Failure(error.with_traceback(None) if expected else error)


def _deliver(results: _Results) -> None:
    for job, result in results:
        try:
            job.then(result)
        except Exception:
            log.exception("a result of the store could not be used")


@dataclass(frozen=True, slots=True)
class SharedStep:
    """What a stream was sent for a step, and where that left its bucket. It is right for every stream that takes the
    same step, and has the bucket for the same reasons."""

    reasons: Reasons
    position: OpId
    batch: Batch


class SnapshotCache:
    """One snapshot of the store. It keeps what was read, so that jobs that share it read it only once."""

    def __init__(self, cache: ChunkCache, snapshot: StoreSnapshot) -> None:
        self._cache = cache
        self._snapshot = snapshot
        self._totals: dict[str, BucketTotal] = {}
        self._marks: dict[str, BucketMarks | None] = {}
        self._written: dict[tuple[WireForm, str, OpId, OpId], Written] = {}
        self._touched: dict[OpId, Touched] = {}
        self.shared_steps: dict[tuple[WireForm, BucketStep], SharedStep] = {}

    @property
    def checkpoint(self) -> Checkpoint:
        return self._snapshot.checkpoint

    @property
    def config(self) -> StoredConfig:
        return self._snapshot.config

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        unknown = [name for name in buckets if name not in self._totals]
        if unknown:
            self._totals.update(self._snapshot.totals(unknown))
        return {name: self._totals[name] for name in buckets}

    def lookups(self, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        return self._snapshot.lookups(keys)

    def touched_since(self, op_id: OpId) -> Touched:
        """What changed after `op_id`, up to this snapshot."""
        if op_id >= self.checkpoint.op_id:
            return Touched(frozenset(), frozenset())
        if op_id not in self._touched:
            self._touched[op_id] = self._cache.reader.touched(op_id, self.checkpoint.op_id)
        return self._touched[op_id]

    def written(self, form: WireForm, download: BucketDownload, upcoming: Callable[[], Sequence[str]]) -> Written:
        """A chunk, encoded. `upcoming` returns the buckets that will be read next, this one first, so that one query
        covers all of them."""
        marks = self._marks_of(download.bucket, upcoming)
        key = (form, download.bucket, download.after, download.upto)
        if key not in self._written:
            self._written[key] = self._cache.written(*key, marks)
        return self._written[key]

    def has_nothing(self, download: BucketDownload, upcoming: Callable[[], Sequence[str]]) -> bool:
        """Whether a bucket has no ops after the download's position. Cheap: reads no history. `upcoming` as above."""
        marks = self._marks_of(download.bucket, upcoming)
        return marks is None or download.after >= marks.last_op

    def _marks_of(self, bucket: str, upcoming: Callable[[], Sequence[str]]) -> BucketMarks | None:
        if bucket not in self._marks:
            names = upcoming()
            self._marks.update(dict.fromkeys(names))
            self._marks.update(self._cache.reader.marks(names))
        return self._marks[bucket]

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        return self._cache.reader.write_checkpoint(key)


@contextmanager
def open_snapshot(cache: ChunkCache) -> Iterator[SnapshotCache]:
    """A snapshot at the newest checkpoint. Raises NoActiveConfigError."""
    with cache.reader.snapshot() as snapshot:
        if snapshot is None:
            raise NoActiveConfigError
        yield SnapshotCache(cache, snapshot)
