"""`Database`: a SQLite file that an app reads and writes as it likes, and that syncs."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlite_utils

from headwater_client.database.app_calls import app_calls, raise_if_retired, within_app_call
from headwater_client.database.table import SyncedTable, frame
from headwater_client.database.watch import QueryWatch, Row, rows
from headwater_client.errors import ConnectError, FileError, NotSyncedError
from headwater_client.schema import Schema
from headwater_client.storage import layout, streams, uploads
from headwater_client.storage import store as files
from headwater_client.storage.connection import ThreadConnections
from headwater_client.storage.store import DeviceStore
from headwater_client.storage.streams import StreamKey
from headwater_client.storage.uploads import CrudEntry
from headwater_client.sync.engine import SyncThread
from headwater_client.sync.options import ConnectOptions, SyncSetup
from headwater_client.sync.status import StatusBoard, SyncStatus
from headwater_client.timeouts import within
from headwater_client.transport.http import Credentials
from headwater_client.version import VERSION

if TYPE_CHECKING:
    import pandas

DEFAULT_TTL: Final = 24 * 3600
"""Seconds that a stream's rows stay on the device after it was given up."""


@dataclass(frozen=True, eq=False)
class Subscription:
    """A stream that this app holds. A context manager that gives it up."""

    key: StreamKey
    _give_up: Callable[[Subscription], None] = field(repr=False)

    def unsubscribe(self) -> None:
        """Give it up: its rows stay for its ttl. Once is enough."""
        self._give_up(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsubscribe()


@dataclass(frozen=True)
class CrudBatch:
    """Writes in the order in which they were made. `complete` takes them, and all before them, off the queue."""

    crud: Sequence[CrudEntry]
    _complete: Callable[[int, str | None], None] = field(repr=False)

    def complete(self, write_checkpoint: str | None = None) -> None:
        """They are uploaded. Where the app's backend numbers write checkpoints itself, with that number."""
        self._complete(self.crud[-1].op_id, write_checkpoint)


@dataclass(frozen=True)
class CrudTransaction(CrudBatch):
    """The writes of one local transaction."""

    @property
    def transaction_id(self) -> int | None:
        """Numbers the local transactions of a file."""
        return self.crud[0].transaction_id


class Connector(Protocol):
    """The app's side. Both methods may be coroutines; plain ones run in a thread of their own."""

    def fetch_credentials(self) -> Credentials | Awaitable[Credentials]:
        """The endpoint, and a token that is valid now. Called again when a token ends or is refused."""

    def upload_data(self, database: Database) -> object:
        """Upload the first transaction of the queue, and complete it. After an error it is called again."""


class Database(sqlite_utils.Database):
    """A device: the file at `path` with the tables of `schema`, and a connection to a server when there is one.

    It has all that sqlite-utils' `Database` has; `db["todos"]` is a table to read and write. It may be used from any
    thread: each has a connection of its own, and a write waits for that of another. Without a schema, the tables are
    those that the file has. With `key` the file is encrypted, which needs SQLCipher.

    Raises `SchemaError`, `FileError`, `MissingExtraError`.
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
        self._user_agent = user_agent or f"headwater-client-python/{VERSION}"
        self._schema = schema if isinstance(schema, Schema) or schema is None else Schema.of(schema)
        self._connections = ThreadConnections(self.path, key)
        self._lock = threading.RLock()
        self._syncing: SyncThread | None = None
        self._stopping: list[SyncThread] = []
        self._uploading = threading.Lock()
        self._subscriptions: set[Subscription] = set()
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
        self._connections.committed.listen(self._wrote)

    def update_schema(self, schema: Schema | Mapping[str, Any]) -> None:
        """Make the file fit another schema, keeping the rows. Raw tables count from the next `connect` on."""
        self._schema = schema if isinstance(schema, Schema) else Schema.of(schema)
        self._take_schema()

    def add_tables(self, schema: Schema) -> None:
        """Make tables for rows that came and have none, beside those that the file has. For who gave no schema."""
        layout.add_tables(self.conn, schema)
        self._find_views()

    def _take_schema(self) -> None:
        if self._schema is not None:
            layout.replace_schema(self.conn, self._schema)
        self._find_views()

    def _find_views(self) -> None:
        self._views = set(layout.made_views(self.conn))

    @property
    def synced_names(self) -> list[str]:
        """What the app calls the tables that its schema made, or that the file had."""
        return sorted(self._views)

    @property
    def conn(self) -> sqlite3.Connection:
        """This thread's connection."""
        return self._connections.get()

    @conn.setter
    def conn(self, connection: sqlite3.Connection) -> None:
        """sqlite-utils sets the connection that it was given, which is this thread's already."""

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
        """The rows of a query as a pandas frame. Raises `MissingExtraError` without pandas."""
        return frame(self.rows(sql, args))

    def watch(self, sql: str, args: Sequence[Any] = (), *, throttle: float = 0.03) -> Iterator[list[Row]]:
        """The result of a query now, then each that differs from the one before, until the database is closed."""
        return self.watching(sql, args, throttle=throttle).results()

    def watch_async(self, sql: str, args: Sequence[Any] = (), *, throttle: float = 0.03) -> AsyncIterator[list[Row]]:
        """As `watch`, for `async for`."""
        return self.watching(sql, args, throttle=throttle).results_async()

    def watching(self, sql: str, args: Sequence[Any] = (), *, throttle: float = 0.03) -> QueryWatch:
        """What `watch` iterates over, for who waits in their own way."""
        return QueryWatch(lambda: self.conn, self._connections.committed, sql, args, throttle)

    # The connection

    def connect(self, connector: Connector, options: ConnectOptions | None = None) -> None:
        """Sync until `disconnect`, in the background; what comes of it is in `status`.

        Raises `ConnectError`, `MissingExtraError`.
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
        app = app_calls(connector.fetch_credentials, lambda: connector.upload_data(self), app_loop, self._uploading)
        setup = SyncSetup(
            self.path, self._open_store, app, options, self._board, self._user_agent,
            subscribed=self._subscribed_keys, show=self._connections.committed.notify,
        )  # fmt: skip
        thread = SyncThread(setup)
        while True:  # until no other thread connects in between
            self.disconnect()
            self._board.update(
                connecting=True, download_error=None, upload_error=None, synced=tuple(files.synced(self.conn))
            )
            with self._lock:
                if self._syncing is None:
                    self._syncing = thread
                    thread.start()
                    return

    def _open_store(self, retired: threading.Event) -> DeviceStore:
        return DeviceStore(self._connections.open(), {} if self._schema is None else self._schema.raw, retired)

    def disconnect(self) -> None:
        """Stop syncing. The data stays, and local writes wait for the next connection.

        An upload that takes longer than a few seconds goes on alone, and the next begins after it.
        """
        with self._lock:
            if self._syncing is not None:
                self._stopping.append(self._syncing)
                self._syncing = None
            stopping = list(self._stopping)
        # Outside the lock, which the app may want while it uploads. Who is called by the sync thread would wait for
        # itself: then the thread ends by itself, and whoever disconnects or connects next waits for it
        for thread in stopping:
            thread.stop(wait=not within_app_call())
        with self._lock:
            self._stopping = [thread for thread in self._stopping if not thread.ended()]

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
        self._connections.committed.close()
        self._board.wake()
        self._connections.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connections.committed.is_closed()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def status(self) -> SyncStatus:
        """How the connection is, and what has synced."""
        return self._board.status

    def on_status(self, listener: Callable[[SyncStatus], object]) -> Callable[[], None]:
        """Call `listener` with each new status, in the thread that has it; the answer ends that."""
        return self._board.listen(listener)

    def wait_for_status(self, condition: Callable[[SyncStatus], bool], timeout: float | None = None) -> None:
        """Wait until the status is so. Raises `NotSyncedError` after `timeout` seconds, `ConnectError` once it is
        closed."""
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
            with self._connections.committed.waking(loop, changed):  # also when it is closed
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

    def _not_within(self, timeout: float | None) -> NotSyncedError:
        error = self.status.download_error or self.status.upload_error
        return NotSyncedError(f"not within {timeout} s; the last error was: {error}")

    def _raise_if_closed(self, condition: Callable[[SyncStatus], bool]) -> None:
        if self.closed and not condition(self.status):
            raise ConnectError(f"{self.path} is closed")

    def wait_for_first_sync(self, timeout: float | None = None, *, priority: int | None = None) -> None:
        """Wait until a whole checkpoint shows, or all up to a priority. Raises `NotSyncedError` after `timeout`
        seconds."""
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

        Raises `RetiredError` in an upload whose connection was ended: what is written from then on is for the next.
        """
        after = 0
        while entries := uploads.next_transaction(self.conn, after):
            raise_if_retired()  # after reading, since the writes may be of the next user by then
            after = entries[-1].op_id
            yield CrudTransaction(entries, self._complete)

    def get_crud_batch(self, limit: int = 100) -> CrudBatch | None:
        """The first writes that wait, which may end in the middle of a transaction. Raises `RetiredError` as above."""
        entries = uploads.next_batch(self.conn, limit)
        raise_if_retired()
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
            self._subscriptions.add(held)
        if (thread := self._syncing) is not None:
            thread.streams_changed()
        return held

    def _give_up(self, subscription: Subscription) -> None:
        with self._lock:
            if subscription not in self._subscriptions:
                return
            self._subscriptions.discard(subscription)
            if subscription.key not in self._subscribed_keys():
                streams.keep_alive(self.conn, [subscription.key], time.time())

    def _subscribed_keys(self) -> set[StreamKey]:
        return {each.key for each in list(self._subscriptions)}

    def _wrote(self) -> None:
        if (thread := self._syncing) is not None:
            thread.wrote()


def _synced(priority: int | None) -> Callable[[SyncStatus], bool]:
    return lambda status: status.has_synced if priority is None else status.has_synced_priority(priority)


def _real(path: str | Path) -> Path:
    """Where the file really is: a program may go to another folder, and a file has one lock whatever it is called."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError) as error:  # a link that leads to itself
        raise FileError(f"{path} leads to no file: {error}") from error
