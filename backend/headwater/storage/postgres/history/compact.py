"""Compaction of histories in Postgres. See `storage.contract.compaction`.

Replacing history locks the bucket's row, which a flush needs at its end only; appending takes the store's lock first,
as a flush does. Lookups need no compaction: the store keeps only current ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import orjson
import psycopg

from headwater.failpoints import failpoint
from headwater.oplog.op import OpId, finished_op
from headwater.storage.address import PostgresAddress
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
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.control import lease as leases
from headwater.storage.shared.compaction import changed_rows, clear_line
from headwater.storage.shared.packing import unpacked
from headwater.storage.shared.runs import RUN_OPS
from headwater.storage.shared.unpack import Line, segment_lines

_HOT_OPS, _HOT_BYTES = 2_000, 2 << 20
_PRUNED_AT_ONCE = 2_000

_STATE = "select id, name, definition, count, clear_op, last_op, compacted_op, compacted_count, live_rows from buckets"

_SEGMENTS_AT_ONCE = 16

_SEGMENTS_AFTER = """
select s.first_op, s.sealed, b.bodies from segments s left join segment_blobs b on b.id = s.blob
where s.bucket = %s and s.last_op > %s
"""

_UNSEALED = """
select (select count(*) from (select 1 from ops where bucket = %(bucket)s and id <= %(upto)s limit %(limit)s) o)
+ (select coalesce(sum(last_op - first_op + 1), 0)::int8 from segments
    where bucket = %(bucket)s and last_op <= %(upto)s and not sealed)
"""

_SEGMENTS = """
select s.first_op, s.last_op, b.size, s.blob, s.sealed, octet_length(b.bodies)
from segments s join segment_blobs b on b.id = s.blob where s.bucket = %s and s.last_op >= %s order by s.last_op
"""

_HOT = """
select min(id), max(id), count(*), sum(length) from (
    select id, length, (row_number() over (order by id) - 1) / %(ops)s as by_ops,
        sum(length) over (order by id) / %(bytes)s as by_bytes
    from (
        select id, octet_length(line) as length from ops
        where bucket = %(bucket)s and id between %(first)s and %(upto)s
    ) found
) numbered group by by_ops, by_bytes order by 1
"""

_PURGE_HOT = """
with gone as (select id from ops where bucket = %(bucket)s and id < %(clear)s order by id limit %(limit)s)
delete from ops o using gone where o.bucket = %(bucket)s and o.id = gone.id
"""

_PURGE_SEGMENTS = """
with gone as (
    delete from segments where bucket = %(bucket)s and last_op in (
        select last_op from segments where bucket = %(bucket)s and last_op < %(clear)s order by last_op limit %(limit)s
    ) returning blob
)
delete from segment_blobs b using gone where b.id = gone.blob
"""


class PostgresCompaction:
    """See `storage.contract.compaction.CompactionStore`."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._db = connect(address, "upkeep")

    # the lease

    def acquire(self, owner: str, ttl: float) -> Lease:
        with postgres_errors(self._address):
            return leases.acquire(self._db, LEASE, owner, ttl)

    def renew(self, lease: Lease) -> None:
        with postgres_errors(self._address):
            leases.extend(self._db, lease)

    def release(self, lease: Lease) -> None:
        with postgres_errors(self._address):
            leases.release(self._db, lease)

    @contextmanager
    def _step(self, lease: Lease) -> Iterator[psycopg.Connection]:
        """One transaction that changes history."""
        with postgres_errors(self._address):
            with leases.holding(self._db, lease):
                yield self._db
                failpoint("compact.before_commit")
            failpoint("compact.after_commit")

    # reading

    def checkpoint(self) -> OpId:
        with postgres_errors(self._address):
            return OpId(self._db.execute("select coalesce(checkpoint, 0) from state").fetchall()[0][0])

    def bucket(self, key: int) -> BucketState | None:
        with postgres_errors(self._address):
            row = self._db.execute(f"{_STATE} where id = %s".encode(), [key]).fetchone()
        return None if row is None else BucketState(*row)

    def buckets(self, changed_after: OpId) -> list[BucketState]:
        with postgres_errors(self._address):
            rows = self._db.execute(f"{_STATE} where last_op > %s order by id".encode(), [changed_after])
            return [BucketState(*row) for row in rows]

    def unsealed_ops(self, bucket: int, upto: OpId, limit: int) -> int:
        with postgres_errors(self._address):
            counted = self._db.execute(_UNSEALED, {"bucket": bucket, "upto": upto, "limit": limit})
            return int(counted.fetchall()[0][0])

    def has_remains(self, bucket: int) -> bool:
        query = (
            "select 1 from buckets b where b.id = %s"
            " and (exists (select 1 from ops o where o.bucket = b.id and o.id < b.clear_op)"
            " or exists (select 1 from segments s where s.bucket = b.id and s.last_op < b.clear_op))"
        )
        with postgres_errors(self._address):
            return self._db.execute(query, [bucket]).fetchone() is not None

    def pieces(self, bucket: int, upto: OpId) -> list[Piece]:
        with postgres_errors(self._address), self._db.transaction():
            self._db.execute("set transaction isolation level repeatable read, read only")
            found = self._db.execute("select clear_op from buckets where id = %s", [bucket]).fetchone()
            if found is None:
                return []
            start = int(found[0])
            pieces: list[Piece] = []
            for segment in self._db.execute(_SEGMENTS, [bucket, start]).fetchall():
                piece = Piece(*segment)
                if piece.last > upto:
                    return pieces + self._hot_pieces(bucket, start, min(piece.first - 1, upto))
                pieces += [*self._hot_pieces(bucket, start, piece.first - 1), piece]
                start = piece.last + 1
            return pieces + self._hot_pieces(bucket, start, upto)

    def _hot_pieces(self, bucket: int, first: int, upto: int) -> list[Piece]:
        if first > upto:
            return []
        bounds = {"bucket": bucket, "first": first, "upto": upto, "ops": _HOT_OPS, "bytes": _HOT_BYTES}
        rows = self._db.execute(_HOT, bounds).fetchall()
        return [Piece(OpId(low), OpId(high), size, 0, False, int(length)) for low, high, size, length in rows]

    def read(self, bucket: int, piece: Piece) -> bytes:
        with postgres_errors(self._address):
            return self._segment_lines(bucket, piece) if piece.blob else self._hot_lines(bucket, piece)

    def _hot_lines(self, bucket: int, piece: Piece) -> bytes:
        query = "select line from ops where bucket = %s and id between %s and %s order by id"
        lines = [row[0] for row in self._db.execute(query, [bucket, piece.first, piece.last])]
        if len(lines) != piece.size:
            raise _changed(bucket)
        return "\n".join(lines).encode()

    def _segment_lines(self, bucket: int, piece: Piece) -> bytes:
        query = "select bodies from segment_blobs where id = %s and bucket = %s"
        row = self._db.execute(query, [piece.blob, bucket], binary=True).fetchone()
        if row is None:
            raise _changed(bucket)
        content = unpacked(row[0])
        if piece.sealed:
            return content
        bodies = content.split(b"\n")
        return b"\n".join([b'{"op_id":"%d",%b' % pair for pair in enumerate(bodies, piece.first)])

    def rows_after(self, bucket: int, seen: OpId) -> tuple[set[int], OpId]:
        with postgres_errors(self._address), self._db.transaction():
            # Ops and segments of one moment
            self._db.execute("set transaction isolation level repeatable read, read only")
            return _rows_after(self._db, bucket, seen)

    # writing

    def reput(self, lease: Lease, bucket: BucketState, seen: OpId, rows: Sequence[Reput]) -> tuple[int, OpId]:
        with self._step(lease) as db:
            next_op = int(db.execute("select next_op from state for update").fetchall()[0][0])
            _lock_same(db, bucket)
            changed, newest = _rows_after(db, bucket.key, seen)
            rows = [row for row in rows if row.row not in changed]
            if rows:
                newest = _append(db, bucket, next_op, rows)
                db.execute("select pg_notify(%s, '')", [self._address.schema])
        return len(rows), newest

    def clear(self, lease: Lease, bucket: BucketState, cut: Piece, cleared: Cleared, compacted_op: OpId) -> list[Piece]:
        line = clear_line(cleared.op_id, cleared.checksum)
        with self._step(lease) as db:
            _lock_same(db, bucket)
            _check_there(db, bucket.key, cut)
            placed: list[Piece] = []
            if cut.blob:
                _drop_segment(db, bucket.key, cut)
                placed = [_insert_segment(db, bucket.key, run) for run in cleared.rest]
                query = "insert into ops (bucket, id, line) values (%s, %s, %s)"
                db.execute(query, [bucket.key, cleared.op_id, line])
            else:
                query = "update ops set line = %s where bucket = %s and id = %s"
                db.execute(query, [line, bucket.key, cleared.op_id])
            db.execute(
                "update buckets set count = count - %s + 1, clear_op = %s, compacted_op = greatest(compacted_op, %s)"
                " where id = %s",
                [cleared.replaced, cleared.op_id, compacted_op, bucket.key],
            )
        clear = Piece(cleared.op_id, cleared.op_id, 1, 0, False, len(line))
        if not cut.blob:
            with postgres_errors(self._address):
                placed = self._hot_pieces(bucket.key, cleared.op_id + 1, cut.last)
        return [clear, *placed]

    def replace(
        self, lease: Lease, bucket: BucketState, old: Sequence[Piece], new: Sequence[SealedRun], compacted_op: OpId
    ) -> list[Piece]:
        with self._step(lease) as db:
            _lock_same(db, bucket)
            for piece in old:
                _check_there(db, bucket.key, piece)
                if piece.blob:
                    _drop_segment(db, bucket.key, piece)
                else:
                    query = "delete from ops where bucket = %s and id between %s and %s"
                    db.execute(query, [bucket.key, piece.first, piece.last])
            placed = [_insert_segment(db, bucket.key, run) for run in new]
            query = "update buckets set compacted_op = %s where id = %s and compacted_op < %s"
            db.execute(query, [compacted_op, bucket.key, compacted_op])
        return placed

    def purge(self, lease: Lease, bucket: int, limit: int) -> bool:
        with self._step(lease) as db:
            row = db.execute("select clear_op from buckets where id = %s for update", [bucket]).fetchone()
            if row is None:
                return False
            clear_op = row[0]
            query = "update buckets set compacted_op = %s where id = %s and compacted_op < %s"
            db.execute(query, [clear_op, bucket, clear_op])
            hot = db.execute(_PURGE_HOT, {"bucket": bucket, "clear": clear_op, "limit": limit}).rowcount
            few = {"bucket": bucket, "clear": clear_op, "limit": max(1, limit // RUN_OPS)}
            return db.execute(_PURGE_SEGMENTS, few).rowcount > 0 or hot >= limit

    def finish(self, lease: Lease, bucket: BucketState, count: int, live_rows: int) -> None:
        with self._step(lease) as db:
            query = "update buckets set compacted_count = %s, live_rows = %s where id = %s and clear_op >= %s"
            db.execute(query, [count, live_rows, bucket.key, bucket.clear_op])

    def prune(self, lease: Lease, flushes: int) -> int:
        with self._step(lease) as db:
            return db.execute(
                "delete from flushes where last_op in (select last_op from flushes where last_op <= coalesce("
                "(select last_op from flushes order by last_op desc limit 1 offset %s), 0) order by last_op limit %s)",
                [flushes, _PRUNED_AT_ONCE],
            ).rowcount

    def close(self) -> None:
        self._db.close()


def _changed(bucket: int) -> HistoryChangedError:
    return HistoryChangedError("a bucket's history changed meanwhile", f"bucket key {bucket}", "it is read again")


def _lock_same(db: psycopg.Connection, bucket: BucketState) -> None:
    """Lock the bucket until the commit. Raises HistoryChangedError when it is gone or was cleared since."""
    row = db.execute("select clear_op from buckets where id = %s for update", [bucket.key]).fetchone()
    if row is None or row[0] != bucket.clear_op:
        raise _changed(bucket.key)


def _check_there(db: psycopg.Connection, bucket: int, piece: Piece) -> None:
    """Check that the piece is as it was read. Ops and segments are never changed, only replaced as a whole."""
    if piece.blob:
        query = "select first_op, blob from segments where bucket = %s and last_op = %s"
        same = db.execute(query, [bucket, piece.last]).fetchone() == (piece.first, piece.blob)
    else:
        query = "select count(*) from ops where bucket = %s and id between %s and %s"
        same = db.execute(query, [bucket, piece.first, piece.last]).fetchone() == (piece.size,)
    if not same:
        raise _changed(bucket)


def _rows_after(db: psycopg.Connection, bucket: int, seen: int) -> tuple[set[int], OpId]:
    return changed_rows(_ops_after(db, bucket, seen), seen)


def _ops_after(db: psycopg.Connection, bucket: int, seen: int) -> Iterator[Line]:
    yield from db.execute("select id, line from ops where bucket = %s and id > %s", [bucket, seen])
    with db.cursor(name="segments_after") as cursor:  # they may be many, and large
        cursor.itersize = _SEGMENTS_AT_ONCE
        for first, sealed, bodies in cursor.execute(_SEGMENTS_AFTER, [bucket, seen], binary=True):
            if bodies is None:
                raise _changed(bucket)
            yield from ((op_id, line) for op_id, line in segment_lines(first, sealed, bodies) if op_id > seen)


def _append(db: psycopg.Connection, bucket: BucketState, first: int, rows: Sequence[Reput]) -> OpId:
    """Do what a flush with these rows would do. Returns the last op id given out."""
    last = first + len(rows) - 1
    ids = list(range(first, last + 1))
    lines = [finished_op(op_id, row.body) for op_id, row in zip(ids, rows, strict=True)]
    query = (
        "insert into ops (bucket, id, line) select %s, id, line from unnest(%s::bigint[], %s::text[]) as o (id, line)"
    )
    db.execute(query, [bucket.key, ids, lines])
    db.execute(
        "update buckets set checksum = (checksum + %s) & 4294967295, count = count + %s, last_op = %s where id = %s",
        [sum(row.checksum for row in rows) & 0xFFFFFFFF, len(rows), last, bucket.key],
    )
    db.execute("update state set next_op = %s, checkpoint = %s", [last + 1, last])
    # They come from no commit of a source, so they name none
    db.execute(
        "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups) values (%s, '', 0, 0, %s, '[]')",
        [last, orjson.dumps([bucket.name]).decode()],
    )
    return OpId(last)


def _insert_segment(db: psycopg.Connection, bucket: int, run: SealedRun) -> Piece:
    query = "insert into segment_blobs (bucket, size, checksum, bodies) values (%s, %s, %s, %s) returning id"
    blob = int(db.execute(query, [bucket, run.size, run.checksum, run.blob]).fetchall()[0][0])
    query = "insert into segments (bucket, first_op, last_op, blob, sealed) values (%s, %s, %s, %s, true)"
    db.execute(query, [bucket, run.first, run.last, blob])
    return Piece(run.first, run.last, run.size, blob, True, len(run.blob))


def _drop_segment(db: psycopg.Connection, bucket: int, piece: Piece) -> None:
    db.execute("delete from segments where bucket = %s and last_op = %s", [bucket, piece.last])
    db.execute("delete from segment_blobs where id = %s", [piece.blob])
