"""Checks that stored histories are consistent: a view of the data to be checked, and pure checks of one bucket's
history.

A history reduces to a set of rows. An entry is one row in a bucket, identified by table, id, subkey and checksum. The
hashes of a bucket's entries are summed, once from its history and once from the current rows that say they are in it.
If the two sums differ, one of them is wrong.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

import orjson
import zstandard

from headwater.errors import HeadwaterError
from headwater.oplog.keys import StoreKeys, in_memory
from headwater.oplog.op import put_checksum
from headwater.oplog.row_id import row_subkey
from headwater.oplog.transform import decode_memberships
from headwater.storage.contract.parts import CurrentRow, JoinedLookups, PlacedRow
from headwater.storage.shared.common import BATCH_BYTES
from headwater.storage.shared.segments import numbered, op_id_of
from headwater.storage.sql import bucket_keys, lookups, tables
from headwater.storage.sql.control import holders, secret
from headwater.storage.sql.cursor import Cursor, DamagedValueError, Row
from headwater_rules.results import LookupEntry

_HEAD = "select id, {name}, definition, checksum, count, clear_op, last_op from buckets"

_SEGMENTS = """
select s.first_op, s.last_op, s.sealed, coalesce(b.size, 0), coalesce(b.checksum, 0), b.bodies
from segments s left join segment_blobs b on b.id = s.blob and b.bucket = s.bucket
where {after} order by s.{key}
"""
_SEGMENTS_AT_ONCE = 4
_BATCH_ROWS = 2_000

_LONE = """
select distinct row_id from lookups l where table_id = ?
and not exists (select 1 from rows_{table:d} r where r.row_id = l.row_id)
"""


MODULUS = 1 << 64
NOT_THE_ROWS = "its history does not lead to the current rows in it"
NOT_THERE = "current rows belong to it, but it does not exist"

_UINT32 = 0xFFFFFFFF
MOST_ROWS = 2_000_000
"""Of one bucket: the number of rows whose hashes are kept in memory at once."""


class Definitions(NamedTuple):
    """Names of the bucket definitions that a source checks, and of those that others check. Rows of `sources` are in
    the buckets of the former."""

    own: frozenset[str]
    foreign: frozenset[str]
    sources: frozenset[str]


def _whose_turn(sources: Collection[str], definition: str, turn: int) -> str:
    """One of the sources. With the same turn, definitions are spread over them."""
    return sorted(sources)[(zlib.crc32(definition.encode()) + turn) % len(sources)]


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


class VerifyReader:
    """A view of a store at one moment. Used by one thread. Once the database itself has found damage, the view is that
    of a later moment."""

    def __init__(self, connect: Callable[[], Cursor]) -> None:
        self._connect = connect
        self._db = connect()
        self._view = ExitStack()
        self.renew()

    def close(self) -> None:
        with suppress(HeadwaterError):  # what ends it may be that the connection broke
            self.release()
        self._db.close()

    def renew(self) -> None:
        """Switch to a view of the store as it is now."""
        self.release()
        if self._db.closed:
            self._db = self._connect()
        self._view.enter_context(self._db.snapshot())

    def release(self) -> None:
        """End the view until the next `renew`, so that it holds nothing up."""
        self._view.close()

    def heads(self, first: int, end: int) -> Iterator[BucketHead]:
        """Buckets with keys in [first, end), ordered by key."""
        query = f"{self._head} where id >= ? and id <= ? order by id"
        return map(_bucket_head, self._db.stream(query, first, end - 1))

    def head(self, key: int) -> BucketHead | None:
        row = self._db.one(f"{self._head} where id = ?", key)
        return None if row is None else _bucket_head(row)

    @property
    def _head(self) -> str:
        return _HEAD.format(name=self._db.dialect.as_bytes.format("name"))

    def cut(self, ops: int) -> list[tuple[int, int]]:
        """Ranges [first, end) of keys that cover all buckets. Each holds about `ops` ops, or a single bucket."""
        rows = self._db.stream("select id, count from buckets order by id")
        return cut_keys(((key, count) for key, count in rows), ops)

    def retired(self) -> frozenset[int]:
        """Keys of buckets that are being removed; rows may still name them."""
        return frozenset(key for (key,) in self._db.rows("select id from retired_buckets"))

    def tables(self, sources: Collection[str]) -> list[int]:
        """Ids of the active table generations of these sources."""
        query = f"select id from tables where state = 'active' and source {self._db.dialect.among} order by id"
        return [table for (table,) in self._db.rows(query, sorted(sources))]

    def owners(self) -> dict[int, str]:
        """The sources of all active table generations."""
        return dict(self._db.rows("select id, source from tables where state = 'active'"))

    def definitions(self, source: str, *, turn: int | None = None) -> Definitions:
        """What a source checks. With a `turn`, each bucket definition that several sources have is checked by one of
        them: of those that are followed now, by another one with the next turn."""
        known = holders(self._db)
        followed = {source}
        if turn is not None:
            alive = f"select name from leases where expires_at > {self._db.dialect.clock}"
            followed |= {name for (name,) in self._db.rows(alive)}
        own = {
            name
            for name, having in known.items()
            if source in having and (turn is None or _whose_turn(followed.intersection(having), name, turn) == source)
        }
        sources = {source, *(holder for name in own for holder in known[name])}
        return Definitions(frozenset(own), frozenset(known.keys() - own), frozenset(sources))

    def keys(self) -> StoreKeys:
        """Makes the keys and digests of the store as of now."""
        return bucket_keys.keys(self._db, secret(self._db))

    def segments(self, bucket: int, after: int) -> Iterator[StoredSegment]:
        """Segments with ops after `after`, in order."""
        dialect = self._db.dialect
        query = _SEGMENTS.format(after=dialect.segments_after, key=dialect.segment_key)
        with self._damage("its segments can't be read"):
            for first, last, sealed, *rest in self._db.stream(query, bucket, after, at_once=_SEGMENTS_AT_ONCE):
                yield StoredSegment(first, last, bool(sealed), *rest)

    def hot(self, bucket: int, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """Ops of the hot tail with after < op_id <= upto, in order. Raises DamageError."""
        line = self._db.dialect.as_bytes.format("line")  # a damaged one may no longer be text
        query = f"select id, {line} from ops where bucket = ? and id > ? and id <= ? order by id"
        with self._damage("its ops can't be read"):
            yield from self._db.stream(query, bucket, after, upto)

    def rows(self, table: int, first: int, end: int) -> Iterator[list[PlacedRow]]:
        """Current rows at places [first, end), in batches; none when the table is gone."""
        if not self._db.has_table(f"rows_{table:d}"):  # it may be swept at any time
            return iter(())
        rows = self._db.dialect.placed_rows
        return rows(self._db, table, first, end, count=_BATCH_ROWS, batch_bytes=BATCH_BYTES, damaged=True)

    def lookups(self, table: int, row_ids: Sequence[str]) -> dict[str, set[LookupEntry]]:
        """The lookups of those of the rows that have any."""
        dialect = self._db.dialect
        by_stored = {dialect.stored_row_id(row_id): row_id for row_id in row_ids}
        texts = ", ".join(map(dialect.as_bytes.format, ("key", "output")))
        query = f"select row_id, {texts} from lookups where table_id = ? and row_id {dialect.among}"
        found: dict[str, set[LookupEntry]] = {}
        for row_id, key, output in self._db.rows(query, table, list(by_stored)):
            found.setdefault(by_stored[row_id], set()).add(LookupEntry(_text(key), _text(output)))
        return found

    def flips(self, table: int, row_ids: Sequence[str]) -> dict[str, int]:
        """When those of the rows have to be evaluated again that have to be, by id."""
        return tables.flips(self._db, table, row_ids)

    def joined(self, known: JoinedLookups, keys: Sequence[str]) -> dict[str, list[str]]:
        """What these lookups give under keys, by key. Keys of others are left out."""
        return lookups.outputs(self._db, known, keys) if keys else {}

    def lone_lookups(self, table: int) -> list[str]:
        """Row ids that have lookups but no current row."""
        if not self._db.has_table(f"rows_{table:d}"):
            return []
        return [row_id for (row_id,) in self._db.rows(_LONE.format(table=table), table)]

    @contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        """Raise DamageError when the database finds damage, which ends the view: begin another one."""
        try:
            yield
        except DamagedValueError as error:
            self.close()
            self.renew()
            raise DamageError(what) from error


def _bucket_head(row: Row) -> BucketHead:
    key, name, *rest = row
    return BucketHead(key, _text(name), *rest)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


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


class BucketEntry(NamedTuple):
    """One bucket that a current row says it is in."""

    bucket: int
    part: int
    hash: int


def row_entries(table: int, row: CurrentRow, keys: StoreKeys, parts: int) -> Iterator[BucketEntry]:
    """The entries that a row's memberships give. `table` is the id of its table generation."""
    for bucket, digest, kind, object_id in decode_memberships(row.members, row.row_id):
        subkey = row_subkey(row.subkey, table, row.row_id, object_id, keys)
        found = entry_hash(kind, object_id, subkey, put_checksum(digest), keys)
        yield BucketEntry(bucket, entry_part(kind, object_id, keys, parts), found)


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
        problem = totals_problem(head, checksum, count, keys, reader)
    except DamageError as damage:
        return Examined(head, 0, (0,) * parts, str(damage))
    return Examined(head, count, tuple(sums), problem)


def totals_problem(head: BucketHead, checksum: int, count: int, keys: StoreKeys, reader: VerifyReader) -> str:
    """What is wrong with the stored totals of a bucket, given the checksum and number of ops of its history; empty when
    nothing is."""
    if head.ops > 1 and all(made.bucket(head.name) != head.key for made in _keys_now(keys, reader)):
        return "its name does not match its key"  # so nobody finds it, and it holds more than a CLEAR
    if count != head.ops:
        return f"its history has {count} ops, but its totals say {head.ops}"
    if checksum != head.checksum:
        return "the checksums of its ops do not add up to the checksum in its totals"
    return ""


def _keys_now(keys: StoreKeys, reader: VerifyReader) -> Iterator[StoreKeys]:
    """The given keys, then those that another source may have changed meanwhile, as it moved a bucket."""
    yield keys
    yield reader.keys()


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


def row_in_memory(table: str, object_id: str, subkey: str) -> int:
    """Stands for a row of a bucket while a process goes through many. Other in every process."""
    return in_memory(f"{table}\0{object_id}\0{subkey}".encode())


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
        row = row_in_memory(table, object_id, subkey)
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
        bodies = zstandard.decompress(segment.bodies)
        finished = bodies if segment.sealed else numbered(bodies, segment.first)
        ops = [(op_id_of(line), line) for line in finished.split(b"\n")]
        checksum = sum(orjson.loads(line)["checksum"] for _, line in ops) & _UINT32
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamageError(f"{place} can't be decompressed") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(f"{place} can't be read") from error
    ids = [op_id for op_id, _ in ops]
    if len(ids) != segment.size or (ids[0], ids[-1]) != (segment.first, segment.last) or ids != sorted(set(ids)):
        raise DamageError(f"{place} holds other ops")
    if checksum != segment.checksum:
        raise DamageError(f"the checksum of {place} does not match its ops")
    return ops


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
