"""Statistics of a store, from the tables that are the same in every back end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from headwater.oplog.limits import is_stub, read_stub
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import oversized_ops
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reason import ResyncReason, stored_reason
from headwater.storage.contract.stats import (
    BucketStats,
    Disk,
    HistoryStats,
    LeftOutRow,
    StoreStats,
    TableStats,
    stats_by_definition,
)
from headwater.storage.contract.store import SourceState
from headwater.storage.shared.common import decode_layouts
from headwater.storage.shared.control.database import ControlDb
from headwater.storage.shared.values import as_int

_NAMED = 100  # rows left out, by table
_TABLES = "select id, source, layouts, resync, resync_detail from tables where state = 'active' order by id"
_SEALED = """
select cast(coalesce(sum(b.size), 0) as bigint), count(*) from segments s join segment_blobs b on b.id = s.blob
"""
_OLDEST = "select last_op, committed_us from flushes order by last_op limit 1"
_JOBS = "select kind, source, application, tasks, rows, ops, started, finished from bulk_jobs order by id desc limit 5"
_SEGMENTS = ("segments", "segment_blobs", "staged_segments")

Suspects = Callable[[int], Iterable[tuple[str, str, str]]]
"""For a generation: id, line and members of every row that may be left out."""


class ActiveTable(NamedTuple):
    """An active generation of a source table."""

    id: int
    source: str
    name: str
    resync: ResyncReason | None


def active_tables(db: ControlDb) -> list[ActiveTable]:
    """The active generations of all sources."""
    found = []
    for number, source, layouts, cause, detail in db.rows(_TABLES):
        relation = decode_layouts(str(layouts))[-1]
        name = f"{relation.schema}.{relation.name}"
        found.append(ActiveTable(as_int(number), str(source), name, stored_reason(str(cause), str(detail))))
    return found


def store_stats(
    db: ControlDb,
    tables: Sequence[ActiveTable],
    sizes: Mapping[str, int],
    suspects: Suspects,
    buckets: tuple[BucketStats, ...],
    disk: Disk,
) -> StoreStats:
    """All statistics of a store. `sizes` are the bytes of its tables by name."""
    return StoreStats(
        checkpoint=OpId(_one(db, "select coalesce(checkpoint, 0) from state")),
        sources=tuple(_sources(db)),
        tables=tuple(_tables(db, tables, sizes, suspects)),
        history=_history(db),
        lookups=_one(db, "select count(*) from lookups"),
        disk=disk,
        definitions=stats_by_definition(buckets),
        buckets=buckets,
        jobs=tuple(_jobs(db)),
    )


def disk_of(sizes: Mapping[str, int], *, free: int, file: int) -> Disk:
    """Disk use in bytes. `free` is unused space within the files, `file` the size of all files."""
    rows = sum(size for name, size in sizes.items() if name.startswith("rows_"))
    ops, lookups = sizes.get("ops", 0), sizes.get("lookups", 0)
    segments = sum(sizes.get(name, 0) for name in _SEGMENTS)
    return Disk(rows, ops, segments, lookups, sum(sizes.values()) - rows - ops - segments - lookups, free, file)


def _tables(
    db: ControlDb, tables: Sequence[ActiveTable], sizes: Mapping[str, int], suspects: Suspects
) -> list[TableStats]:
    found = []
    for table in tables:
        left_out = [row for each in suspects(table.id) if (row := left_out_row(*each)).size]
        found.append(
            TableStats(
                name=table.name,
                source=table.source,
                generation=table.id,
                rows=_one(db, f"select count(*) from rows_{table.id:d}"),
                bytes=sizes.get(f"rows_{table.id:d}", 0),
                resync=table.resync,
                left_out_rows=len(left_out),
                left_out=tuple(left_out[:_NAMED]),
            )
        )
    return sorted(found, key=lambda each: (each.source, each.name))


def left_out_row(row_id: str, line: str, members: str) -> LeftOutRow:
    """The parts of a row that are too large, from its stored texts; `size` is 0 when there are none."""
    if is_stub(line):
        return LeftOutRow(row_id, 0, read_stub(line).size)
    ops = oversized_ops(members)
    return LeftOutRow(row_id, len(ops), max((op.size for op in ops), default=0))


def _sources(db: ControlDb) -> list[SourceState]:
    rows = db.rows("select tag, lsn, slot, system_id, timeline from sources order by tag")
    return [
        SourceState(str(tag), Lsn(as_int(lsn)), str(slot), str(system), as_int(timeline))
        for tag, lsn, slot, system, timeline in rows
    ]


def _history(db: ControlDb) -> HistoryStats:
    ((sealed, segments),) = db.rows(_SEALED)
    oldest, at = (db.rows(_OLDEST) or [(0, 0)])[0]
    return HistoryStats(
        hot_ops=_one(db, "select count(*) from ops"),
        sealed_ops=as_int(sealed),
        segments=as_int(segments),
        oldest_flush=OpId(as_int(oldest)),
        oldest_flush_us=as_int(at),
        flushes=_one(db, "select count(*) from flushes"),
    )


def _jobs(db: ControlDb) -> list[BulkRecord]:
    found = []
    for row in db.rows(_JOBS):
        kind, source, application, tasks, rows, ops, started, finished = map(str, row)
        counts = int(tasks), int(rows), int(ops)
        found.append(BulkRecord(kind, source, application, *counts, float(started), float(finished)))
    return found


def _one(db: ControlDb, query: str) -> int:
    return as_int(db.rows(query)[0][0])
