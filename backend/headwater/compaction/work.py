"""One pass of compaction over a store: decides which buckets need work, and does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum, auto

from headwater.compaction.compactor import Compacted, Compactor
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.compaction import BucketState, HistoryChangedError, UpkeepStore
from headwater.storage.contract.store import Lease
from headwater.storage.open import open_backend
from headwater.storage.shared.common import KEPT_FLUSHES
from headwater.storage.shared.compaction import Thrift

LEASE_SECONDS = 30.0

_LEAST_GROWN = 64  # ops; below, a bucket is not worth a transaction
_LEAST_UNSEALED = 5_000

_log = logging.getLogger(__name__)


class UpkeepStoppedError(HeadwaterError):
    """The work was stopped; what was done so far stays."""

    code = "HW_4005"


class Need(Enum):
    """The work that a bucket needs."""

    NOTHING = auto()
    SEAL = auto()
    COMPACT = auto()


def need(bucket: BucketState, store: UpkeepStore, upto: OpId, thrift: Thrift) -> Need:
    """What a bucket needs. Cheap: it reads totals, and for some buckets how much of them is not sealed."""
    grown = bucket.count - bucket.compacted_count
    if grown < 0:  # cleared since
        grown = bucket.count
    if grown >= max(_LEAST_GROWN, thrift.spare * bucket.compacted_count):
        return Need.COMPACT
    if bucket.compacted_op < bucket.clear_op <= upto and store.has_remains(bucket.key):
        return Need.COMPACT
    if grown >= _LEAST_UNSEALED and store.unsealed_ops(bucket.key, upto, _LEAST_UNSEALED) >= _LEAST_UNSEALED:
        return Need.SEAL
    return Need.NOTHING


@dataclass(slots=True)
class Summary:
    """What a pass did, in all buckets together."""

    buckets: int = 0
    before: int = 0
    after: int = 0
    live: int = 0
    again: int = 0
    again_bytes: int = 0
    skipped: int = 0

    def merge(self, other: Summary) -> None:
        """Add what another process did."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def count(self, result: Compacted | None) -> None:
        """Add a bucket; None for one that was skipped."""
        if result is None:
            self.skipped += 1
            return
        self.buckets += 1
        self.before += result.before
        self.after += result.after
        self.live += result.live
        self.again += result.again
        self.again_bytes += result.again_bytes


class UpkeepWork:
    """Takes the upkeep lease, and holds it until the end of its `with`. `stopping` is called between transactions: it
    waits for so many seconds, or returns True when the work has to end. `rest` is how many seconds to leave the
    processor to others after each piece of history. With `under`, works with a lease that another process holds. Raises
    LeaseHeldError."""

    def __init__(
        self,
        store: UpkeepStore,
        owner: str,
        stopping: Callable[[float], bool],
        *,
        rest: float = 0.0,
        under: Lease | None = None,
    ) -> None:
        self._store = store
        self._stopping = stopping
        self._rest_seconds = rest
        self._held_elsewhere = under is not None
        self.lease = under or store.acquire(owner, LEASE_SECONDS)

    def __enter__(self) -> UpkeepWork:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._held_elsewhere:
            self._store.release(self.lease)

    def bucket(self, bucket: BucketState, upto: OpId, thrift: Thrift, *, finish: bool = False) -> Compacted | None:
        """Compact one bucket up to an op. With `finish`, rows that it puts again are compacted at once, whatever `upto`
        is. None when the bucket changed meanwhile and was left alone."""
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
        """Delete records of flushes that are not needed any more."""
        while True:
            started = time.monotonic()
            if not self._store.prune(self.lease, KEPT_FLUSHES):
                return
            self._pause(time.monotonic() - started)

    def _compactor(self) -> Compactor:
        return Compactor(self._store, self.lease, self._pause, self._rest)

    def _pause(self, seconds: float) -> None:
        """Leave the write lock to others for longer than we held it: waiting writers only poll for it."""
        self._wait(max(0.01, 2 * seconds))

    def _rest(self) -> None:
        self._wait(self._rest_seconds)

    def _wait(self, seconds: float) -> None:
        if self._stopping(seconds):
            raise UpkeepStoppedError("compaction was stopped", fix="what it did so far stays")


@dataclass(frozen=True, slots=True)
class Share:
    """Buckets to compact in another process, up to an op, with a lease that this process holds."""

    address: StoreAddress
    lease: Lease
    keys: tuple[int, ...]
    upto: OpId
    thrift: Thrift
    finish: bool


Elsewhere = Callable[[Sequence[Share]], Sequence[Summary]]
"""Compacts shares in parallel, and returns the result of each."""

LARGE_OPS = 2_000_000
"""From so many ops on, it pays to start other processes."""

_OPS_A_SHARE = 250_000


def shared(
    work: UpkeepWork, address: StoreAddress, buckets: Sequence[BucketState], upto: OpId, thrift: Thrift, *, finish: bool
) -> list[Share]:
    """Divide buckets into shares of some size. A large bucket is a share of its own."""
    shares: list[Share] = []
    keys: list[int] = []
    ops = 0
    for bucket in sorted(buckets, key=lambda bucket: -bucket.count):
        keys.append(bucket.key)
        ops += bucket.count
        if ops >= _OPS_A_SHARE:
            shares.append(Share(address, work.lease, tuple(keys), upto, thrift, finish))
            keys, ops = [], 0
    return [*shares, Share(address, work.lease, tuple(keys), upto, thrift, finish)] if keys else shares


def compact_share(share: Share) -> Summary:
    """Compact a share, in any process."""
    summary = Summary()
    store = open_backend(share.address).open_compaction()
    try:
        with UpkeepWork(store, "", _never, under=share.lease) as work:
            for key in share.keys:
                bucket = store.bucket(key)
                if bucket is not None:
                    summary.count(work.bucket(bucket, share.upto, share.thrift, finish=share.finish))
    finally:
        store.close()
    return summary


def _never(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def selected(buckets: Sequence[BucketState], name: str | None, definition: str | None) -> list[BucketState]:
    """The buckets with this name, and of this definition or any version of it; None selects all."""
    return [
        bucket
        for bucket in buckets
        if name in {None, bucket.name}
        and (definition in {None, bucket.definition} or bucket.definition.startswith(f"{definition}."))
    ]
