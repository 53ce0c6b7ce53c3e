"""Compaction of the embedded store's histories. See `storage.contract.compaction`.

Lookups need no compaction: the store keeps only current ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw
import orjson

from headwater.failpoints import failpoint
from headwater.oplog.op import OpId, finished_op
from headwater.storage.contract.compaction import (
    LEASE,
    BucketState,
    Cleared,
    HistoryChangedError,
    Piece,
    Reput,
    SealedRun,
)
from headwater.storage.contract.store import Lease
from headwater.storage.shared.compaction import changed_rows, clear_line
from headwater.storage.shared.packing import unpacked
from headwater.storage.shared.runs import RUN_OPS
from headwater.storage.shared.unpack import Line, segment_lines
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, open_writer, sqlite_errors
from headwater.storage.sqlite.control import lease as leases
from headwater.storage.sqlite.runs import AFTER
from headwater.storage.sqlite.wake import Waker

_HOT_OPS, _HOT_BYTES = 2_000, 2 << 20
_PRUNED_AT_ONCE = 2_000

_STATE = "select id, name, definition, count, clear_op, last_op, compacted_op, compacted_count, live_rows from buckets"

_HOT = "select id, octet_length(line) from ops where bucket = ? and id >= ? and id <= ? order by id"

_SEGMENTS_AFTER = f"""
select s.first_op, s.sealed, b.bodies from segments s left join segment_blobs b on b.id = s.blob
where {AFTER}
"""

_UNSEALED = """
select (select count(*) from (select 1 from ops where bucket = ?1 and id <= ?2 limit ?3))
+ (select coalesce(sum(last_op - first_op + 1), 0) from segments where bucket = ?1 and last_op <= ?2 and not sealed)
"""

_SEGMENTS = """
select s.first_op, s.last_op, b.size, s.blob, s.sealed, octet_length(b.bodies)
from segments s join segment_blobs b on b.id = s.blob where s.bucket = ? and s.last_op >= ? order by s.first_op
"""


class SqliteCompaction:
    """See `storage.contract.compaction.CompactionStore`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "store.db"
        self._db = open_writer(self._path)
        self._reader = open_reader(self._path)
        self._waker = Waker(directory)

    # the lease

    def acquire(self, owner: str, ttl: float) -> Lease:
        with sqlite_errors(self._path):
            return leases.acquire(self._db, LEASE, owner, ttl)

    def renew(self, lease: Lease) -> None:
        with sqlite_errors(self._path), leases.holding(self._db, lease):
            pass

    def release(self, lease: Lease) -> None:
        with sqlite_errors(self._path):
            leases.release(self._db, lease)

    @contextmanager
    def _step(self, lease: Lease) -> Iterator[apsw.Connection]:
        """One write transaction that changes history."""
        with sqlite_errors(self._path):
            with leases.holding(self._db, lease):
                yield self._db
                failpoint("compact.before_commit")
            failpoint("compact.after_commit")

    # reading

    def checkpoint(self) -> OpId:
        with sqlite_errors(self._path):
            return OpId(as_int(self._rows("select coalesce(checkpoint, 0) from state")[0][0]))

    def bucket(self, key: int) -> BucketState | None:
        with sqlite_errors(self._path):
            rows = self._rows(f"{_STATE} where id = ?", key)
        return _state(rows[0]) if rows else None

    def buckets(self, changed_after: OpId) -> list[BucketState]:
        with sqlite_errors(self._path):
            return [_state(row) for row in self._rows(f"{_STATE} where last_op > ? order by id", changed_after)]

    def unsealed_ops(self, bucket: int, upto: OpId, limit: int) -> int:
        with sqlite_errors(self._path):
            return as_int(self._rows(_UNSEALED, bucket, upto, limit)[0][0])

    def has_remains(self, bucket: int) -> bool:
        sql = (
            "select 1 from buckets b where b.id = ?"
            " and (exists (select 1 from ops o where o.bucket = b.id and o.id < b.clear_op)"
            " or exists (select 1 from segments s where s.bucket = b.id and s.first_op < b.clear_op))"
        )
        with sqlite_errors(self._path):
            return bool(self._rows(sql, bucket))

    def pieces(self, bucket: int, upto: OpId) -> list[Piece]:
        with sqlite_errors(self._path):
            self._reader.execute("begin")
            try:
                return self._pieces(bucket, upto)
            finally:
                self._reader.execute("rollback")

    def _pieces(self, bucket: int, upto: int) -> list[Piece]:
        found = self._rows("select clear_op from buckets where id = ?", bucket)
        if not found:
            return []
        start = as_int(found[0][0])
        pieces: list[Piece] = []
        for row in self._rows(_SEGMENTS, bucket, start):
            first, last, size, blob, sealed, length = (as_int(cell) for cell in row)
            if last > upto:
                return pieces + list(self._hot_pieces(bucket, start, min(first - 1, upto)))
            pieces += self._hot_pieces(bucket, start, first - 1)
            pieces.append(Piece(OpId(first), OpId(last), size, blob, bool(sealed), length))
            start = last + 1
        return pieces + list(self._hot_pieces(bucket, start, upto))

    def _hot_pieces(self, bucket: int, first: int, upto: int) -> Iterator[Piece]:
        start = last = size = length = 0
        for op_id, line in self._reader.execute(_HOT, (bucket, first, upto)):
            if size >= _HOT_OPS or length >= _HOT_BYTES:
                yield Piece(OpId(start), OpId(last), size, 0, False, length)
                size = length = 0
            last = as_int(op_id)
            start = start if size else last
            size += 1
            length += as_int(line)
        if size:
            yield Piece(OpId(start), OpId(last), size, 0, False, length)

    def read(self, bucket: int, piece: Piece) -> bytes:
        with sqlite_errors(self._path):
            return self._segment_lines(bucket, piece) if piece.blob else self._hot_lines(bucket, piece)

    def _hot_lines(self, bucket: int, piece: Piece) -> bytes:
        sql = "select line from ops where bucket = ? and id >= ? and id <= ? order by id"
        lines = [str(row[0]) for row in self._rows(sql, bucket, piece.first, piece.last)]
        if len(lines) != piece.size:
            raise _changed(bucket)
        return "\n".join(lines).encode()

    def _segment_lines(self, bucket: int, piece: Piece) -> bytes:
        rows = self._rows("select bodies from segment_blobs where id = ? and bucket = ?", piece.blob, bucket)
        if not rows or not isinstance(rows[0][0], bytes):
            raise _changed(bucket)
        content = unpacked(rows[0][0])
        if piece.sealed:
            return content
        bodies = content.decode().split("\n")
        return "\n".join([finished_op(op_id, body) for op_id, body in enumerate(bodies, piece.first)]).encode()

    def _rows(self, sql: str, *bindings: apsw.SQLiteValue) -> list[tuple[apsw.SQLiteValue, ...]]:
        return self._reader.execute(sql, bindings).fetchall()

    # writing

    def rows_after(self, bucket: int, seen: OpId) -> tuple[set[int], OpId]:
        with sqlite_errors(self._path):
            self._reader.execute("begin")  # ops and segments of one moment
            try:
                return _rows_after(self._reader, bucket, seen)
            finally:
                self._reader.execute("rollback")

    def reput(self, lease: Lease, bucket: BucketState, seen: OpId, rows: Sequence[Reput]) -> tuple[int, OpId]:
        with self._step(lease) as db:
            _check_same(db, bucket)
            changed, newest = _rows_after(db, bucket.key, seen)
            rows = [row for row in rows if row.row not in changed]
            if rows:
                newest = _append(db, bucket, rows)
        if rows:
            self._waker.wake()
        return len(rows), newest

    def clear(self, lease: Lease, bucket: BucketState, cut: Piece, cleared: Cleared, compacted_op: OpId) -> list[Piece]:
        line = clear_line(cleared.op_id, cleared.checksum)
        with self._step(lease) as db:
            _check_same(db, bucket)
            _check_there(db, bucket.key, cut)
            placed: list[Piece] = []
            if cut.blob:
                _drop_segment(db, bucket.key, cut)
                placed = [_insert_segment(db, bucket.key, run) for run in cleared.rest]
                db.execute("insert into ops (id, bucket, line) values (?, ?, ?)", (cleared.op_id, bucket.key, line))
            else:
                db.execute("update ops set line = ? where id = ? and bucket = ?", (line, cleared.op_id, bucket.key))
            db.execute(
                "update buckets set count = count - ?1 + 1, clear_op = ?2, compacted_op = max(compacted_op, ?3)"
                " where id = ?4",
                (cleared.replaced, cleared.op_id, compacted_op, bucket.key),
            )
        clear = Piece(cleared.op_id, cleared.op_id, 1, 0, False, len(line))
        if not cut.blob:
            with sqlite_errors(self._path):
                placed = list(self._hot_pieces(bucket.key, cleared.op_id + 1, cut.last))
        return [clear, *placed]

    def replace(
        self, lease: Lease, bucket: BucketState, old: Sequence[Piece], new: Sequence[SealedRun], compacted_op: OpId
    ) -> list[Piece]:
        with self._step(lease) as db:
            _check_same(db, bucket)
            for piece in old:
                _check_there(db, bucket.key, piece)
            for piece in old:
                if piece.blob:
                    _drop_segment(db, bucket.key, piece)
                else:
                    sql = "delete from ops where bucket = ? and id >= ? and id <= ?"
                    db.execute(sql, (bucket.key, piece.first, piece.last))
            placed = [_insert_segment(db, bucket.key, run) for run in new]
            db.execute(
                "update buckets set compacted_op = max(compacted_op, ?) where id = ?", (compacted_op, bucket.key)
            )
        return placed

    def purge(self, lease: Lease, bucket: int, limit: int) -> bool:
        with self._step(lease) as db:
            row = db.execute("select clear_op from buckets where id = ?", (bucket,)).fetchone()
            if row is None:
                return False
            clear_op = as_int(row[0])
            db.execute("update buckets set compacted_op = max(compacted_op, ?) where id = ?", (clear_op, bucket))
            db.execute(
                "delete from ops where id in"
                " (select id from ops where bucket = ? and id < ? order by id limit ?)",
                (bucket, clear_op, limit),
            )  # fmt: skip
            more = db.changes() >= limit
            sql = "select first_op, blob from segments where bucket = ? and last_op < ? limit ?"
            gone = db.execute(sql, (bucket, clear_op, max(1, limit // RUN_OPS))).fetchall()
            db.executemany("delete from segments where bucket = ? and first_op = ?", [(bucket, row[0]) for row in gone])
            db.executemany("delete from segment_blobs where id = ?", [row[1:] for row in gone])
            return more or bool(gone)

    def finish(self, lease: Lease, bucket: BucketState, count: int, live_rows: int) -> None:
        with self._step(lease) as db:
            sql = "update buckets set compacted_count = ?, live_rows = ? where id = ? and clear_op >= ?"
            db.execute(sql, (count, live_rows, bucket.key, bucket.clear_op))

    def prune(self, lease: Lease, flushes: int) -> int:
        with self._step(lease) as db:
            db.execute(
                "delete from flushes where last_op in (select last_op from flushes where last_op <= coalesce("
                "(select last_op from flushes order by last_op desc limit 1 offset ?), 0) order by last_op limit ?)",
                (flushes, _PRUNED_AT_ONCE),
            )
            return db.changes()

    def close(self) -> None:
        self._db.close()
        self._reader.close()
        self._waker.close()


def _state(row: tuple[apsw.SQLiteValue, ...]) -> BucketState:
    key, name, definition, *numbers = row
    count, clear_op, last_op, compacted_op, compacted_count, live_rows = (as_int(number) for number in numbers)
    marks = OpId(clear_op), OpId(last_op), OpId(compacted_op)
    return BucketState(as_int(key), str(name), str(definition), count, *marks, compacted_count, live_rows)


def _changed(bucket: int) -> HistoryChangedError:
    return HistoryChangedError("a bucket's history changed meanwhile", f"bucket key {bucket}", "it is read again")


def _check_same(db: apsw.Connection, bucket: BucketState) -> None:
    """Check that the bucket exists and was not cleared since. Raises HistoryChangedError."""
    row = db.execute("select clear_op from buckets where id = ?", (bucket.key,)).fetchone()
    if row is None or row[0] != bucket.clear_op:
        raise _changed(bucket.key)


def _check_there(db: apsw.Connection, bucket: int, piece: Piece) -> None:
    """Check that the piece is as it was read. Ops and segments are never changed, only replaced as a whole."""
    if piece.blob:
        sql = "select last_op, blob from segments where bucket = ? and first_op = ?"
        same = db.execute(sql, (bucket, piece.first)).fetchone() == (piece.last, piece.blob)
    else:
        sql = "select count(*) from ops where bucket = ? and id >= ? and id <= ?"
        same = db.execute(sql, (bucket, piece.first, piece.last)).fetchone() == (piece.size,)
    if not same:
        raise _changed(bucket)


def _rows_after(db: apsw.Connection, bucket: int, seen: int) -> tuple[set[int], OpId]:
    return changed_rows(_ops_after(db, bucket, seen), seen)


def _ops_after(db: apsw.Connection, bucket: int, seen: int) -> Iterator[Line]:
    sql = "select id, line from ops where bucket = ? and id > ?"
    for op_id, line in db.execute(sql, (bucket, seen)):
        yield as_int(op_id), str(line)
    for first, sealed, bodies in db.execute(_SEGMENTS_AFTER, (bucket, seen)):
        if not isinstance(bodies, bytes):
            raise _changed(bucket)
        yield from ((op_id, line) for op_id, line in segment_lines(as_int(first), bool(sealed), bodies) if op_id > seen)


def _append(db: apsw.Connection, bucket: BucketState, rows: Sequence[Reput]) -> OpId:
    """Do what a flush with these rows would do. Returns the last op id given out."""
    first = as_int(db.execute("select next_op from state").fetchall()[0][0])
    last = first + len(rows) - 1
    db.executemany(
        "insert into ops (id, bucket, line) values (?, ?, ?)",
        [(op_id, bucket.key, finished_op(op_id, row.body)) for op_id, row in enumerate(rows, first)],
    )
    db.execute(
        "update buckets set checksum = (checksum + ?) & 4294967295, count = count + ?, last_op = ? where id = ?",
        (sum(row.checksum for row in rows) & 0xFFFFFFFF, len(rows), last, bucket.key),
    )
    db.execute("update state set next_op = ?, checkpoint = ?", (last + 1, last))
    # They come from no commit of a source, so they name none
    db.execute(
        "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups) values (?, '', 0, 0, ?, '[]')",
        (last, orjson.dumps([bucket.name]).decode()),
    )
    return OpId(last)


def _insert_segment(db: apsw.Connection, bucket: int, run: SealedRun) -> Piece:
    sql = "insert into segment_blobs (bucket, size, checksum, bodies) values (?, ?, ?, ?) returning id"
    blob = as_int(db.execute(sql, (bucket, run.size, run.checksum, run.blob)).fetchall()[0][0])
    db.execute(
        "insert into segments (bucket, first_op, last_op, blob, sealed) values (?, ?, ?, ?, 1)",
        (bucket, run.first, run.last, blob),
    )
    return Piece(run.first, run.last, run.size, blob, True, len(run.blob))


def _drop_segment(db: apsw.Connection, bucket: int, piece: Piece) -> None:
    db.execute("delete from segments where bucket = ? and first_op = ?", (bucket, piece.first))
    db.execute("delete from segment_blobs where id = ?", (piece.blob,))
