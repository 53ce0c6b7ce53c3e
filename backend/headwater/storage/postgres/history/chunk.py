"""Reads chunks of one bucket's history. Postgres joins the ops of the hot tail; segments are joined here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

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
from buckets b where b.id = %(bucket)s and b.name = %(name)s
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

# One statement, thus one moment: where to start and how many segments there are, up to the limit (kind 0); the segments
# that fit in a chunk (1); and of the ops beside them as many as may fit, and one more if there are more (2)
_MIXED = f"""
with start as materialized ({_START}), candidates as materialized (
    select s.first_op, s.last_op, s.sealed, s.blob, g.size, octet_length(g.bodies) as length
    from start cross join lateral (
        select first_op, last_op, sealed, blob from segments
        where bucket = %(bucket)s and last_op > position and first_op <= %(upto)s order by last_op limit {_SEGMENTS}
    ) s join segment_blobs g on g.id = s.blob
), runs as materialized (
    select * from (
        select *, row_number() over (order by last_op) as number, sum(size) over (order by last_op) as ops,
            sum(length) over (order by last_op) as bytes
        from candidates
    ) c where number = 1 or (ops <= {CHUNK_OPS} and bytes <= {CHUNK_BYTES})
), covered as materialized (
    select position, case when found = taken and found < {_SEGMENTS} then %(upto)s else last end as upto, found
    from start, (select count(*) as found from candidates) f,
        (select count(*) as taken, max(last_op) as last from runs) t
), lines as (
    select id, line from (
        select o.id, o.line, row_number() over (order by o.id) as number,
            sum(octet_length(o.line)) over (order by o.id) - octet_length(o.line) as before
        from covered cross join lateral (
            select id, line from ops where bucket = %(bucket)s and id > position and id <= upto
            order by id limit {CHUNK_OPS + 1}
        ) o
    ) o where number <= 2 or before <= {CHUNK_BYTES}
)
select 0, position, covered.upto, overtaken, null::bigint, null::bytea from start join covered using (position)
union all
select 1, first_op, last_op, sealed, r.size, g.bodies from runs r join segment_blobs g on g.id = r.blob
union all
select 2, id, id, null, null, convert_to(line, 'UTF8') from lines
order by 1, 3
"""


class _Question(NamedTuple):
    """A bucket, by key and name, and which of its ops to read."""

    bucket: int
    name: str
    after: OpId
    upto: OpId


def read_chunk(connection: psycopg.Connection, hashed: int, name: str, after: OpId, upto: OpId) -> Chunk:
    """See `storage.contract.reader.StoreReader.chunk`. `hashed` is the hash of the name."""
    found = _read(connection, _Question(hashed, name, after, upto))
    if found is None:
        moved = connection.execute("select id from moved_buckets where name = %s", [name]).fetchone()
        found = None if moved is None else _read(connection, _Question(moved[0], name, after, upto))
    return Chunk(b"", 0, after, more=False) if found is None else found


def _read(connection: psycopg.Connection, question: _Question) -> Chunk | None:
    """None when there is no such bucket."""
    row = connection.execute(_HOT, question._asdict(), binary=True).fetchone()
    if row is None:
        return None
    segmented, overtaken, ops, size, last, more = row
    if segmented:
        return _read_mixed(connection, question)
    return Chunk(ops or b"", size, OpId(last or question.after), more=more, overtaken=overtaken)


def _read_mixed(connection: psycopg.Connection, question: _Question) -> Chunk | None:
    """A chunk that contains segments."""
    rows = connection.execute(_MIXED, question._asdict(), binary=True).fetchall()
    if not rows:
        return None
    _, position, covered, overtaken, _, _ = rows[0]
    runs = [row[1:] for row in rows if row[0] == 1]
    lines = [(row[1], row[5]) for row in rows if row[0] == 2]
    parts = ChunkParts(question.upto)
    complete = _take(parts, runs, lines, position)
    return parts.chunk(question.after, more=not complete or covered < question.upto, overtaken=overtaken)


def _take(
    parts: ChunkParts,
    runs: Sequence[tuple[int, int, bool, int, bytes]],
    lines: Sequence[tuple[int, bytes]],
    position: int,
) -> bool:
    """Add segments and the ops of the hot tail between them. Returns False when they don't all fit."""
    start = 0
    for first, last, sealed, size, bodies in runs:
        end = bisect_left(lines, first, key=itemgetter(0))
        if not parts.take_lines(lines[start:end]):
            return False
        start = end
        if not parts.take_segment(unpacked(bodies), (first, last), size, position, sealed=sealed):
            return False
        position = last
    return parts.take_lines(lines[start:])
