"""Statistics of a store in Postgres, read beside its writer."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from headwater.oplog.transform import OVERSIZED
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.stats import BucketStats, Disk, StoreStats
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.control.database import PostgresControl
from headwater.storage.postgres.control.stats import bucket_sizes
from headwater.storage.postgres.tables import rows_table
from headwater.storage.shared.control import store_stats as shared

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

_BUCKETS = """
select id, name, definition, count,
    case when count >= compacted_count then count - compacted_count else count end from buckets order by name
"""


def disk_use(address: PostgresAddress) -> Disk:
    """See `Backend.disk_use`."""
    with contextlib.closing(connect(address, "stats")) as db, postgres_errors(address):
        return _disk(_sizes(db))


def store_stats(address: PostgresAddress) -> StoreStats:
    """See `Backend.store_stats`."""
    with contextlib.closing(connect(address, "stats")) as db, postgres_errors(address):
        db.execute("begin isolation level repeatable read read only; set local enable_seqscan = on")
        sizes = _sizes(db)

        def suspects(table: int) -> Sequence[tuple[str, str, str]]:
            query = sql.SQL(_LEFT_OUT).format(rows=rows_table(table))
            return db.execute(query, [OVERSIZED, OVERSIZED]).fetchall()

        control = PostgresControl(db)
        tables = shared.active_tables(control)
        return shared.store_stats(control, tables, sizes, suspects, _buckets(db, tables), _disk(sizes))


def _sizes(db: psycopg.Connection) -> dict[str, int]:
    return dict(db.execute(_SIZES).fetchall())


def _disk(sizes: Mapping[str, int]) -> Disk:
    # Free space inside tables is left to Postgres' own statistics
    return shared.disk_of(sizes, free=0, file=sum(sizes.values()))


def _buckets(db: psycopg.Connection, tables: Sequence[shared.ActiveTable]) -> tuple[BucketStats, ...]:
    standing: Counter[int] = Counter()
    for table in tables:
        standing.update(dict(db.execute(sql.SQL(_STANDING).format(rows=rows_table(table.id))).fetchall()))
    sizes = {key: size for _, key, _, size in bucket_sizes(db)}
    return tuple(
        BucketStats(name, definition, standing[key], ops, sizes.get(key, 0), grown)
        for key, name, definition, ops, grown in db.execute(_BUCKETS).fetchall()
    )
