"""Dumping and loading an embedded store; see `storage.contract.archive`.

A loaded store is built in a subfolder. Its files are renamed at the end, the store's main file last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.archive import ArchivedState, ArchiveError, Dump, Row, StoreNotEmptyError
from headwater.storage.shared.archive import Loader, active_tables, check_counts, count_rows, dump_batches, used_tables
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import immediate, open_reader, open_writer, sorting, sqlite_errors
from headwater.storage.sqlite.cursor import ROWS_INDEX, ROWS_TABLE, open_writes
from headwater.storage.sqlite.writer import SqliteWriter

_FOLDER = "importing"
_FILES = ("write_checkpoints.db", "store.db")

_FAST = """
pragma journal_mode = off;
pragma synchronous = off;
pragma locking_mode = exclusive;
pragma cache_size = -131072;
"""

_STATE = """
select (select lower(hex(value)) from meta where key = 'secret'), next_op, checkpoint, config,
    coalesce((select seq from sqlite_sequence where name = 'tables'), 0),
    coalesce((select seq from sqlite_sequence where name = 'versions'), 0),
    (select seq from write_state)
from state
"""
_OF_TABLES = {
    "rows": "select {0:d}, id, row_id, layout, line, members, subkey from rows_{0:d}",
    "lookups": "select key, table_id, row_id, output from lookups where table_id = {0:d}",
}


@contextmanager
def dump(address: SqliteAddress) -> Iterator[Dump]:
    """See `Store.dump`."""
    path = Path(address.directory) / "store.db"
    if not path.is_file():
        raise ArchiveError("there is no store", address.directory, "check storage.path")
    SqliteWriter(path.parent).close()  # upgrades its format
    open_writes(path.parent).close()  # creates it
    with closing(open_reader(path)) as db, sqlite_errors(path):
        _attach(db, path.parent)
        db.execute("begin")
        ((secret, next_op, checkpoint, config, *last),) = db.execute(_STATE).fetchall()
        state = ArchivedState(
            str(secret),
            as_int(next_op),
            None if checkpoint is None else as_int(checkpoint),
            None if config is None else as_int(config),
            *map(as_int, last),
        )
        found = active_tables(db.execute)
        yield Dump(state, count_rows(db.execute, found), dump_batches(db.execute, found, _OF_TABLES))


def _attach(db: apsw.Connection, directory: Path) -> None:
    """Make the tables of write checkpoints, which are in a file of their own, visible as well."""
    db.execute("attach database ? as write_checkpoints", (str(directory / "write_checkpoints.db"),))


class SqliteLoad:
    """See `storage.contract.archive.Load`."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._folder = target / _FOLDER
        self._path = self._folder / "store.db"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        SqliteWriter(self._folder).close()
        open_writes(self._folder).close()
        self._db = apsw.Connection(str(self._path))
        self._loader = Loader(self)
        with sqlite_errors(self._path):
            _attach(self._db, self._folder)
            self._db.execute(_FAST).fetchall()

    def add(self, dataset: str, rows: Sequence[Row]) -> None:
        """See `storage.contract.archive.Load`. Not durable until `finish`."""
        with sqlite_errors(self._path), immediate(self._db):
            self._loader.add(dataset, rows)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        values = ", ".join("?" * len(columns))
        self._db.executemany(f"insert into {table} ({', '.join(columns)}) values ({values})", rows)

    def create_rows(self, table: int) -> None:
        self._db.execute(ROWS_TABLE.format(table=table))

    def insert_rows(self, table: int, rows: Iterable[Row]) -> None:
        self.insert(f"rows_{table:d}", ("id", "row_id", "layout", "line", "members", "subkey"), rows)

    def finish(self, state: ArchivedState, counts: Mapping[str, int]) -> None:
        """See `storage.contract.archive.Load`."""
        self._db.close()
        with closing(open_writer(self._path)) as db, sqlite_errors(self._path):
            _attach(db, self._folder)
            loaded = active_tables(db.execute)
            with sorting(db), immediate(db):
                _set_state(db, state)
                for table in loaded:
                    db.execute(ROWS_INDEX.format(table=table))
            check_counts(count_rows(db.execute, loaded), counts, str(self._folder))
            db.execute("pragma optimize")
            db.execute("pragma wal_checkpoint(truncate)").fetchall()
        for file in _FILES:
            _sync(self._folder / file)
        _make_room(self._target)
        for file in _FILES:
            (self._folder / file).rename(self._target / file)
        _sync(self._target)

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


def _set_state(db: apsw.Connection, state: ArchivedState) -> None:
    db.execute("update meta set value = ? where key = 'secret'", (bytes.fromhex(state.secret),))
    db.execute(
        "update state set next_op = max(next_op, ?), checkpoint = ?, config = ?",
        (state.next_op, state.checkpoint, state.config),
    )
    db.execute("update write_state set seq = ?", (state.last_write,))
    for name, last in (("tables", state.last_table), ("versions", state.last_version)):
        db.execute("delete from sqlite_sequence where name = ?", (name,))
        db.execute("insert into sqlite_sequence (name, seq) values (?, ?)", (name, last))


def check_empty(address: SqliteAddress) -> None:
    """See `Store.check_empty`."""
    target = Path(address.directory)
    path = target / "store.db"
    if not path.is_file():
        return
    SqliteWriter(target).close()
    with closing(open_reader(path)) as db, sqlite_errors(path):
        used = used_tables(db.execute)
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
    (target / "write_checkpoints.db").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
