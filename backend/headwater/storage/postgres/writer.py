"""The replicator's side of a store in Postgres."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
from psycopg import errors, pq, sql

from headwater.errors import HeadwaterError
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import Lease
from headwater.storage.postgres import bulk
from headwater.storage.postgres.connection import Connections, connect, postgres_errors, usable
from headwater.storage.postgres.copying import rows_table
from headwater.storage.postgres.cursor import POSTGRES, PostgresCursor
from headwater.storage.postgres.flush import PostgresFlush
from headwater.storage.postgres.migrate import migrate
from headwater.storage.postgres.reader import told_key
from headwater.storage.sql.bucket_keys import KnownBuckets
from headwater.storage.sql.control import set_meta
from headwater.storage.sql.writer import StoreWriter


class PostgresWriter(StoreWriter):
    """See `storage.sql.writer.StoreWriter`. Creates the schema if it does not exist. One thread flushes; all other
    methods may be called from any thread."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._staging: str | None = None
        self._known_buckets = KnownBuckets()
        self._connections = Connections(address, "store")
        self._sweeper = Sweeper(self._connections)
        self._flushing: psycopg.Connection | None = None
        self._flushing_for: Lease | None = None
        try:
            with self._connections.lend() as connection:
                migrate(connection, address)
        except BaseException:
            self._connections.close()
            raise

    @property
    def address(self) -> PostgresAddress:
        return self._address

    @contextmanager
    def _lend(self) -> Iterator[PostgresCursor]:
        with self._connections.lend() as connection:
            yield PostgresCursor(connection, self._address)

    def _work(self) -> AbstractContextManager[PostgresCursor]:
        return self._lend()

    _beside = _writes = _work

    def _sweep(self) -> None:
        self._sweeper.start()

    # live replication

    def begin(self, lease: Lease) -> PostgresFlush:
        with postgres_errors(self._address):
            connection = self._flush_connection(lease)
            return PostgresFlush(
                PostgresCursor(connection, self._address), lease, self._known_buckets, self._sweeper.start
            )

    def _flush_connection(self, lease: Lease) -> psycopg.Connection:
        kept = self._flushing
        if kept is None or not usable(kept) or kept.info.transaction_status != pq.TransactionStatus.IDLE:
            if kept is not None:
                kept.close()
            self._flushing = kept = connect(self._address, "flush")
            self._flushing_for = None
        if self._flushing_for != lease:
            note_session(kept, lease)
            self._flushing_for = lease
        return kept

    # bulk jobs

    def staging_directory(self, lease: Lease) -> str:
        if self._staging is None:
            self._staging = tempfile.mkdtemp(prefix="headwater-stage-")
        Path(self._staging).mkdir(mode=0o700, exist_ok=True)
        return self._staging

    def discard_staged(self, lease: Lease) -> None:
        with self._lend() as db:
            bulk.discard(db, lease)
        self._empty_staging(lease)
        self._sweeper.start()

    def _empty_staging(self, lease: Lease) -> None:
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)

    def report_status(self, lease: Lease, text: str) -> None:
        with self._lend() as db, db.transaction(lease):
            now = db.rows("select extract(epoch from clock_timestamp())::text")[0][0]
            set_meta(db, told_key(lease.name), f"{now} {text}")

    def close(self) -> None:
        self._sweeper.close()
        if self._flushing is not None:
            with contextlib.suppress(psycopg.Error):
                self._flushing.close()
        self._connections.close()
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)


def note_session(connection: psycopg.Connection, lease: Lease) -> None:
    """Record that this session writes under the lease."""
    connection.execute(
        f"update leases set flushing = s.name from ({POSTGRES.sessions}) s where s.pid = pg_backend_pid()".encode()
        + b" and leases.name = %s and epoch = %s",
        [lease.name, lease.epoch],
    )


_SWEPT = 20_000

_log = logging.getLogger(__name__)


class Sweeper:
    """Deletes dropped generations on demand. What one run leaves, the next one deletes."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Request a run."""
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="store sweeper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closing.is_set():
                return
            try:
                with self._connections.lend() as connection:
                    sweep(connection, self._closing)
            except HeadwaterError as error:
                _log.info("old rows will be deleted later: %s", error)

    def close(self) -> None:
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()


def sweep(connection: psycopg.Connection, stop: threading.Event) -> None:
    """Delete dropped generations with their rows, lookups and flips, in short transactions, until `stop` is set. One
    that is still being read is left for the next run."""
    some = [
        f"delete from {each} where ctid = any(array(select ctid from {each} where table_id = %s limit %s))".encode()
        for each in ("lookups", "flips")
    ]
    for (table,) in connection.execute("select id from tables where state = 'dropped'").fetchall():
        for statement in some:
            while not stop.is_set() and connection.execute(statement, [table, _SWEPT]).rowcount:
                pass
        if stop.is_set():
            return
        with contextlib.suppress(errors.LockNotAvailable), connection.transaction():
            connection.execute("set local lock_timeout = '200ms'")
            connection.execute(sql.SQL("drop table if exists {}").format(rows_table(table)))
            connection.execute("delete from tables where id = %s", [table])
