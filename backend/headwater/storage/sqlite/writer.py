"""The replicator's side of the embedded store."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.sql.bucket_keys import KnownBuckets
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.writer import StoreWriter
from headwater.storage.sqlite import bulk
from headwater.storage.sqlite.connection import OpenedFiles, SharedCache, open_writer
from headwater.storage.sqlite.cursor import SqliteCursor, open_writes
from headwater.storage.sqlite.flush import SqliteFlush
from headwater.storage.sqlite.migrate import migrate
from headwater.storage.sqlite.status import StatusFile
from headwater.storage.sqlite.wake import Waker


class SqliteWriter(StoreWriter):
    """See `storage.sql.writer.StoreWriter`. Creates `directory` if it does not exist."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = directory / "store.db"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the store's directory can't be created: {error.strerror}", str(directory)) from error
        connections = open_writer(path), open_writer(path, small=True)
        self._cache = SharedCache(connections[0])
        self._waker = Waker(directory)
        self._db, self._lease_db = (SqliteCursor(each, self._waker.wake) for each in connections)
        self._lease_lock = threading.Lock()
        self._status: StatusFile | None = None
        self._known_buckets = KnownBuckets()
        with self._db.errors():
            migrate(self._db.connection, path)
        self._files = OpenedFiles(path)

    @property
    def address(self) -> SqliteAddress:
        return SqliteAddress(str(self._directory.resolve()))

    @contextmanager
    def _work(self) -> Iterator[SqliteCursor]:
        self._cache.fit()
        yield self._db

    @contextmanager
    def _beside(self) -> Iterator[SqliteCursor]:
        with self._lease_lock:
            yield self._lease_db

    @contextmanager
    def _writes(self) -> Iterator[Cursor]:
        with closing(open_writes(self._directory, self._waker.wake)) as db:
            yield db

    def _sweep(self) -> None:
        """Does nothing: they are deleted at once."""

    # leases

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        lease = super().acquire(name, owner, ttl)
        self._cache.share()
        return lease

    def release(self, lease: Lease) -> None:
        super().release(lease)
        self._cache.leave()
        self._close_status()

    # live replication

    def begin(self, lease: Lease) -> SqliteFlush:
        self._cache.fit()
        with self._db.errors():
            return SqliteFlush(self._db, lease, self._known_buckets, self._committed)

    def _committed(self) -> None:
        """Called after a commit, which the caller then confirms to the source: checks first that the files were not
        removed or replaced."""
        self._files.check()
        self._waker.wake()

    # bulk jobs

    def staging_directory(self, lease: Lease) -> str:
        directory = self._directory.resolve() / "stage" / _folder_of(lease.name)
        try:
            directory.mkdir(exist_ok=True, parents=True)
        except OSError as error:
            raise StoreError(
                f"the directory for parts of bulk jobs can't be created: {error.strerror}", str(directory), "remove it"
            ) from error
        return str(directory)

    def discard_staged(self, lease: Lease) -> None:
        bulk.discard(self._db, lease)
        self._empty_staging(lease)

    def _empty_staging(self, lease: Lease) -> None:
        stage = self._directory / "stage"
        shutil.rmtree(stage / _folder_of(lease.name), ignore_errors=True)
        parts = list(stage.glob("part-*"))  # first: the table of a part is made before it
        others = {str(table) for (table,) in self._db.rows("select id from tables where source <> ?", lease.name)}
        for part in parts:
            if part.name.split("-")[1] not in others:
                part.unlink(missing_ok=True)

    def report_status(self, lease: Lease, text: str) -> None:
        if self._status is None or self._status.lease != lease:
            self._close_status()
            self._status = StatusFile(self._directory, lease)
        self._status.write(text)

    def _close_status(self) -> None:
        if self._status is not None:
            self._status.close()
            self._status = None

    def close(self) -> None:
        self._close_status()
        self._cache.leave()
        self._db.close()
        self._lease_db.close()
        self._waker.close()


def _folder_of(source: str) -> str:
    """A name for files of a source, whose own name may have any characters."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]
