"""The endpoint's side of the embedded store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import LEASE as COMPACTION
from headwater.storage.contract.reader import Chunk, Listener, Newest, ReplicatorStatus, StoredConfig, StoreSnapshot
from headwater.storage.contract.store import StoreError
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.shared.common import CHUNK_OPS, as_int
from headwater.storage.shared.segments import ChunkParts, unpacked
from headwater.storage.sql import control, leases
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.reader import SqlReader, SqlSnapshot
from headwater.storage.sql.tables import checkpoint
from headwater.storage.sqlite import status
from headwater.storage.sqlite.connection import OpenedFiles, open_reader
from headwater.storage.sqlite.cursor import AFTER, NAMED, SqliteCursor, open_writes
from headwater.storage.sqlite.wake import WakeListener, Waker

_REPLACED = """
select v.id from versions v, state s join versions a on a.id = s.config
where v.yaml = ? and v.stopped_at > ? and v.state = 'stopped' and v.activated_at > 0 and v.origin = 'file'
and a.origin = 'file' order by v.id desc limit 1
"""


class SqliteReader(SqlReader):
    """See `storage.contract.reader.StoreReader`. Each thread has a connection of its own."""

    def __init__(self, directory: Path, own: OwnConfig | None) -> None:
        self._own = own
        self._directory = directory
        self._path = directory / "store.db"
        self._local = threading.local()
        self._all: list[SqliteCursor] = []
        self._lock = threading.Lock()
        # The stream that waits for a write checkpoint may be another process's
        self._writes_db = open_writes(directory, lambda: self._waker.wake())  # noqa: PLW0108 - made last
        self._writes_lock = threading.Lock()
        self._keys = StoreKeys(control.secret(self._connect()))  # fails now rather than at the first request
        self._files = OpenedFiles(self._path)
        self._waker = Waker(directory)  # last, since nobody closes it after an error

    def _cursor(self) -> SqliteCursor:
        """The thread's cursor. Raises StoreGoneError when the store's files were removed or replaced."""
        self._files.check()
        cursor: SqliteCursor | None = getattr(self._local, "cursor", None)
        return self._connect() if cursor is None else cursor

    def _connect(self) -> SqliteCursor:
        cursor = self._local.cursor = SqliteCursor(open_reader(self._path))
        with self._lock:
            self._all.append(cursor)
        return cursor

    @contextmanager
    def _reading(self) -> Iterator[Cursor]:
        yield self._cursor()

    @contextmanager
    def _writes(self) -> Iterator[Cursor]:
        with self._writes_lock:
            yield self._writes_db

    @contextmanager
    def snapshot(self) -> Iterator[StoreSnapshot | None]:
        with (db := self._cursor()).snapshot():
            served = self._served(db)
            if served is None:
                yield None
            else:
                ((yaml,),) = db.rows("select yaml from versions where id = ?", served)
                yield SqlSnapshot(db, self._keys, checkpoint(db), StoredConfig(served, yaml))

    def newest(self) -> Newest | None:
        with (db := self._cursor()).snapshot():
            served = self._served(db)
            if served is None:
                return None
            return Newest(checkpoint(db), served, db.rows("select coalesce(max(seq), 0) from revocations")[0][0])

    def _served(self, db: Cursor) -> int | None:
        """The version to serve, None when there is none."""
        row = db.one("select config from state where checkpoint is not null and config is not null")
        if row is None:
            return None
        if self._own is not None:
            replaced = db.one(_REPLACED, self._own.yaml, time.time() - self._own.keep_seconds)
            if replaced is not None and self._own.complete(control.served_definitions(db)):
                return int(replaced[0])
        return int(row[0])

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        db, hashed = self._cursor(), self._keys.hashed_name(bucket)
        # Compaction may replace a segment between two queries
        with db.errors() if db.connection.in_transaction else db.snapshot():
            return read_chunk(db.connection, hashed, bucket, after, upto)

    def listen(self) -> Listener:
        return WakeListener(self._directory)

    def replicator_alive(self) -> bool:
        db = self._cursor()
        rows = db.rows(f"select name, expires_at > {db.dialect.clock} from leases where name <> ?", COMPACTION)
        return any(held or self._status(db, name).runs for name, held in rows)

    def _status(self, db: Cursor, tag: str) -> ReplicatorStatus:
        """A holder that has not reported anything yet counts as running while its lease lasts."""
        query = f"select owner, epoch, expires_at > {db.dialect.clock} from leases where name = ?"
        row = db.one(query, tag)
        if row is None:
            return ReplicatorStatus()
        owner, epoch, held = row
        if (told := status.read_status(self._directory, tag, epoch)) is not None:
            return told
        since = control.get_meta(db, leases.HELD_SINCE.format(tag))
        age = max(0.0, time.time() - float(since)) if since else None
        return ReplicatorStatus(runs=bool(held) and not leases.is_gone(owner), holder=owner, held=age)

    def close(self) -> None:
        self._writes_db.close()
        self._waker.close()
        with self._lock:
            for cursor in self._all:
                cursor.close()
            self._all.clear()


# chunks of a bucket: SQLite joins the ops of the hot tail

_SEGMENTS = f"""
select s.first_op, s.last_op, s.sealed, b.size, s.blob from segments s left join segment_blobs b on b.id = s.blob
where {AFTER} and s.first_op <= ?3 order by s.first_op
"""

_HOT = """
select count(*), max(id), cast(group_concat(line, ',') as blob) from
(select id, line from ops where bucket = ? and id > ? and id <= ? order by id limit ?)
"""

# SQLite gets the length of a line without reading it, unless the line passes through a subquery
_HOT_SIZE = """
select count(*), coalesce(sum(length), 0) from
(select octet_length(line) as length from ops where bucket = ? and id > ? and id <= ? order by id limit ?)
"""

_HOT_SIZES = "select id, octet_length(line) from ops where bucket = ? and id > ? and id <= ? order by id limit ?"

_ANY_HOT = "select 1 from ops where bucket = ? and id > ? and id <= ? limit 1"


_MARKS = f"select id, clear_op, compacted_op from buckets where {NAMED}"


def read_chunk(connection: apsw.Connection, hashed: int, name: str, after: OpId, upto: OpId) -> Chunk:
    """See `storage.contract.reader.StoreReader.chunk`. `hashed` is the hash of the name. Call it within one
    transaction."""
    row = connection.execute(_MARKS, (hashed, name)).fetchone()
    if row is None:
        return Chunk(b"", 0, after, more=False)
    bucket, clear_op, compacted_op = map(as_int, row)
    builder = _Builder(connection, bucket, upto)
    # A client that has not passed the last CLEAR needs nothing before it
    more = not builder.take(clear_op - 1 if after < clear_op <= upto else after)
    return builder.parts.chunk(after, more=more, overtaken=compacted_op > upto)


class _Builder:
    def __init__(self, connection: apsw.Connection, bucket: int, upto: int) -> None:
        self._db = connection
        self._bucket = bucket
        self._upto = upto
        self.parts = ChunkParts(upto)

    def take(self, position: int) -> bool:
        """Add everything after a position. Returns False when it does not all fit."""
        for row in self._db.execute(_SEGMENTS, (self._bucket, position, self._upto)):
            if row[3] is None:
                raise StoreError("a segment is missing", f"segment {row[4]}", "run `headwater audit --repair`")
            first, last, sealed, size, blob = (as_int(cell) for cell in row)
            if not self._take_hot(position, first - 1) or self.parts.is_too_long(first, last, size, position):
                return False
            content = self._content(blob)
            if not self.parts.take_segment(content, (first, last), size, position, sealed=bool(sealed)):
                return False
            position = last
        return self._take_hot(position, self._upto)

    def _content(self, blob: int) -> bytes:
        bodies = self._db.execute("select bodies from segment_blobs where id = ?", (blob,)).fetchall()[0][0]
        assert isinstance(bodies, bytes)
        return unpacked(bodies)

    def _take_hot(self, after: int, upto: int) -> bool:
        """Add the ops of the hot tail after `after` and up to `upto`. Returns False when they don't all fit."""
        if after >= upto:
            return True
        free = CHUNK_OPS - self.parts.size
        if free <= 0:
            return not self._any_hot(after, upto)
        size, length = map(as_int, self._db.execute(_HOT_SIZE, (self._bucket, after, upto, free)).fetchall()[0])
        fits = self.parts.fits(size, length)
        end = upto if fits else self._last_fitting(after, upto)
        if size == 0 or end == after:
            return size == 0
        taken, last, ops = self._db.execute(_HOT, (self._bucket, after, end, free)).fetchall()[0]
        assert isinstance(ops, bytes)
        self.parts.add(ops, as_int(taken), as_int(last))
        return fits and (size != free or not self._any_hot(as_int(last), upto))

    def _last_fitting(self, after: int, upto: int) -> int:
        """The last op that still fits; at least one op goes into an empty chunk."""
        last, size, bytes_ = after, 0, 0
        for op_id, length in self._db.execute(_HOT_SIZES, (self._bucket, after, upto, CHUNK_OPS)).fetchall():
            size, bytes_ = size + 1, bytes_ + as_int(length)
            if (self.parts.size or size > 1) and not self.parts.fits(size, bytes_):
                break
            last = as_int(op_id)
        return last

    def _any_hot(self, after: int, upto: int) -> bool:
        return self._db.execute(_ANY_HOT, (self._bucket, after, upto)).fetchone() is not None
