"""Reads chunks of one bucket's history. Postgres joins the ops of the hot tail; segments are joined here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

import psycopg

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.storage.shared.chunking import ChunkParts
from headwater.storage.shared.common import CHUNK_BYTES, CHUNK_OPS
from headwater.storage.shared.packing import unpacked

_SEGMENTS = 64  # read at most for one chunk; usually one is enough

# Where to start: a client that has not passed the last CLEAR needs nothing before it
_START = """
select case when b.clear_op > %(after)s and b.clear_op <= %(upto)s then b.clear_op - 1 else %(after)s end as position,
    b.compacted_op > %(upto)s as overtaken
from buckets b where b.id = %(bucket)s
"""

_HOT = f"""
with start as materialized (
    select position, overtaken, exists (
        select 1 from segments s where s.bucket = %(bucket)s and s.last_op > position and s.first_op <= %(upto)s
    ) as segmented from ({_START}) b
), candidates as materialized (
    select o.id, o.line, row_number() over (order by o.id) as number,
        sum(octet_length(o.line)) over (order by o.id) as bytes
    from start cross join lateral (
        select id, line from ops where bucket = %(bucket)s and id > position and id <= %(upto)s and not segmented
        order by id limit {CHUNK_OPS + 1}
    ) o
), taken as (
    select convert_to(string_agg(line, ',' order by id), 'UTF8') as ops, count(*) as size, max(id) as last
    from candidates where number = 1 or (number <= {CHUNK_OPS} and bytes <= {CHUNK_BYTES})
)
select segmented, overtaken, ops, size, last, (select count(*) from candidates) > size from start, taken
"""

# As many as fit in a chunk, and the number of segments found, up to the limit
_RUNS = f"""
select r.first_op, r.last_op, r.sealed, r.size, g.bodies, r.candidates from (
    select *, row_number() over (order by last_op) as number, sum(size) over (order by last_op) as upto,
        sum(length) over (order by last_op) as bytes, count(*) over () as candidates
    from (
        select s.first_op, s.last_op, s.sealed, s.blob, g.size, octet_length(g.bodies) as length
        from segments s join segment_blobs g on g.id = s.blob
        where s.bucket = %(bucket)s and s.last_op > %(position)s and s.first_op <= %(upto)s
        order by s.last_op limit {_SEGMENTS}
    ) s
) r join segment_blobs g on g.id = r.blob
where number = 1 or (upto <= {CHUNK_OPS} and bytes <= {CHUNK_BYTES}) order by r.last_op
"""

# As many as may fit in a chunk, and one more if there are more
_LINES = f"""
select id, convert_to(line, 'UTF8') from (
    select id, line, row_number() over (order by id) as number,
        sum(octet_length(line)) over (order by id) - octet_length(line) as before
    from (
        select id, line from ops where bucket = %(bucket)s and id > %(position)s and id <= %(upto)s
        order by id limit {CHUNK_OPS + 1}
    ) o
) o where number <= 2 or before <= {CHUNK_BYTES} order by id
"""


def read_hot_chunk(connection: psycopg.Connection, bucket: int, after: OpId, upto: OpId) -> Chunk | None:
    """The chunk if it consists of ops of the hot tail only, else None."""
    question = {"bucket": bucket, "after": after, "upto": upto}
    row = connection.execute(_HOT, question, binary=True).fetchone()
    if row is None:
        return Chunk(b"", 0, after, more=False)  # there is no such bucket
    segmented, overtaken, ops, size, last, more = row
    if segmented:
        return None
    return Chunk(ops or b"", size, OpId(last or after), more=more, overtaken=overtaken)


def read_chunk(connection: psycopg.Connection, bucket: int, after: OpId, upto: OpId) -> Chunk:
    """A chunk that contains segments. Call it within a repeatable-read transaction."""
    question = {"bucket": bucket, "after": after, "upto": upto}
    row = connection.execute(_START, question).fetchone()
    if row is None:
        return Chunk(b"", 0, after, more=False)
    position, overtaken = row
    runs = connection.execute(_RUNS, {**question, "position": position}, binary=True).fetchall()
    looked_at = runs[-1][-1] if runs else 0
    covered = upto if looked_at == len(runs) < _SEGMENTS else runs[-1][1]
    lines = connection.execute(_LINES, {**question, "position": position, "upto": covered}, binary=True).fetchall()
    parts = ChunkParts(upto)
    complete = _take(parts, runs, lines, position)
    return parts.chunk(after, more=not complete or covered < upto, overtaken=overtaken)


def _take(
    parts: ChunkParts,
    runs: Sequence[tuple[int, int, bool, int, bytes, int]],
    lines: Sequence[tuple[int, bytes]],
    position: int,
) -> bool:
    """Add segments and the ops of the hot tail between them. Returns False when they don't all fit."""
    start = 0
    for first, last, sealed, size, bodies, _ in runs:
        end = bisect_left(lines, first, key=itemgetter(0))
        if not parts.take_lines(lines[start:end]):
            return False
        start = end
        if not parts.take_segment(unpacked(bodies), (first, last), size, position, sealed=sealed):
            return False
        position = last
    return parts.take_lines(lines[start:])
