"""The embedded store: SQLite files in one directory, one writing process per source, any number of readers."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path

from headwater.errors import machine_errors
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.reader import ReplicatorStatus
from headwater.storage.contract.store import StoreError
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.shared.archive import Load
from headwater.storage.sql.compaction import CompactionStore
from headwater.storage.sql.forget import ForgetStore, UnerasedError
from headwater.storage.sql.parts import PartWriter
from headwater.storage.sql.stats import MissingRight
from headwater.storage.sqlite import archive, status
from headwater.storage.sqlite.bulk import open_part
from headwater.storage.sqlite.connection import BESIDE, FORMAT, found_format, open_reader, open_writer, use_own_disk
from headwater.storage.sqlite.cursor import WRITES, SqliteCursor, attach_writes, open_writes
from headwater.storage.sqlite.reader import SqliteReader
from headwater.storage.sqlite.wake import Waker
from headwater.storage.sqlite.writer import SqliteWriter
from headwater.storage.store import Store


@dataclass(frozen=True, slots=True)
class SqliteStore(Store):
    """See `storage.store.Store`."""

    address: SqliteAddress

    @property
    def _directory(self) -> Path:
        return Path(self.address.directory)

    @property
    def _path(self) -> Path:
        return self._directory / "store.db"

    def _open(self, purpose: str) -> SqliteCursor:
        if purpose == "history" and not self._path.is_file():
            raise self.missing()
        db = SqliteCursor(open_reader(self._path))
        if purpose == "export":
            attach_writes(db)
        return db

    def missing(self) -> StoreError:
        return StoreError("there is no store", str(self._path), "check storage.path")

    def _databases(self, purpose: str) -> list[SqliteCursor]:
        if not self._path.is_file():
            raise self.missing()
        # The write checkpoints are made if no client has created one yet: an endpoint that is started later would
        # make them, and write to them
        return [SqliteCursor(open_writer(self._path)), open_writes(self._directory)]

    def exists(self) -> bool:
        return self._path.is_file()

    def last_replicator_status(self, tag: str) -> ReplicatorStatus:
        return status.last_status(self._directory, tag)

    def raise_if_published(self, publications: Sequence[str]) -> None:
        """Never: no database publishes a file."""

    def missing_rights(self) -> list[MissingRight]:
        directory = self._directory.absolute()
        nearest = next(each for each in (directory, *directory.parents) if each.exists())
        needed = [(nearest, os.W_OK | os.X_OK), *((each, os.W_OK) for each in directory.glob("*") if each.is_file())]
        barred = [path for path, right in needed if not os.access(path, right)]
        return [MissingRight(f"{path} can't be written", ()) for path in barred[:1]]

    def older_format(self) -> int | None:
        with closing(self._open("format")) as db, db.errors():
            found = found_format(db.connection, self._path)
        return None if found == FORMAT else found

    def open_writer(self) -> SqliteWriter:
        return SqliteWriter(self._directory)

    def open_reader(self, own: OwnConfig | None = None) -> SqliteReader:
        SqliteWriter(self._directory).close()
        return SqliteReader(self._directory, own)

    def open_compaction(self) -> CompactionStore:
        connection, reader = open_writer(self._path), self._open("compaction")
        waker = Waker(self._directory)
        return CompactionStore(SqliteCursor(connection, waker.wake, waker.close), reader)

    def open_forget(self) -> ForgetStore:
        databases = self._databases("forget")
        return ForgetStore(databases, SqliteFiles(self._directory, databases))

    def remove(self) -> None:
        with machine_errors():
            for name in ("store.db", WRITES):
                for end in BESIDE:
                    (self._directory / f"{name}{end}").unlink(missing_ok=True)
            for name in ("stage", "wake", status.FOLDER):
                shutil.rmtree(self._directory / name, ignore_errors=True)
            if self._directory.is_dir() and not any(self._directory.iterdir()):
                self._directory.rmdir()

    def open_part(self, table: int, number: int, attempt: str) -> PartWriter:
        return open_part(self._directory / "stage" / f"part-{table}-{number:05d}-{attempt}.db", table, attempt)

    def check_empty(self) -> None:
        archive.check_empty(self.address)

    def load(self) -> AbstractContextManager[Load]:
        return archive.load(self.address)


_LONGEST_READ = 60.0  # seconds to wait for readers to release the write-ahead log


class SqliteFiles:
    """See `storage.sql.forget.StoreFiles`."""

    def __init__(self, directory: Path, databases: Sequence[SqliteCursor]) -> None:
        self._directory = directory
        self._all = databases

    def size(self) -> int:
        return sum(file.stat().st_size for file in self._files())

    def staged(self) -> bool:
        return any((self._directory / "stage").glob("part-*"))

    def rewrite(self, say: Callable[[str], None]) -> None:
        for db in self._all:
            say(f"rewriting {db.path.name}: no process can write to it until that is done")
            db.script("pragma temp_store = file")
            with db.errors():
                use_own_disk(db.connection)  # for a temporary copy
            db.script("vacuum")
            self._empty_log(db)
            ((free,),) = db.rows("pragma freelist_count")
            if free:
                what = f"{free} free pages are left"
                raise UnerasedError(what, db.where, "another process wrote to it; run it again")

    def _empty_log(self, db: SqliteCursor) -> None:
        """Empty the write-ahead log, which holds the old pages. Waits until no reader needs it."""
        deadline = time.monotonic() + _LONGEST_READ
        db.connection.set_busy_timeout(2_000)
        try:
            while db.rows("pragma wal_checkpoint(truncate)")[0][0]:
                if time.monotonic() > deadline:
                    raise UnerasedError(
                        "the write-ahead log can't be emptied: a process has been reading the store for too long",
                        f"{db.path}-wal",
                        "stop the processes that read the store, and run it again",
                    )
        finally:
            db.connection.set_busy_timeout(30_000)

    def _files(self) -> list[Path]:
        return sorted(file for file in self._directory.rglob("*") if file.is_file())
