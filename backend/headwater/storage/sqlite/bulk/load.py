"""Importing into an embedded store; see `storage.contract.archive`.

The new files are built in a subfolder and renamed at the end, the store's main file last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.archive import DATASETS, ArchiveError, Row, StoreNotEmptyError, StoreState
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite import tables
from headwater.storage.sqlite.connection import immediate, open_reader, open_writer, sorting, sqlite_errors
from headwater.storage.sqlite.control.write_checkpoints import WriteCheckpoints
from headwater.storage.sqlite.store import SqliteStore

_FOLDER = "importing"
_FILES = ("write_checkpoints.db", "store.db")

_FAST = """
pragma journal_mode = off;
pragma synchronous = off;
pragma locking_mode = exclusive;
pragma cache_size = -131072;
"""


class SqliteLoad:
    """See `storage.contract.archive.Load`."""

    parallel = False

    def __init__(self, target: Path) -> None:
        self._target = target
        self._folder = target / _FOLDER
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        SqliteStore(self._folder).close()
        WriteCheckpoints(self._folder / "write_checkpoints.db").close()

    @property
    def address(self) -> SqliteAddress:
        return SqliteAddress(str(self._folder))

    def finish(self, state: StoreState, counts: Mapping[str, int]) -> None:
        """See `storage.contract.archive.Load`."""
        path = self._folder / "store.db"
        with closing(open_writer(path)) as db, sqlite_errors(path):
            with sorting(db), immediate(db):
                _set_state(db, state)
                for (table,) in db.execute("select id from tables").fetchall():
                    db.execute(tables.ROWS_INDEX.format(as_int(table)))
            _check_counts(db, self._folder, counts)
            db.execute("pragma optimize")
            db.execute("pragma wal_checkpoint(truncate)").fetchall()
        for file in _FILES:
            _sync(self._folder / file)
        _make_room(self._target)
        for file in _FILES:
            (self._folder / file).rename(self._target / file)
        _sync(self._target)

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def load(address: SqliteAddress) -> Iterator[SqliteLoad]:
    """See `Backend.load`."""
    check_empty(address)
    target = Path(address.directory).resolve()
    loading = SqliteLoad(target)
    try:
        yield loading
    finally:
        loading.discard()


def load_rows(address: SqliteAddress, dataset: str, batches: Iterable[Sequence[Row]]) -> None:
    """See `Backend.load_rows`. Not durable until `finish`."""
    path = Path(address.directory) / ("write_checkpoints.db" if dataset == "write_checkpoints" else "store.db")
    columns = DATASETS[dataset]
    insert = f"insert into {dataset} ({', '.join(columns)}) values ({', '.join('?' * len(columns))})"
    with closing(apsw.Connection(str(path))) as db, sqlite_errors(path):
        db.execute(_FAST).fetchall()
        with immediate(db):
            for batch in batches:
                match dataset:
                    case "tables":
                        _load_tables(db, batch)
                    case "rows":
                        _load_table_rows(db, batch)
                    case "segments":
                        _load_segments(db, batch)
                    case _:
                        db.executemany(insert, batch)


def _load_tables(db: apsw.Connection, batch: Sequence[Row]) -> None:
    columns = "id, source, layouts, fingerprint, resync, resync_detail, state"
    sql = f"insert into tables ({columns}) values (?, ?, ?, ?, ?, ?, 'active')"
    db.executemany(sql, batch)
    for row in batch:
        db.execute(tables.ROWS_TABLE.format(as_int(row[0])))


def _load_table_rows(db: apsw.Connection, batch: Sequence[Row]) -> None:
    by_table: dict[int, list[Row]] = {}
    for row in batch:
        by_table.setdefault(as_int(row[0]), []).append(row[1:])
    for table, rows in by_table.items():
        sql = f"insert into rows_{table:d} (id, row_id, layout, line, members, subkey) values (?, ?, ?, ?, ?, ?)"
        db.executemany(sql, rows)


def _load_segments(db: apsw.Connection, batch: Sequence[Row]) -> None:
    base = as_int(db.execute("select coalesce(max(id), 0) from segment_blobs").fetchall()[0][0])
    numbered = list(enumerate(batch, base + 1))
    db.executemany(
        "insert into segment_blobs (id, bucket, size, checksum, bodies) values (?, ?, ?, ?, ?)",
        [(blob, row[0], row[4], row[5], row[6]) for blob, row in numbered],
    )
    db.executemany(
        "insert into segments (bucket, first_op, last_op, blob, sealed) values (?, ?, ?, ?, ?)",
        [(row[0], row[1], row[2], blob, row[3]) for blob, row in numbered],
    )


def _set_state(db: apsw.Connection, state: StoreState) -> None:
    db.execute("update meta set value = ? where key = 'secret'", (bytes.fromhex(state.secret),))
    db.execute(
        "update state set next_op = max(next_op, ?), checkpoint = ?, config = ?",
        (state.next_op, state.checkpoint, state.config),
    )
    for name, last in (("tables", state.last_table), ("versions", state.last_version)):
        db.execute("delete from sqlite_sequence where name = ?", (name,))
        db.execute("insert into sqlite_sequence (name, seq) values (?, ?)", (name, last))


def _check_counts(db: apsw.Connection, folder: Path, counts: Mapping[str, int]) -> None:
    for dataset in DATASETS:
        if dataset == "rows":
            ids = [as_int(row[0]) for row in db.execute("select id from tables").fetchall()]
            found = sum(_count(db, f"rows_{table:d}") for table in ids)
        elif dataset == "write_checkpoints":
            with closing(open_reader(folder / "write_checkpoints.db")) as other:
                found = _count(other, dataset)
        else:
            found = _count(db, dataset)
        if found != counts.get(dataset, 0):
            raise ArchiveError(
                f"{found} of {counts.get(dataset, 0)} rows of {dataset} were imported", str(folder), "import it again"
            )


def _count(db: apsw.Connection, table: str) -> int:
    return as_int(db.execute(f"select count(*) from {table}").fetchall()[0][0])


def check_empty(address: SqliteAddress) -> None:
    """See `Backend.check_empty`."""
    target = Path(address.directory)
    path = target / "store.db"
    if not path.is_file():
        return
    SqliteStore(target).close()
    with closing(open_reader(path)) as db, sqlite_errors(path):
        used = [name for name in ("versions", "sources", "tables", "buckets", "leases") if _count(db, name)]
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
