"""Blocking reads of the store, made from threads.

Streams woken by the same change ask the store the same questions at the same moment. Their jobs are collected for
one turn of the event loop and run in one thread over one snapshot, so a change costs a few reads, not one per client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

from headwater.api.errors import NoActiveConfigError
from headwater.api.streams.codings import Piece
from headwater.api.streams.encoding import WireForm
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
from headwater.storage.shared.cache import CachedReader, Written
from headwater.sync.session import Download

SHARED_JOBS = 64
"""The most jobs that run over one snapshot before their results are delivered, so that the first clients do not wait
for the last."""

Result = TypeVar("Result")


class Reading:
    """One snapshot of the store. It caches answers, so that jobs that share it ask the store only once."""

    def __init__(self, reader: CachedReader, snapshot: StoreSnapshot) -> None:
        self._reader = reader
        self._snapshot = snapshot
        self._totals: dict[str, BucketTotal] = {}
        self._marks: dict[str, BucketMarks | None] = {}
        self._written: dict[tuple[WireForm, str, OpId, OpId], Written[Piece | bytes]] = {}
        self._touched: dict[OpId, Touched] = {}

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
            self._touched[op_id] = self._reader.touched(op_id, self.checkpoint.op_id)
        return self._touched[op_id]

    def written(
        self, form: WireForm, download: Download, upcoming: Callable[[], Sequence[str]]
    ) -> Written[Piece | bytes]:
        """A chunk, encoded. `upcoming` returns the buckets that will be asked for next, this one first, so that the
        store can be asked about all of them at once."""
        bucket = download.bucket
        if bucket not in self._marks:
            names = upcoming()
            self._marks.update(dict.fromkeys(names))
            self._marks.update(self._reader.marks(names))
        key = (form, bucket, download.after, download.upto)
        if key not in self._written:
            self._written[key] = self._reader.written(*key, self._marks[bucket])
        return self._written[key]

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        return self._reader.write_checkpoint(key)


@contextmanager
def open_reading(reader: CachedReader) -> Iterator[Reading]:
    """A reading at the newest checkpoint. Raises NoActiveConfigError."""
    with reader.snapshot() as snapshot:
        if snapshot is None:
            raise NoActiveConfigError
        yield Reading(reader, snapshot)


class _Job(Generic[Result]):
    """A function of a reading and the future of its result."""

    __slots__ = ("future", "run")

    def __init__(self, run: Callable[[Reading], Result], future: asyncio.Future[Result]) -> None:
        self.run = run
        self.future = future


class StoreThreads:
    """Runs jobs over the store in threads. At most `width` downloads and first checkpoints are read at once. Woken
    streams and the hub have threads of their own, so that they do not wait behind those."""

    def __init__(self, reader: CachedReader, width: int) -> None:
        self._reader = reader
        self._bulk = ThreadPoolExecutor(width, thread_name_prefix="headwater-download")
        self._live = ThreadPoolExecutor(3, thread_name_prefix="headwater-live")
        self._waiting: list[_Job[object]] = []

    async def alone(self, run: Callable[[], Result]) -> Result:
        """Run a job that may take long."""
        return await asyncio.get_running_loop().run_in_executor(self._bulk, run)

    async def promptly(self, run: Callable[[], Result]) -> Result:
        """Run a short job ahead of all downloads."""
        return await asyncio.get_running_loop().run_in_executor(self._live, run)

    async def reading(self, run: Callable[[Reading], Result]) -> Result:
        """Run a job over a reading of its own."""

        def job() -> Result:
            with open_reading(self._reader) as reading:
                return run(reading)

        return await self.alone(job)

    async def shared(self, run: Callable[[Reading], Result]) -> Result:
        """Run a short job over one reading together with all others that come in this turn of the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush, loop)
        self._waiting.append(_Job(run, future))  # type: ignore[arg-type]  # a list of jobs of any result
        return await future

    def close(self) -> None:
        """Wait for running jobs; those not begun are dropped."""
        self._bulk.shutdown(cancel_futures=True)
        self._live.shutdown(cancel_futures=True)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs, self._waiting = self._waiting, []
        for start in range(0, len(jobs), SHARED_JOBS):
            part = jobs[start : start + SHARED_JOBS]
            loop.run_in_executor(self._live, self._run, part).add_done_callback(partial(_settle, part))

    def _run(self, jobs: Sequence[_Job[object]]) -> list[object]:
        with open_reading(self._reader) as reading:
            return [_outcome(job, reading) for job in jobs]


class _Failure:
    """An exception in the place of a result."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _outcome(job: _Job[object], reading: Reading) -> object:
    if job.future.cancelled():
        return None
    try:
        return job.run(reading)
    except Exception as error:  # noqa: BLE001 - it is raised again where the job came from
        return _Failure(error)


def _settle(jobs: Sequence[_Job[object]], done: asyncio.Future[list[object]]) -> None:
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    outcomes = [_Failure(_as_exception(error))] * len(jobs) if error is not None else done.result()
    for job, outcome in zip(jobs, outcomes, strict=True):
        if job.future.done():
            continue
        if isinstance(outcome, _Failure):
            job.future.set_exception(outcome.error)
        else:
            job.future.set_result(outcome)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError("the store threads are closed")
