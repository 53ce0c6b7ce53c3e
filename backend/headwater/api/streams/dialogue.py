"""Reads from the store what the sync session of one stream asks for, and encodes its lines. Blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headwater.api.streams.encoding import Batch, Pieces, WireForm
from headwater.api.streams.left_out import LeftOutMemory
from headwater.api.streams.reading import Alike, Reading
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import StoredConfig, WriteCheckpoint
from headwater.sync.interest import Interest, News, reached
from headwater.sync.lines import Line
from headwater.sync.session import Download, Session, View
from headwater_rules.results import LeftOut, LookupReader, Resolution, SyncRequest

BATCH_BYTES = 256 * 1024
"""How much a stream reads ahead of its client. A batch ends with the chunk that reaches this size."""

LOOK_AHEAD = 500
"""The most buckets that the store is asked about at once. That many small ones fill about one batch."""


class ConfigReplacedError(HeadwaterError):
    """Another sync config became active. The client connects again and gets it."""

    code = "HW_6001"


class LimitCrossedError(HeadwaterError):
    """Other streams fit into the device's limits than it was told. It connects again and is told which."""

    code = "HW_6005"


class Resolver(Protocol):
    """Resolves a request to buckets, under a config. `left_out` has the keys of subscriptions that did not fit
    before."""

    def resolve(
        self, config: StoredConfig, request: SyncRequest, read: LookupReader, left_out: frozenset[str]
    ) -> Resolution: ...


class Dialogue:
    """Reads for one stream. Use it in one thread at a time. After each call, `interest` has the buckets and lookups
    that the answer depends on, and `op_id` is its checkpoint."""

    __slots__ = (
        "_form",
        "_memory",
        "_request",
        "_resolver",
        "_session",
        "awaited",
        "config_id",
        "interest",
        "left_out",
        "op_id",
        "write_key",
    )

    def __init__(
        self,
        positions: Mapping[str, OpId],
        request: SyncRequest,
        write_key: str,
        resolver: Resolver,
        memory: LeftOutMemory,
        form: WireForm,
    ) -> None:
        self._request = request
        self.write_key = write_key
        self._resolver = resolver
        self._memory = memory
        self._session = Session(positions)
        self._form = form
        self.config_id: int | None = None
        self.interest = Interest()
        self.op_id = OpId(0)
        self.awaited: WriteCheckpoint | None = None
        self.left_out: tuple[LeftOut, ...] = ()

    @property
    def interruptible(self) -> bool:
        """Whether `turn` may be called before all data of the checkpoint was sent."""
        return self._session.interruptible

    @property
    def overtaken(self) -> bool:
        """Whether the checkpoint can't be completed any more, since compaction went past it. Call `turn` then."""
        return self._session.overtaken

    def open(self, reading: Reading) -> Batch:
        """The first checkpoint. Its data comes with `more`, unless there is none: then this completes it."""
        self.config_id = reading.config.id
        resolution = self._resolve(reading, self._memory.of(self.write_key, reading.config.id))
        self._remember(reading, resolution)
        self.left_out = resolution.left_out
        self.interest = _interest(resolution)
        write = reading.write_checkpoint(self.write_key)
        visible = write is not None and reached(write, reading.checkpoint.lsns)
        self.awaited = None if visible else write
        line = self._advance(reading, resolution, self.interest.buckets, write.id if write and visible else None)
        return self._fill(line, reading, history=False)

    def turn(self, reading: Reading, news: News) -> Batch | None:
        """The next checkpoint, as a diff, and the first batch of its data. None if the snapshot has changes of lookups
        that the news lacks: then nothing was done. Raises ConfigReplacedError, or LimitCrossedError when other streams
        are left out than before, which only a first checkpoint can say."""
        if reading.config.id != self.config_id:
            raise ConfigReplacedError("another sync config became active")
        beyond = self._beyond(reading, news.upto)
        if beyond.lookups and not news.lookups:
            return None
        news = news.also(beyond)
        resolution = self._resolve(reading, _keys(self.left_out)) if news.lookups else None
        if resolution is not None and _keys(resolution.left_out) != _keys(self.left_out):
            self._remember(reading, resolution)
            raise LimitCrossedError("other streams fit into the limits of the request")
        before = self.interest.buckets
        if resolution is not None:
            self.interest = _interest(resolution)
        names = self.interest.buckets
        stale = names if news.buckets is None else (names & news.buckets) | (names - before)
        if resolution is None and news.write_checkpoint is None and len(stale) == 1:
            return self._step(reading, next(iter(stale)))
        return self._fill(self._advance(reading, resolution, stale, news.write_checkpoint), reading)

    def more(self, reading: Reading) -> Batch:
        """The next batch of the checkpoint's data."""
        return self._fill(None, reading)

    def _step(self, reading: Reading, bucket: str) -> Batch:
        """A turn in which at most one bucket changed. Many streams have that in common, down to the bytes."""
        total = reading.totals([bucket])
        view = View(reading.checkpoint.op_id, None, total, None)
        if (step := self._session.step(bucket, view)) is None:
            return self._fill(self._advance(reading, None, frozenset([bucket]), None), reading)
        reasons, key = self._session.reasons(bucket), (self._form, step)
        alike = reading.alike.get(key)
        if alike is not None and alike.reasons == reasons:
            self._session.repeat(step, total[bucket], alike.position)
            self.op_id = step.upto
            return alike.batch
        batch = self._fill(self._advance(reading, None, frozenset([bucket]), None), reading)
        if batch.done:
            reading.alike[key] = Alike(reasons, self._session.position(bucket), batch)
        return batch

    def _beyond(self, reading: Reading, upto: OpId) -> News:
        """What changed after `upto`, up to the snapshot that is read: a checkpoint line promises all changes up to its
        op id."""
        touched = reading.touched_since(upto)
        if touched.buckets is None or touched.lookups is None:
            return News(reading.checkpoint.op_id, buckets=None, lookups=True)
        lookups = not self.interest.lookups.isdisjoint(touched.lookups)
        return News(reading.checkpoint.op_id, touched.buckets & self.interest.buckets, lookups)

    def _advance(
        self, reading: Reading, resolution: Resolution | None, stale: frozenset[str], write_checkpoint: int | None
    ) -> Line | None:
        """Move the session to the checkpoint of the reading. `stale` are the buckets whose totals may have changed."""
        self.op_id = reading.checkpoint.op_id
        return self._session.advance(View(self.op_id, resolution, reading.totals(list(stale)), write_checkpoint))

    def _resolve(self, reading: Reading, left_out: frozenset[str]) -> Resolution:
        return self._resolver.resolve(reading.config, self._request, reading.lookups, left_out)

    def _remember(self, reading: Reading, resolution: Resolution) -> None:
        self._memory.put(self.write_key, reading.config.id, _keys(resolution.left_out))

    def _fill(self, line: Line | None, reading: Reading, *, history: bool = True) -> Batch:
        """A batch that begins with this line. Without `history`, it ends before the first bucket that has news."""
        pieces, ops = Pieces(self._form.coding), 0
        if line is not None:
            pieces.add(self._form.format.line(line))
        while len(pieces) < BATCH_BYTES:
            if self._session.overtaken:
                break
            step = self._session.next()
            if step is None:
                return Batch(pieces.all(), ops)
            if not isinstance(step, Download):
                pieces.add(self._form.format.line(step))
                continue
            if not history and not reading.has_nothing(step, self._upcoming):
                break
            written = reading.written(self._form, step, self._upcoming)
            self._session.receive(step, written.chunk)
            ops += written.chunk.size
            if written.content is not None:
                pieces.add(written.content)
        return Batch(pieces.all(), ops, done=False)

    def _upcoming(self) -> Sequence[str]:
        return self._session.upcoming(LOOK_AHEAD)


def _keys(left_out: Sequence[LeftOut]) -> frozenset[str]:
    return frozenset(each.key for each in left_out)


def _interest(resolution: Resolution) -> Interest:
    return Interest(frozenset(bucket.name for bucket in resolution.buckets), resolution.lookup_keys)
