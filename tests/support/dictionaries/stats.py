"""What a store holds."""

from __future__ import annotations

from collections import Counter

import orjson

from headwater.oplog.op import OpId
from headwater.storage.contract.stats import (
    BucketStats,
    Disk,
    HistoryStats,
    StoreStats,
    TableStats,
    stats_by_definition,
)
from headwater.storage.shared.control.store_stats import left_out_row
from tests.support.dictionaries.archive import ROWS
from tests.support.dictionaries.state import State, Table


def bucket_stats(state: State) -> tuple[BucketStats, ...]:
    """All buckets, by name."""
    standing = Counter(
        member[0]
        for table in state.active_tables().values()
        for _, row in table.rows.values()
        for member in orjson.loads(row.members or "[]")
        if len(member) < 5
    )
    found = []
    for key, bucket in state.buckets.items():
        size = sum(len(line.encode()) + 1 for _, line in bucket.lines(bucket.clear_op - 1, 1 << 62))
        compacted = bucket.compacted_count if bucket.count >= bucket.compacted_count else 0
        told = bucket.count, size, bucket.count - compacted
        found.append(BucketStats(bucket.name, bucket.definition, standing[key], *told))
    return tuple(sorted(found, key=lambda bucket: bucket.name))


def disk_use(state: State) -> Disk:
    """See `Backend.disk_use`."""
    sizes = {name: sum(map(_size, ROWS[name](state))) for name in ("rows", "ops", "segments", "lookups", "flushes")}
    rows, ops, cold, lookups, other = sizes.values()
    return Disk(rows, ops, cold, lookups, other, free=0, file=sum(sizes.values()))


def store_stats(state: State) -> StoreStats:
    """See `Backend.store_stats`."""
    buckets = bucket_stats(state)
    segments = [segment.stored for bucket in state.buckets.values() for segment in bucket.segments.values()]
    oldest = state.flushes[min(state.flushes)] if state.flushes else None
    return StoreStats(
        checkpoint=OpId(state.checkpoint or 0),
        sources=tuple(state.sources.values()),
        tables=tuple(_table(number, table) for number, table in state.active_tables().items()),
        history=HistoryStats(
            hot_ops=sum(len(bucket.hot) for bucket in state.buckets.values()),
            sealed_ops=sum(segment.size for segment in segments),
            segments=len(segments),
            oldest_flush=OpId(oldest.last_op if oldest else 0),
            oldest_flush_us=oldest.committed_us if oldest else 0,
            flushes=len(state.flushes),
        ),
        lookups=len(list(ROWS["lookups"](state))),
        disk=disk_use(state),
        definitions=stats_by_definition(buckets),
        buckets=buckets,
        jobs=state.jobs[:-6:-1],
    )


def _table(number: int, table: Table) -> TableStats:
    relation, rows = table.layouts[-1], [row for _, row in table.in_order()]
    left_out = [found for row in rows if (found := left_out_row(row.row_id, row.line, row.members)).size]
    return TableStats(
        name=f"{relation.schema}.{relation.name}",
        source=table.source,
        generation=number,
        rows=len(rows),
        bytes=sum(map(_size, rows)),
        resync=table.resync,
        left_out_rows=len(left_out),
        left_out=tuple(left_out[:100]),
    )


def _size(row: object) -> int:
    cells = row if isinstance(row, tuple) else ()
    return sum(len(cell) for cell in cells if isinstance(cell, str | bytes))
