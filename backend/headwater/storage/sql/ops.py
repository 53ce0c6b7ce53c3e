"""How ops get into a history and out of it, each function within a write transaction."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.storage.contract.compaction import SealedRun
from headwater.storage.shared.segments import Run
from headwater.storage.sql.cursor import Cursor, Value


def lock_state(db: Cursor) -> int:
    """Take the store's lock, under which ops are numbered, until the commit. Returns the next op id."""
    return int(db.rows(f"select next_op from state{db.dialect.for_update}")[0][0])


def move_checkpoint(db: Cursor, op: int, source: str, buckets: str | None, lookups: str | None) -> None:
    """Make `op` the checkpoint, and record a flush that brought no commit of the source.
    `buckets` and `lookups` are what it touched, as JSON lists; None means anything."""
    db.execute("update state set next_op = ?, checkpoint = ?", op + 1, op)
    db.execute(
        "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
        " select ?, tag, lsn, 0, ?, ? from sources where tag = ?",
        *(op, buckets, lookups, source),
    )


INSERT_CLEARS = """
insert into ops (bucket, id, line) select id, clear_op, '{"op_id":"' || clear_op || '",' || ?2 from buckets
where clear_op >= ?1"""
"""Inserts the CLEARs, with the body ?2, of buckets that were given ids from ?1 on for them. No other bucket has one
there, since that takes the store's lock."""

_GIVE_CLEARS = """
update buckets as b set checksum = 0, count = 1, clear_op = f.op, last_op = f.op from (
    select id, ?1 + row_number() over (order by id) - 1 as op from buckets where last_op > clear_op and {which}
) f where b.id = f.id
"""


def give_clears(db: Cursor, next_op: int, condition: str = "true", *values: Value) -> int:
    """Empty the buckets with history that satisfy a condition, and give each an id for its CLEAR from `next_op` on, by
    key. Returns how many. One statement chooses and changes them, for compaction may clear a bucket meanwhile; only
    then INSERT_CLEARS."""
    return db.execute(_GIVE_CLEARS.format(which=condition), next_op, *values)


ADD_OPS = """
update buckets set checksum = (checksum + ?) & 4294967295, count = count + ?, last_op = ? where id = ?
"""
"""Adds the sum of the checksums and the number of ops that a bucket got, of which the last one is given."""


def insert_segments(db: Cursor, segments: Sequence[tuple[int, Run | SealedRun]]) -> list[int]:
    """Store segments, each given with its bucket; returns their blobs. The totals of the buckets are the caller's."""
    insert = "insert into segment_blobs (bucket, size, checksum, bodies) values (?, ?, ?, ?) returning id"
    rows = db.execute_many(insert, [(bucket, run.size, run.checksum, run.bodies) for bucket, run in segments])
    blobs = [int(blob) for (blob,) in rows]
    db.execute_many(
        "insert into segments (bucket, first_op, last_op, blob, sealed) values (?, ?, ?, ?, ?)",
        [
            (bucket, run.first, run.last, blob, isinstance(run, SealedRun))
            for (bucket, run), blob in zip(segments, blobs, strict=True)
        ],
    )
    return blobs


def drop_segments(db: Cursor, segments: Sequence[Sequence[int]]) -> None:
    """Delete segments, each given as bucket, first op, last op and blob."""
    some = "delete from segments where bucket = ? and first_op = ? and last_op = ?"
    db.execute_many(some, [row[:3] for row in segments])
    db.execute_many("delete from segment_blobs where id = ?", [row[3:] for row in segments])
