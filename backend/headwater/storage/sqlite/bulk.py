"""What tasks of bulk jobs write into the embedded store: one file with rows, lookups and segments. The file needs no
durability and no index: the file of a failed attempt is never used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import apsw

from headwater.oplog.transform import Bucket
from headwater.storage.contract.parts import CurrentRow, StagedPart
from headwater.storage.contract.store import Lease
from headwater.storage.sql import tables
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.parts import PageSize, PartWriter, Segment
from headwater.storage.sqlite.connection import sqlite_errors
from headwater_rules.results import LookupEntry

_SCHEMA = """
pragma journal_mode = off;
pragma synchronous = off;
pragma locking_mode = exclusive;
create table rows (id integer primary key, page, row_id, layout, line, members, subkey);
create table lookups (page, key, row_id, output);
create table flips (page, row_id, at);
create table buckets (id, name, definition, primary key (id, name)) without rowid;
create table segments (id integer primary key, page, bucket, size, checksum, bodies);
"""


def open_part(path: Path, table: int, attempt: str) -> PartWriter:
    """See `Store.open_part`."""
    return PartWriter(StageFile(path), StagedPart(str(path), table, 0, 0, attempt))


class StageFile:
    """The result of one attempt, see `storage.sql.parts.PartStorage`. `finish` gives the file its final name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_suffix(".unfinished")
        with sqlite_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished.unlink(missing_ok=True)
            self._db = apsw.Connection(str(self._unfinished))
            self._db.execute(_SCHEMA).fetchall()
            self._db.execute("begin")

    def errors(self) -> AbstractContextManager[None]:
        return sqlite_errors(self._path)

    def put_rows(self, page: int, rows: Sequence[CurrentRow]) -> None:
        columns, values = "page, row_id, layout, line, members, subkey", f"{page:d}, ?, ?, ?, ?, ?"
        self._db.executemany(f"insert into rows ({columns}) values ({values})", rows)

    def put_lookups(self, page: int, lookups: Sequence[tuple[str, LookupEntry]]) -> None:
        rows = [(entry.key, row_id, entry.output) for row_id, entry in lookups]
        self._db.executemany(f"insert into lookups values ({page:d}, ?, ?, ?)", rows)

    def put_flips(self, page: int, flips: Mapping[str, int]) -> None:
        self._db.executemany(f"insert into flips values ({page:d}, ?, ?)", flips.items())

    def put_buckets(self, buckets: Sequence[Bucket]) -> None:
        self._db.executemany("insert into buckets values (?, ?, ?)", buckets)

    def put_segments(self, page: int, segments: Sequence[Segment]) -> None:
        columns, values = "page, bucket, size, checksum, bodies", f"{page:d}, ?, ?, ?, ?"
        self._db.executemany(f"insert into segments ({columns}) values ({values})", segments)

    def finish(self, sizes: Sequence[PageSize], *, paged: bool) -> None:
        if paged:
            self._db.execute("create index rows_page on rows (page)")
            self._db.execute("create index lookups_page on lookups (page)")
            self._db.execute("create index flips_page on flips (page)")
        self._db.execute("commit")
        self._db.close()
        self._unfinished.rename(self._path)

    def close(self) -> None:
        self._db.close()
        self._unfinished.unlink(missing_ok=True)


def discard(db: Cursor, lease: Lease) -> None:
    """Drop what was staged for the lease's source: generations, segments and names."""
    with db.transaction(lease):
        owned = db.rows("select id, state from tables where source = ?", lease.name)
        for table, state in owned:
            blobs = "select blob from staged_segments where table_id = ?"
            db.execute(f"delete from segment_blobs where id in ({blobs})", table)
            db.execute("delete from staged_segments where table_id = ?", table)
            db.execute("delete from staged_buckets where table_id = ?", table)
            if state == "staged":
                tables.drop_generation(db, table)
