"""What a store holds: its tables, its history by bucket definition and bucket, and what it takes on the disk."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.oplog.op import OpId
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import SourceState


@dataclass(frozen=True, slots=True)
class DefinitionStats:
    """The buckets of one definition. `ops` and `size` (bytes of JSON, before compression on the wire) are what a
    device that has nothing downloads if it gets all of them; `largest_ops` and `largest_size` are those of the
    largest bucket, each by its own measure."""

    definition: str
    buckets: int
    ops: int
    size: int
    largest_ops: int
    largest_size: int


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """A row that is too large, or that gives ops which are (`ops` of them; 0 means the row itself). `size` is that of
    the row, or of the largest op, in bytes."""

    row_id: str
    ops: int
    size: int


@dataclass(frozen=True, slots=True)
class TableStats:
    """One generation of a source table: its rows, and the bytes that they take with their indexes. `resync` says why
    it is being compared with the source, empty when it is not. `left_out` names the first rows that are too large, of
    `left_out_rows`."""

    name: str
    source: str
    generation: int
    rows: int
    bytes: int
    resync: ResyncReason | None
    left_out_rows: int
    left_out: tuple[LeftOutRow, ...]


@dataclass(frozen=True, slots=True)
class BucketStats:
    """One bucket. `rows` stand in it now; `ops` and `size` (bytes of JSON) are what a new device downloads of it;
    `grown` ops came since the last compaction, or since the beginning."""

    name: str
    definition: str
    rows: int
    ops: int
    size: int
    grown: int

    @property
    def ops_per_row(self) -> float:
        return self.ops / max(1, self.rows)


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes by what they are for, indexes included. `free` is what the store's own files keep for later; `file` is
    all that they take."""

    rows: int
    ops: int
    segments: int
    lookups: int
    other: int
    free: int
    file: int


@dataclass(frozen=True, slots=True)
class HistoryStats:
    """Ops as single lines and in segments; the oldest flush that is still on record (0 when there is none) and how
    many are."""

    hot_ops: int
    sealed_ops: int
    segments: int
    oldest_flush: OpId
    oldest_flush_us: int
    flushes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Everything, as of one moment. `buckets` holds all buckets."""

    checkpoint: OpId
    sources: tuple[SourceState, ...]
    tables: tuple[TableStats, ...]
    history: HistoryStats
    lookups: int
    disk: Disk
    definitions: tuple[DefinitionStats, ...]
    buckets: tuple[BucketStats, ...]
    jobs: tuple[BulkRecord, ...]


def by_definition(buckets: tuple[BucketStats, ...]) -> tuple[DefinitionStats, ...]:
    """Buckets summed up by their definitions, in the order of names."""
    found: dict[str, list[BucketStats]] = {}
    for bucket in buckets:
        found.setdefault(bucket.definition, []).append(bucket)
    return tuple(
        DefinitionStats(
            definition,
            len(held),
            sum(bucket.ops for bucket in held),
            sum(bucket.size for bucket in held),
            max(bucket.ops for bucket in held),
            max(bucket.size for bucket in held),
        )
        for definition, held in sorted(found.items())
    )
