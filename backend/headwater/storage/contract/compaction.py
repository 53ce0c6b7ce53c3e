"""What every store promises to whoever keeps its histories short. Nothing here knows which ops may go: that is
`storage.shared.compaction`; when and how far is decided by `headwater.compaction`.

Calls block. Those that change something hold the store's write lock for work in what they are given, no more, and
leave a state in which every device converges, whatever comes after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.errors import HeadwaterError, Kind
from headwater.oplog.op import OpId
from headwater.storage.contract.store import Lease

LEASE = "upkeep"
"""The lease of whoever rewrites history. It is no replicator's, and whoever edits ops in place needs it too."""


class HistoryChangedError(HeadwaterError):
    """What was read of a bucket's history is not what is there any more; nothing was done."""

    kind = Kind.RETRY
    code = "HW_4004"


@dataclass(frozen=True, slots=True)
class BucketState:
    """A bucket's running totals. `compacted_count` ops and `live_rows` rows are what the last compaction left."""

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
    """A run of consecutive ops of one bucket that can be read at once: a segment, or a stretch of the hot tail (blob
    0). `size` is the number of its ops, `bytes` what it takes as it is stored. A sealed one holds finished ops."""

    first: OpId
    last: OpId
    size: int
    blob: int
    sealed: bool
    bytes: int


class SealedRun(NamedTuple):
    """Finished ops joined by newlines and compressed by zstd: one segment, and one chunk for a reader. `checksum` is
    the sum of theirs, unsigned modulo 2^32."""

    first: OpId
    last: OpId
    size: int
    checksum: int
    blob: bytes


class Again(NamedTuple):
    """A standing row to be put once more at the end of its bucket. `row` is the key that
    `storage.shared.compaction.row_key` gives, `body` the body of its PUT."""

    row: int
    checksum: int
    body: str


class Cleared(NamedTuple):
    """The CLEAR that takes the place of all ops up to `op_id`, of which the bucket counted `replaced` so far, and what
    is left of the segment that the last of them was in."""

    op_id: OpId
    checksum: int
    replaced: int
    rest: tuple[SealedRun, ...]


class UpkeepStore(Protocol):
    """Used by one thread. All that changes something raises LeaseLostError once a newer lease exists."""

    def acquire(self, owner: str, ttl: float) -> Lease:
        """Take the lease for upkeep. Raises LeaseHeldError."""

    def renew(self, lease: Lease) -> None: ...

    def release(self, lease: Lease) -> None: ...

    def checkpoint(self) -> OpId:
        """The newest checkpoint; 0 while there is none."""

    def bucket(self, key: int) -> BucketState | None: ...

    def buckets(self, changed_after: OpId) -> Sequence[BucketState]:
        """Those with an op after `changed_after`."""

    def hot_ops(self, bucket: int, upto: OpId, limit: int) -> int:
        """How many ops up to `upto` are in no segment; counted up to `limit`."""

    def has_remains(self, bucket: int) -> bool:
        """Whether there are ops before the bucket's last CLEAR, which no device is sent any more."""

    def pieces(self, bucket: int, upto: OpId) -> list[Piece]:
        """What the bucket holds from its last CLEAR up to `upto`, in order. A segment that goes beyond is left out,
        and all after it."""

    def read(self, bucket: int, piece: Piece) -> bytes:
        """The finished ops of a piece, joined by newlines. Raises HistoryChangedError."""

    def rows_after(self, bucket: int, seen: OpId) -> tuple[set[int], OpId]:
        """Keys of the rows that ops after `seen` are about, and the newest op that was looked at. Raises
        HistoryChangedError when there is more than hot ops."""

    def put_again(self, lease: Lease, bucket: BucketState, seen: OpId, rows: Sequence[Again]) -> tuple[int, OpId]:
        """Number rows and append them to the bucket as a flush does, but for those that an op after `seen` is about.
        Moves the checkpoint. Returns how many were appended, and the bucket's newest op. Raises HistoryChangedError
        when the bucket was cleared since."""

    def clear(self, lease: Lease, bucket: BucketState, cut: Piece, cleared: Cleared, compacted_op: OpId) -> list[Piece]:
        """Replace everything up to `cleared.op_id`, which is in the piece `cut`, by a CLEAR. Ops before it are for
        `purge`. Returns the pieces that stand in the place of `cut`. Raises HistoryChangedError."""

    def replace(
        self, lease: Lease, bucket: BucketState, old: Sequence[Piece], new: Sequence[SealedRun], compacted_op: OpId
    ) -> list[Piece]:
        """Put segments in the place of consecutive pieces that hold the same ops; returns them as pieces. A checkpoint
        before `compacted_op` is overtaken from now on. Raises HistoryChangedError."""

    def purge(self, lease: Lease, bucket: int, limit: int) -> bool:
        """Delete ops before the bucket's last CLEAR, at most about `limit` of them. True while there are more."""

    def finish(self, lease: Lease, bucket: BucketState, count: int, live_rows: int) -> None:
        """Note what compaction left."""

    def prune(self, lease: Lease, flushes: int) -> int:
        """Forget what flushes touched, but for the newest `flushes`. Returns how many were forgotten, some thousands
        at most."""

    def close(self) -> None: ...
