"""What a store is: one state, which is never changed. Whoever writes changes a copy of it and puts that in its place,
so whoever reads has a moment of the store for as long as he holds on to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeVar

from headwater.oplog.change import Relation
from headwater.oplog.op import CLEAR_BODY, OpId, finished_op
from headwater.oplog.transform import BucketName
from headwater.storage.contract.parts import BulkRecord, CurrentRow, PlacedRow
from headwater.storage.contract.reader import Checkpoint, WriteCheckpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.requests import Request
from headwater.storage.contract.revocations import Revocation
from headwater.storage.contract.store import SourceState, StoredTable, StoreError
from headwater.storage.contract.verify import StoredSegment
from headwater.storage.contract.versions import ConfigVersion
from headwater.storage.shared.unpack import Line, segment_lines
from headwater_rules.results import LookupEntry

T = TypeVar("T")


class Segment(NamedTuple):
    """A segment and the number that no other ever had."""

    blob: int
    stored: StoredSegment


class Packed(NamedTuple):
    """A segment as a task made it: number of its ops, sum of their checksums, compressed bodies."""

    bucket: int
    size: int
    checksum: int
    bodies: bytes


@dataclass
class Bucket:
    """A bucket and its history: finished ops by id, and segments by their first op."""

    name: str
    definition: str
    checksum: int = 0
    count: int = 0
    clear_op: int = 0
    last_op: int = 0
    compacted_op: int = 0
    compacted_count: int = 0
    live_rows: int = 0
    hot: dict[int, bytes] = field(default_factory=dict)
    segments: dict[int, Segment] = field(default_factory=dict)

    def hold(self, last: int, count: int, checksum: int) -> None:
        """So much was added."""
        self.last_op, self.count = last, self.count + count
        self.checksum = (self.checksum + checksum) & 0xFFFFFFFF

    def clear(self, op_id: int) -> None:
        """What stands before is not sent any more."""
        self.hot[op_id] = finished_op(op_id, CLEAR_BODY).encode()
        self.clear_op = self.last_op = op_id
        self.checksum, self.count = 0, 1

    def hot_between(self, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """Ops of no segment, in order."""
        return ((op_id, self.hot[op_id]) for op_id in sorted(self.hot) if after < op_id <= upto)

    def lines(self, after: int, upto: int) -> list[Line]:
        """All finished ops after one and up to another, in order."""
        lines = [(op_id, line.decode()) for op_id, line in self.hot.items()]
        for _, stored in self.segments.values():
            lines += segment_lines(stored.first, stored.sealed, stored.bodies or b"")
        return sorted(line for line in lines if after < line[0] <= upto)

    def segments_after(self, after: int) -> list[Segment]:
        """Those with ops after one, in order."""
        return [self.segments[first] for first in sorted(self.segments) if self.segments[first].stored.last > after]


@dataclass
class Table:
    """A generation of a source table. `doubled` says that two of the rows it was given had the same id."""

    source: str
    layouts: tuple[Relation, ...]
    fingerprint: str
    resync: ResyncReason | None = None
    active: bool = True
    rows: dict[str, PlacedRow] = field(default_factory=dict)
    lookups: dict[str, tuple[LookupEntry, ...]] = field(default_factory=dict)
    places: int = 0
    doubled: bool = False

    def put(self, row: CurrentRow) -> None:
        known = self.rows.get(row.row_id)
        self.places += known is None
        self.rows[row.row_id] = PlacedRow(self.places if known is None else known.place, row)

    def add_lookups(self, row_id: str, entries: list[LookupEntry]) -> None:
        self.lookups[row_id] = tuple(sorted({*self.lookups.get(row_id, ()), *entries}))

    def described(self, number: int) -> StoredTable:
        return StoredTable(number, self.source, self.layouts, self.fingerprint, self.resync)

    def in_order(self) -> list[PlacedRow]:
        return sorted(self.rows.values())


class Held(NamedTuple):
    """Who has a lease, or had it last."""

    owner: str
    epoch: int
    expires: float


class Flushed(NamedTuple):
    """What is known of a flush: names as JSON, None for too much to name."""

    last_op: int
    source: str
    lsn: int
    committed_us: int
    buckets: str | None
    lookups: str | None


@dataclass
class State:
    """Everything."""

    salt: bytes
    next_op: int
    checkpoint: int | None = None
    config: int | None = None
    inbox: int = 0
    last_table: int = 0
    last_version: int = 0
    last_request: int = 0
    last_blob: int = 0
    last_write: int = 0
    sealed: str | None = None
    jobs: tuple[BulkRecord, ...] = ()
    revocations: tuple[Revocation, ...] = ()
    last_revocation: int = 0
    staged: tuple[Packed, ...] = ()
    staged_buckets: dict[int, BucketName] = field(default_factory=dict)
    leases: dict[str, Held] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    sources: dict[str, SourceState] = field(default_factory=dict)
    tables: dict[int, Table] = field(default_factory=dict)
    buckets: dict[int, Bucket] = field(default_factory=dict)
    retired: dict[int, str] = field(default_factory=dict)
    flushes: dict[int, Flushed] = field(default_factory=dict)
    versions: dict[int, ConfigVersion] = field(default_factory=dict)
    sides: dict[str, tuple[str, str]] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    writes: dict[str, WriteCheckpoint] = field(default_factory=dict)
    requested: dict[str, float] = field(default_factory=dict)  # when clients chose ids, by key

    def active_tables(self) -> dict[int, Table]:
        return {number: table for number, table in self.tables.items() if table.active}

    def make_table(self, table: Table) -> int:
        self.last_table += 1
        self.tables[self.last_table] = table
        return self.last_table

    def make_bucket(self, key: int, name: BucketName) -> Bucket:
        """It begins with a CLEAR."""
        made = self.buckets[key] = Bucket(*name)
        made.clear(self.take_op())
        return made

    def bucket(self, key: int, name: BucketName | None) -> Bucket | None:
        """A bucket that ops are for, made when it is not there; None when nobody names it."""
        known = self.buckets.get(key)
        if known is None or name is None:
            return known if name is None else self.make_bucket(key, name)
        if known.name != name.name:
            raise StoreError("two buckets have the same key", name.name, "rename one of the streams")
        return known

    def take_op(self) -> int:
        self.next_op += 1
        return self.next_op - 1

    def place(self, key: int, stored: StoredSegment) -> Segment:
        """Put a segment where its ops say."""
        self.last_blob += 1
        self.buckets[key].segments[stored.first] = Segment(self.last_blob, stored)
        return Segment(self.last_blob, stored)

    def number(self, packed: Packed) -> None:
        """Put a segment at the end of everything."""
        first, last = self.next_op, self.next_op + packed.size - 1
        self.place(packed.bucket, StoredSegment(first, last, False, *packed[1:]))
        self.buckets[packed.bucket].hold(last, packed.size, packed.checksum)
        self.next_op = last + 1

    def move(self, source: str, buckets: str | None, lookups: str | None) -> None:
        """Take an op id for the checkpoint itself, and note what it touches."""
        self.checkpoint = last = self.take_op()
        if source in self.sources:
            self.flushes[last] = Flushed(last, source, self.sources[source].lsn, 0, buckets, lookups)

    def told_checkpoint(self) -> Checkpoint:
        """The visible one; op id 0 while there is none."""
        return Checkpoint(OpId(self.checkpoint or 0), {tag: source.lsn for tag, source in self.sources.items()})


def copied(thing: T) -> T:
    """A copy that may be changed, with copies of what it holds that may be changed."""
    fresh = copy.copy(thing)
    for each in fields(thing):  # type: ignore[arg-type]
        held = getattr(thing, each.name)
        if isinstance(held, dict):
            inner = {key: copied(value) if isinstance(value, Bucket | Table) else value for key, value in held.items()}
            setattr(fresh, each.name, inner)
    return fresh


@dataclass
class Page:
    """What a task wrote, up to the end of a page."""

    rows: list[CurrentRow] = field(default_factory=list)
    lookups: list[tuple[str, LookupEntry]] = field(default_factory=list)
    buckets: dict[int, BucketName] = field(default_factory=dict)
    segments: list[Packed] = field(default_factory=list)
