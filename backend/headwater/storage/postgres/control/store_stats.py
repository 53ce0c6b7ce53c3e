"""What a store in Postgres holds, read beside its writer."""

from __future__ import annotations

import contextlib
from collections import Counter

import psycopg
from psycopg import sql

from headwater.oplog.limits import LEFT_OUT, is_stub, left_out_of, read_stub
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress
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
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.control.stats import bucket_sizes
from headwater.storage.postgres.tables import rows_table
from headwater.storage.shared.common import decode_layouts

_NAMED = 100  # rows left out, by table

_STANDING = """
select (m.member ->> 0)::bigint, count(*) from {rows} r, json_array_elements(nullif(r.members, '')::json) m (member)
where json_array_length(m.member) < 5 group by 1
"""

_LEFT_OUT = """
select coalesce(long_id, row_id), left(line, 200), case when strpos(members, %s) > 0 then members else '' end
from {rows} where starts_with(line, '\\!') or strpos(members, %s) > 0
"""

_SIZES = """
select c.relname, pg_total_relation_size(c.oid) from pg_class c
where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r'
"""


def store_stats(address: PostgresAddress) -> StoreStats:
    """See `storage.contract.stats`."""
    with contextlib.closing(connect(address, "stats")) as db, postgres_errors(address):
        db.execute("begin isolation level repeatable read read only; set local enable_seqscan = on")
        sizes: dict[str, int] = dict(db.execute(_SIZES).fetchall())
        standing: Counter[int] = Counter()
        tables = tuple(_tables(db, sizes, standing))
        buckets = tuple(_buckets(db, standing))
        return StoreStats(
            checkpoint=OpId(_one(db, "select coalesce(checkpoint, 0) from state")),
            sources=tuple(_sources(db)),
            tables=tables,
            history=_history(db),
            lookups=_one(db, "select count(*) from lookups"),
            disk=_disk(sizes),
            definitions=by_definition(buckets),
            buckets=buckets,
            jobs=tuple(_jobs(db)),
        )


def _tables(db: psycopg.Connection, sizes: dict[str, int], standing: Counter[int]) -> list[TableStats]:
    found = []
    query = "select id, source, layouts, resync, resync_detail from tables where state = 'active' order by id"
    for table, source, layouts, cause, detail in db.execute(query).fetchall():
        relation = decode_layouts(layouts)[-1]
        rows = rows_table(table)
        left_out = [
            _left_out(*row) for row in db.execute(sql.SQL(_LEFT_OUT).format(rows=rows), [LEFT_OUT, LEFT_OUT]).fetchall()
        ]
        left_out = [row for row in left_out if row.size]
        standing.update(dict(db.execute(sql.SQL(_STANDING).format(rows=rows)).fetchall()))
        count = db.execute(sql.SQL("select count(*) from {}").format(rows)).fetchall()[0][0]
        found.append(
            TableStats(
                name=f"{relation.schema}.{relation.name}",
                source=source,
                generation=table,
                rows=count,
                bytes=sizes.get(f"rows_{table}", 0),
                resync=stored_reason(cause, detail),
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


def _buckets(db: psycopg.Connection, standing: Counter[int]) -> list[BucketStats]:
    sizes = {key: size for _, key, _, size in bucket_sizes(db)}
    query = (
        "select id, name, definition, count,"
        " case when count >= compacted_count then count - compacted_count else count end from buckets order by name"
    )
    return [
        BucketStats(name, definition, standing[key], ops, sizes.get(key, 0), grown)
        for key, name, definition, ops, grown in db.execute(query).fetchall()
    ]


def _sources(db: psycopg.Connection) -> list[SourceState]:
    rows = db.execute("select tag, lsn, slot, system_id, timeline from sources order by tag").fetchall()
    return [SourceState(tag, Lsn(lsn), slot, system, timeline) for tag, lsn, slot, system, timeline in rows]


def _history(db: psycopg.Connection) -> HistoryStats:
    sealed = db.execute(
        "select coalesce(sum(b.size), 0)::bigint, count(*) from segments s join segment_blobs b on b.id = s.blob"
    ).fetchall()[0]
    oldest = db.execute("select last_op, committed_us from flushes order by last_op limit 1").fetchone() or (0, 0)
    return HistoryStats(
        hot_ops=_one(db, "select count(*) from ops"),
        sealed_ops=sealed[0],
        segments=sealed[1],
        oldest_flush=OpId(oldest[0]),
        oldest_flush_us=oldest[1],
        flushes=_one(db, "select count(*) from flushes"),
    )


def _disk(sizes: dict[str, int]) -> Disk:
    rows = sum(size for name, size in sizes.items() if name.startswith("rows_"))
    ops, lookups = sizes.get("ops", 0), sizes.get("lookups", 0)
    segments = sum(sizes.get(name, 0) for name in ("segments", "segment_blobs", "staged_segments"))
    total = sum(sizes.values())
    # What tables keep for later is for Postgres to tell
    return Disk(rows, ops, segments, lookups, total - rows - ops - segments - lookups, 0, total)


def _jobs(db: psycopg.Connection) -> list[BulkRecord]:
    query = (
        "select kind, source, application, tasks, rows, ops, started, finished from bulk_jobs order by id desc limit 5"
    )
    return [BulkRecord(*row) for row in db.execute(query).fetchall()]


def _one(db: psycopg.Connection, query: str) -> int:
    return int(db.execute(query.encode()).fetchall()[0][0])
