"""Reads from the store what the sync session of one stream asks for, and encodes its lines. Blocking."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence

from cachetools import LRUCache

from headwater.api.streams.encoding import Batch, Pieces, WireForm
from headwater.api.streams.stale import Reads, errors_of, reads_of
from headwater.api.streams.threads import SharedStep, SnapshotCache
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.replication.status import Staleness
from headwater.storage.contract.reader import StoredConfig, WriteCheckpoint
from headwater.sync.client_state import BucketDownload, ClientState, View
from headwater.sync.interest import Interest, News, reached
from headwater.sync.lines import Line
from headwater.sync.request import RequestLimits
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import SyncPlan
from headwater_rules.results import LookupReader, OmittedSubscription, Resolution, SyncRequest

BATCH_BYTES = 256 * 1024
"""How much a stream reads ahead of its client. A batch ends with the chunk that reaches this size."""

LOOK_AHEAD = 500
"""The most buckets in one query to the store. That many small ones fill about one batch."""


class ConfigReplacedError(HeadwaterError):
    """Another sync config became active. The client connects again and gets it."""

    code = "HW_6001"


class LimitCrossedError(HeadwaterError):
    """Other streams fit into the device's limits than before. It connects again and learns which."""

    code = "HW_6005"


Resolve = Callable[[StoredConfig, SyncRequest, LookupReader, frozenset[str]], Resolution]
"""Resolves a request to buckets, under a config. The last argument are the keys of subscriptions that did not fit
before."""


class SyncSession:
    """Reads for one stream. Use it in one thread at a time. After each call, `interest` has the buckets and lookups
    that the answer depends on, and `op_id` is its checkpoint. `sources` are the configured ones, if they are known."""

    __slots__ = (
        "_memory", "_request", "_resolve", "_state", "awaited", "config_id", "form", "interest", "left_out", "op_id",
        "operations", "sources", "write_key",
    )  # fmt: skip

    def __init__(
        self,
        positions: Mapping[str, OpId],
        request: SyncRequest,
        write_key: str,
        resolve: Resolve,
        memory: LeftOutMemory,
        form: WireForm,
        sources: Sequence[str] | None = None,
    ) -> None:
        self._request = request
        self.sources = sources
        self.write_key = write_key
        self._resolve = resolve
        self._memory = memory
        self._state = ClientState(positions)
        self.form = form
        self.config_id: int | None = None
        self.interest = Interest()
        self.op_id = OpId(0)
        self.operations = 0
        """How many ops the client was sent. The stream counts them."""
        self.awaited: WriteCheckpoint | None = None
        self.left_out: tuple[OmittedSubscription, ...] = ()

    @property
    def interruptible(self) -> bool:
        """Whether `turn` may be called before all data of the checkpoint was sent."""
        return self._state.interruptible

    @property
    def overtaken(self) -> bool:
        """Whether the checkpoint can't be completed any more, since compaction went past it. Call `turn` then."""
        return self._state.overtaken

    def open(self, snapshot: SnapshotCache) -> Batch:
        """The first checkpoint. Its data comes with `more`, unless there is none: then this completes it."""
        self.config_id = snapshot.config.id
        resolution = self._resolve(
            snapshot.config, self._request, snapshot.lookups, self._memory.of(self.write_key, snapshot.config.id)
        )
        self._remember(snapshot, resolution)
        self.left_out = resolution.left_out
        self.interest = _interest(resolution)
        write = snapshot.write_checkpoint(self.write_key)
        visible = write is not None and reached(write, snapshot.checkpoint.lsns, self.sources)
        self.awaited = None if visible else write
        line = self._advance(snapshot, resolution, self.interest.buckets, write.id if write and visible else None)
        return self._fill(line, snapshot, history=False)

    def turn(self, snapshot: SnapshotCache, news: News) -> Batch | None:
        """The next checkpoint, as a diff, and the first batch of its data. None if the snapshot has changes of lookups
        that the news lacks: then nothing was done. Raises ConfigReplacedError, or LimitCrossedError when other streams
        are left out than before, which only a first checkpoint can say."""
        if snapshot.config.id != self.config_id:
            raise ConfigReplacedError("another sync config became active")
        beyond = self._beyond(snapshot, news.upto)
        if beyond.lookups and not news.lookups:
            return None
        news = news.also(beyond)
        resolution = None
        if news.lookups:
            resolution = self._resolve(snapshot.config, self._request, snapshot.lookups, _keys(self.left_out))
        if resolution is not None and _keys(resolution.left_out) != _keys(self.left_out):
            self._remember(snapshot, resolution)
            raise LimitCrossedError("other streams fit into the limits of the request")
        before = self.interest.buckets
        if resolution is not None:
            self.interest = _interest(resolution)
        names = self.interest.buckets
        stale = names if news.buckets is None else (names & news.buckets) | (names - before)
        if resolution is None and news.write_checkpoint is None and len(stale) == 1:
            return self._step(snapshot, next(iter(stale)))
        return self._fill(self._advance(snapshot, resolution, stale, news.write_checkpoint), snapshot)

    def more(self, snapshot: SnapshotCache) -> Batch:
        """The next batch of the checkpoint's data."""
        return self._fill(None, snapshot)

    def _step(self, snapshot: SnapshotCache, bucket: str) -> Batch:
        """A turn in which at most one bucket changed. Many streams have that in common, down to the bytes."""
        total = snapshot.totals([bucket])
        view = View(snapshot.checkpoint.op_id, None, total, None)
        if (step := self._state.step(bucket, view)) is None:
            return self._fill(self._advance(snapshot, None, frozenset([bucket]), None), snapshot)
        reasons, key = self._state.reasons(bucket), (self.form, step)
        shared = snapshot.shared_steps.get(key)
        if shared is not None and shared.reasons == reasons:
            self._state.repeat(step, total[bucket], shared.position)
            self.op_id = step.upto
            return shared.batch
        batch = self._fill(self._advance(snapshot, None, frozenset([bucket]), None), snapshot)
        if batch.done:
            snapshot.shared_steps[key] = SharedStep(reasons, self._state.position(bucket), batch)
        return batch

    def _beyond(self, snapshot: SnapshotCache, upto: OpId) -> News:
        """What changed after `upto`, up to the snapshot: a checkpoint line promises all changes up to its op id."""
        touched = snapshot.touched_since(upto)
        if touched.buckets is None or touched.lookups is None:
            return News(snapshot.checkpoint.op_id, buckets=None, lookups=True)
        lookups = not self.interest.lookups.isdisjoint(touched.lookups)
        return News(snapshot.checkpoint.op_id, touched.buckets & self.interest.buckets, lookups)

    def _advance(
        self,
        snapshot: SnapshotCache,
        resolution: Resolution | None,
        stale: frozenset[str],
        write_checkpoint: int | None,
    ) -> Line | None:
        """Move the session to the checkpoint of the snapshot. `stale` are the buckets whose totals may have changed."""
        self.op_id = snapshot.checkpoint.op_id
        return self._state.advance(View(self.op_id, resolution, snapshot.totals(list(stale)), write_checkpoint))

    def _remember(self, snapshot: SnapshotCache, resolution: Resolution) -> None:
        self._memory.put(self.write_key, snapshot.config.id, _keys(resolution.left_out))

    def _fill(self, line: Line | None, snapshot: SnapshotCache, *, history: bool = True) -> Batch:
        """A batch that begins with this line. Without `history`, it ends before the first bucket that has news."""
        pieces, ops = Pieces(self.form.coding), 0
        if line is not None:
            pieces.add(self.form.format.line(line))
        while len(pieces) < BATCH_BYTES:
            if self._state.overtaken:
                break
            step = self._state.next()
            if step is None:
                return Batch(pieces.all(), ops)
            if not isinstance(step, BucketDownload):
                pieces.add(self.form.format.line(step))
                continue
            if not history and not snapshot.has_nothing(step, self._upcoming):
                break
            written = snapshot.written(self.form, step, self._upcoming)
            self._state.receive(step, written.chunk)
            ops += written.chunk.size
            if written.content is not None:
                pieces.add(written.content)
        return Batch(pieces.all(), ops, done=False)

    def _upcoming(self) -> Sequence[str]:
        return self._state.upcoming(LOOK_AHEAD)


def _keys(left_out: Sequence[OmittedSubscription]) -> frozenset[str]:
    return frozenset(each.key for each in left_out)


def _interest(resolution: Resolution) -> Interest:
    return Interest(frozenset(bucket.name for bucket in resolution.buckets), resolution.lookup_keys)


MOST_KEYS = 100_000
"""The most subscriptions that are remembered, of all devices. Those of the device that connected longest ago are
forgotten first."""


class LeftOutMemory:
    """The keys of the subscriptions that did not fit into a device's limits when it was answered last, so that each new
    connection leaves out the same ones. Per process, and safe to use from several threads."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._lock = threading.Lock()
        self._held: LRUCache[bytes, tuple[int, frozenset[str]]] = LRUCache(most, lambda held: len(held[1]))

    def of(self, device: str, config_id: int) -> frozenset[str]:
        """The keys that were left out for a device under this sync config; none under another one."""
        with self._lock:
            held, keys = self._held.get(_name(device), (config_id, frozenset[str]()))
            return keys if held == config_id else frozenset()

    def put(self, device: str, config_id: int, keys: frozenset[str]) -> None:
        with self._lock:
            self._held.pop(name := _name(device), None)
            if 0 < len(keys) <= self._held.maxsize:
                self._held[name] = config_id, keys


def _name(device: str) -> bytes:
    """A short name for a device: clients choose ids of up to a kilobyte."""
    return hashlib.blake2b(device.encode(), digest_size=16).digest()


class PlanCache:
    """Resolves requests with the compiled plan of a config. Keeps only the newest plan. `stale` says which sources are,
    for the errors of their streams. Safe to use from several threads."""

    def __init__(self, limits: RequestLimits, stale: Callable[[], Sequence[Staleness]] = lambda: ()) -> None:
        self._limits = limits
        self._stale = stale
        self._lock = threading.Lock()
        self._held: tuple[int, SyncPlan, Reads] | None = None

    def resolve(
        self, config: StoredConfig, request: SyncRequest, read: LookupReader, left_out: frozenset[str]
    ) -> Resolution:
        """The buckets of a request. `left_out` are keys of what did not fit before. Raises SyncConfigError."""
        plan, reads = self._plan(config)
        stale = self._stale()
        return resolve(
            plan,
            request,
            read,
            max_buckets=self._limits.max_buckets,
            max_results=self._limits.max_results,
            left_out=left_out,
            errors=errors_of(reads, stale) if stale else {},
        )

    def _plan(self, config: StoredConfig) -> tuple[SyncPlan, Reads]:
        with self._lock:
            if self._held is None or self._held[0] != config.id:
                plan = compile_config(config.yaml).plan
                self._held = config.id, plan, reads_of(plan)
            return self._held[1:]
