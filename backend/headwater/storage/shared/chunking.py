"""Assembling a chunk, for every back end. A sealed segment is sent as it was packed; single ops are only looked at
where a chunk begins or ends within a segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.storage.shared.common import CHUNK_BYTES, CHUNK_OPS
from headwater.storage.shared.render import numbered


class ChunkParts:
    """Collects finished ops up to `upto`, in order of their ids, until the chunk is full."""

    def __init__(self, upto: int) -> None:
        self._upto = upto
        self._parts: list[bytes] = []
        self._bytes = 0
        self._last = 0
        self.size = 0

    def take_segment(self, content: bytes, ends: tuple[int, int], size: int, position: int, *, sealed: bool) -> bool:
        """Add the ops of a decompressed segment between `position` and the end. Returns False when they don't all
        fit."""
        first, last = ends
        ops = content if sealed else numbered(content, first)
        if first > position and last <= self._upto:
            if self.fits(size, len(ops)):
                self.add(ops.replace(b"\n", b","), size, last)
                return True
            if self._parts:
                return False  # the next chunk then begins where the segment does, and is quickly made
        return self.take_lines(_between(ops, position, self._upto))

    def take_lines(self, ops: Iterable[tuple[int, bytes]]) -> bool:
        """Add finished ops one by one. Returns False when they don't all fit."""
        for op_id, line in ops:
            if self._parts and not self.fits(1, len(line)):
                return False
            self.add(line, 1, op_id)
        return True

    def fits(self, size: int, length: int) -> bool:
        """Whether `size` more ops of `length` bytes fit."""
        return self.size + size <= CHUNK_OPS and self._bytes + length <= CHUNK_BYTES

    def is_too_long(self, first: int, last: int, size: int, position: int) -> bool:
        """Whether `take_segment` would refuse a segment, so that it need not be read."""
        return bool(self._parts) and self.size + size > CHUNK_OPS and first > position and last <= self._upto

    def add(self, ops: bytes, size: int, last: int) -> None:
        """Add finished ops joined by commas, which the caller has checked to fit."""
        self._parts.append(ops)
        self.size += size
        self._bytes += len(ops)
        self._last = last

    def chunk(self, after: OpId, *, more: bool, overtaken: bool) -> Chunk:
        """The chunk of everything that was added."""
        last = OpId(self._last) if self._parts else after
        return Chunk(b",".join(self._parts), self.size, last, more, overtaken)


def _between(ops: bytes, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
    """The ops of a segment after `after` and up to `upto`."""
    for line in ops.split(b"\n"):
        op_id = int(line[10 : line.index(b'"', 10)])  # a finished op begins with {"op_id":"
        if after < op_id <= upto:
            yield op_id, line
