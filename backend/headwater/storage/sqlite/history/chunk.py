"""Reads chunks of one bucket's history; SQLite joins the ops of the hot tail."""

from __future__ import annotations

import apsw

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.storage.contract.store import StoreError
from headwater.storage.shared.chunking import ChunkParts
from headwater.storage.shared.common import CHUNK_OPS
from headwater.storage.shared.packing import unpacked
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.runs import AFTER

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


NAMED = "id in (?1, (select id from moved_buckets where name = ?2)) and name = ?2"
"""The condition that a bucket is the one with a name, given the hash of the name and the name."""

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
        room = CHUNK_OPS - self.parts.size
        if room <= 0:
            return not self._any_hot(after, upto)
        size, length = map(as_int, self._db.execute(_HOT_SIZE, (self._bucket, after, upto, room)).fetchall()[0])
        fits = self.parts.fits(size, length)
        end = upto if fits else self._last_fitting(after, upto)
        if size == 0 or end == after:
            return size == 0
        taken, last, ops = self._db.execute(_HOT, (self._bucket, after, end, room)).fetchall()[0]
        assert isinstance(ops, bytes)
        self.parts.add(ops, as_int(taken), as_int(last))
        return fits and (size != room or not self._any_hot(as_int(last), upto))

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
