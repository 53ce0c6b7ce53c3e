"""Checks that stored histories are consistent: pure checks of one bucket's history, and the interface through which a
store gives its data to be checked.

A history reduces to a set of rows. An entry is one row in a bucket, identified by table, id, subkey and checksum. The
hashes of a bucket's entries are summed, once from its history and once from the current rows that say they are in it.
If the two sums differ, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import orjson
import zstandard

from headwater.oplog.keys import StoreKeys, in_memory
from headwater.oplog.op import put_checksum
from headwater.oplog.row_id import row_subkey
from headwater.oplog.transform import decode_memberships
from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater_rules.results import LookupEntry

MODULUS = 1 << 64
NOT_THE_ROWS = "its history does not lead to the current rows in it"
NOT_THERE = "current rows belong to it, but it does not exist"

_UINT32 = 0xFFFFFFFF
MOST_ROWS = 2_000_000
"""Of one bucket: the number of rows whose hashes are kept in memory at once."""


class DamageError(Exception):
    """Part of a history can't be read or contradicts itself. The message says what is wrong. Never leaves the storage
    layer."""


class BucketHead(NamedTuple):
    """What a store says about a bucket: checksum and number of the ops that a client starting at 0 gets, and its first
    and last op."""

    key: int
    name: str
    definition: str
    checksum: int
    ops: int
    clear_op: int
    last_op: int


class StoredSegment(NamedTuple):
    """A segment as stored; `bodies` is None when its content is lost."""

    first: int
    last: int
    sealed: bool
    size: int
    checksum: int
    bodies: bytes | None


class VerifyReader(Protocol):
    """A view of a store at one moment. Used by one thread."""

    def renew(self) -> None:
        """Switch to a view of the store as it is now."""

    def release(self) -> None:
        """End the view until the next `renew`, so that it holds nothing up."""

    def heads(self, first: int, end: int) -> Iterator[BucketHead]:
        """Buckets with keys in [first, end), ordered by key."""

    def head(self, key: int) -> BucketHead | None: ...

    def cut(self, ops: int) -> list[tuple[int, int]]:
        """Ranges [first, end) of keys that cover all buckets. Each holds about `ops` ops, or a single bucket."""

    def retired(self) -> frozenset[int]:
        """Keys of buckets that are being removed; rows may still name them."""

    def tables(self) -> list[int]:
        """Ids of all active table generations, of every source."""

    def segments(self, bucket: int, after: int) -> Iterator[StoredSegment]:
        """Segments with ops after `after`, in order."""

    def hot(self, bucket: int, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """Ops of the hot tail with after < op_id <= upto, in order. Raises DamageError."""

    def rows(self, table: int, first: int, end: int) -> Iterator[list[PlacedRow]]:
        """Current rows at places [first, end), in batches; none when the table is gone."""

    def lookups(self, table: int, row_ids: Sequence[str]) -> dict[str, set[LookupEntry]]:
        """The lookups of those of the rows that have any."""

    def lone_lookups(self, table: int) -> list[str]:
        """Row ids that have lookups but no current row."""


ALL_KEYS = (0, 1 << 63)


def changed_parts(reader: VerifyReader, key: int, since: int, keys: StoreKeys, parts: int) -> set[int]:
    """The parts of a bucket that ops after `since` changed."""
    head = reader.head(key)
    found: set[int] = set()
    if head is None or head.last_op <= since:
        return found
    try:
        for op_id, line in history_lines(head, reader, since):
            op = read_op(op_id, line, keys)
            if op.row is not None:
                found.add(entry_part(op.table, op.object_id, keys, parts))
    except DamageError:
        return set()
    return found


# the rows in a bucket


def entry_hash(table: str, object_id: str, subkey: str, checksum: int, keys: StoreKeys) -> int:
    """Hash of a row in a bucket, in 64 bits."""
    return keys.entry(f"{table}\0{object_id}\0{subkey}\0{checksum}")


def entry_part(table: str, object_id: str, keys: StoreKeys, parts: int) -> int:
    """The part of its bucket, out of `parts`, that a row is counted in."""
    return keys.entry(f"{table}\0{object_id}") % parts if parts > 1 else 0


class Entry(NamedTuple):
    """One bucket that a current row says it is in."""

    bucket: int
    part: int
    hash: int


def row_entries(table: int, row: CurrentRow, keys: StoreKeys, parts: int) -> Iterator[Entry]:
    """The entries that a row's memberships give. `table` is the id of its table generation."""
    for bucket, digest, kind, object_id in decode_memberships(row.members, row.row_id):
        subkey = row_subkey(row.subkey, table, row.row_id, object_id, keys)
        found = entry_hash(kind, object_id, subkey, put_checksum(digest), keys)
        yield Entry(bucket, entry_part(kind, object_id, keys, parts), found)


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of checking a bucket's history. `problem` says what is wrong, empty when nothing is; `sums` are the
    sums of its entries' hashes, by part."""

    head: BucketHead
    ops: int
    sums: tuple[int, ...]
    problem: str


def examine(head: BucketHead, reader: VerifyReader, keys: StoreKeys, parts: int = 1) -> Examined:
    """Read a history from its last CLEAR and check every op."""
    try:
        checksum, count, sums = _reduce(head, reader, keys, parts)
        problem = totals_problem(head, checksum, count, keys)
    except DamageError as damage:
        return Examined(head, 0, (0,) * parts, str(damage))
    return Examined(head, count, tuple(sums), problem)


def totals_problem(head: BucketHead, checksum: int, count: int, keys: StoreKeys) -> str:
    """What is wrong with the stored totals of a bucket, given the checksum and number of ops of its history; empty when
    nothing is."""
    if head.ops > 1 and keys.bucket(head.name) != head.key:  # else nobody finds it, and it holds no more than a CLEAR
        return "its name does not match its key"
    if count != head.ops:
        return f"its history has {count} ops, but clients are told {head.ops}"
    if checksum != head.checksum:
        return "the checksums of its ops do not add up to the checksum that clients are told"
    return ""


def _reduce(head: BucketHead, reader: VerifyReader, keys: StoreKeys, parts: int) -> tuple[int, int, list[int]]:
    """Sum of checksums, number of ops, and sums of entries. Raises DamageError."""
    passes = max(1, -(-head.ops // MOST_ROWS))
    sums = [0] * parts
    reduction = Reduction(keys, parts)
    for number in range(passes):
        reduction = Reduction(keys, parts, passes, number)
        for op_id, line in history_lines(head, reader):
            reduction.take(op_id, line)
        sums = [a + b for a, b in zip(sums, reduction.sums, strict=True)]
    return reduction.checksum, reduction.count, [total % MODULUS for total in sums]


class Reduction:
    """Sums up the ops of one history: `checksum` and `count` as a client computes them, `sums` of the hashes of the
    rows that remain, by part. With several `passes`, each looks at a share of the rows only, which bounds memory."""

    def __init__(self, keys: StoreKeys, parts: int, passes: int = 1, number: int = 0) -> None:
        self._keys = keys
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
        """Check the next op and add it. Raises DamageError."""
        op = read_op(op_id, line, self._keys)
        if (op.kind == "CLEAR") != (self.count == 0):
            raise DamageError(
                f"op {op_id} is a second CLEAR" if self.count else "it does not begin with its last CLEAR"
            )
        self._checksum += op.checksum
        self.count += 1
        if op.row is None or op.row % self._passes != self._number:
            return
        part = entry_part(op.table, op.object_id, self._keys, len(self.sums))
        self.sums[part] -= self._live.pop(op.row, 0)
        if op.kind == "PUT":
            found = entry_hash(op.table, op.object_id, op.subkey, op.checksum, self._keys)
            self._live[op.row] = found
            self.sums[part] += found


class ReadOp(NamedTuple):
    """An op whose checksum was verified. `row` is None for MOVE and CLEAR."""

    kind: str
    checksum: int
    row: int | None
    table: str
    object_id: str
    subkey: str


def read_op(op_id: int, line: bytes, keys: StoreKeys) -> ReadOp:
    """Read a finished op and recompute its checksum. Raises DamageError."""
    try:
        op = orjson.loads(line)
        kind, checksum = op["op"], op["checksum"]
        if op["op_id"] != str(op_id):
            raise DamageError(f"op {op_id} carries the id {op['op_id']}")
        if kind in {"MOVE", "CLEAR"}:
            return ReadOp(kind, int(checksum), None, "", "", "")
        table, object_id, subkey, data = op["object_type"], op["object_id"], op["subkey"], op["data"]
        if kind == "PUT":
            right = put_checksum(keys.content(table, object_id, data))
        elif kind == "REMOVE":
            right = keys.removal(table, object_id, subkey)
        else:
            raise DamageError(f"op {op_id} has an unknown kind")
        row = in_memory(f"{table}\0{object_id}\0{subkey}".encode())
    except (ValueError, KeyError, TypeError, UnicodeError) as error:
        raise DamageError(f"op {op_id} can't be read") from error
    if checksum != right:
        raise DamageError(f"the content of op {op_id} does not match its checksum")
    return ReadOp(kind, checksum, row, table, object_id, subkey)


def history_lines(head: BucketHead, reader: VerifyReader, after: int | None = None) -> Iterator[tuple[int, bytes]]:
    """The finished ops of a bucket with their ids, in order, after the op `after` or else from the last CLEAR. Raises
    DamageError."""
    start = position = head.clear_op - 1 if after is None else after
    for segment in reader.segments(head.key, position):
        if segment.first <= position and position > start:
            raise DamageError(f"the segment from op {segment.first} overlaps the one before it")
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
        raise DamageError(f"{place} holds other ops")
    if checksum != segment.checksum:
        raise DamageError(f"the checksum of {place} does not match its ops")
    return ops


def _sealed_ops(lines: Sequence[bytes]) -> list[tuple[int, bytes]]:
    # A finished op is {"op_id":"<id>", and its body
    return [(int(line[10 : line.index(b'"', 10)]), line) for line in lines]


def _numbered(lines: Sequence[bytes], first: int) -> list[tuple[int, bytes]]:
    return [(op_id, b'{"op_id":"%d",%b' % (op_id, body)) for op_id, body in enumerate(lines, first)]


def _ascending(ids: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(ids))


def cut_keys(counts: Iterable[tuple[int, int]], ops: int) -> list[tuple[int, int]]:
    """Cut (key, number of ops) pairs, ordered by key, into ranges of keys with about `ops` ops each."""
    starts: list[int] = []
    held = 0
    for key, count in counts:
        if not starts or held + count > ops:
            starts.append(key)
            held = 0
        held += count
    ends = [*starts[1:], ALL_KEYS[1]][: len(starts)]
    return list(zip(starts, ends, strict=True))
