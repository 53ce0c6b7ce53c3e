"""What jobs of the store's threads read: one snapshot, whose answers are kept, so that jobs that share it ask the store
only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headwater.api.errors import NoActiveConfigError
from headwater.api.streams.codings import Piece
from headwater.api.streams.encoding import Batch, WireForm
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
from headwater.sync.session import Download, Reasons, Step


@dataclass(frozen=True, slots=True)
class Alike:
    """What a stream was sent for a step, and where that left its bucket. It is right for every stream that takes the
    same step, and has the bucket for the same reasons."""

    reasons: Reasons
    position: OpId
    batch: Batch


class Reading:
    """One snapshot of the store. It caches answers, so that jobs that share it ask the store only once."""

    def __init__(self, reader: CachedReader, snapshot: StoreSnapshot) -> None:
        self._reader = reader
        self._snapshot = snapshot
        self._totals: dict[str, BucketTotal] = {}
        self._marks: dict[str, BucketMarks | None] = {}
        self._written: dict[tuple[WireForm, str, OpId, OpId], Written[Piece | bytes]] = {}
        self._touched: dict[OpId, Touched] = {}
        self.alike: dict[tuple[WireForm, Step], Alike] = {}

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
        marks = self._marks_of(download.bucket, upcoming)
        key = (form, download.bucket, download.after, download.upto)
        if key not in self._written:
            self._written[key] = self._reader.written(*key, marks)
        return self._written[key]

    def has_nothing(self, download: Download, upcoming: Callable[[], Sequence[str]]) -> bool:
        """Whether a bucket has no ops after the download's position. Cheap: reads no history. `upcoming` as above."""
        marks = self._marks_of(download.bucket, upcoming)
        return marks is None or download.after >= marks.last_op

    def _marks_of(self, bucket: str, upcoming: Callable[[], Sequence[str]]) -> BucketMarks | None:
        if bucket not in self._marks:
            names = upcoming()
            self._marks.update(dict.fromkeys(names))
            self._marks.update(self._reader.marks(names))
        return self._marks[bucket]

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        return self._reader.write_checkpoint(key)


@contextmanager
def open_reading(reader: CachedReader) -> Iterator[Reading]:
    """A reading at the newest checkpoint. Raises NoActiveConfigError."""
    with reader.snapshot() as snapshot:
        if snapshot is None:
            raise NoActiveConfigError
        yield Reading(reader, snapshot)
