"""The endpoint's side of the embedded store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import apsw

from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import (
    BucketMarks,
    BucketTotal,
    Checkpoint,
    Chunk,
    FlushMark,
    Heard,
    Listener,
    Newest,
    StoredConfig,
    StoreSnapshot,
    Touched,
    WriteCheckpoint,
)
from headwater.storage.contract.revocations import Revocation
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.shared.common import union_of_names
from headwater.storage.shared.control import revocations, versions
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.control import lease as leases
from headwater.storage.sqlite.control.database import SqliteControl
from headwater.storage.sqlite.control.write_checkpoints import WriteCheckpoints
from headwater.storage.sqlite.files import OpenedFiles
from headwater.storage.sqlite.flush import read_checkpoint
from headwater.storage.sqlite.history.chunk import NAMED, read_chunk
from headwater.storage.sqlite.migrate import read_secret
from headwater.storage.sqlite.wake import WakeListener, Waker

_EMPTY_TOTAL = BucketTotal(0, 0)

_REPLACED = """
select v.id from versions v, state s join versions a on a.id = s.config
where v.yaml = ? and v.stopped_at > ? and v.state = 'stopped' and v.activated_at > 0 and v.origin = 'file'
and a.origin = 'file' order by v.id desc limit 1
"""


class SqliteReader:
    """See `storage.contract.reader.StoreReader`. Each thread has a connection of its own."""

    def __init__(self, directory: Path, own: OwnConfig | None) -> None:
        self._own = own
        self._directory = directory
        self._path = directory / "store.db"
        self._local = threading.local()
        self._all: list[apsw.Connection] = []
        self._lock = threading.Lock()
        self._write_checkpoints = WriteCheckpoints(directory / "write_checkpoints.db")
        self._waker = Waker(directory)
        self._keys = StoreKeys(read_secret(self._connect()))  # fails now rather than at the first request
        self._files = OpenedFiles(self._path)

    def _db(self) -> apsw.Connection:
        """The thread's connection. Raises StoreGoneError when the store's files were removed or replaced."""
        self._files.check()
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        return self._connect() if connection is None else connection

    def _connect(self) -> apsw.Connection:
        connection = self._local.connection = open_reader(self._path)
        with self._lock:
            self._all.append(connection)
        return connection

    @contextmanager
    def snapshot(self) -> Iterator[StoreSnapshot | None]:
        db = self._db()
        with sqlite_errors(self._path):
            db.execute("begin")
            try:
                served = self._served(db)
                if served is None:
                    yield None
                else:
                    yaml = db.execute("select yaml from versions where id = ?", (served,)).fetchall()[0][0]
                    yield _Snapshot(db, self._keys, read_checkpoint(db), StoredConfig(served, str(yaml)))
            finally:
                db.execute("rollback")

    def newest(self) -> Newest | None:
        db = self._db()
        with sqlite_errors(self._path):
            db.execute("begin")
            try:
                served = self._served(db)
                return (
                    None if served is None else Newest(read_checkpoint(db), served, revocations.last(SqliteControl(db)))
                )
            finally:
                db.execute("rollback")

    def _served(self, db: apsw.Connection) -> int | None:
        """The version to serve, None when there is none."""
        row = db.execute("select config from state where checkpoint is not null").fetchone()
        if row is None or row[0] is None:
            return None
        if self._own is not None:
            replaced = db.execute(_REPLACED, (self._own.yaml, time.time() - self._own.keep_seconds)).fetchone()
            if replaced is not None and self._own.complete(versions.complete_sides(SqliteControl(db))):
                return as_int(replaced[0])
        return as_int(row[0])

    def touched(self, after: OpId, upto: OpId) -> Touched:
        with sqlite_errors(self._path):
            sql = (
                "select last_op, source, committed_us, buckets, lookups from flushes where last_op > ? and last_op <= ?"
                " order by last_op"
            )
            rows = self._db().execute(sql, (after, upto)).fetchall()
            oldest = self._db().execute("select min(last_op) from flushes").fetchall()[0][0]
        if oldest is None or after < as_int(oldest):
            return Touched(None, None)  # flushes before the oldest kept one are not recorded any more
        marks = (FlushMark(OpId(as_int(row[0])), str(row[1]), as_int(row[2])) for row in rows if row[2])
        return Touched(
            union_of_names(_text(row[3]) for row in rows), union_of_names(_text(row[4]) for row in rows), tuple(marks)
        )

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        db = self._db()
        with sqlite_errors(self._path):
            if db.in_transaction:  # within a snapshot of this thread
                return read_chunk(db, self._keys.hashed_name(bucket), bucket, after, upto)
            db.execute("begin")  # compaction may replace a segment between two queries
            try:
                return read_chunk(db, self._keys.hashed_name(bucket), bucket, after, upto)
            finally:
                db.execute("rollback")

    def marks(self, buckets: Sequence[str]) -> dict[str, BucketMarks]:
        with sqlite_errors(self._path):
            sql = f"select name, clear_op, compacted_op, last_op from buckets where {NAMED}"
            rows = self._db().executemany(sql, [(self._keys.hashed_name(name), name) for name in buckets])
            return {str(row[0]): BucketMarks(*(OpId(as_int(mark)) for mark in row[1:])) for row in rows}

    def listen(self) -> Listener:
        return WakeListener(self._directory)

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        created = self._write_checkpoints.create(keys, lsns)
        self._waker.wake()  # the stream that waits for it may be another process's
        return created

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        stored = self._write_checkpoints.request(requests, lsns)
        self._waker.wake()
        return stored

    def forget_write_requests(self, seconds: float) -> int:
        return self._write_checkpoints.forget_requests(seconds)

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        return self._write_checkpoints.after(after_seq)

    def newest_write(self) -> int:
        return self._write_checkpoints.newest()

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        return self._write_checkpoints.get(key)

    def revocations(self, after_seq: int) -> list[Revocation]:
        with sqlite_errors(self._path):
            return revocations.after(SqliteControl(self._db()), after_seq)

    def replicator_alive(self) -> bool:
        with sqlite_errors(self._path):
            return leases.is_held(self._db(), self._path.parent)

    def heard(self, tag: str) -> Heard:
        with sqlite_errors(self._path):
            found = leases.heard(self._db(), self._path.parent, tag)
            row = self._db().execute("select lsn, system_id from sources where tag = ?", (tag,)).fetchone()
            return found if row is None else replace(found, stored=Lsn(as_int(row[0])), system_id=str(row[1]))

    def noted(self, key: str) -> str:
        with sqlite_errors(self._path):
            row = self._db().execute("select value from meta where key = ?", (key,)).fetchone()
            return "" if row is None else str(row[0])

    def close(self) -> None:
        self._write_checkpoints.close()
        self._waker.close()
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()


def _text(value: apsw.SQLiteValue) -> str | None:
    return None if value is None else str(value)


class _Snapshot:
    """Answers within the reader's open transaction."""

    def __init__(
        self, connection: apsw.Connection, keys: StoreKeys, checkpoint: Checkpoint, config: StoredConfig
    ) -> None:
        self._db = connection
        self._keys = keys
        self.checkpoint = checkpoint
        self.config = config

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        totals = dict.fromkeys(buckets, _EMPTY_TOTAL)
        sql = f"select name, checksum, count from buckets where {NAMED}"
        rows = self._db.executemany(sql, [(self._keys.hashed_name(name), name) for name in totals])
        for name, checksum, count in rows:
            totals[str(name)] = BucketTotal(as_int(checksum), as_int(count))
        return totals

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {key: [] for key in keys}
        sql = (
            "select l.key, l.output from lookups l join tables t on t.id = l.table_id and t.state = 'active'"
            " where l.key = ? order by l.table_id, l.row_id, l.output"
        )
        for key, output in self._db.executemany(sql, [(key,) for key in found]):
            found[str(key)].append(str(output))
        return found
