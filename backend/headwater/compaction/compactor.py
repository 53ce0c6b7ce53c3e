"""Compaction of a store: decides which buckets need work, and does it, beside the replicator or on command, in this
process or shared out to others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from enum import Enum, auto

from headwater.codes import Kind
from headwater.compaction.bucket import BucketCompactor, Compacted
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.compaction import BucketState, HistoryChangedError
from headwater.storage.contract.store import Lease, LeaseHeldError
from headwater.storage.open import open_store
from headwater.storage.shared.common import KEPT_FLUSHES
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.compaction import CompactionStore

LEASE_SECONDS = 30.0
_REST = 0.005  # the replicator, in another thread of the process, comes first

_LEAST_GROWN = 64  # ops; below, a bucket is not worth a transaction
_LEAST_UNSEALED = 5_000

_log = logging.getLogger(__name__)


class CompactionStoppedError(HeadwaterError):
    """The work was stopped; what was done so far stays."""

    code = "HW_4005"


class CompactionNeed(Enum):
    """The work that a bucket needs."""

    NOTHING = auto()
    SEAL = auto()
    COMPACT = auto()


def need(bucket: BucketState, store: CompactionStore, upto: OpId, policy: CompactionPolicy) -> CompactionNeed:
    """What a bucket needs. Cheap: it reads totals, and for some buckets how much of them is not sealed."""
    grown = bucket.count - bucket.compacted_count
    if grown < 0:  # cleared since
        grown = bucket.count
    if grown >= max(_LEAST_GROWN, policy.spare * bucket.compacted_count):
        return CompactionNeed.COMPACT
    if bucket.compacted_op < bucket.clear_op <= upto and store.has_remains(bucket.key):
        return CompactionNeed.COMPACT
    if grown >= _LEAST_UNSEALED and store.unsealed_ops(bucket.key, upto, _LEAST_UNSEALED) >= _LEAST_UNSEALED:
        return CompactionNeed.SEAL
    return CompactionNeed.NOTHING


@dataclass(slots=True)
class Summary:
    """What a pass did, in all buckets together."""

    buckets: int = 0
    before: int = 0
    after: int = 0
    live: int = 0
    reput: int = 0
    reput_bytes: int = 0
    skipped: int = 0

    def add(self, other: Summary | Compacted) -> None:
        """Add what another process did, or the result for a bucket."""
        for each in fields(other):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def count(self, result: Compacted | None) -> None:
        """Add a bucket; None for one that was skipped."""
        if result is None:
            self.skipped += 1
        else:
            self.buckets += 1
            self.add(result)


class CompactionPass:
    """Takes the compaction lease, and holds it until the end of its `with`. `stopping` is called between transactions:
    it waits for so many seconds, or returns True when the work has to end. `rest` is how many seconds to leave the
    processor to others after each piece of history. With `under`, works with a lease that another process holds. Raises
    LeaseHeldError."""

    def __init__(
        self,
        store: CompactionStore,
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

    def __enter__(self) -> CompactionPass:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._held_elsewhere:
            self._store.release(self.lease)

    def bucket(
        self, bucket: BucketState, upto: OpId, policy: CompactionPolicy, *, finish: bool = False
    ) -> Compacted | None:
        """Compact one bucket up to an op. With `finish`, rows that it puts again are compacted at once, whatever `upto`
        is. None when the bucket changed meanwhile and was left alone."""
        try:
            result = self._compactor().compact(bucket, upto, policy)
            if finish and result.reput and (now := self._store.bucket(bucket.key)) is not None:
                free = CompactionPolicy(budget=0)
                second = self._compactor().compact(now, self._store.checkpoint(), free)
                result = Compacted(result.before, second.after, second.live, result.reput, result.reput_bytes)
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

    def _compactor(self) -> BucketCompactor:
        return BucketCompactor(self._store, self.lease, self._pause, self._rest)

    def _pause(self, seconds: float) -> None:
        """Leave the write lock to others for longer than we held it: waiting writers only poll for it."""
        self._wait(max(0.01, 2 * seconds))

    def _rest(self) -> None:
        self._wait(self._rest_seconds)

    def _wait(self, seconds: float) -> None:
        if self._stopping(seconds):
            raise CompactionStoppedError("compaction was stopped", fix="what it did so far stays")


@dataclass(frozen=True, slots=True)
class Share:
    """Buckets to compact in another process, up to an op, with a lease that this process holds."""

    address: StoreAddress
    lease: Lease
    keys: tuple[int, ...]
    upto: OpId
    policy: CompactionPolicy
    finish: bool


ShareRunner = Callable[[Sequence[Share]], Sequence[Summary]]
"""Compacts shares in parallel, and returns the result of each."""

LARGE_OPS = 2_000_000
"""From so many ops on, it pays to start other processes."""

_OPS_A_SHARE = 250_000


def shared(
    work: CompactionPass,
    address: StoreAddress,
    buckets: Sequence[BucketState],
    upto: OpId,
    policy: CompactionPolicy,
    *,
    finish: bool,
) -> list[Share]:
    """Divide buckets into shares of some size. A large bucket is a share of its own."""
    shares: list[Share] = []
    keys: list[int] = []
    ops = 0
    for bucket in sorted(buckets, key=lambda bucket: -bucket.count):
        keys.append(bucket.key)
        ops += bucket.count
        if ops >= _OPS_A_SHARE:
            shares.append(Share(address, work.lease, tuple(keys), upto, policy, finish))
            keys, ops = [], 0
    return [*shares, Share(address, work.lease, tuple(keys), upto, policy, finish)] if keys else shares


@dataclass(frozen=True, slots=True)
class ShareTask:
    """Compacts one share on an executor, which imports this module to run it. See `pipeline.engine.Task`."""

    share: Share

    def run(self, job: None, number: int, attempt: str) -> Summary:
        share, summary = self.share, Summary()
        with (
            closing(open_store(share.address).open_compaction()) as store,
            CompactionPass(store, "", threading.Event().wait, under=share.lease) as work,
        ):
            for key in share.keys:
                bucket = store.bucket(key)
                if bucket is not None:
                    summary.count(work.bucket(bucket, share.upto, share.policy, finish=share.finish))
        return summary


def selected(buckets: Sequence[BucketState], name: str | None, definition: str | None) -> list[BucketState]:
    """The buckets with this name, and of this definition or any version of it; None selects all."""
    return [
        bucket
        for bucket in buckets
        if name in {None, bucket.name}
        and (definition in {None, bucket.definition} or bucket.definition.startswith(f"{definition}."))
    ]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often to check the store, and how old ops must be before they are compacted, both in seconds. Downloads and
    readers of the history that are no further behind are not disturbed."""

    interval: float = 30.0
    min_age: float = 60.0


class Compactor:
    """To be started and stopped with the replicator. A failure is logged and tried again later: nothing depends on it.
    `run_shares` runs large work in other processes."""

    def __init__(
        self,
        address: StoreAddress,
        owner: str,
        *,
        schedule: Schedule | None = None,
        policy: CompactionPolicy | None = None,
        run_shares: ShareRunner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
        self._owner = owner
        self._schedule = schedule or Schedule()
        self._policy = policy or CompactionPolicy()
        self._run_shares = run_shares
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: deque[tuple[float, OpId]] = deque()
        self._done = OpId(0)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current transaction, and wait for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        store: CompactionStore | None = None
        try:
            while not self._stop.wait(self._schedule.interval):
                try:
                    store = store or open_store(self._address).open_compaction()
                    self.run_once(store)
                except CompactionStoppedError:
                    return
                except LeaseHeldError:
                    continue  # a compaction by command is running
                except Exception as error:  # noqa: BLE001 - the replicator must not end for this
                    _log_failure(error)
                    _close(store)  # its connection may be broken
                    store = None
        finally:
            _close(store)

    def run_once(self, store: CompactionStore) -> Summary:
        """Run one pass over all buckets, up to the newest settled checkpoint."""
        summary = Summary()
        upto = self._settled(store.checkpoint())
        if upto <= self._done:
            return summary
        needs = ((bucket, need(bucket, store, upto, self._policy)) for bucket in store.buckets(self._done))
        found = [(bucket, what) for bucket, what in needs if what is not CompactionNeed.NOTHING]
        if found:
            with CompactionPass(store, self._owner, self._stop.wait, rest=_REST) as work:
                large = [bucket for bucket, what in found if what is CompactionNeed.COMPACT]
                if self._run_shares is not None and sum(bucket.count for bucket in large) >= LARGE_OPS:
                    shares = shared(work, self._address, large, upto, self._policy, finish=False)
                    for done in self._run_shares(shares):
                        summary.add(done)
                    found = [(bucket, what) for bucket, what in found if what is not CompactionNeed.COMPACT]
                for bucket, what in found:
                    if what is CompactionNeed.SEAL:
                        work.seal(bucket, upto)
                    else:
                        summary.count(work.bucket(bucket, upto, self._policy))
                work.prune()
        self._done = upto
        if summary.before:
            _log.info("compacted %d buckets from %d to %d ops", summary.buckets, summary.before, summary.after)
        return summary

    def _settled(self, checkpoint: OpId) -> OpId:
        """The newest checkpoint that is old enough, 0 if none is."""
        now = self._clock()
        self._seen.append((now, checkpoint))
        while len(self._seen) > 1 and self._seen[1][0] <= now - self._schedule.min_age:
            self._seen.popleft()
        seen, settled = self._seen[0]
        return settled if seen <= now - self._schedule.min_age else OpId(0)


def _log_failure(error: Exception) -> None:
    if isinstance(error, HeadwaterError):
        level = logging.INFO if error.kind is Kind.RETRY else logging.WARNING
        _log.log(level, "histories are not compacted for now: %s", error)
    else:
        _log.error("compaction failed; it is tried again", exc_info=error)


def _close(store: CompactionStore | None) -> None:
    if store is not None:
        store.close()
