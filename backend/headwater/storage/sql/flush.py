"""One transaction of live replication.

A store keeps what it is given durably, numbers ops, and returns finished lines. It knows nothing of rules or of
Postgres as a source. Calls block.

All sources write to one sequence of ops, under one lock of the store. A transaction may take seconds to be decoded and
evaluated, so it is written only at its end: until then, what it writes is kept in memory, and other sources commit.
"""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, TypeVar

from headwater.oplog.op import CLEAR_BODY
from headwater.oplog.transform import Bucket, Buckets, DraftOp
from headwater.storage.contract.parts import CurrentRow, JoinedLookups
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import Lease, ReplicationProgress
from headwater.storage.shared.common import NAMEABLE
from headwater.storage.shared.segments import BucketSum, Run, number_ops
from headwater.storage.shared.turns import Turns
from headwater.storage.sql import bucket_keys as keyed
from headwater.storage.sql import control, lookups, tables
from headwater.storage.sql.bucket_keys import KnownBuckets, Naming
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.lookups import ChangedKey, FoundRow
from headwater.storage.sql.ops import INSERT_CLEARS, give_clears
from headwater_rules.plan import JOIN
from headwater_rules.results import LookupEntry

_F = TypeVar("_F", bound="Flush")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def explaining(method: Callable[Concatenate[_F, _P], _R]) -> Callable[Concatenate[_F, _P], _R]:
    """Like `Cursor.errors`, but cheap enough for methods that are called often."""

    @functools.wraps(method)
    def wrapped(flush: _F, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(flush, *args, **kwargs)
        except Exception:
            with flush.errors():
                raise

    return wrapped


@dataclass(slots=True)
class Numbers:
    """The op ids that a flush gives out: from `first` on, and `next` is the next one; 0 while it does not hold the
    store's lock. `sums` are what it adds to buckets."""

    first: int = 0
    next: int = 0
    sums: dict[int, BucketSum] = field(default_factory=dict)


_OF_ROWS = f"{JOIN}."

LookupPlace = tuple[int, str]
"""A table, and the id of a row that has lookups."""

KEPT_BYTES = 16 << 20
ALONE_BYTES = 1 << 18
"""The same where no other source waits: written sooner, it costs the garbage collector less."""

_ENTRY_BYTES = 250
"""What a row, an op or a lookup takes in memory beside its text, about. Narrow rows consist of little else."""


@dataclass(slots=True)
class Kept:
    """What a flush has not written yet. Above about KEPT_BYTES, or ALONE_BYTES, it is written before the end."""

    ops: list[DraftOp] = field(default_factory=list)
    buckets: Buckets = field(default_factory=dict)
    lookups: dict[LookupPlace, frozenset[LookupEntry]] = field(default_factory=dict)
    marked: list[tuple[int, ResyncReason]] = field(default_factory=list)
    """Tables that have to be compared."""
    flips: dict[int, dict[str, int | None]] = field(default_factory=dict)
    """By table and row id."""
    tick: tuple[str, int] | None = None
    meta: dict[str, str] = field(default_factory=dict)
    bytes: int = 0


PlacedEntry = tuple[int, str, LookupEntry]
"""A table, a row id, and an entry of that row."""

_HOLDERS = """
select 'there', id, name from buckets where id {among}
union all select 'retired', id, name from retired_buckets where id {among}
union all select 'moved', id, name from moved_buckets
"""


class Flush(ABC):
    """One store transaction. Nothing of it is visible before `commit`, and nothing of it remains after `rollback`.

    Within each bucket, ops are numbered in the order in which they are appended. Once a newer lease exists,
    LeaseLostError is raised. What is written is kept back, seen by this flush alone, so errors come with a later call,
    at the latest with `commit`.
    """

    def __init__(self, cursor: Cursor, lease: Lease, known: KnownBuckets) -> None:
        self._cursor = cursor
        self._lease = lease
        self._naming = Naming(known)
        self._numbers = Numbers()
        self._kept = Kept()
        self._touched: set[str] = set()  # keys of lookups
        self._watched: JoinedLookups = {}
        self._changed: dict[str, ChangedKey] = {}  # keys of these
        self._turns: Turns | None = None
        self.now = 0
        """The time that rules see, in microseconds since 1970; 0 where none reads it."""
        self.alone = False
        """Whether there is no other source that would wait while this one writes."""

    def errors(self) -> AbstractContextManager[None]:
        """Turns the driver's errors into ours."""
        return self._cursor.errors()

    @property
    def waited_for(self) -> bool:
        """Whether another source of this process waits for the end of this transaction."""
        return self._turns is not None and self._turns.waited_for

    @explaining
    def lock(self) -> None:
        """Take the store's lock until the commit: no other source writes ops before."""
        self._lock()

    # rows

    @explaining
    def current(self, table: int, row_ids: Sequence[str]) -> dict[str, CurrentRow]:
        """The current rows among `row_ids`."""
        return self.load(table, row_ids, sys.maxsize)[0]

    @abstractmethod
    def load(self, table: int, row_ids: Sequence[str], batch_bytes: int) -> tuple[dict[str, CurrentRow], int]:
        """The current rows among the first of `row_ids`, and how many ids were covered: as many as give about
        `batch_bytes` of rows, and at least one."""

    def load_all(self, table: int, row_ids: Sequence[str], batch_bytes: int) -> Iterator[CurrentRow]:
        """The current rows among `row_ids`, unordered. Holds about `batch_bytes` of them at a time."""
        done = 0
        while done < len(row_ids):
            rows, count = self.load(table, row_ids[done:], batch_bytes)
            done += count
            yield from rows.values()

    @abstractmethod
    def copies(self, table: int, content: str) -> list[str]:
        """Row ids of the copies of an identical row, unordered."""

    @abstractmethod
    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        """Insert or replace rows."""

    @abstractmethod
    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None: ...

    @abstractmethod
    def table_members(self, table: int) -> Iterable[tuple[str, str, str | None]]:
        """(row id, members, subkey) of every row of the table."""

    @abstractmethod
    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        """Row ids by line, for tables whose rows nothing else identifies. Reads the whole table."""

    @explaining
    def put_flips(self, table: int, flips: Mapping[str, int | None]) -> None:
        """Set when rows, by id, have to be evaluated again: in microseconds since 1970, None for not at all."""
        self._kept.flips.setdefault(table, {}).update(flips)
        self._keep(len(flips), sum(map(len, flips)))

    @explaining
    def due(self, table: int, now: int, most: int) -> list[str]:
        """The ids of up to `most` rows that have to be evaluated again by `now`, the earliest first, and last those
        that this transaction made due. Rows that are gone may be among them."""
        kept = self._kept.flips.get(table, {})
        stored = tables.due(self._cursor, table, now, most + len(kept))
        made = [row_id for row_id, at in kept.items() if at is not None and at <= now]
        return [*(row_id for row_id in stored if row_id not in kept), *made][:most]

    @explaining
    def flips(self, table: int, row_ids: Collection[str]) -> dict[str, int]:
        """When those of the rows have to be evaluated again that have to be, by id."""
        kept = self._kept.flips.get(table, {})
        found = tables.flips(self._cursor, table, [row_id for row_id in row_ids if row_id not in kept])
        return found | {row_id: at for row_id in row_ids if (at := kept.get(row_id)) is not None}

    def set_tick(self, source: str, now: int) -> None:
        """Evaluate rows of the source at `now`. The store keeps the latest time of all transactions."""
        self.now = now
        self._kept.tick = (source, now)

    def _write_flips(self) -> None:
        kept = self._kept
        flips, tick, kept.flips, kept.tick = kept.flips, kept.tick, {}, None
        for table, those in flips.items():
            tables.put_flips(self._cursor, table, those)
        if tick is not None:
            tables.set_tick(self._cursor, *tick)

    # lookups

    @explaining
    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]:
        """The present entries of a row."""
        place = (table, row_id)
        kept = self._kept.lookups.get(place)
        return sorted(self._stored_lookups([place])[place] if kept is None else kept)

    @explaining
    def replace_lookups(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None:
        self._kept.lookups[table, row_id] = frozenset(entries)
        characters = len(row_id) + sum(len(entry.key) + len(entry.output) for entry in entries)
        self._keep(1 + len(entries), characters)

    @abstractmethod
    def _stored_lookups(self, places: Collection[LookupPlace]) -> dict[LookupPlace, set[LookupEntry]]:
        """What the store has at each of the places."""

    @abstractmethod
    def _change_lookups(self, gone: Sequence[PlacedEntry], new: Sequence[PlacedEntry]) -> None: ...

    def _write_lookups(self) -> None:
        pending, self._kept.lookups = self._kept.lookups, {}
        if not pending:
            return
        stored = self._stored_lookups(pending)
        gone = [(*place, entry) for place, entries in pending.items() for entry in sorted(stored[place] - entries)]
        new = [(*place, entry) for place, entries in pending.items() for entry in sorted(entries - stored[place])]
        self._change_lookups(gone, new)
        for _, _, entry in gone if self._watched else ():
            if lookups.name_of(entry.key) in self._watched:
                self._changed.setdefault(entry.key, ChangedKey()).take(entry.output)
        for _, _, entry in new if self._watched else ():
            if lookups.name_of(entry.key) in self._watched:
                self._changed.setdefault(entry.key, ChangedKey()).add(entry.output)
        if len(self._touched) <= NAMEABLE:  # above that, none is recorded
            self._touched.update(entry.key for _, _, entry in gone + new if not entry.key.startswith(_OF_ROWS))

    # rows that others are evaluated with

    def watch(self, watched: JoinedLookups) -> None:
        """Read rows of other tables by these lookups, and keep note of what changes in them."""
        self._watched = watched

    @explaining
    def joined(self, keys: Sequence[str]) -> dict[str, list[str]]:
        """`lookups.outputs` of the watched lookups, as this transaction leaves them."""
        if not keys:
            return {}
        self._send_lookups()
        for key in self._changed.keys() & keys if self._changed else ():
            self._changed[key].read()
        return lookups.outputs(self._cursor, self._watched, keys)

    @explaining
    def changed_keys(self) -> list[str]:
        """The keys of watched lookups under which a join finds another row than before, since the last call, or found
        one meanwhile that it finds no more."""
        if not self._watched:
            return []
        self._send_lookups()
        changed, self._changed = self._changed, {}
        return [
            key
            for key, change in changed.items()
            if (lookup := self._watched.get(lookups.name_of(key))) is not None
            and lookups.differs(self._cursor, lookup, key, change)
        ]

    @explaining
    def rows_under(self, table: int, key: str, after: str | None, most: int) -> list[FoundRow]:
        """`lookups.rows_under`, as this transaction leaves them."""
        self._send_all()
        return lookups.rows_under(self._cursor, table, key, after, most)

    @explaining
    def rows_after(self, table: int, after: str | None, most: int) -> list[FoundRow]:
        """`lookups.rows_after`, as this transaction leaves them."""
        self._send_all()
        return lookups.rows_after(self._cursor, table, after, most)

    def set_meta(self, key: str, text: str) -> None:
        """Store a short text under a key, as part of this transaction."""
        self._kept.meta[key] = text

    def _send_lookups(self) -> None:
        if self._kept.lookups:
            self._lock()
            self._write_lookups()

    def _send_all(self) -> None:
        if self._kept.bytes or self._kept.lookups:
            self._lock()
            self._send()

    # what is kept back

    def _keep(self, entries: int, characters: int) -> None:
        """Count what was kept back, and write all of it if it is too much."""
        self._kept.bytes += characters + entries * _ENTRY_BYTES
        if self._kept.bytes > (ALONE_BYTES if self.alone else KEPT_BYTES):
            self._lock()
            self._send()

    @abstractmethod
    def _lock(self) -> None:
        """Take the store's lock, under which ops are numbered, until the commit."""

    @abstractmethod
    def _write_rows(self) -> None:
        """Write the rows that are kept back."""

    def _send(self) -> None:
        """Write what is kept back. Under the lock."""
        self._write_flips()
        self._write_lookups()
        self._write_ops()
        self._write_rows()  # on Postgres, also sends ops
        self._write_sums()
        self._write_marks()
        self._kept.bytes = 0

    # ops

    @abstractmethod
    def _insert_ops(self, ops: Sequence[DraftOp], first: int) -> None:
        """Store ops with ids from `first`."""

    @abstractmethod
    def _insert_run(self, run: Run) -> None: ...

    @abstractmethod
    def _insert_buckets(self, rows: Sequence[tuple[int, str, str, int]]) -> None:
        """Store buckets, each with the id of its CLEAR."""

    @abstractmethod
    def _write_sums(self) -> None:
        """Add to the buckets what was appended to each."""

    @explaining
    def append(self, ops: Sequence[DraftOp], buckets: Mapping[str, Bucket]) -> None:
        """Number and store ops. `buckets` has every bucket among them that may be new, by name; a new bucket starts
        with a CLEAR. Drops the ops of a bucket that neither exists nor is named: its definition was retired. Raises
        BucketKeyTakenError when a bucket has the key of another one; nothing of this transaction is kept then."""
        self._kept.ops += ops
        self._kept.buckets.update(buckets)
        self._keep(len(ops), sum(len(op.body) for op in ops))

    def _write_ops(self) -> None:
        kept = self._kept
        ops, buckets, kept.ops, kept.buckets = kept.ops, kept.buckets, [], {}
        if not ops:
            return
        self._lock()
        retired = self._create_buckets({op.bucket for op in ops}, buckets)
        if retired:
            ops = [op for op in ops if op.bucket not in retired]
        single, first = number_ops(ops, self._numbers.next, self._numbers.sums, self._insert_run)
        self._insert_ops(single, first)
        self._numbers.next = first + len(single)

    def _create_buckets(self, keys: set[int], buckets: Mapping[str, Bucket]) -> set[int]:
        """Create missing buckets. Returns those that do not exist and are not among `buckets`: they were retired."""
        unknown = self._naming.missing(keys.union(bucket.key for bucket in buckets.values()))
        held: dict[str, dict[int, str]] = {"there": {}, "retired": {}, "moved": {}}
        if unknown:
            query = _HOLDERS.format(among=self._cursor.dialect.among)
            for what, key, name in self._cursor.rows(query, sorted(unknown), sorted(unknown)):
                held[what][key] = name
        there, moved = held["there"], held["moved"]
        taken = self._naming.taken(
            buckets.values(), moved | there, held["retired"], {name: key for key, name in moved.items()}
        )
        if taken:
            self.rollback()
            keyed.move(self._cursor, self._lease, taken)
        new = {bucket.key: bucket for bucket in buckets.values()}
        gone = (unknown & keys) - there.keys()
        fresh = sorted(gone & new.keys())
        if fresh:
            first = self._numbers.next
            self._insert_ops([DraftOp(key, 0, CLEAR_BODY) for key in fresh], first)
            self._insert_buckets([(*new[key], op_id) for op_id, key in enumerate(fresh, first)])
            self._numbers.next = first + len(fresh)
        self._naming.fresh |= there | {key: new[key].name for key in fresh}
        return gone - new.keys()

    @explaining
    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        """Replace the table by a new, empty generation without lookups, and return its id. Clears every non-empty
        bucket of `definitions` with one op."""
        self._lock()
        self._send()
        db, numbers, first = self._cursor, self._numbers, self._numbers.next
        which, named = f"definition {db.dialect.among}", list(definitions)
        numbers.next += give_clears(db, first, which, named)
        # `which` again, for its index: there may be very many buckets
        for bucket, op in db.rows(f"{INSERT_CLEARS} and {which} returning bucket, id", first, CLEAR_BODY, named):
            numbers.sums[bucket] = BucketSum(last_op=op)
        keys = db.rows("select distinct key from lookups where table_id = ? limit ?", table, NAMEABLE + 1)
        self._touched.update(key for (key,) in keys)
        return tables.renew_generation(db, table)

    @explaining
    def reset_bucket(self, key: int, bucket: Bucket | None) -> None:
        """Delete everything that a bucket (by its key) holds, damaged or not, and begin it with a CLEAR. The caller
        appends its rows again. A bucket that does not exist is created if `bucket` is given. Earlier checkpoints
        count as overtaken in it."""
        self._lock()
        self._send()
        db, op = self._cursor, self._numbers.next
        # Locked first, so that compaction is not in the midst of replacing what is deleted here
        there = db.one(f"select 1 from buckets where id = ?{db.dialect.for_update}", key) is not None
        if bucket is None and not there:
            return
        blobs = "select blob from segments where bucket = ?1"
        db.execute(f"delete from segment_blobs where bucket = ?1 and id in ({blobs})", key)
        db.execute("delete from segments where bucket = ?", key)
        db.execute("delete from ops where bucket = ?", key)
        self._insert_ops([DraftOp(key, 0, CLEAR_BODY)], op)
        if bucket is not None:
            db.execute(
                "insert into buckets (id, name, definition, checksum, count, clear_op, last_op)"
                " values (?, ?, ?, 0, 1, 0, 0) on conflict (id) do update set name = excluded.name,"
                " definition = excluded.definition",
                *bucket,
            )
            self._naming.fresh[key] = bucket.name
        db.execute(
            "update buckets set checksum = 0, count = 1, clear_op = ?1, last_op = ?1, compacted_op = ?1,"
            " compacted_count = 0, live_rows = 0 where id = ?2",
            *(op, key),
        )
        self._numbers.sums[key] = BucketSum(last_op=op)
        self._numbers.next = op + 1

    def mark_resync(self, table: int, reason: ResyncReason) -> None:
        """Record within this transaction that a table has to be compared with the source, because the transaction does
        not write all of its changes."""
        self._kept.marked.append((table, reason))

    def _write_marks(self) -> None:
        marked, self._kept.marked = self._kept.marked, []
        for table, reason in marked:
            tables.mark_resync(self._cursor, [table], reason)
        meta, self._kept.meta = self._kept.meta, {}
        for key, text in meta.items():
            control.set_meta(self._cursor, key, text)

    # ending

    @abstractmethod
    def commit(self, source: str, progress: ReplicationProgress) -> Checkpoint:
        """Commit everything, with the source's position, and return the new checkpoint. Durable on return."""

    @abstractmethod
    def rollback(self) -> None: ...
