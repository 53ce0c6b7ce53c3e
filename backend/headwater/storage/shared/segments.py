"""Segments of a history: compressed runs of one bucket's ops, each small enough for a chunk. How ops are packed into
them and numbered, how they are unpacked, and how chunks are assembled of them. Pure, and the same for every database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import orjson
import zstandard

from headwater.oplog.keys import in_memory
from headwater.oplog.op import OpId, finished_op
from headwater.oplog.transform import DraftOp
from headwater.storage.contract.history import HistoryOp
from headwater.storage.contract.reader import Chunk
from headwater.storage.contract.store import StoreError
from headwater.storage.shared.common import CHUNK_BYTES, CHUNK_OPS, SEGMENT_BYTES, SEGMENT_OPS, batched

_BUFFERED_BYTES = 64 << 20

Keep = Callable[[int, int, int, bytes], None]
"""Stores a finished segment: bucket, number of ops, sum of their checksums, compressed bodies."""


class _Run:
    """Ops of one bucket that are not yet a segment."""

    __slots__ = ("bodies", "bytes", "checksum")

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.bytes = 0
        self.checksum = 0


class SegmentPacker:
    """Collects ops by bucket and passes segments to `keep`, in the order of each bucket's ops."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._runs: dict[int, _Run] = {}
        self._buffered = 0
        # One compressor for all: making one costs more than a small segment
        self._compressor = compressor(level=1)

    def add(self, ops: Sequence[DraftOp]) -> None:
        runs = self._runs
        for bucket, checksum, body in ops:
            run = runs.get(bucket)
            if run is None:
                run = runs[bucket] = _Run()
            size = len(body)
            if run.bodies and run.bytes + size > SEGMENT_BYTES:
                self._seal(bucket, run)
            run.bodies.append(body)
            run.bytes += size
            run.checksum += checksum
            self._buffered += size
            if len(run.bodies) >= SEGMENT_OPS:
                self._seal(bucket, run)
        if self._buffered > _BUFFERED_BYTES:
            self.seal_all()

    def seal_all(self) -> None:
        """Make segments of all collected ops."""
        for bucket, run in self._runs.items():
            if run.bodies:
                self._seal(bucket, run)
        self._runs.clear()
        self._buffered = 0

    def _seal(self, bucket: int, run: _Run) -> None:
        blob = self._compressor.compress("\n".join(run.bodies).encode())
        self._keep(bucket, len(run.bodies), run.checksum & 0xFFFFFFFF, blob)
        self._buffered -= run.bytes
        run.bodies, run.bytes, run.checksum = [], 0, 0


# compression: each frame carries its own checksum, so that damage on the disk is found before it reaches a device


def compressor(level: int) -> zstandard.ZstdCompressor:
    """A compressor for segment contents."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True)


def unpacked(blob: bytes) -> bytes:
    """The decompressed content of a segment. Raises StoreError."""
    try:
        return zstandard.decompress(blob)
    except (zstandard.ZstdError, MemoryError) as error:
        raise StoreError(
            f"a segment of the history is damaged: {error}", "segment_blobs", "run `headwater audit --repair`"
        ) from error


# numbering


def numbered(bodies: bytes, first: int) -> bytes:
    """Finished ops with ids counting up from `first`, from their bodies; both joined by newlines."""
    # Formatting the whole text at once costs half of what it costs op by op
    pattern = bodies.replace(b"%", b"%%").replace(b"\n", b'\n{"op_id":"%d",')
    return (b'{"op_id":"%d",' + pattern) % tuple(range(first, first + bodies.count(b"\n") + 1))


RUN_OPS = 100
"""The fewest ops of a bucket that make a run. Reading many short ones would cost more than reading their ops."""

_bucket_of = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Run:
    """A segment of `size` ops with consecutive ids from `first`; `bodies` are compressed, and have no ids."""

    bucket: int
    first: int
    size: int
    checksum: int
    bodies: bytes

    @property
    def last(self) -> int:
        return self.first + self.size - 1


@dataclass(slots=True)
class BucketSum:
    """What a flush adds to a bucket."""

    checksum: int = 0
    count: int = 0
    last_op: int = 0


KeepRun = Callable[[Run], None]
"""Stores a run."""


def number_ops(
    ops: Sequence[DraftOp], first: int, sums: dict[int, BucketSum], keep: KeepRun
) -> tuple[Sequence[DraftOp], int]:
    """Number ops from `first`, in the order given within each bucket, and add them to `sums`. Passes each run to `keep`
    when it is packed. Returns the ops that belong to none, and the id of the first of them."""
    large = _large_buckets(ops)
    if large:
        first = _pack([op for op in ops if op[0] in large], first, sums, keep)
        ops = [op for op in ops if op[0] not in large]
    for op_id, (bucket, checksum, _) in enumerate(ops, first):
        _add(sums, bucket, checksum, 1, op_id)
    return ops, first


def _large_buckets(ops: Sequence[DraftOp]) -> set[int]:
    if len(ops) < RUN_OPS:
        return set()
    return {bucket for bucket, count in Counter(map(_bucket_of, ops)).items() if count >= RUN_OPS}


def _pack(ops: Sequence[DraftOp], first: int, sums: dict[int, BucketSum], keep: KeepRun) -> int:
    """Pack all ops into runs. Returns the next id."""

    def number(bucket: int, size: int, checksum: int, bodies: bytes) -> None:
        nonlocal first
        run = Run(bucket, first, size, checksum, bodies)
        first += size
        _add(sums, bucket, checksum, size, run.last)
        keep(run)

    packer = SegmentPacker(number)
    packer.add(ops)
    packer.seal_all()
    return first


def _add(sums: dict[int, BucketSum], bucket: int, checksum: int, count: int, last_op: int) -> None:
    total = sums.get(bucket)
    if total is None:
        total = sums[bucket] = BucketSum()
    total.checksum += checksum
    total.count += count
    total.last_op = last_op


# unpacking

_BATCH_OPS = 5_000
_BATCH_BYTES = 8 << 20

Line = tuple[int, str]
"""A finished op with its id."""


def op_id_of(finished: bytes) -> int:
    """The id of a finished op, which begins with {"op_id":"<id>","""
    return int(finished[10 : finished.index(b'"', 10)])


def segment_lines(first: int, sealed: bool, bodies: bytes) -> list[Line]:
    """The finished ops of a segment whose first op is `first`, in order."""
    lines = unpacked(bodies).decode().split("\n")
    if not sealed:
        return [(op_id, finished_op(op_id, body)) for op_id, body in enumerate(lines, first)]
    # A finished op is {"op_id":"<id>", and its body
    return [(int(line[10 : line.index('"', 10)]), line) for line in lines]


def batches(ops: Iterable[HistoryOp]) -> Iterator[list[HistoryOp]]:
    """Batches that are limited in number of ops and, to bound memory, in size."""
    return batched(ops, lambda op: len(op.line), _BATCH_OPS, _BATCH_BYTES)


def standing(newest_first: Iterable[Line]) -> Iterator[Line]:
    """The live PUTs of one bucket, given its ops from the newest to the oldest: the newest op of a row decides whether
    it is live."""
    seen: set[int] = set()  # digests: a bucket may have millions of rows
    for op_id, line in newest_first:
        op = orjson.loads(line)
        if op["op"] == "CLEAR":
            return
        if op["op"] == "MOVE":
            continue
        row = in_memory(f"{op['object_type']}\0{op['object_id']}\0{op['subkey']}".encode())
        if row not in seen:
            seen.add(row)
            if op["op"] == "PUT":
                yield op_id, line


def cut_up(groups: Iterable[tuple[int, int]], after: OpId, upto: OpId, ops: int) -> list[tuple[OpId, OpId]]:
    """(after, upto] as ranges of about `ops` ops, from groups of ops: the last id and the number of each."""
    cuts: list[int] = []
    held, found = 0, False
    for last, count in sorted(groups):
        found = True
        held += count
        if held >= ops and last < upto:
            cuts.append(last)
            held = 0
    if not found:
        return []
    ends = [OpId(end) for end in dict.fromkeys([*cuts, upto])]
    return list(zip([after, *ends], ends, strict=False))


# chunks: a sealed segment is sent as it was packed; single ops are only looked at where a chunk begins or ends in one


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
