"""The data of compaction of histories, see `storage.sql.compaction`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId

LEASE = "compaction"
"""Name of the lease for rewriting history, which no source may have. No replicator holds it; code that edits ops in
place needs it too."""


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
    bodies: bytes


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
