"""What a task of a bulk job writes: one file with rows, lookups and segments, which the store takes over later.

The file needs no durability and no index: the file of a failed attempt is never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import apsw

from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.contract.parts import CurrentRow, StagedPart
from headwater.storage.shared.common import unseen
from headwater.storage.shared.segments import SegmentPacker
from headwater.storage.sqlite.connection import sqlite_errors
from headwater_rules.results import LookupEntry

_SCHEMA = """
pragma journal_mode = off;
pragma synchronous = off;
pragma locking_mode = exclusive;
create table rows (id integer primary key, page, row_id, layout, line, members, subkey);
create table lookups (page, key, row_id, output);
create table buckets (id, name, definition, primary key (id, name)) without rowid;
create table segments (id integer primary key, page, bucket, size, checksum, bodies);
"""


def is_whole(path: Path) -> bool:
    """Whether a part's file is undamaged, as far as SQLite can tell."""
    try:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            tables = db.execute("select count(*) from sqlite_master where type = 'table'").fetchall()
            return tables == [(4,)] and db.execute("pragma quick_check(1)").fetchall() == [("ok",)]
    except apsw.Error:
        return False


class StageFile:
    """The result of one attempt, see `storage.contract.parts.PartWriter`. `finish` gives the file its final name."""

    def __init__(self, path: Path, table: int = 0, attempt: str = "0") -> None:
        self._path = path
        self._table = table
        self._attempt = attempt
        self._rows = 0
        self._page = 0
        self._unfinished = path.with_suffix(".unfinished")
        with sqlite_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished.unlink(missing_ok=True)
            self._db = apsw.Connection(str(self._unfinished))
            self._db.execute(_SCHEMA).fetchall()
            self._db.execute("begin")
        self._packer = SegmentPacker(self._keep)
        self._named: set[int] = set()
        self.ops = 0

    def __enter__(self) -> StageFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._unfinished.unlink(missing_ok=True)

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[str, Bucket],
    ) -> None:
        page = self._page
        with sqlite_errors(self._path):
            self._db.executemany(
                f"insert into rows (page, row_id, layout, line, members, subkey) values ({page:d}, ?, ?, ?, ?, ?)", rows
            )
            self._rows += len(rows)
            if lookups:
                self._db.executemany(
                    f"insert into lookups values ({page:d}, ?, ?, ?)",
                    [(entry.key, row_id, entry.output) for row_id, entry in lookups],
                )
            self._name(buckets)
            self._packer.add(ops)
        self.ops += len(ops)

    def end_page(self) -> None:
        with sqlite_errors(self._path):
            self._packer.seal_all()
        self._page += 1

    def finish(self) -> StagedPart:
        with sqlite_errors(self._path):
            self._packer.seal_all()
            if self._page:
                self._db.execute("create index rows_page on rows (page)")
                self._db.execute("create index lookups_page on lookups (page)")
            self._db.execute("commit")
            self._db.close()
        self._unfinished.rename(self._path)
        return StagedPart(str(self._path), self._table, self._rows, self.ops, self._attempt, self._page)

    def _name(self, buckets: Mapping[str, Bucket]) -> None:
        self._db.executemany("insert into buckets values (?, ?, ?)", unseen(buckets, self._named))

    def _keep(self, bucket: int, size: int, checksum: int, blob: bytes) -> None:
        self._db.execute(
            "insert into segments (page, bucket, size, checksum, bodies) values (?, ?, ?, ?, ?)",
            (self._page, bucket, size, checksum, blob),
        )
