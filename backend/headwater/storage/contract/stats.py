"""Statistics of a store: its tables, its history by bucket definition and bucket, and its disk use."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.oplog.op import OpId
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import SourceState


@dataclass(frozen=True, slots=True)
class DefinitionStats:
    """Statistics of the buckets of one definition. `ops` and `size` (bytes of JSON, uncompressed) are what a new device
    downloads if it gets all of them; `largest_ops` and `largest_size` are the maxima over single buckets."""

    definition: str
    buckets: int
    ops: int
    size: int
    largest_ops: int
    largest_size: int


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a start needs of the place of the store and does not have, and the statements that give it, if any do."""

    what: str
    sql: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """A row that is too large to sync, or that produces ops which are (`ops` of them; 0 means the row itself). `size`
    is that of the row or of its largest op, in bytes."""

    row_id: str
    ops: int
    size: int


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of one generation of a source table. `bytes` includes indexes. `resync` is the reason why the table is
    being compared with the source, None when it is not. `left_out` names the first of the `left_out_rows` rows that are
    too large."""

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
    """Statistics of one bucket. `rows` are in it now; `ops` and `size` (bytes of JSON) are what a new device downloads;
    `grown` is the number of ops since the last compaction, or since the bucket was created."""

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
    """Disk use in bytes by purpose, indexes included. `free` is unused space inside the store's files; `file` is the
    total size of the files."""

    rows: int
    ops: int
    segments: int
    lookups: int
    other: int
    free: int
    file: int


@dataclass(frozen=True, slots=True)
class HistoryStats:
    """The number of ops stored as single lines and in segments; op id and commit time of the oldest recorded flush (0
    when there is none), in microseconds since 2000-01-01; and the number of recorded flushes."""

    hot_ops: int
    sealed_ops: int
    segments: int
    oldest_flush: OpId
    oldest_flush_us: int
    flushes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """All statistics of a store at one moment. `buckets` holds every bucket."""

    checkpoint: OpId
    sources: tuple[SourceState, ...]
    tables: tuple[TableStats, ...]
    history: HistoryStats
    lookups: int
    disk: Disk
    definitions: tuple[DefinitionStats, ...]
    buckets: tuple[BucketStats, ...]
    jobs: tuple[BulkRecord, ...]


def stats_by_definition(buckets: tuple[BucketStats, ...]) -> tuple[DefinitionStats, ...]:
    """Sum up buckets by definition, ordered by name."""
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
