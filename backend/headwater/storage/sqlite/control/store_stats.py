"""What the embedded store holds, read beside its writer."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import apsw

from headwater.oplog.limits import LEFT_OUT, is_stub, left_out_of, read_stub
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reason import stored_reason
from headwater.storage.contract.stats import (
    BucketStats,
    Disk,
    HistoryStats,
    LeftOutRow,
    StoreStats,
    TableStats,
    by_definition,
)
from headwater.storage.contract.store import SourceState
from headwater.storage.shared.common import decode_layouts
from headwater.storage.shared.values import whole
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.control.stats import SIZES, content_size

_NAMED = 100  # rows left out, by table

_BUCKETS = f"""{SIZES}
select b.id, b.name, b.definition, b.count, coalesce(hot.size, 0) + coalesce(cold.size, 0),
    case when b.count >= b.compacted_count then b.count - b.compacted_count else b.count end
from buckets b left join hot on hot.bucket = b.id left join cold on cold.bucket = b.id order by b.name
"""

_STANDING = """
select json_extract(m.value, '$[0]'), count(*) from rows_{0:d} r, json_each(r.members) m
where r.members <> '' and json_array_length(m.value) < 5 group by 1
"""

_LEFT_OUT = "select row_id, line, members from rows_{0:d} where line >= '\\!' and line < '\\\"' or instr(members, ?)"

_PAGES = """
select m.tbl_name, sum(d.pgsize) from dbstat('main', 1) d join sqlite_master m on m.name = d.name group by m.tbl_name
"""


def store_stats(address: SqliteAddress) -> StoreStats:
    """See `storage.contract.stats`."""
    directory = Path(address.directory)
    path = directory / "store.db"
    with contextlib.closing(open_reader(path)) as db, sqlite_errors(path):
        db.create_scalar_function("content_size", content_size, 1, deterministic=True)
        db.execute("begin")
        standing: Counter[int] = Counter()
        pages = {str(name): _number(size) for name, size in db.execute(_PAGES)}
        tables = tuple(_tables(db, pages, standing))
        buckets = tuple(_buckets(db, standing))
        return StoreStats(
            checkpoint=OpId(_one(db, "select coalesce(checkpoint, 0) from state")),
            sources=tuple(_sources(db)),
            tables=tables,
            history=_history(db),
            lookups=_one(db, "select count(*) from lookups"),
            disk=_disk(db, directory, pages),
            definitions=by_definition(buckets),
            buckets=buckets,
            jobs=tuple(_jobs(db)),
        )


def _tables(db: apsw.Connection, pages: dict[str, int], standing: Counter[int]) -> list[TableStats]:
    found = []
    sql = "select id, source, layouts, resync, resync_detail from tables where state = 'active' order by id"
    for number, source, layouts, cause, detail in db.execute(sql).fetchall():
        table = _number(number)
        relation = decode_layouts(str(layouts))[-1]
        left_out = [
            _left_out(str(row_id), str(line), str(members))
            for row_id, line, members in db.execute(_LEFT_OUT.format(table), (LEFT_OUT,))
        ]
        left_out = [row for row in left_out if row.size]
        for bucket, rows in db.execute(_STANDING.format(table)):
            standing[_number(bucket)] += _number(rows)
        found.append(
            TableStats(
                name=f"{relation.schema}.{relation.name}",
                source=str(source),
                generation=table,
                rows=_one(db, f"select count(*) from rows_{table:d}"),
                bytes=pages.get(f"rows_{table:d}", 0),
                resync=stored_reason(str(cause), str(detail)),
                left_out_rows=len(left_out),
                left_out=tuple(left_out[:_NAMED]),
            )
        )
    return sorted(found, key=lambda each: (each.source, each.name))


def _left_out(row_id: str, line: str, members: str) -> LeftOutRow:
    if is_stub(line):
        return LeftOutRow(row_id, 0, read_stub(line).size)
    ops = left_out_of(members)
    return LeftOutRow(row_id, len(ops), max((op.size for op in ops), default=0))


def _buckets(db: apsw.Connection, standing: Counter[int]) -> list[BucketStats]:
    return [
        BucketStats(str(name), str(definition), standing[_number(key)], *map(_number, numbers))
        for key, name, definition, *numbers in db.execute(_BUCKETS)
    ]


def _sources(db: apsw.Connection) -> list[SourceState]:
    rows = db.execute("select tag, lsn, slot, system_id, timeline from sources order by tag")
    return [
        SourceState(str(tag), Lsn(_number(lsn)), str(slot), str(system), _number(timeline))
        for tag, lsn, slot, system, timeline in rows
    ]


def _history(db: apsw.Connection) -> HistoryStats:
    sealed = db.execute(
        "select coalesce(sum(b.size), 0), count(*) from segments s join segment_blobs b on b.id = s.blob"
    ).fetchall()[0]
    oldest = db.execute("select last_op, committed_us from flushes order by last_op limit 1").fetchone() or (0, 0)
    return HistoryStats(
        hot_ops=_one(db, "select count(*) from ops"),
        sealed_ops=_number(sealed[0]),
        segments=_number(sealed[1]),
        oldest_flush=OpId(_number(oldest[0])),
        oldest_flush_us=_number(oldest[1]),
        flushes=_one(db, "select count(*) from flushes"),
    )


def _disk(db: apsw.Connection, directory: Path, pages: dict[str, int]) -> Disk:
    page_size = _one(db, "pragma page_size")
    known = {"ops": ("ops",), "segments": ("segments", "segment_blobs", "staged_segments"), "lookups": ("lookups",)}
    sizes = {what: sum(pages.get(name, 0) for name in names) for what, names in known.items()}
    sizes["rows"] = sum(size for name, size in pages.items() if name.startswith("rows_"))
    files = [file for file in directory.glob("*.db*") if file.is_file()]
    return Disk(
        **sizes,
        other=sum(pages.values()) - sum(sizes.values()),
        free=_one(db, "pragma freelist_count") * page_size,
        file=sum(file.stat().st_size for file in files),
    )


def _jobs(db: apsw.Connection) -> list[BulkRecord]:
    sql = (
        "select kind, source, application, tasks, rows, ops, started, finished from bulk_jobs order by id desc limit 5"
    )
    return [BulkRecord(*row) for row in db.execute(sql)]


def _one(db: apsw.Connection, sql: str) -> int:
    return _number(db.execute(sql).fetchall()[0][0])


def _number(value: apsw.SQLiteValue) -> int:
    return whole(value)
