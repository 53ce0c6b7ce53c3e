"""Putting a chunk together, the same for every back end: a sealed segment goes out as it was packed, and only where a
chunk begins or ends within a segment is there a look at single ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headwater.oplog.op import OpId
from headwater.storage.contract.store import Chunk
from headwater.storage.shared.common import CHUNK_BYTES, CHUNK_OPS
from headwater.storage.shared.render import numbered


class ChunkParts:
    """Collects finished ops up to `upto`, in the order of their ids, until there is no room for more."""

    def __init__(self, upto: int) -> None:
        self._upto = upto
        self._parts: list[bytes] = []
        self._bytes = 0
        self._last = 0
        self.size = 0

    def take_segment(self, content: bytes, ends: tuple[int, int], size: int, position: int, *, sealed: bool) -> bool:
        """Take of a segment, given decompressed, what is between `position` and the end; False when there is no room
        for all of it."""
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
        """Take finished ops with their ids one by one; False when there is no room for all of them."""
        for op_id, line in ops:
            if self._parts and not self.fits(1, len(line)):
                return False
            self.add(line, 1, op_id)
        return True

    def fits(self, size: int, length: int) -> bool:
        """Whether there is room for so many ops of so many bytes."""
        return self.size + size <= CHUNK_OPS and self._bytes + length <= CHUNK_BYTES

    def is_too_long(self, first: int, last: int, size: int, position: int) -> bool:
        """Whether a segment need not be read, for `take_segment` would refuse it."""
        return bool(self._parts) and self.size + size > CHUNK_OPS and first > position and last <= self._upto

    def add(self, ops: bytes, size: int, last: int) -> None:
        """Take finished ops joined by commas, for which there is room."""
        self._parts.append(ops)
        self.size += size
        self._bytes += len(ops)
        self._last = last

    def chunk(self, after: OpId, *, more: bool, overtaken: bool) -> Chunk:
        """What was taken."""
        last = OpId(self._last) if self._parts else after
        return Chunk(b",".join(self._parts), self.size, last, more, overtaken)


def _between(ops: bytes, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
    """The ops of a segment after one op and up to another."""
    for line in ops.split(b"\n"):
        op_id = int(line[10 : line.index(b'"', 10)])  # a finished op begins with {"op_id":"
        if after < op_id <= upto:
            yield op_id, line
