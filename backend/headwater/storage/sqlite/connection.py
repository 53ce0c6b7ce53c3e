"""Connections to the embedded store's files, and the translation of SQLite's errors."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from headwater.errors import HeadwaterError, machine_errors
from headwater.storage.contract.store import StoreBusyError, StoreError, StoreGoneError, sealed_error
from headwater.storage.shared.formats import NOTED, noted_format
from headwater.storage.shared.turns import Turns, turns_at
from headwater.storage.sql.cursor import SEALED_MARK, DuplicateRowError, TableGoneError

FORMAT = 4
"""Of the tables: the number of the last script in `migrations`."""

BUSY_SECONDS = 30.0
"""The longest wait for another process."""

_TURN_SECONDS = 600.0
"""The longest wait for another thread, whose transaction may index the rows of a large table."""

_AGAIN_SECONDS = 0.01

_WRITER_PRAGMAS = """
pragma journal_mode = wal;
pragma synchronous = full;  -- a flush is acknowledged to Postgres, so it must outlive a power cut
pragma wal_autocheckpoint = 4000;
pragma journal_size_limit = 33554432;  -- a WAL that a large transaction has grown shrinks again with the next one
"""

_CACHES_KIB = 128 << 10
"""What the caches of all writers of a process that hold a lease may take together: each of a hundred sources has one.
SQLite's own limit for that, of its heap, costs each of them a sixth of its speed."""

_LEAST_KIB = 8 << 10
_SMALL_KIB = 256

_LIVE = """
pragma temp_store = memory;
pragma threads = 0;
"""

# Sorted in memory, a table of any size would be there as a whole. The size of the cache is also that of what is sorted
# at a time, and much less of it takes half as long as much
_SORTING = """
pragma cache_size = -4096;
pragma temp_store = file;
pragma threads = 2;
"""

_READER_PRAGMAS = """
pragma query_only = on;
pragma cache_size = -32768;
pragma mmap_size = 1073741824;
"""


def open_writer(path: Path, *, small: bool = False) -> apsw.Connection:
    """A connection that may write, creating the file if needed, for its owner alone: it has all rows, and the secret.
    It refuses to commit once its files were removed or replaced. `small`: it only ever touches a few pages, and keeps
    no more. Raises StoreError."""
    with suppress(OSError):  # SQLite reports it
        path.touch(mode=0o600)  # its log and its index get the rights of the file
    with sqlite_errors(path):
        connection = apsw.Connection(str(path))
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # otherwise SQLite plans a query again for each value
        _prepare(connection)
        _cache(connection, _SMALL_KIB if small else shares.kib)
        _checked(connection, path)
        OpenedFiles(path).guard(connection)
        return connection


def _prepare(connection: apsw.Connection) -> None:
    """Set a writer's pragmas. SQLite waits for a lock for BUSY_SECONDS, but not for another connection that turns the
    log of a new file on: an error that came sooner is of that, and passes."""
    started = time.monotonic()
    while True:
        try:
            connection.execute(_WRITER_PRAGMAS + _LIVE).fetchall()  # runs to the end only when drained
        except apsw.BusyError:
            if time.monotonic() - started > BUSY_SECONDS / 2:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return


def _cache(connection: apsw.Connection, kib: int) -> None:
    connection.execute(f"pragma cache_size = -{kib}").fetchall()


class CacheShares:
    """Divides the memory for caches among the writers of a process that hold leases. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0

    @property
    def kib(self) -> int:
        """What a writer may take now."""
        return max(_CACHES_KIB // max(1, self._holders), _LEAST_KIB)

    def enter(self) -> None:
        """Count another writer."""
        with self._lock:
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1


shares = CacheShares()


class SharedCache:
    """The cache of one writer, which shares while the writer holds a lease. Not thread-safe."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._kib = 0
        self._shares = False

    def share(self) -> None:
        if not self._shares:
            self._shares = True
            shares.enter()

    def leave(self) -> None:
        if self._shares:
            self._shares = False
            shares.leave()

    def fit(self) -> None:
        """Take what is our share by now. Called before the connection is used."""
        if self._kib != (kib := shares.kib):
            self._kib = kib
            with sqlite_errors(Path(self._connection.filename)):
                _cache(self._connection, kib)


def open_reader(path: Path) -> apsw.Connection:
    """A connection that only reads a file that exists. Raises StoreError."""
    with sqlite_errors(path):
        # Opened for writing, because a reader of a WAL file updates its shared-memory index
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # otherwise SQLite plans a query again for each value
        connection.execute(_READER_PRAGMAS).fetchall()
        return _checked(connection, path)


def _checked(connection: apsw.Connection, path: Path) -> apsw.Connection:
    """The connection, closed and refused if the store has a newer format."""
    try:
        found_format(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def found_format(connection: apsw.Connection, path: Path) -> int:
    """The store's format, 0 if there are no tables. Raises StoreError for a format that this version does not
    read."""
    if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchall():
        return 0
    query = "select key, value from meta where key in (?, ?, ?)"
    noted = {str(key): str(value) for key, value in connection.execute(query, NOTED)}
    return noted_format(noted, FORMAT, str(path))


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, which say what to do."""
    try:
        yield
    except apsw.Error as error:
        raise explained(error, path) from error


def explained(error: apsw.Error, path: Path) -> HeadwaterError:
    """Our error for one of SQLite's."""
    where = str(path)
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusyError(
                "the store is locked by another process", where, "check for a second headwater process"
            )
        case apsw.FullError():
            return StoreError("the disk is full", where, "free space on it; nothing of this transaction was kept")
        case apsw.CantOpenError():
            return StoreError("the store can't be opened", where, "check that the directory exists and is writable")
        case apsw.ReadOnlyError():
            return StoreError("the store is not writable", where, "check owner and permissions of the file")
        case apsw.ConstraintError() if str(error).startswith(SEALED_MARK):
            return sealed_error(str(error).removeprefix(SEALED_MARK), where)
        case apsw.NotADBError() | apsw.CorruptError():
            return StoreError("the file is damaged, or not a SQLite database", where, _move_away(path))
        case apsw.IOError():
            return StoreError(f"the disk fails ({_code(error)})", where, "check the disk and the system's log")
        case apsw.NoMemError():
            return StoreError("there is not enough memory for the store", where, "give the process more memory")
        case apsw.SQLError() if str(error).startswith("no such table"):
            return TableGoneError(f"SQLite failed: {error}", where, "check the disk, and the log before this line")
        case _:
            kind = DuplicateRowError if isinstance(error, apsw.ConstraintError) else StoreError
            return kind(f"SQLite failed: {error}", where, "check the disk, and the log before this line")


def _code(error: apsw.Error) -> str:
    return str(apsw.mapping_extended_result_codes.get(getattr(error, "extendedresult", 0), "SQLITE_IOERR"))


def _move_away(path: Path) -> str:
    """The remedy for a damaged file. All its files have to move: a process that has them open would go on using them,
    and SQLite would apply the old log to a new file."""
    files = f"stop Headwater and move {path.name}, {path.name}-wal and {path.name}-shm away"
    if path.name == "store.db":
        return f"{files} to build a new store"
    return f"{files}: the store itself is intact; a device that waits for its own upload goes on with its next one"


@contextmanager
def sorting(connection: apsw.Connection) -> Iterator[None]:
    """Meanwhile, indexes of large tables are created with little memory, on two cores. Not within a transaction."""
    ((before,),) = connection.execute("pragma cache_size").fetchall()
    connection.execute(_SORTING).fetchall()
    use_own_disk(connection)
    try:
        yield
    finally:
        connection.execute(f"{_LIVE}pragma cache_size = {before}").fetchall()


def use_own_disk(connection: apsw.Connection) -> None:
    """Have SQLite put its temporary files, which it deletes as it opens them, beside this store: a disk for such files
    may be small, or there is none to write to. This holds for all connections of the process."""
    folder = str(Path(connection.filename).resolve().parent)
    if connection.execute("pragma temp_store_directory").fetchall() != [(folder,)]:
        quoted = folder.replace("'", "''")
        connection.execute(f"pragma temp_store_directory = '{quoted}'")


@contextmanager
def reading(connection: apsw.Connection) -> Iterator[None]:
    """One transaction that only reads. SQLite itself ends it when a disk fails or there is no memory."""
    connection.execute("begin")
    try:
        yield
    finally:
        if connection.in_transaction:
            connection.execute("rollback")


@contextmanager
def immediate(connection: apsw.Connection) -> Iterator[None]:
    """One write transaction: committed at the end, rolled back on any exception."""
    turns = begin_write(connection)
    try:
        try:
            yield
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        connection.execute("commit")
    finally:
        turns.give()


def begin_write(connection: apsw.Connection) -> Turns:
    """Begin a write transaction when it is our turn, which the caller gives back after its end."""
    turns = turns_at(connection.filename)
    if not turns.take(_TURN_SECONDS):
        raise StoreBusyError(
            f"another thread of this process has been writing to the store for {_TURN_SECONDS:.0f} s",
            connection.filename,
            "it is tried again; a large table may be read, see `headwater source status`",
        )
    try:
        connection.execute("begin immediate")
    except BaseException:
        turns.give()
        raise
    return turns


# files that are gone


_Identity = tuple[int, int]

BESIDE = ("", "-wal", "-shm")


class OpenedFiles:
    """The files of a SQLite database as they are now. Create it right after reading from the database.

    A process that has a removed or replaced file open goes on using the old one. What it writes there is lost when it
    ends, although it was confirmed to the source."""

    def __init__(self, path: Path) -> None:
        self._opened = {name: now for name in (f"{path}{end}" for end in BESIDE) if (now := _identity(name))}

    def check(self) -> None:
        """Raises StoreGoneError when a file was removed or replaced. Takes microseconds."""
        for name, opened in self._opened.items():
            now = _identity(name)
            if now != opened:
                what = "removed" if now is None else "replaced"
                raise StoreGoneError(
                    f"a file of the store was {what} while it was in use; nothing more is confirmed to the source",
                    name,
                    "put the original back, or restart Headwater: what is missing then is read from the source",
                )

    def guard(self, connection: apsw.Connection) -> None:
        """Make the connection refuse to commit once a file was removed or replaced."""

        def refuse() -> bool:
            self.check()
            return False

        connection.set_commit_hook(refuse)


def _identity(name: str) -> _Identity | None:
    """None when the file does not exist. Raises MachineError when that can't be determined. Does not open the file:
    closing one of SQLite's files releases all locks that the process holds on it."""
    with machine_errors():
        try:
            found = os.stat(name)  # noqa: PTH116 - runs on every commit
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found.st_dev, found.st_ino
