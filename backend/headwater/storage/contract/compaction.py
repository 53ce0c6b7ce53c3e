"""The interface for compaction of histories. Which ops may go is decided by `storage.shared.compaction`; when and how
far, by `headwater.compaction`.

Calls block. Calls that change something hold the store's write lock in proportion to what they are given, and leave a
state from which every device converges, whatever happens next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.contract.store import Lease

LEASE = "upkeep"
"""Name of the lease for rewriting history. No replicator holds it; code that edits ops in place needs it too."""


class HistoryChangedError(HeadwaterError):
    """A bucket's history changed since it was read; nothing was done."""

    code = "HW_4004"


@dataclass(frozen=True, slots=True)
class BucketState:
    """Running totals of a bucket. `compacted_count` ops and `live_rows` rows are what the last compaction left."""

    key: int
    name: str
    definition: str
    count: int
    clear_op: OpId
    last_op: OpId
    compacted_op: OpId
    compacted_count: int
    live_rows: int


class Piece(NamedTuple):
    """A run of consecutive ops of one bucket that is read at once: a segment, or a stretch of the hot tail (`blob` is
    0). `size` is the number of ops, `bytes` their stored size. A sealed piece holds finished ops."""

    first: OpId
    last: OpId
    size: int
    blob: int
    sealed: bool
    bytes: int


class SealedRun(NamedTuple):
    """Finished ops joined by newlines and compressed with zstd: one segment, sent to readers as one chunk. `checksum`
    is the sum of the ops' checksums, unsigned modulo 2^32."""

    first: OpId
    last: OpId
    size: int
    checksum: int
    blob: bytes


class Reput(NamedTuple):
    """A live row to be put once more at the end of its bucket. `row` is the key from
    `storage.shared.compaction.row_key`, `body` the body of its PUT."""

    row: int
    checksum: int
    body: str


class Cleared(NamedTuple):
    """The CLEAR that replaces all ops up to `op_id`, `replaced` of which the bucket counted so far; `rest` is what
    remains of the segment that held the last of them."""

    op_id: OpId
    checksum: int
    replaced: int
    rest: tuple[SealedRun, ...]


class CompactionStore(Protocol):
    """Used by one thread. Every call that changes something raises LeaseLostError once a newer lease exists."""

    def acquire(self, owner: str, ttl: float) -> Lease:
        """Take the compaction lease for `ttl` seconds. Raises LeaseHeldError."""

    def renew(self, lease: Lease) -> None: ...

    def release(self, lease: Lease) -> None: ...

    def checkpoint(self) -> OpId:
        """The newest checkpoint; 0 while there is none."""

    def bucket(self, key: int) -> BucketState | None: ...

    def buckets(self, changed_after: OpId) -> Sequence[BucketState]:
        """Buckets with an op after `changed_after`."""

    def unsealed_ops(self, bucket: int, upto: OpId, limit: int) -> int:
        """The number of ops up to `upto` that are in no sealed segment. Stops counting somewhere above `limit`."""

    def has_remains(self, bucket: int) -> bool:
        """Whether ops before the bucket's last CLEAR are still stored. No device is sent them any more."""

    def pieces(self, bucket: int, upto: OpId) -> list[Piece]:
        """The pieces of the bucket from its last CLEAR up to `upto`, in order. Ends before the first segment that goes
        beyond `upto`."""

    def read(self, bucket: int, piece: Piece) -> bytes:
        """The finished ops of a piece, joined by newlines. Raises HistoryChangedError."""

    def rows_after(self, bucket: int, seen: OpId) -> tuple[set[int], OpId]:
        """Keys of the rows that ops after `seen` changed, and the newest op seen. Raises HistoryChangedError when a
        segment of these ops is missing."""

    def reput(self, lease: Lease, bucket: BucketState, seen: OpId, rows: Sequence[Reput]) -> tuple[int, OpId]:
        """Number `rows` and append them to the bucket, as a flush does, except those that an op after `seen` changed.
        Moves the checkpoint. Returns how many were appended, and the bucket's newest op. Raises HistoryChangedError
        when the bucket was cleared since."""

    def clear(self, lease: Lease, bucket: BucketState, cut: Piece, cleared: Cleared, compacted_op: OpId) -> list[Piece]:
        """Replace everything up to `cleared.op_id`, which is in the piece `cut`, by a CLEAR. `purge` deletes the ops
        before it. Returns the pieces that replace `cut`. Raises HistoryChangedError."""

    def replace(
        self, lease: Lease, bucket: BucketState, old: Sequence[Piece], new: Sequence[SealedRun], compacted_op: OpId
    ) -> list[Piece]:
        """Replace consecutive pieces by segments that hold the same ops; returns these as pieces. Checkpoints before
        `compacted_op` count as overtaken from now on. Raises HistoryChangedError."""

    def purge(self, lease: Lease, bucket: int, limit: int) -> bool:
        """Delete ops before the bucket's last CLEAR, about `limit` at most. Returns True while more are left."""

    def finish(self, lease: Lease, bucket: BucketState, count: int, live_rows: int) -> None:
        """Record what compaction left."""

    def prune(self, lease: Lease, flushes: int) -> int:
        """Delete the records of flushes except the newest `flushes`. Returns how many were deleted, a few thousand at
        most."""

    def close(self) -> None: ...
