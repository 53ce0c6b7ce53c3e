"""Whether histories hold what they are told to hold: the checks of one bucket's history, which are pure, and what a
store gives to be checked.

A history reduces to a set of rows: an entry is a row as it stands in a bucket, by table, id, subkey and checksum. The
entries of a bucket are summed up by their hashes, as are those that current rows say they have there; the sums are
equal, or one of the two is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import orjson
import xxhash
import zstandard

from headwater.oplog.op import bucket_key, content_digest, put_checksum, remove_checksum
from headwater.oplog.row_id import row_subkey
from headwater.oplog.transform import decode_members
from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater_rules.results import LookupEntry

MODULUS = 1 << 64
NOT_THE_ROWS = "its history does not lead to the rows that stand in it"
NOT_THERE = "rows stand in it and it is not there"

_UINT32 = 0xFFFFFFFF
MOST_ROWS = 2_000_000
"""Of one bucket, whose hashes are held in memory at once."""

_hash = xxhash.xxh3_64_intdigest


class DamageError(Exception):
    """Part of a history can't be read, or contradicts itself. Says what is wrong; never leaves this floor."""


class BucketHead(NamedTuple):
    """What a store tells of a bucket: sum and number of ops that a client starting at 0 sees, and where they are."""

    key: int
    name: str
    definition: str
    checksum: int
    ops: int
    clear_op: int
    last_op: int


class StoredSegment(NamedTuple):
    """A segment as it is stored; `bodies` is None when they are lost."""

    first: int
    last: int
    sealed: bool
    size: int
    checksum: int
    bodies: bytes | None


class VerifyReader(Protocol):
    """A look at a store as of one moment. Used by one thread."""

    def renew(self) -> None:
        """Look at the store as of now, from here on."""

    def release(self) -> None:
        """Hold nothing up until the next `renew`."""

    def heads(self, first: int, end: int) -> Iterator[BucketHead]:
        """Buckets with keys in [first, end), by key."""

    def head(self, key: int) -> BucketHead | None: ...

    def cut(self, ops: int) -> list[tuple[int, int]]:
        """Ranges [first, end) of keys that hold all buckets, each with about `ops` ops or one bucket."""

    def retired(self) -> frozenset[int]:
        """Keys of buckets that are on their way out: rows may still name them."""

    def tables(self) -> list[int]:
        """All active generations of tables, of any source."""

    def segments(self, bucket: int, after: int) -> Iterator[StoredSegment]:
        """Those with ops after `after`, in order."""

    def hot(self, bucket: int, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """Ops of the hot tail with after < op_id <= upto, in order. Raises DamageError."""

    def rows(self, table: int, first: int, end: int) -> Iterator[list[PlacedRow]]:
        """Current rows at places [first, end), in batches; none when the table is no more."""

    def lookups(self, table: int, row_ids: Sequence[str]) -> dict[str, set[LookupEntry]]:
        """Lookups of those rows that have any."""

    def lone_lookups(self, table: int) -> list[str]:
        """Ids under which lookups stand, and no row."""


ALL_KEYS = (0, 1 << 63)


def changed_parts(reader: VerifyReader, key: int, since: int, parts: int) -> set[int]:
    """The parts of a bucket that ops after one are about."""
    head = reader.head(key)
    found: set[int] = set()
    if head is None or head.last_op <= since:
        return found
    try:
        for op_id, line in history_lines(head, reader, since):
            op = read_op(op_id, line)
            if op.row is not None:
                found.add(entry_part(op.table, op.object_id, parts))
    except DamageError:
        return set()
    return found


# what stands in a bucket


def entry_hash(table: str, object_id: str, subkey: str, checksum: int) -> int:
    """64 bits of a row as it stands in a bucket."""
    return _hash(f"{table}\0{object_id}\0{subkey}\0{checksum}".encode())


def entry_part(table: str, object_id: str, parts: int) -> int:
    """In which of so many parts of its bucket a row is counted."""
    return _hash(f"{table}\0{object_id}".encode()) % parts if parts > 1 else 0


class Entry(NamedTuple):
    """What a current row says it has in a bucket."""

    bucket: int
    part: int
    hash: int


def row_entries(table: int, row: CurrentRow, salt: bytes, parts: int) -> Iterator[Entry]:
    """The entries of a row by its memberships. `table` is its table's generation."""
    for bucket, digest, kind, object_id in decode_members(row.members, row.row_id):
        subkey = row_subkey(row.subkey, table, row.row_id, object_id, salt)
        found = entry_hash(kind, object_id, subkey, put_checksum(digest))
        yield Entry(bucket, entry_part(kind, object_id, parts), found)


@dataclass(frozen=True, slots=True)
class Examined:
    """What the history of a bucket is: `problem` says what is wrong with it, empty when nothing is; `sums` are those
    of its entries, by part."""

    head: BucketHead
    ops: int
    sums: tuple[int, ...]
    problem: str


def examine(head: BucketHead, reader: VerifyReader, parts: int = 1) -> Examined:
    """Read a history from its last CLEAR on and check every op of it."""
    try:
        checksum, count, sums = _reduce(head, reader, parts)
        problem = totals_problem(head, checksum, count)
    except DamageError as damage:
        return Examined(head, 0, (0,) * parts, str(damage))
    return Examined(head, count, tuple(sums), problem)


def totals_problem(head: BucketHead, checksum: int, count: int) -> str:
    """What is wrong with what is told of a bucket, given what its history comes to; empty when nothing is."""
    if bucket_key(head.name) != head.key:
        return "its name is not the one that it was made with"
    if count != head.ops:
        return f"its history has {count} ops, and {head.ops} are told to clients"
    if checksum != head.checksum:
        return "the checksums of its ops do not add up to the one that is told to clients"
    return ""


def _reduce(head: BucketHead, reader: VerifyReader, parts: int) -> tuple[int, int, list[int]]:
    """Sum of checksums, number of ops, and sums of entries. Raises DamageError."""
    passes = max(1, -(-head.ops // MOST_ROWS))
    sums = [0] * parts
    reduction = Reduction(parts)
    for number in range(passes):
        reduction = Reduction(parts, passes, number)
        for op_id, line in history_lines(head, reader):
            reduction.take(op_id, line)
        sums = [a + b for a, b in zip(sums, reduction.sums, strict=True)]
    return reduction.checksum, reduction.count, [total % MODULUS for total in sums]


class Reduction:
    """What the ops of one history that were taken so far come to: `checksum` and `count` as a client has them, `sums`
    those of the entries that stand, by part. Of several `passes` each looks at a part of the rows alone, which bounds
    the memory."""

    def __init__(self, parts: int, passes: int = 1, number: int = 0) -> None:
        self._passes = passes
        self._number = number
        self._live: dict[int, int] = {}
        self._checksum = 0
        self.count = 0
        self.sums = [0] * parts

    @property
    def checksum(self) -> int:
        return self._checksum & _UINT32

    def take(self, op_id: int, line: bytes) -> None:
        """Check the next op and count it in. Raises DamageError."""
        op = read_op(op_id, line)
        if (op.kind == "CLEAR") != (self.count == 0):
            raise DamageError(f"op {op_id} clears it" if self.count else "it does not begin with its last CLEAR")
        self._checksum += op.checksum
        self.count += 1
        if op.row is None or op.row % self._passes != self._number:
            return
        part = entry_part(op.table, op.object_id, len(self.sums))
        self.sums[part] -= self._live.pop(op.row, 0)
        if op.kind == "PUT":
            self._live[op.row] = found = entry_hash(op.table, op.object_id, op.subkey, op.checksum)
            self.sums[part] += found


class ReadOp(NamedTuple):
    """An op that is what it says. `row` is None for MOVE and CLEAR."""

    kind: str
    checksum: int
    row: int | None
    table: str
    object_id: str
    subkey: str


def read_op(op_id: int, line: bytes) -> ReadOp:
    """Read a finished op and recompute its checksum. Raises DamageError."""
    try:
        op = orjson.loads(line)
        kind, checksum = op["op"], op["checksum"]
        if op["op_id"] != str(op_id):
            raise DamageError(f"op {op_id} calls itself {op['op_id']}")
        if kind in {"MOVE", "CLEAR"}:
            return ReadOp(kind, int(checksum), None, "", "", "")
        table, object_id, subkey, data = op["object_type"], op["object_id"], op["subkey"], op["data"]
        if kind == "PUT":
            right = put_checksum(content_digest(table, object_id, data))
        elif kind == "REMOVE":
            right = remove_checksum(table, object_id, subkey)
        else:
            raise DamageError(f"op {op_id} is of no known kind")
        row = xxhash.xxh3_128_intdigest(f"{table}\0{object_id}\0{subkey}".encode())
    except (ValueError, KeyError, TypeError, UnicodeError) as error:
        raise DamageError(f"op {op_id} can't be read") from error
    if checksum != right:
        raise DamageError(f"op {op_id} has another content than its checksum tells")
    return ReadOp(kind, checksum, row, table, object_id, subkey)


def history_lines(head: BucketHead, reader: VerifyReader, after: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The finished ops of a bucket with their ids, in order: after an op, or from the last CLEAR on. Raises
    DamageError."""
    start = position = head.clear_op - 1 if after is None else after
    for segment in reader.segments(head.key, position):
        if segment.first <= position and position > start:
            raise DamageError(f"the segment from op {segment.first} on begins within the one before it")
        yield from reader.hot(head.key, position, segment.first - 1)
        yield from (op for op in segment_ops(segment) if op[0] > start)
        position = segment.last
    yield from reader.hot(head.key, position, (1 << 63) - 1)


def segment_ops(segment: StoredSegment) -> list[tuple[int, bytes]]:
    """The finished ops of a segment with their ids. Raises DamageError."""
    place = f"the segment of ops {segment.first} to {segment.last}"
    if segment.bodies is None:
        raise DamageError(f"{place} is lost")
    try:
        lines = zstandard.decompress(segment.bodies).split(b"\n")
        ops = _sealed_ops(lines) if segment.sealed else _numbered(lines, segment.first)
        checksum = sum(orjson.loads(line)["checksum"] for _, line in ops) & _UINT32
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamageError(f"{place} can't be decompressed") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(f"{place} can't be read") from error
    ids = [op_id for op_id, _ in ops]
    if len(ids) != segment.size or (ids[0], ids[-1]) != (segment.first, segment.last) or not _ascending(ids):
        raise DamageError(f"{place} holds others")
    if checksum != segment.checksum:
        raise DamageError(f"{place} has another checksum than its ops")
    return ops


def _sealed_ops(lines: Sequence[bytes]) -> list[tuple[int, bytes]]:
    # A finished op is {"op_id":"<id>", and its body
    return [(int(line[10 : line.index(b'"', 10)]), line) for line in lines]


def _numbered(lines: Sequence[bytes], first: int) -> list[tuple[int, bytes]]:
    return [(op_id, b'{"op_id":"%d",%b' % (op_id, body)) for op_id, body in enumerate(lines, first)]


def _ascending(ids: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(ids))


def cut_keys(counts: Iterable[tuple[int, int]], ops: int) -> list[tuple[int, int]]:
    """Ranges of keys from (key, number of ops), by key, each of about `ops` ops."""
    starts: list[int] = []
    held = 0
    for key, count in counts:
        if not starts or held + count > ops:
            starts.append(key)
            held = 0
        held += count
    ends = [*starts[1:], ALL_KEYS[1]][: len(starts)]
    return list(zip(starts, ends, strict=True))
