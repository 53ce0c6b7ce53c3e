"""Compaction beside the replicator: a thread that checks the store regularly, and compacts buckets where it pays."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headwater.codes import Kind
from headwater.compaction.work import LARGE_OPS, Elsewhere, Need, Summary, UpkeepStoppedError, UpkeepWork, need, shared
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.compaction import BucketState, UpkeepStore
from headwater.storage.contract.store import LeaseHeldError
from headwater.storage.open import open_backend
from headwater.storage.shared.compaction import Thrift

_REST = 0.005  # the replicator, in another thread of the process, comes first

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often to check the store, and how old ops must be before they are compacted, both in seconds. Downloads and
    readers of the history that are no further behind are not disturbed."""

    interval: float = 30.0
    settled: float = 60.0


class Upkeep:
    """To be started and stopped with the replicator. A failure is logged and tried again later: nothing depends on it.
    `elsewhere` runs large work in other processes."""

    def __init__(
        self,
        address: StoreAddress,
        owner: str,
        *,
        rhythm: Rhythm | None = None,
        thrift: Thrift | None = None,
        elsewhere: Elsewhere | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._owner = owner
        self._rhythm = rhythm or Rhythm()
        self._thrift = thrift or Thrift()
        self._elsewhere = elsewhere
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: deque[tuple[float, OpId]] = deque()
        self._done = OpId(0)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current transaction, and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        store: UpkeepStore | None = None
        try:
            while not self._stop.wait(self._rhythm.interval):
                try:
                    store = store or open_backend(self._address).open_compaction()
                    self.look(store)
                except UpkeepStoppedError:
                    return
                except LeaseHeldError:
                    continue  # a compaction by command is running
                except Exception as error:  # noqa: BLE001 - the replicator must not end for this
                    _log_failure(error)
                    _close(store)  # its connection may be broken
                    store = None
        finally:
            _close(store)

    def look(self, store: UpkeepStore) -> Summary:
        """Run one pass over all buckets, up to the newest settled checkpoint."""
        summary = Summary()
        upto = self._settled(store.checkpoint())
        if upto <= self._done:
            return summary
        needs = ((bucket, need(bucket, store, upto, self._thrift)) for bucket in store.buckets(self._done))
        found = [(bucket, what) for bucket, what in needs if what is not Need.NOTHING]
        if found:
            with UpkeepWork(store, self._owner, self._stop.wait, rest=_REST) as work:
                large = [bucket for bucket, what in found if what is Need.COMPACT]
                if self._elsewhere is not None and sum(bucket.count for bucket in large) >= LARGE_OPS:
                    shares = shared(work, self._address, large, upto, self._thrift, finish=False)
                    for done in self._elsewhere(shares):
                        summary.merge(done)
                    found = [(bucket, what) for bucket, what in found if what is not Need.COMPACT]
                for bucket, what in found:
                    self._do(work, bucket, what, upto, summary)
                work.prune()
        self._done = upto
        if summary.before:
            _log.info("compacted %d buckets from %d to %d ops", summary.buckets, summary.before, summary.after)
        return summary

    def _settled(self, checkpoint: OpId) -> OpId:
        """The newest checkpoint that is old enough, 0 if none is."""
        now = self._clock()
        self._seen.append((now, checkpoint))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._rhythm.settled:
            self._seen.popleft()
        seen, settled = self._seen[0]
        return settled if seen <= now - self._rhythm.settled else OpId(0)

    def _do(self, work: UpkeepWork, bucket: BucketState, what: Need, upto: OpId, summary: Summary) -> None:
        if what is Need.SEAL:
            work.seal(bucket, upto)
            return
        summary.count(work.bucket(bucket, upto, self._thrift))


def _log_failure(error: Exception) -> None:
    if isinstance(error, HeadwaterError):
        level = logging.INFO if error.kind is Kind.RETRY else logging.WARNING
        _log.log(level, "histories are not compacted for now: %s", error)
    else:
        _log.error("compaction failed; it is tried again", exc_info=error)


def _close(store: UpkeepStore | None) -> None:
    if store is not None:
        store.close()
