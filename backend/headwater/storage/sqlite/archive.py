"""Loading a store into files: they are built in a subfolder, and renamed at the end, the store's main file last."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.archive import ArchivedState, Row, StoreNotEmptyError
from headwater.storage.shared.archive import Load, used_tables
from headwater.storage.shared.common import sync_path
from headwater.storage.sql.cursor import Cursor, Value
from headwater.storage.sqlite.connection import open_reader, open_writer
from headwater.storage.sqlite.cursor import WRITES, SqliteCursor, attach_writes
from headwater.storage.sqlite.writer import SqliteWriter

_FOLDER = "importing"
_FILES = (WRITES, "store.db")

_FAST = """
pragma journal_mode = off;
pragma synchronous = off;
pragma locking_mode = exclusive;
pragma cache_size = -131072;
"""


class SqliteLoad(Load):
    """See `storage.shared.archive.Load`."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._folder = target / _FOLDER
        self._path = self._folder / "store.db"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        SqliteWriter(self._folder).close()
        db = SqliteCursor(apsw.Connection(str(self._path)))
        attach_writes(db)
        db.script(_FAST)
        super().__init__(db)

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        statement = f"insert into {table} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})"
        self._db.execute_many(statement, cast("Sequence[Sequence[Value]]", rows))

    def _insert_rows(self, table: str, rows: Sequence[Row]) -> None:
        self._insert(table, ("id", "row_id", "layout", "line", "members", "subkey"), rows)

    def _set_ids(self, db: Cursor, state: ArchivedState) -> None:
        db.execute("update meta set value = ? where key = 'secret'", bytes.fromhex(state.secret))
        for name, last in (("tables", state.last_table), ("versions", state.last_version)):
            db.execute("delete from sqlite_sequence where name = ?", name)
            db.execute("insert into sqlite_sequence (name, seq) values (?, ?)", name, last)

    def finish(self, state: ArchivedState, counts: Mapping[str, int]) -> None:
        self._db.close()
        with closing(SqliteCursor(open_writer(self._path))) as db:
            attach_writes(db)
            self._complete(db, state, counts, str(self._folder))
            db.script("pragma optimize")
            db.script("pragma wal_checkpoint(truncate)")
        for file in _FILES:
            sync_path(self._folder / file)
        _make_room(self._target)
        for file in _FILES:
            (self._folder / file).rename(self._target / file)
        sync_path(self._target)

    def discard(self) -> None:
        self._db.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def load(address: SqliteAddress) -> Iterator[SqliteLoad]:
    """See `Store.load`."""
    check_empty(address)
    loading = SqliteLoad(Path(address.directory).resolve())
    try:
        yield loading
    finally:
        loading.discard()


def check_empty(address: SqliteAddress) -> None:
    """See `Store.check_empty`."""
    target = Path(address.directory)
    path = target / "store.db"
    if not path.is_file():
        return
    SqliteWriter(target).close()
    with closing(SqliteCursor(open_reader(path))) as db:
        used = used_tables(db)
    if used:
        raise StoreNotEmptyError(
            f"there is a store already (it has {', '.join(used)})",
            str(target),
            "set another storage.path, or move it away",
        )


def _make_room(target: Path) -> None:
    """Remove an empty store. Refuses when another process has it open, because that process would go on using the
    removed file."""
    path = target / "store.db"
    check_empty(SqliteAddress(str(target)))
    if not path.is_file():
        return
    with closing(apsw.Connection(str(path))) as db:
        try:
            alone = db.execute("pragma journal_mode = delete").fetchall() == [("delete",)]
        except apsw.BusyError:
            alone = False
        if not alone:
            raise StoreNotEmptyError("another process has the empty store open", str(target), "stop the service there")
        path.unlink()
    (target / WRITES).unlink(missing_ok=True)
