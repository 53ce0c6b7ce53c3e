"""Compaction of histories: what reads and replaces them. Which ops may go is decided by `storage.shared.compaction`;
when and how far, by `headwater.compaction`.

Calls block. Calls that change something hold the store's write lock in proportion to what they are given, and leave a
state from which every device converges, whatever happens next. Replacing history locks the bucket, which a flush needs
at its end only; appending takes the store's lock first, as a flush does. Lookups need no compaction: the store keeps
only current ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
from headwater.storage.shared.segments import RUN_OPS, Line, numbered, segment_lines, unpacked
from headwater.storage.sql import leases
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.ops import drop_segments, insert_segments, lock_state

_PRUNED_AT_ONCE = 2_000
_SEGMENTS_AT_ONCE = 16

_STATE = "select id, name, definition, count, clear_op, last_op, compacted_op, compacted_count, live_rows from buckets"

_SEGMENTS_AFTER = """
select s.first_op, s.sealed, b.bodies from segments s left join segment_blobs b on b.id = s.blob
where {segments_after}
"""

_UNSEALED = """
select (select count(*) from (select 1 from ops where bucket = ?1 and id <= ?2 limit ?3) o)
+ (select cast(coalesce(sum(last_op - first_op + 1), 0) as bigint) from segments
    where bucket = ?1 and last_op <= ?2 and not sealed)
"""

_SEGMENTS = """
select s.first_op, s.last_op, b.size, s.blob, s.sealed, octet_length(b.bodies)
from segments s join segment_blobs b on b.id = s.blob where s.bucket = ? and s.last_op >= ? order by s.{key}
"""

_REMAINS = """
select 1 from buckets b where b.id = ?
and (exists (select 1 from ops o where o.bucket = b.id and o.id < b.clear_op)
    or exists (select 1 from segments s where s.bucket = b.id and s.last_op < b.clear_op))
"""

_MARK_COMPACTED = "update buckets set compacted_op = ?1 where id = ?2 and compacted_op < ?1"

_PRUNE = """
delete from flushes where last_op in (
    select last_op from flushes
    where last_op <= coalesce((select last_op from flushes order by last_op desc limit 1 offset ?), 0)
    order by last_op limit ?
)
"""


class CompactionStore:
    """Used by one thread: `db` writes, `reader` reads beside it. Every call that changes something raises
    LeaseLostError once a newer lease exists."""

    def __init__(self, db: Cursor, reader: Cursor) -> None:
        self._db = db
        self._reader = reader

    def close(self) -> None:
        self._db.close()
        self._reader.close()

    # the lease

    def acquire(self, owner: str, ttl: float) -> Lease:
        """Take the compaction lease for `ttl` seconds. Raises LeaseHeldError."""
        return leases.acquire(self._db, LEASE, owner, ttl)

    def renew(self, lease: Lease) -> None:
        with self._db.transaction(lease):
            pass

    def release(self, lease: Lease) -> None:
        leases.release(self._db, lease)

    @contextmanager
    def _step(self, lease: Lease) -> Iterator[Cursor]:
        """One transaction that changes history."""
        with self._db.transaction(lease):
            yield self._db
            failpoint("compact.before_commit")
        failpoint("compact.after_commit")

    # reading

    def checkpoint(self) -> OpId:
        """The newest checkpoint; 0 while there is none."""
        return OpId(self._reader.rows("select coalesce(checkpoint, 0) from state")[0][0])

    def bucket(self, key: int) -> BucketState | None:
        row = self._reader.one(f"{_STATE} where id = ?", key)
        return None if row is None else BucketState(*row)

    def buckets(self, changed_after: OpId) -> list[BucketState]:
        """Buckets with an op after `changed_after`."""
        return [
            BucketState(*row) for row in self._reader.rows(f"{_STATE} where last_op > ? order by id", changed_after)
        ]

    def unsealed_ops(self, bucket: int, upto: OpId, limit: int) -> int:
        """The number of ops up to `upto` that are in no sealed segment. Stops counting somewhere above `limit`."""
        return int(self._reader.rows(_UNSEALED, bucket, upto, limit)[0][0])

    def has_remains(self, bucket: int) -> bool:
        """Whether ops before the bucket's last CLEAR are still stored. No device is sent them any more."""
        return self._reader.one(_REMAINS, bucket) is not None

    def pieces(self, bucket: int, upto: OpId) -> list[Piece]:
        """The pieces of the bucket from its last CLEAR up to `upto`, in order. Ends before the first segment that goes
        beyond `upto`."""
        with self._reader.snapshot():
            found = self._reader.one("select clear_op from buckets where id = ?", bucket)
            if found is None:
                return []
            start = int(found[0])
            pieces: list[Piece] = []
            segments = _SEGMENTS.format(key=self._reader.dialect.segment_key)
            for first, last, size, blob, sealed, length in self._reader.rows(segments, bucket, start):
                if last > upto:
                    return pieces + self._hot_pieces(bucket, start, min(first - 1, upto))
                pieces += self._hot_pieces(bucket, start, first - 1)
                pieces.append(Piece(first, last, size, blob, bool(sealed), length))
                start = last + 1
            return pieces + self._hot_pieces(bucket, start, upto)

    def _hot_pieces(self, bucket: int, first: int, upto: int) -> list[Piece]:
        return self._reader.dialect.hot_pieces(self._reader, bucket, first, upto) if first <= upto else []

    def read(self, bucket: int, piece: Piece) -> bytes:
        """The finished ops of a piece, joined by newlines. Raises HistoryChangedError."""
        if not piece.blob:
            query = "select line from ops where bucket = ? and id >= ? and id <= ? order by id"
            lines = [line for (line,) in self._reader.rows(query, bucket, piece.first, piece.last)]
            if len(lines) != piece.size:
                raise _changed(bucket)
            return "\n".join(lines).encode()
        row = self._reader.one("select bodies from segment_blobs where id = ? and bucket = ?", piece.blob, bucket)
        if row is None:
            raise _changed(bucket)
        content = unpacked(row[0])
        return content if piece.sealed else numbered(content, piece.first)

    def rows_after(self, bucket: int, seen: OpId) -> tuple[set[int], OpId]:
        """Keys of the rows that ops after `seen` changed, and the newest op seen. Raises HistoryChangedError when a
        segment of these ops is missing."""
        with self._reader.snapshot():  # ops and segments of one moment
            return _rows_after(self._reader, bucket, seen)

    # writing

    def reput(self, lease: Lease, bucket: BucketState, seen: OpId, rows: Sequence[Reput]) -> tuple[int, set[int], OpId]:
        """Number `rows` and append them to the bucket, as a flush does, except those that an op after `seen` changed.
        Moves the checkpoint. Returns how many were appended, the keys of all rows that ops after `seen` changed, and
        the bucket's newest op: a caller that goes on from there must leave these rows out as well. Raises
        HistoryChangedError when the bucket was cleared since."""
        with self._step(lease) as db:
            next_op = lock_state(db)
            _lock_same(db, bucket)
            changed, newest = _rows_after(db, bucket.key, seen)
            rows = [row for row in rows if row.row not in changed]
            if rows:
                newest = _append(db, bucket, next_op, rows)
                db.notify()
        return len(rows), changed, newest

    def clear(self, lease: Lease, bucket: BucketState, cut: Piece, cleared: Cleared, compacted_op: OpId) -> list[Piece]:
        """Replace everything up to `cleared.op_id`, which is in the piece `cut`, by a CLEAR. `purge` deletes the ops
        before it. Returns the pieces that replace `cut`. Raises HistoryChangedError."""
        line = clear_line(cleared.op_id, cleared.checksum)
        with self._step(lease) as db:
            _lock_same(db, bucket)
            _check_there(db, bucket.key, cut)
            placed: list[Piece] = []
            if cut.blob:
                _drop_segment(db, bucket.key, cut)
                placed = _place(db, bucket.key, cleared.rest)
                db.execute("insert into ops (bucket, id, line) values (?, ?, ?)", bucket.key, cleared.op_id, line)
            else:
                db.execute("update ops set line = ? where bucket = ? and id = ?", line, bucket.key, cleared.op_id)
            move = "update buckets set count = count - ? + 1, clear_op = ? where id = ?"
            db.execute(move, cleared.replaced, cleared.op_id, bucket.key)
            db.execute(_MARK_COMPACTED, compacted_op, bucket.key)
        clear = Piece(cleared.op_id, cleared.op_id, 1, 0, False, len(line))
        return [clear, *(placed if cut.blob else self._hot_pieces(bucket.key, cleared.op_id + 1, cut.last))]

    def replace(
        self, lease: Lease, bucket: BucketState, old: Sequence[Piece], new: Sequence[SealedRun], compacted_op: OpId
    ) -> list[Piece]:
        """Replace consecutive pieces by segments that hold the same ops; returns these as pieces. Checkpoints before
        `compacted_op` count as overtaken from now on. Raises HistoryChangedError."""
        with self._step(lease) as db:
            _lock_same(db, bucket)
            for piece in old:
                _check_there(db, bucket.key, piece)
                if piece.blob:
                    _drop_segment(db, bucket.key, piece)
                else:
                    gone = "delete from ops where bucket = ? and id >= ? and id <= ?"
                    db.execute(gone, bucket.key, piece.first, piece.last)
            placed = _place(db, bucket.key, new)
            db.execute(_MARK_COMPACTED, compacted_op, bucket.key)
        return placed

    def purge(self, lease: Lease, bucket: int, limit: int) -> bool:
        """Delete ops before the bucket's last CLEAR, about `limit` at most. Returns True while more are left."""
        with self._step(lease) as db:
            row = db.one(f"select clear_op from buckets where id = ?{db.dialect.for_update}", bucket)
            if row is None:
                return False
            clear_op = row[0]
            db.execute(_MARK_COMPACTED, clear_op, bucket)
            some = "select id from ops where bucket = ?1 and id < ?2 order by id limit ?3"
            hot = db.execute(f"delete from ops where bucket = ?1 and id in ({some})", bucket, clear_op, limit)
            some = "select bucket, first_op, last_op, blob from segments where bucket = ? and last_op < ? limit ?"
            gone = db.rows(some, bucket, clear_op, max(1, limit // RUN_OPS))
            drop_segments(db, gone)
            return bool(gone) or hot >= limit

    def finish(self, lease: Lease, bucket: BucketState, count: int, live_rows: int) -> None:
        """Record what compaction left."""
        with self._step(lease) as db:
            left = "update buckets set compacted_count = ?, live_rows = ? where id = ? and clear_op >= ?"
            db.execute(left, count, live_rows, bucket.key, bucket.clear_op)

    def prune(self, lease: Lease, flushes: int) -> int:
        """Delete the records of flushes except the newest `flushes`. Returns how many were deleted, a few thousand at
        most."""
        with self._step(lease) as db:
            return db.execute(_PRUNE, flushes, _PRUNED_AT_ONCE)


def _changed(bucket: int) -> HistoryChangedError:
    return HistoryChangedError("a bucket's history changed meanwhile", f"bucket key {bucket}", "it is read again")


def _lock_same(db: Cursor, bucket: BucketState) -> None:
    """Lock the bucket until the commit. Raises HistoryChangedError when it is gone or was cleared since."""
    row = db.one(f"select clear_op from buckets where id = ?{db.dialect.for_update}", bucket.key)
    if row is None or row[0] != bucket.clear_op:
        raise _changed(bucket.key)


def _check_there(db: Cursor, bucket: int, piece: Piece) -> None:
    """Check that the piece is as it was read. Ops and segments are never changed, only replaced as a whole."""
    if piece.blob:
        query = "select blob from segments where bucket = ? and first_op = ? and last_op = ?"
        same = db.one(query, bucket, piece.first, piece.last) == (piece.blob,)
    else:
        query = "select count(*) from ops where bucket = ? and id >= ? and id <= ?"
        same = db.one(query, bucket, piece.first, piece.last) == (piece.size,)
    if not same:
        raise _changed(bucket)


def _rows_after(db: Cursor, bucket: int, seen: int) -> tuple[set[int], OpId]:
    return changed_rows(_ops_after(db, bucket, seen), seen)


def _ops_after(db: Cursor, bucket: int, seen: int) -> Iterator[Line]:
    yield from db.stream("select id, line from ops where bucket = ? and id > ?", bucket, seen)
    segments = _SEGMENTS_AFTER.format(segments_after=db.dialect.segments_after)  # they may be many, and large
    for first, sealed, bodies in db.stream(segments, bucket, seen, at_once=_SEGMENTS_AT_ONCE):
        if bodies is None:
            raise _changed(bucket)
        yield from ((op_id, line) for op_id, line in segment_lines(first, bool(sealed), bodies) if op_id > seen)


def _append(db: Cursor, bucket: BucketState, first: int, rows: Sequence[Reput]) -> OpId:
    """Do what a flush with these rows would do. Returns the last op id given out."""
    last = first + len(rows) - 1
    lines = [(bucket.key, op_id, finished_op(op_id, row.body)) for op_id, row in enumerate(rows, first)]
    db.execute_many("insert into ops (bucket, id, line) values (?, ?, ?)", lines)
    add = "update buckets set checksum = (checksum + ?) & 4294967295, count = count + ?, last_op = ? where id = ?"
    db.execute(add, sum(row.checksum for row in rows) & 0xFFFFFFFF, len(rows), last, bucket.key)
    db.execute("update state set next_op = ?, checkpoint = ?", last + 1, last)
    # They come from no commit of a source, so they name none
    note = "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups) values (?, '', 0, 0, ?, '[]')"
    db.execute(note, last, orjson.dumps([bucket.name]).decode())
    return OpId(last)


def _place(db: Cursor, bucket: int, runs: Sequence[SealedRun]) -> list[Piece]:
    blobs = insert_segments(db, [(bucket, run) for run in runs])
    return [
        Piece(run.first, run.last, run.size, blob, True, len(run.bodies)) for run, blob in zip(runs, blobs, strict=True)
    ]


def _drop_segment(db: Cursor, bucket: int, piece: Piece) -> None:
    drop_segments(db, [(bucket, piece.first, piece.last, piece.blob)])
