"""One pass over a store: which buckets are worth it, and what is done with each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.common import KEPT_FLUSHES
from headwater.storage.compaction import Thrift
from headwater.storage.upkeep import BucketState, HistoryChangedError, UpkeepStore
from headwater.upkeep.compactor import Compacted, Compactor

LEASE_SECONDS = 30.0

_LEAST_GROWN = 64  # ops; below, a bucket is not worth a transaction
_LEAST_HOT = 5_000

_log = logging.getLogger(__name__)


class UpkeepStoppedError(HeadwaterError):
    """The work was to end; what was done so far stays."""

    code = "HW_4005"


class Need(Enum):
    """What a bucket calls for."""

    NOTHING = auto()
    SEAL = auto()
    COMPACT = auto()


def need(bucket: BucketState, store: UpkeepStore, upto: OpId, thrift: Thrift) -> Need:
    """Cheap: totals decide, and for some buckets a look at their hot tail."""
    grown = bucket.count - bucket.compacted_count
    if grown < 0:  # cleared since
        grown = bucket.count
    if grown >= max(_LEAST_GROWN, thrift.spare * bucket.compacted_count):
        return Need.COMPACT
    if bucket.compacted_op < bucket.clear_op <= upto and store.has_remains(bucket.key):
        return Need.COMPACT
    if grown >= _LEAST_HOT and store.hot_ops(bucket.key, upto, _LEAST_HOT) >= _LEAST_HOT:
        return Need.SEAL
    return Need.NOTHING


@dataclass(slots=True)
class Summary:
    """What a pass did, all buckets together."""

    buckets: int = 0
    before: int = 0
    after: int = 0
    live: int = 0
    again: int = 0
    again_bytes: int = 0
    skipped: int = 0

    def add(self, result: Compacted) -> None:
        """Count a bucket that is done."""
        self.buckets += 1
        self.before += result.before
        self.after += result.after
        self.live += result.live
        self.again += result.again
        self.again_bytes += result.again_bytes


class UpkeepWork:
    """Takes the upkeep lease, and holds it until the end of its `with`. `stopping` is asked between transactions and
    waits for so many seconds, unless the work is to end: then it returns True. `rest` is how long to leave the
    processor to others after every thousand ops or so. Raises LeaseHeldError."""

    def __init__(self, store: UpkeepStore, owner: str, stopping: Callable[[float], bool], *, rest: float = 0.0) -> None:
        self._store = store
        self._stopping = stopping
        self._rest_seconds = rest
        self._lease = store.acquire(owner, LEASE_SECONDS)

    def __enter__(self) -> UpkeepWork:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.release(self._lease)

    def bucket(self, bucket: BucketState, upto: OpId, thrift: Thrift, *, finish: bool = False) -> Compacted | None:
        """Compact one bucket up to an op. With `finish`, what it puts again is compacted at once, whatever `upto` is.
        None when it changed so much meanwhile that nothing could be done."""
        try:
            result = self._compactor().compact(bucket, upto, thrift)
            if finish and result.again and (now := self._store.bucket(bucket.key)) is not None:
                free = Thrift(budget=0)
                second = self._compactor().compact(now, self._store.checkpoint(), free)
                result = Compacted(result.before, second.after, second.live, result.again, result.again_bytes)
        except HistoryChangedError as error:
            _log.info("%s: %s", bucket.name, error)
            return None
        return result

    def seal(self, bucket: BucketState, upto: OpId) -> None:
        """Seal the hot tail of one bucket."""
        try:
            self._compactor().seal(bucket, upto)
        except HistoryChangedError as error:
            _log.info("%s: %s", bucket.name, error)

    def prune(self) -> None:
        """Forget records of flushes that nobody asks for any more."""
        while True:
            started = time.monotonic()
            if not self._store.prune(self._lease, KEPT_FLUSHES):
                return
            self._pause(time.monotonic() - started)

    def _compactor(self) -> Compactor:
        return Compactor(self._store, self._lease, self._pause, self._rest)

    def _pause(self, seconds: float) -> None:
        """Leave the write lock to others for longer than we held it: whoever waits for it only looks now and then."""
        self._wait(max(0.01, 2 * seconds))

    def _rest(self) -> None:
        self._wait(self._rest_seconds)

    def _wait(self, seconds: float) -> None:
        if self._stopping(seconds):
            raise UpkeepStoppedError("compaction was stopped", fix="what it did so far stays")


def selected(buckets: Sequence[BucketState], name: str | None, definition: str | None) -> list[BucketState]:
    """Those with this name, and of this definition (or all versions of it), where one is given."""
    return [
        bucket
        for bucket in buckets
        if name in {None, bucket.name}
        and (definition in {None, bucket.definition} or bucket.definition.startswith(f"{definition}."))
    ]
