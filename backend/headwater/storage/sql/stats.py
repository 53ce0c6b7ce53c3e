"""Statistics of a store, read beside its writer: its tables, its history by bucket definition and bucket, and its disk
use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import zstandard

from headwater.oplog.limits import is_stub, read_stub
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import OVERSIZED, oversized_ops
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reason import ResyncReason, stored_reason
from headwater.storage.contract.store import SourceState
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.tables import bulk_records, decode_layouts


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
class MissingRight:
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


_NAMED = 100  # rows left out, by table
_HEADER = 18  # maximum length in bytes of the zstd frame header, which holds the content's size

# A row for each segment, or one for a bucket without any. A new device starts at the last CLEAR; a segment with it
# counts as a whole. Ops of segments that are not sealed have no ids yet, so the length of the id field is added.
_BUCKETS = f"""
with hot as (
    select o.bucket, cast(sum(octet_length(o.line) + 1) as bigint) as size
    from ops o {{join_all}} buckets b on b.id = o.bucket where o.id >= b.clear_op group by o.bucket
)
select b.id, b.name, b.definition, b.count,
    case when b.count >= b.compacted_count then b.count - b.compacted_count else b.count end,
    cast(coalesce(hot.size, 0) as bigint), s.blob, substr(x.bodies, 1, {_HEADER}),
    case when s.sealed then 0 else
        (s.last_op - s.first_op + 1) * (length(cast(s.last_op as text)) + length('{{{{"op_id":"",')) end
from buckets b left join hot on hot.bucket = b.id
    left join segments s on s.bucket = b.id and s.last_op >= b.clear_op
    left join segment_blobs x on x.id = s.blob
order by b.id
"""

_TABLES = "select id, source, layouts, resync, resync_detail from tables where state = 'active' order by id"
_SEALED = """
select cast(coalesce(sum(b.size), 0) as bigint), count(*) from segments s join segment_blobs b on b.id = s.blob
"""
_OLDEST = "select last_op, committed_us from flushes order by last_op limit 1"
_SEGMENTS = ("segments", "segment_blobs", "staged_segments")


def definition_stats(db: Cursor) -> list[DefinitionStats]:
    """See `Store.definition_stats`. This and the following are called within a snapshot."""
    return _by_definition(_buckets(db, {}))


def disk_use(db: Cursor) -> Disk:
    """See `Store.disk_use`."""
    return _disk(db, _table_sizes(db))


def store_stats(db: Cursor) -> StoreStats:
    """See `Store.store_stats`."""
    sizes = _table_sizes(db)
    live: Counter[int] = Counter()
    for table, *_ in db.rows(_TABLES):
        live.update(dict(db.rows(db.dialect.live_memberships.format(table=table))))
    buckets = sorted(_buckets(db, live), key=lambda bucket: bucket.name)
    sources = db.rows("select tag, lsn, slot, system_id, timeline from sources order by tag")
    return StoreStats(
        checkpoint=OpId(_number(db, "select coalesce(checkpoint, 0) from state")),
        sources=tuple(SourceState(name, Lsn(lsn), *rest) for name, lsn, *rest in sources),
        tables=tuple(sorted(_tables(db, sizes), key=lambda each: (each.source, each.name))),
        history=_history(db),
        lookups=_number(db, "select count(*) from lookups"),
        disk=_disk(db, sizes),
        definitions=tuple(_by_definition(buckets)),
        buckets=tuple(buckets),
        jobs=tuple(bulk_records(db, "order by id desc limit 5")),
    )


def _table_sizes(db: Cursor) -> dict[str, int]:
    return dict(db.rows(db.dialect.table_sizes))


def _disk(db: Cursor, sizes: Mapping[str, int]) -> Disk:
    rows = sum(size for name, size in sizes.items() if name.startswith("rows_"))
    ops, lookups = sizes.get("ops", 0), sizes.get("lookups", 0)
    segments = sum(sizes.get(name, 0) for name in _SEGMENTS)
    free, file = db.dialect.file_sizes(db, sizes)
    return Disk(rows, ops, segments, lookups, sum(sizes.values()) - rows - ops - segments - lookups, free, file)


def _buckets(db: Cursor, live: Mapping[int, int]) -> Iterator[BucketStats]:
    """Statistics of each bucket, given the number of its live rows."""
    found = db.stream(_BUCKETS.format(join_all=db.dialect.join_all))
    for (key, name, definition, ops, grown, hot), segments in groupby(found, key=lambda row: row[:6]):
        cold = sum(_content_size(db, blob, header) + ids for *_, blob, header, ids in segments if blob and header)
        yield BucketStats(name, definition, live.get(key, 0), ops, hot + cold, grown)


def _content_size(db: Cursor, blob: int, header: bytes) -> int:
    """Bytes of a zstd frame's content, from its header unless the frame was written as a stream."""
    size = zstandard.frame_content_size(header)
    if size >= 0:
        return size
    ((bodies,),) = db.rows("select bodies from segment_blobs where id = ?", blob)
    return len(zstandard.ZstdDecompressor().decompressobj().decompress(bodies))


def _by_definition(buckets: Iterable[BucketStats]) -> list[DefinitionStats]:
    """Buckets summed up by definition, ordered by name."""
    found: dict[str, tuple[int, int, int, int, int]] = {}
    for bucket in buckets:
        count, ops, size, largest_ops, largest_size = found.get(bucket.definition, (0, 0, 0, 0, 0))
        largest = max(largest_ops, bucket.ops), max(largest_size, bucket.size)
        found[bucket.definition] = (count + 1, ops + bucket.ops, size + bucket.size, *largest)
    return [DefinitionStats(definition, *numbers) for definition, numbers in sorted(found.items())]


def _tables(db: Cursor, sizes: Mapping[str, int]) -> Iterator[TableStats]:
    for table, source, layouts, cause, detail in db.rows(_TABLES):
        relation = decode_layouts(layouts)[-1]
        suspects = db.rows(db.dialect.large_rows.format(table=table), OVERSIZED)
        large = [row for each in suspects if (row := large_row(*each)).size]
        yield TableStats(
            name=relation.qualified_name,
            source=source,
            generation=table,
            rows=_number(db, f"select count(*) from rows_{table:d}"),
            bytes=sizes.get(f"rows_{table:d}", 0),
            resync=stored_reason(cause, detail),
            left_out_rows=len(large),
            left_out=tuple(large[:_NAMED]),
        )


def large_row(row_id: str, line: str, members: str) -> LeftOutRow:
    """The parts of a row that are too large, from its stored texts; `size` is 0 when there are none."""
    if is_stub(line):
        return LeftOutRow(row_id, 0, read_stub(line).size)
    ops = oversized_ops(members)
    return LeftOutRow(row_id, len(ops), max((op.size for op in ops), default=0))


def _history(db: Cursor) -> HistoryStats:
    ((sealed, segments),) = db.rows(_SEALED)
    oldest, at = db.one(_OLDEST) or (0, 0)
    return HistoryStats(
        hot_ops=_number(db, "select count(*) from ops"),
        sealed_ops=sealed,
        segments=segments,
        oldest_flush=OpId(oldest),
        oldest_flush_us=at,
        flushes=_number(db, "select count(*) from flushes"),
    )


def _number(db: Cursor, query: str) -> int:
    return int(db.rows(query)[0][0])
