"""`Database`: a SQLite file that an app reads and writes as it likes, and that syncs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sqlite_utils

from headwater_client.database.connector import Connector, app_calls, raise_if_left, within_app_call
from headwater_client.database.crud import CrudBatch, CrudTransaction
from headwater_client.database.streams import DEFAULT_TTL, Subscription
from headwater_client.database.table import SyncedTable, frame
from headwater_client.database.watch import Row, Watch, rows
from headwater_client.errors import ConnectError, FileError, NotSynced
from headwater_client.schema.sql import MARK
from headwater_client.schema.tables import Schema
from headwater_client.storage import app_tables, layout, streams, uploads
from headwater_client.storage import store as files
from headwater_client.storage.connection import Committed, Held, close_from_elsewhere, open_connection
from headwater_client.storage.store import Store
from headwater_client.storage.streams import StreamKey
from headwater_client.sync.engine import Engine
from headwater_client.sync.options import ConnectOptions
from headwater_client.sync.status import StatusBoard, SyncStatus
from headwater_client.timeouts import within
from headwater_client.version import VERSION

if TYPE_CHECKING:
    import pandas

_READ_CACHE_KIB = 4 * 1024


class Database(sqlite_utils.Database):
    """A device: the file at `path` with the tables of `schema`, and a connection to a server when there is one.

    It has all that sqlite-utils' `Database` has; `db["todos"]` is a table to read and write. It may be used from any
    thread: each has a connection of its own, and a write waits for that of another. Without a schema, the tables are
    those that the file has. With `key` the file is encrypted, which needs SQLCipher.

    Raises `SchemaError`, `FileError`, `MissingExtra`.
    """

    def __init__(
        self,
        path: str | Path,
        schema: Schema | Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        user_agent: str | None = None,
    ) -> None:
        if str(path) == ":memory:":
            raise FileError(
                "a device needs a file: each thread has a connection of its own, which one in memory has not"
            )
        self.path = _real(path)
        self._process = os.getpid()
        self._key = key
        self._user_agent = user_agent or f"headwater-client-python/{VERSION}"
        self._schema = schema if isinstance(schema, Schema) or schema is None else Schema.of(schema)
        self._committed = Committed()
        self._threads = threading.local()
        self._connections: weakref.WeakSet[Held] = weakref.WeakSet()
        self._connections_lock = threading.Lock()
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._leaving: list[Engine] = []
        self._uploading = threading.Lock()
        self._held: set[Subscription] = set()
        self._views: set[str] = set()
        connection = self.conn
        try:
            layout.prepare(connection)
            self._take_schema()
        except connection.OperationalError as error:  # as of a full disk, or a file that may only be read
            raise FileError(f"{path} cannot be made ready: {error}") from error
        super().__init__(self.conn, execute_plugins=False)
        self.client_id = layout.client_id(self.conn)
        self._board = StatusBoard(
            SyncStatus(synced=tuple(files.synced(self.conn)), streams=tuple(streams.stored(self.conn)))
        )
        self._committed.listen(self._wrote)

    def update_schema(self, schema: Schema | Mapping[str, Any]) -> None:
        """Make the file fit another schema, keeping the rows. Raw tables count from the next `connect` on."""
        self._schema = schema if isinstance(schema, Schema) else Schema.of(schema)
        self._take_schema()

    def add_tables(self, schema: Schema) -> None:
        """Make tables for rows that came and have none, beside those that the file has. For who gave no schema."""
        app_tables.add_tables(self.conn, schema)
        self._find_views()

    def _take_schema(self) -> None:
        if self._schema is not None:
            app_tables.replace_schema(self.conn, self._schema)
        self._find_views()

    def _find_views(self) -> None:
        found = self.conn.execute("SELECT name FROM sqlite_master WHERE type = 'view' AND sql GLOB ?", (f"*{MARK}",))
        self._views = {name for (name,) in found.fetchall()}

    @property
    def synced_names(self) -> list[str]:
        """What the app calls the tables that its schema made, or that the file had."""
        return sorted(self._views)

    @property
    def conn(self) -> sqlite3.Connection:
        """This thread's connection."""
        if self._process != os.getpid():
            raise FileError(f"{self.path} was opened before this process was forked: open it again here")
        held: Held | None = getattr(self._threads, "held", None)
        if held is None:
            self._refuse_if_closed()
            connection = open_connection(self.path, key=self._key, committed=self._committed, cache_kib=_READ_CACHE_KIB)
            held = Held(connection)
            with self._connections_lock:
                self._refuse_if_closed()  # meanwhile
                self._connections.add(held)
            self._threads.held = held
        return held.connection

    @conn.setter
    def conn(self, connection: sqlite3.Connection) -> None:
        """sqlite-utils sets the connection that it was given, which is this thread's already."""

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ConnectError(f"{self.path} is closed")

    def __getitem__(self, table_name: str) -> Any:
        return SyncedTable(self, table_name) if table_name in self._views else super().__getitem__(table_name)

    def table(self, table_name: str, **kwargs: Any) -> Any:
        return SyncedTable(self, table_name) if table_name in self._views else super().table(table_name, **kwargs)

    @contextlib.contextmanager
    def atomic(self) -> Iterator[sqlite_utils.Database]:
        """A transaction: written whole or not at all, and uploaded as one. Within another it is a part of that."""
        connection = self.conn
        if connection.in_transaction:
            with super().atomic():
                yield self
            return
        connection.execute("BEGIN IMMEDIATE")  # a reader that turns writer half-way may find that it is too late
        try:
            yield self
            connection.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise

    transaction = atomic

    def rows(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """The rows of a query, each by its columns' names."""
        return rows(self.conn, sql, args)

    def to_df(self, sql: str, args: Sequence[Any] = ()) -> pandas.DataFrame:
        """The rows of a query as a pandas frame. Raises `MissingExtra` without pandas."""
        return frame(self.rows(sql, args))

    def watch(self, sql: str, args: Sequence[Any] = (), *, throttle: float = 0.03) -> Iterator[list[Row]]:
        """The result of a query now, then each that differs from the one before, until the database is closed."""
        return self.watching(sql, args, throttle=throttle).results()

    def watch_async(self, sql: str, args: Sequence[Any] = (), *, throttle: float = 0.03) -> AsyncIterator[list[Row]]:
        """As `watch`, for `async for`."""
        return self.watching(sql, args, throttle=throttle).results_async()

    def watching(self, sql: str, args: Sequence[Any] = (), *, throttle: float = 0.03) -> Watch:
        """What `watch` iterates over, for who waits in their own way."""
        return Watch(lambda: self.conn, self._committed, sql, args, throttle)

    # The connection

    def connect(self, connector: Connector, options: ConnectOptions | None = None) -> None:
        """Sync until `disconnect`, in the background; what comes of it is in `status`.

        Raises `ConnectError`, `MissingExtra`.
        """
        self._connect(connector, options or ConnectOptions(), None)

    async def connect_async(self, connector: Connector, options: ConnectOptions | None = None) -> None:
        """As `connect`; coroutines of the connector run in this loop."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._connect, connector, options or ConnectOptions(), loop)

    def _connect(
        self, connector: Connector, options: ConnectOptions, app_loop: asyncio.AbstractEventLoop | None
    ) -> None:
        options.check()
        engine = Engine(
            self.path, self._open_store, app_calls(connector, self, app_loop, self._uploading), options, self._board,
            held=self._held_keys, shown=lambda _: self._committed.notify(), user_agent=self._user_agent,
        )  # fmt: skip
        while True:  # until no other thread connects in between
            self.disconnect()
            self._board.update(
                connecting=True, download_error=None, upload_error=None, synced=tuple(files.synced(self.conn))
            )
            with self._lock:
                if self._engine is None:
                    self._engine = engine
                    engine.start()
                    return

    def _open_store(self, retired: threading.Event) -> Store:
        connection = open_connection(self.path, key=self._key)
        return Store(connection, {} if self._schema is None else self._schema.raw, retired)

    def disconnect(self) -> None:
        """Stop syncing. The data stays, and local writes wait for the next connection.

        An upload that takes longer than a few seconds goes on alone, and the next begins after it.
        """
        with self._lock:
            if self._engine is not None:
                self._leaving.append(self._engine)
                self._engine = None
            leaving = list(self._leaving)
        # Outside the lock, which the app may want while it uploads. Who is called by the sync thread would wait for
        # itself: then the thread ends by itself, and whoever disconnects or connects next waits for it
        for engine in leaving:
            engine.stop(wait=not within_app_call())
        with self._lock:
            self._leaving = [engine for engine in self._leaving if not engine.ended()]

    async def disconnect_async(self) -> None:
        """As `disconnect`, for asyncio."""
        if within_app_call():
            self.disconnect()  # waits for nobody
        else:
            await asyncio.to_thread(self.disconnect)

    def disconnect_and_clear(self, *, clear_local: bool = True) -> None:
        """Stop syncing, and remove all rows and local writes; without `clear_local` local-only tables keep theirs."""
        self.disconnect()
        files.clear(self.conn, {} if self._schema is None else self._schema.raw, local=clear_local)
        self._board.update(synced=(), streams=tuple(streams.stored(self.conn)), download_error=None, upload_error=None)

    def close(self) -> None:
        """Stop syncing and close the file. Who watches a query gets its end."""
        self.disconnect()
        self._committed.close()
        self._board.wake()
        with self._connections_lock:
            for held in list(self._connections):
                close_from_elsewhere(held.connection)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._committed.is_closed()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def status(self) -> SyncStatus:
        """How the connection is, and what has synced."""
        return self._board.status

    def on_status(self, listener: Callable[[SyncStatus], object]) -> Callable[[], None]:
        """Call `listener` with each new status, in the thread that has it; the answer ends that."""
        return self._board.listen(listener)

    def wait_for_status(self, condition: Callable[[SyncStatus], bool], timeout: float | None = None) -> None:
        """Wait until the status is so. Raises `NotSynced` after `timeout` seconds, `ConnectError` once it is closed."""
        if not self._board.wait(lambda status: condition(status) or self.closed, timeout):
            raise self._not_within(timeout)
        self._raise_if_closed(condition)

    async def wait_for_status_async(
        self, condition: Callable[[SyncStatus], bool], timeout: float | None = None
    ) -> None:
        """As `wait_for_status`, for asyncio: no thread waits on where this is cancelled."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        stop = self._board.listen(lambda _: loop.call_soon_threadsafe(changed.set))
        try:
            with self._committed.waking(loop, changed):  # also when it is closed
                await within(timeout, self._until(condition, changed))
        except asyncio.TimeoutError:
            raise self._not_within(timeout) from None
        finally:
            stop()
        self._raise_if_closed(condition)

    async def _until(self, condition: Callable[[SyncStatus], bool], changed: asyncio.Event) -> None:
        while not condition(self.status) and not self.closed:
            await changed.wait()
            changed.clear()

    def _not_within(self, timeout: float | None) -> NotSynced:
        error = self.status.download_error or self.status.upload_error
        return NotSynced(f"not within {timeout} s; the last error was: {error}")

    def _raise_if_closed(self, condition: Callable[[SyncStatus], bool]) -> None:
        if self.closed and not condition(self.status):
            raise ConnectError(f"{self.path} is closed")

    def wait_for_first_sync(self, timeout: float | None = None, *, priority: int | None = None) -> None:
        """Wait until a whole checkpoint shows, or all up to a priority. Raises `NotSynced` after `timeout` seconds."""
        self.wait_for_status(_synced(priority), timeout)

    async def wait_for_first_sync_async(self, timeout: float | None = None, *, priority: int | None = None) -> None:
        """As `wait_for_first_sync`, for asyncio."""
        await self.wait_for_status_async(_synced(priority), timeout)

    # The upload queue

    def get_next_crud_transaction(self) -> CrudTransaction | None:
        """The first local transaction that waits for upload."""
        return next(self.crud_transactions(), None)

    def crud_transactions(self) -> Iterator[CrudTransaction]:
        """The local transactions that wait. Completing one completes all before it.

        Raises `Retired` in an upload whose connection was ended: what is written from then on is for the next.
        """
        after = 0
        while entries := uploads.next_transaction(self.conn, after):
            raise_if_left()  # after reading, since the writes may be of the next user by then
            after = entries[-1].op_id
            yield CrudTransaction(entries, self._complete)

    def get_crud_batch(self, limit: int = 100) -> CrudBatch | None:
        """The first writes that wait, which may end in the middle of a transaction. Raises `Retired` as above."""
        entries = uploads.next_batch(self.conn, limit)
        raise_if_left()
        return CrudBatch(entries, self._complete) if entries else None

    @property
    def uploads_waiting(self) -> int:
        """How many local writes wait for upload."""
        return uploads.waiting(self.conn)

    def confirmed(self) -> bool:
        """Whether every local write was uploaded and has come back from the server."""
        return uploads.confirmed(self.conn)

    def _complete(self, last: int, write_checkpoint: str | None) -> None:
        uploads.complete(self.conn, last, write_checkpoint)

    # Streams

    def subscribe(
        self, stream: str, params: Mapping[str, Any] | None = None, *, priority: int | None = None,
        ttl: float = DEFAULT_TTL,
    ) -> Subscription:  # fmt: skip
        """Ask for a stream. Its rows stay until `ttl` seconds after it was given up, also over restarts."""
        key = StreamKey.of(stream, params)
        streams.subscribe(self.conn, key, priority, int(ttl), time.time())
        held = Subscription(key, self._give_up)
        with self._lock:
            self._held.add(held)
        self._streams_changed()
        return held

    def _give_up(self, subscription: Subscription) -> None:
        with self._lock:
            if subscription not in self._held:
                return
            self._held.discard(subscription)
            if subscription.key not in self._held_keys():
                streams.keep_alive(self.conn, [subscription.key], time.time())

    def _held_keys(self) -> set[StreamKey]:
        return {each.key for each in list(self._held)}

    def _streams_changed(self) -> None:
        engine = self._engine
        if engine is not None:
            engine.streams_changed()

    def _wrote(self) -> None:
        engine = self._engine
        if engine is not None:
            engine.wrote()


def _synced(priority: int | None) -> Callable[[SyncStatus], bool]:
    return lambda status: status.has_synced if priority is None else status.has_synced_priority(priority)


def _real(path: str | Path) -> Path:
    """Where the file really is: a program may go to another folder, and a file has one lock whatever it is called."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:  # a link that leads to itself
        raise FileError(f"{path} leads to no file: {error}") from error
