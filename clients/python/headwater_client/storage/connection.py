"""Connections to a device's file, which tell transactions apart and say when one was committed; write transactions; and
whose turn it is to sync the file."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from headwater_client.errors import ConnectError, FileError, MissingExtraError, RetiredError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Parameters = Sequence[Any] | Mapping[str, Any]

OLDEST_SQLITE: Final = (3, 38, 0)
BUSY_SECONDS: Final = 120.0
"""How long a write waits for another: the first sync of a large file is applied in one transaction."""

_CLOSING_SECONDS: Final = 5.0

_JOURNAL_BYTES: Final = 64 << 20
"""What stays of the journal of a large download."""

_CACHE_KIB: Final = 32 * 1024
_READ_CACHE_KIB: Final = 4 * 1024


class Committed:
    """Counts the commits of one process to one file, and wakes who waits for the next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def count(self) -> int:
        return self._count

    def is_closed(self) -> bool:
        return self._closed

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each commit, in the thread that made it."""
        self._listeners.append(listener)

    @contextmanager
    def waking(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> Iterator[None]:
        """Set an event of a loop after each commit, and when all is closed."""

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(event.set)

        self._listeners.append(wake)
        try:
            yield
        finally:
            self._listeners.remove(wake)

    def notify(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
        self._call()

    def _call(self) -> None:
        for listener in list(self._listeners):
            listener()

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until there were more commits than `seen`, at most `timeout` seconds; how many there were."""
        with self._changed:
            self._changed.wait_for(lambda: self._count != seen or self._closed, timeout)
            return self._count

    def close(self) -> None:
        """Wake everybody for good."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._call()


class _Tracking:
    """What a connection knows of its own transactions. Mixed into the connection class of the driver. Whoever uses it
    holds `lock`: a driver crashes when another thread closes a connection at work."""

    in_transaction: bool
    total_changes: int
    ProgrammingError: type[Exception]
    lock: threading.RLock
    closing = False
    committed: Committed | None = None
    retired: threading.Event | None = None
    _token = 0
    _changes = 0

    def used(self) -> threading.RLock:
        """The lock. Raises the driver's error once the connection is about to be closed: who wants to close it may wait
        for the lock in vain while another takes it again and again."""
        if self.closing:
            raise self.ProgrammingError("Cannot operate on a closed database.")
        return self.lock

    def before(self) -> None:
        """A statement that begins outside a transaction begins one."""
        if not self.in_transaction:
            self._token = secrets.randbits(62)

    def after(self) -> None:
        """Where no transaction is left open, what was written is committed."""
        if self.committed is not None and not self.in_transaction and self.total_changes != self._changes:
            self._changes = self.total_changes
            self.committed.notify()

    def transaction_token(self) -> int:
        """The mark of the current transaction."""
        return self._token


def _tracked_cursor(driver: ModuleType) -> type[sqlite3.Cursor]:
    """The class of the cursors of such a connection."""

    class TrackedCursor(driver.Cursor):  # type: ignore[misc, name-defined]
        def _run(self, method: Callable[..., Any], *arguments: Any) -> Any:
            connection = self.connection
            with connection.used():
                connection.before()
                try:
                    return method(*arguments)
                finally:
                    connection.after()

        def execute(self, sql: str, parameters: Parameters = ()) -> Any:
            return self._run(super().execute, sql, parameters)

        def executemany(self, sql: str, parameters: Iterable[Parameters]) -> Any:
            return self._run(super().executemany, sql, parameters)

        def executescript(self, script: str) -> Any:
            return self._run(super().executescript, script)

        def close(self) -> None:
            with self.connection.lock:
                super().close()

    for name in ("__next__", "fetchone", "fetchmany", "fetchall"):
        setattr(TrackedCursor, name, _locked(getattr(driver.Cursor, name)))
    return cast("type[sqlite3.Cursor]", TrackedCursor)


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a cursor, under its connection's lock."""

    def locked(cursor: Any, *arguments: Any) -> Any:
        with cursor.connection.used():
            return method(cursor, *arguments)

    return locked


def _tracked(driver: ModuleType) -> type[sqlite3.Connection]:
    """A connection class of this driver that keeps track of its transactions."""
    tracked_cursor = _tracked_cursor(driver)

    class TrackedConnection(_Tracking, driver.Connection):  # type: ignore[misc, name-defined]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.lock = threading.RLock()
            super().__init__(*arguments, **options)

        def cursor(self, factory: Any = tracked_cursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: str, parameters: Parameters = ()) -> Any:
            return self.cursor().execute(sql, parameters)

        def executemany(self, sql: str, parameters: Iterable[Parameters]) -> Any:
            return self.cursor().executemany(sql, parameters)

        def executescript(self, script: str) -> Any:
            return self.cursor().executescript(script)

        def commit(self) -> None:
            with self.lock:
                super().commit()
                self.after()

        def rollback(self) -> None:
            with self.lock:
                super().rollback()

        def close(self) -> None:
            with self.lock:
                super().close()

        def __exit__(self, *error: Any) -> Any:
            with self.lock:
                try:
                    return super().__exit__(*error)
                finally:
                    self.after()

    return cast("type[sqlite3.Connection]", TrackedConnection)


_PLAIN: Final = _tracked(sqlite3)


def open_connection(
    path: Path, *, key: str | None = None, committed: Committed | None = None, cache_kib: int = _CACHE_KIB
) -> sqlite3.Connection:
    """A connection to `path`, to be used by one thread at a time; `committed` is notified of its commits.

    With `key` the file is encrypted by SQLCipher. Raises `FileError`, `MissingExtraError`.
    """
    driver, factory = (sqlite3, _PLAIN) if key is None else _encrypted()
    if driver.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise FileError(f"this Python has SQLite {driver.sqlite_version}; a device needs {needed} or newer")
    try:
        connection: sqlite3.Connection = driver.connect(
            str(path), timeout=BUSY_SECONDS, isolation_level="IMMEDIATE", check_same_thread=False, factory=factory
        )
    except driver.Error as error:
        raise FileError(f"{path} cannot be opened as a SQLite file: {error}") from error
    try:
        if key is not None:
            connection.execute(f"PRAGMA key = {_literal(key)}")
        connection.execute("PRAGMA journal_mode = wal").fetchall()
    except driver.Error as error:
        connection.close()
        raise FileError(f"{path} cannot be opened as a SQLite file: {error}") from error
    connection.execute("PRAGMA synchronous = normal")
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    connection.execute("PRAGMA temp_store = file")
    connection.execute(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES}").fetchall()
    connection.execute("PRAGMA recursive_triggers = on")
    tracked = cast("_Tracking", connection)
    connection.create_function("headwater_tx", 0, tracked.transaction_token)
    connection.create_function("uuid", 0, lambda: str(uuid.uuid4()))  # as the stock SDKs have it
    tracked.committed = committed
    return connection


def retire_by(connection: sqlite3.Connection, retired: threading.Event) -> None:
    """From when `retired` is set on, the connection is to begin no transaction."""
    cast("_Tracking", connection).retired = retired


def _close_from_elsewhere(connection: sqlite3.Connection) -> None:
    """Close a connection that another thread may be using. What it runs ends with an error; if it can't be ended
    within some seconds, the connection is left to that thread."""
    tracked = cast("_Tracking", connection)
    tracked.closing = True
    with suppress(connection.ProgrammingError):  # it is closed
        connection.interrupt()
    if tracked.lock.acquire(timeout=_CLOSING_SECONDS):
        try:
            connection.close()
        finally:
            tracked.lock.release()


class ThreadConnections:
    """The connections of one process to one file: one for each thread, closed at the thread's end."""

    def __init__(self, path: Path, key: str | None) -> None:
        self._path, self._key = path, key
        self._process = os.getpid()
        self.committed = Committed()
        self._of_thread = threading.local()
        self._open: weakref.WeakSet[_ClosedOnRelease] = weakref.WeakSet()
        self._lock = threading.Lock()

    def get(self) -> sqlite3.Connection:
        """This thread's connection. Raises `FileError` in a forked process, `ConnectError` once all are closed."""
        if self._process != os.getpid():
            raise FileError(f"{self._path} was opened before this process was forked: open it again here")
        held: _ClosedOnRelease | None = getattr(self._of_thread, "held", None)
        if held is None:
            self._check_open()
            connection = self.open(committed=self.committed, cache_kib=_READ_CACHE_KIB)
            held = _ClosedOnRelease(connection)
            with self._lock:
                self._check_open()  # meanwhile
                self._open.add(held)
            self._of_thread.held = held
        return held.connection

    def open(self, *, committed: Committed | None = None, cache_kib: int = _CACHE_KIB) -> sqlite3.Connection:
        """A further connection, which the caller closes."""
        return open_connection(self._path, key=self._key, committed=committed, cache_kib=cache_kib)

    def close(self) -> None:
        with self._lock:
            for held in list(self._open):
                _close_from_elsewhere(held.connection)

    def _check_open(self) -> None:
        if self.committed.is_closed():
            raise ConnectError(f"{self._path} is closed")


class _ClosedOnRelease:
    """A connection that is closed when nobody holds it any more, as at the end of its thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


def _encrypted() -> tuple[ModuleType, type[sqlite3.Connection]]:
    try:
        from sqlcipher3 import dbapi2  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise MissingExtraError("an encrypted file", "sqlcipher") from None
    return dbapi2, _tracked(dbapi2)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_LOOK_SECONDS: Final = 0.2
"""Between looks at whether to wait on."""


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that is committed at the end of the block, and undone where an error leaves it. Raises
    `RetiredError` when the connection is retired while it waits for another transaction."""
    retired = cast("_Tracking", connection).retired
    if retired is None:
        connection.execute("BEGIN IMMEDIATE")
    else:
        _begin(connection, retired)
    try:
        yield connection
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _begin(connection: sqlite3.Connection, retired: threading.Event) -> None:
    """SQLite waits for its lock in one piece, so that whoever ends sync would wait with it."""
    until = time.monotonic() + BUSY_SECONDS
    _set_busy(connection, _LOOK_SECONDS)
    try:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except connection.OperationalError as error:
                if time.monotonic() > until or "locked" not in str(error):
                    raise
            if retired.is_set():
                raise RetiredError("sync was ended while it waited to write")
    finally:
        _set_busy(connection, BUSY_SECONDS)


def _set_busy(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}").fetchall()


class Turn:
    """A lock on an empty file beside the device's, which the system gives up with the process that has it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"{path}-sync", timeout=0, isolation_level=None)

    def take(self) -> bool:
        """Whether it is ours now, until `close`."""
        try:
            # Nothing is written, but a process that is killed would leave a journal
            self._connection.execute("PRAGMA journal_mode = memory").fetchall()
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return False
            raise
        return True

    def close(self) -> None:
        self._connection.close()
