"""Statistics of the embedded store, read beside its writer."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import apsw

from headwater.oplog.transform import OVERSIZED
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.stats import BucketStats, Disk, StoreStats
from headwater.storage.shared.control import store_stats as shared
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.control.database import SqliteControl
from headwater.storage.sqlite.control.stats import SIZES, content_size

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


def disk_use(address: SqliteAddress) -> Disk:
    """See `Backend.disk_use`."""
    path = Path(address.directory) / "store.db"
    with contextlib.closing(open_reader(path)) as db, sqlite_errors(path):
        return _disk(address, db, _pages(db))


def store_stats(address: SqliteAddress) -> StoreStats:
    """See `Backend.store_stats`."""
    path = Path(address.directory) / "store.db"
    with contextlib.closing(open_reader(path)) as db, sqlite_errors(path):
        db.create_scalar_function("content_size", content_size, 1, deterministic=True)
        db.execute("begin")
        pages = _pages(db)
        disk = _disk(address, db, pages)

        def suspects(table: int) -> Iterator[tuple[str, str, str]]:
            for row_id, line, members in db.execute(_LEFT_OUT.format(table), (OVERSIZED,)):
                yield str(row_id), str(line), str(members)

        control = SqliteControl(db)
        tables = shared.active_tables(control)
        return shared.store_stats(control, tables, pages, suspects, _buckets(db, tables), disk)


def _pages(db: apsw.Connection) -> dict[str, int]:
    return {str(name): as_int(size) for name, size in db.execute(_PAGES)}


def _disk(address: SqliteAddress, db: apsw.Connection, pages: Mapping[str, int]) -> Disk:
    free, page_size = (
        as_int(db.execute(f"pragma {what}").fetchall()[0][0]) for what in ("freelist_count", "page_size")
    )
    file = sum(file.stat().st_size for file in Path(address.directory).glob("*.db*") if file.is_file())
    return shared.disk_of(pages, free=free * page_size, file=file)


def _buckets(db: apsw.Connection, tables: Sequence[shared.ActiveTable]) -> tuple[BucketStats, ...]:
    standing: Counter[int] = Counter()
    for table in tables:
        for bucket, rows in db.execute(_STANDING.format(table.id)):
            standing[as_int(bucket)] += as_int(rows)
    return tuple(
        BucketStats(str(name), str(definition), standing[as_int(key)], *map(as_int, numbers))
        for key, name, definition, *numbers in db.execute(_BUCKETS)
    )
