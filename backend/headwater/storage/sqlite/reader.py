"""The endpoint's side of the embedded store."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import orjson
import zstandard

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId, bucket_key
from headwater.storage.contract import (
    BucketTotal,
    Checkpoint,
    Chunk,
    Listener,
    StoredConfig,
    StoreError,
    StoreSnapshot,
    Touched,
    WriteCheckpoint,
)
from headwater.storage.sqlite import lease as leases
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.flush import read_checkpoint
from headwater.storage.sqlite.wake import WakeListener
from headwater.storage.sqlite.write_checkpoints import WriteCheckpoints

CHUNK_OPS = 1000
CHUNK_BYTES = 1 << 20

_EMPTY_TOTAL = BucketTotal(0, 0)


class SqliteReader:
    """See `storage.contract.StoreReader`. Each thread has a connection of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "store.db"
        self._local = threading.local()
        self._all: list[apsw.Connection] = []
        self._lock = threading.Lock()
        self._write_checkpoints = WriteCheckpoints(directory / "write_checkpoints.db")
        self._db()  # fails now rather than at the first request

    def _db(self) -> apsw.Connection:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
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
                sql = (
                    "select c.id, c.yaml from state s join configs c on c.id = s.config where s.checkpoint is not null"
                )
                row = db.execute(sql).fetchone()
                if row is None:
                    yield None
                else:
                    yield _Snapshot(db, read_checkpoint(db), StoredConfig(int(str(row[0])), str(row[1])))
            finally:
                db.execute("rollback")

    def checkpoint(self) -> tuple[Checkpoint, int] | None:
        db = self._db()
        with sqlite_errors(self._path):
            db.execute("begin")
            try:
                row = db.execute("select config from state where checkpoint is not null").fetchone()
                if row is None or row[0] is None:
                    return None
                return read_checkpoint(db), int(str(row[0]))
            finally:
                db.execute("rollback")

    def touched(self, after: OpId, upto: OpId) -> Touched:
        with sqlite_errors(self._path):
            sql = "select last_op, buckets, lookups from flushes where last_op > ? and last_op <= ?"
            rows = self._db().execute(sql, (after, upto)).fetchall()
            oldest = self._db().execute("select min(last_op) from flushes").fetchall()[0][0]
        if oldest is None or after < int(str(oldest)):
            return Touched(None, None)  # what the oldest kept flush followed on is no longer known
        return Touched(_union(row[1] for row in rows), _union(row[2] for row in rows))

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        with sqlite_errors(self._path):
            return _ChunkBuilder(self._db(), bucket_key(bucket), upto).build(after)

    def listen(self) -> Listener:
        return WakeListener(self._directory)

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        return self._write_checkpoints.create(keys, lsns)

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        return self._write_checkpoints.after(after_seq)

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        return self._write_checkpoints.get(key)

    def replicator_alive(self) -> bool:
        with sqlite_errors(self._path):
            return leases.is_held(self._db())

    def close(self) -> None:
        self._write_checkpoints.close()
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()


def _union(texts: Iterator[apsw.SQLiteValue]) -> frozenset[str] | None:
    names: set[str] = set()
    for text in texts:
        if text is None:
            return None
        names.update(orjson.loads(str(text)))
    return frozenset(names)


class _Snapshot:
    """Answers within the reader's open transaction."""

    def __init__(self, connection: apsw.Connection, checkpoint: Checkpoint, config: StoredConfig) -> None:
        self._db = connection
        self.checkpoint = checkpoint
        self.config = config

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        totals = dict.fromkeys(buckets, _EMPTY_TOTAL)
        sql = "select name, checksum, count from buckets where id = ?"
        for name, checksum, count in self._db.executemany(sql, [(bucket_key(name),) for name in buckets]):
            if name in totals:
                totals[str(name)] = BucketTotal(int(str(checksum)), int(str(count)))
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


class _ChunkBuilder:
    """Collects finished ops of one bucket, from segments and the hot tail, in the order of their ids."""

    def __init__(self, connection: apsw.Connection, bucket: int, upto: int) -> None:
        self._db = connection
        self._bucket = bucket
        self._upto = upto
        self._ops: list[str] = []
        self._bytes = 0
        self._last = 0
        self._full = False

    def build(self, after: int) -> Chunk:
        position = self._start(after)
        self._last = max(after, position)
        for first, last, blob in self._segments(position):
            if not self._take_hot(position, first - 1):
                break
            if not self._take_segment(max(position, self._last), first, blob):
                break
            position = last
        else:
            self._take_hot(position, self._upto)
        if not self._ops:
            return Chunk(b"", 0, OpId(after), more=False)
        return Chunk(",".join(self._ops).encode(), len(self._ops), OpId(self._last), more=self._full)

    def _start(self, after: int) -> int:
        """Nothing before the last CLEAR is worth sending to a client that has not passed it."""
        row = self._db.execute("select clear_op from buckets where id = ?", (self._bucket,)).fetchone()
        clear_op = 0 if row is None else int(str(row[0]))
        return clear_op - 1 if after < clear_op <= self._upto else after

    def _segments(self, after: int) -> list[tuple[int, int, int]]:
        sql = (
            "select first_op, last_op, blob from segments where bucket = ?1 and last_op > ?2 and first_op <= ?3"
            " order by first_op limit ?4"
        )
        rows = self._db.execute(sql, (self._bucket, after, self._upto, CHUNK_OPS)).fetchall()
        return [(int(str(first)), int(str(last)), int(str(blob))) for first, last, blob in rows]

    def _take_hot(self, after: int, upto: int) -> bool:
        """Take rows of the hot tail; False when there is no more room."""
        if after >= upto:
            return True
        sql = "select id, line from ops where bucket = ? and id > ? and id <= ? order by id limit ?"
        room = CHUNK_OPS - len(self._ops) + 1
        for op_id, line in self._db.execute(sql, (self._bucket, after, upto, room)):
            if not self._fits(str(line)):
                return False
            self._ops.append(str(line))
            self._last = int(str(op_id))
        return True

    def _take_segment(self, after: int, first: int, blob: int) -> bool:
        """Take what a segment has after `after`; False when there is no more room."""
        row = self._db.execute("select bodies from segment_blobs where id = ?", (blob,)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            raise StoreError("a segment is missing", f"segment {blob}", "move the store away to build a new one")
        bodies = zstandard.decompress(row[0]).decode().split("\n")
        skip = max(0, after - first + 1)
        count = min(len(bodies), self._upto - first + 1)
        ops = [f'{{"op_id":"{op_id}",{body}' for op_id, body in enumerate(bodies[skip:count], first + skip)]
        size = sum(map(len, ops))
        if len(self._ops) + len(ops) <= CHUNK_OPS and self._bytes + size <= CHUNK_BYTES:
            self._ops += ops
            self._bytes += size
            self._last = first + skip + len(ops) - 1
            return True
        for op_id, op in enumerate(ops, first + skip):
            if not self._fits(op):
                return False
            self._ops.append(op)
            self._last = op_id
        return True

    def _fits(self, op: str) -> bool:
        size = len(op)
        if self._ops and (len(self._ops) >= CHUNK_OPS or self._bytes + size > CHUNK_BYTES):
            self._full = True
            return False
        self._bytes += size
        return True
