"""The writing side of a store, and its errors. Live replication and bulk jobs use it and no back end.

A store keeps what it is given durably, numbers ops, and returns finished lines. It knows nothing of rules or of
Postgres. Calls block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headwater.errors import HeadwaterError
from headwater.oplog.change import Relation
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.contract.parts import BulkRecord, CurrentRow, Places, StagedPart, StagedTable
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater_rules.results import LookupEntry


class StoreError(HeadwaterError):
    """The store can't do what was asked: it is damaged, full, or of another format."""

    code = "HW_4001"


class StoreGoneError(StoreError):
    """A file of the embedded store was removed or replaced while a process had it open."""

    code = "HW_4010"


class StorePublishedError(StoreError):
    """A publication of the source covers the store's own tables: its own writes would come back in the stream, and
    Postgres refuses to delete from published tables that have no replica identity."""

    code = "HW_4011"


class StoreBusyError(HeadwaterError):
    """Another process holds the store's write lock for longer than we wait."""

    code = "HW_4002"


class StoreUnreachableError(HeadwaterError):
    """The store's database does not answer for now; nothing of an open transaction was kept."""

    code = "HW_4008"


class PartLostError(HeadwaterError):
    """What a task of a bulk job wrote is missing or damaged; nothing of it was taken over."""

    code = "HW_4009"


class BucketKeyTakenError(HeadwaterError):
    """A bucket has the key of another one. It was given a key of its own, which counts from the next attempt on;
    nothing of this one was kept."""

    code = "HW_4012"

    def __init__(self, buckets: int) -> None:
        super().__init__(
            f"the keys of {buckets:,} new buckets were taken by others", "", "they have keys of their own now"
        )
        self.args = (buckets,)


class LeaseLostError(HeadwaterError):
    """Another replicator took over; nothing of this transaction was kept."""

    code = "HW_4003"


class LeaseHeldError(HeadwaterError):
    """Another replicator works on this source."""

    code = "PSYNC_S1003"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write what belongs to one source, for `ttl` seconds unless renewed. A newer holder has a higher
    epoch."""

    name: str
    owner: str
    epoch: int
    ttl: float


@dataclass(frozen=True, slots=True)
class SourceState:
    """How far a source was followed: every commit up to `lsn` is in the store."""

    tag: str
    lsn: Lsn
    slot: str
    system_id: str
    timeline: int


@dataclass(frozen=True, slots=True)
class StoredTable:
    """One generation of a source table. Each row names the layout that it was written in, a position in `layouts`.
    `resync` is the reason why the table is being compared with the source, None when it is not."""

    id: int
    source: str
    layouts: tuple[Relation, ...]
    fingerprint: str
    resync: ResyncReason | None = None

    def has(self, *causes: Cause) -> bool:
        """Whether the table is being compared for one of these causes."""
        return self.resync is not None and self.resync.cause in causes

    @property
    def relation(self) -> Relation:
        return self.layouts[-1]


@dataclass(frozen=True, slots=True)
class Progress:
    """The position in a source's log when a flush commits. `committed_us` is the time of its newest commit in
    microseconds since 2000-01-01, or 0 when there was none."""

    lsn: Lsn
    committed_us: int = 0


class Flush(Protocol):
    """One store transaction. Nothing of it is visible before `commit`, and nothing of it remains after `rollback`.

    Within each bucket, ops are numbered in the order in which they are appended. Once a newer lease exists,
    LeaseLostError is raised. Writes may be kept back and sent together, so errors may come with a later call, at the
    latest with `commit`.
    """

    def current(self, table: int, row_ids: Sequence[str]) -> dict[str, CurrentRow]:
        """The current rows among `row_ids`."""

    def load(self, table: int, row_ids: Sequence[str], room: int) -> tuple[dict[str, CurrentRow], int]:
        """The current rows among the first of `row_ids`, and how many ids were covered: as many as give about `room`
        bytes of rows, and at least one."""

    def copies(self, table: int, content: str) -> list[str]:
        """Row ids of the copies of an identical row, unordered."""

    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]: ...

    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        """Insert or replace rows."""

    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None: ...

    def replace_lookups(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None: ...

    def append(self, ops: Sequence[DraftOp], buckets: Mapping[str, Bucket]) -> None:
        """Number and store ops. `buckets` has every bucket among them that may be new, by name; a new bucket starts
        with a CLEAR. Drops the ops of a bucket that neither exists nor is named: its definition was retired. Raises
        BucketKeyTakenError when a bucket has the key of another one; nothing of this transaction is kept then."""

    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        """Replace the table by a new, empty generation without lookups, and return its id. Clears every non-empty
        bucket of `definitions` with one op."""

    def begin_anew(self, key: int, bucket: Bucket | None) -> None:
        """Delete everything that a bucket (by its key) holds, damaged or not, and begin it with a CLEAR. The caller
        appends its rows again. A bucket that does not exist is created if `bucket` is given. Earlier checkpoints
        count as overtaken in it."""

    def table_members(self, table: int) -> Iterable[tuple[str, str, str | None]]:
        """(row id, members, subkey) of every row of the table."""

    def mark_resync(self, table: int, reason: ResyncReason) -> None:
        """Record within this transaction that a table has to be compared with the source, because the transaction does
        not write all of its changes."""

    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        """Row ids by line, for tables whose rows nothing else identifies. Reads the whole table."""

    def commit(self, source: str, progress: Progress) -> Checkpoint:
        """Commit everything, with the source's position, and return the new checkpoint. Durable on return."""

    def rollback(self) -> None: ...


class StoreWriter(Protocol):
    """The replicator's side of a store: one thread, one lease per source."""

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        """Take the lease for `ttl` seconds if it is free, expired, ours, or held by a dead process. Raises
        LeaseHeldError."""

    def renew(self, lease: Lease) -> None:
        """Extend the lease. Raises LeaseLostError when a newer one exists. May be called from another thread."""

    def release(self, lease: Lease) -> None: ...

    def source_state(self, tag: str) -> SourceState | None: ...

    def tables(self, tag: str) -> list[StoredTable]:
        """The active generations of a source's tables."""

    def begin(self, lease: Lease) -> Flush:
        """Begin a transaction under the lease. Raises LeaseLostError."""

    def keys(self) -> StoreKeys:
        """Makes the keys and digests of the store as of now: a bucket may be moved later."""

    def inbox(self) -> int:
        """A number that grows with each submitted request or version. Cheap, for polling."""

    def staging_directory(self) -> str:
        """A directory of this machine for the progress and parts of a bulk job; `discard_staged` empties it."""

    def discard_staged(self, lease: Lease) -> None:
        """Delete what an unfinished bulk job left."""

    def stage_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], *, indexed: bool = False
    ) -> list[StagedTable]:
        """Create generations, invisible until published, for relations and their fingerprints. Without an index, taking
        over whole parts is quicker; pages taken over while the stream runs need one."""

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        """Take over parts, in short transactions. The work is proportional to their size; readers see nothing of it."""

    def stage_page(self, lease: Lease, part: StagedPart, page: int) -> bool:
        """Take over rows and lookups of one page into an indexed generation, in one short transaction; readers see
        nothing of it. Does nothing and returns False when a row's id exists already."""

    def publish(
        self,
        lease: Lease,
        state: SourceState,
        tables: Sequence[StagedTable],
        version: int,
        sides: Mapping[str, str],
        record: BulkRecord,
    ) -> Checkpoint:
        """Replace all tables of the source by staged ones, in one short transaction: number the segments, clear what
        their buckets held before, move the source to `state.lsn` and activate `version`, whose row sides (see
        `storage.contract.versions`) are complete with it. The work is proportional to the number of buckets and
        segments, not of rows."""

    def create_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], resync: ResyncReason | None
    ) -> list[StoredTable]:
        """Create empty active generations that a re-sync is to fill, with `resync` as its reason."""

    def add_layout(self, lease: Lease, table: int, relation: Relation, fingerprint: str) -> StoredTable:
        """Add a layout that rows of the table are written in from now on. Existing rows keep theirs."""

    def replace_table(self, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None) -> bool:
        """Replace an active generation by a staged one that holds its rows under other ids. The new one takes over the
        layouts and the fingerprint and is to be compared with the source for the reason `resync`. Writes no op. Does
        nothing and returns False when two of its rows have the same id, or the active generation is gone."""

    def mark_resync(self, lease: Lease, tables: Sequence[int], reason: ResyncReason | None) -> None:
        """Record why tables are being compared with the source; None ends the comparison."""

    def drop_table(self, lease: Lease, table: int) -> None:
        """Delete a table none of whose rows is in any bucket."""

    def move_source(self, lease: Lease, state: SourceState) -> None:
        """Follow the source from another slot and position."""

    def cap_writes(self, tag: str, lsn: Lsn) -> None:
        """The source's log now ends at `lsn`, before where it once did: no write checkpoint waits for a later LSN."""

    def place_ranges(self, table: int, rows: int) -> Places:
        """Ranges of places that cover all rows of the table, about `rows` rows each."""

    def take_page(self, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> Checkpoint:
        """Take over one page of a part of additions in one short transaction: number its ops, and add members and
        lookups to its rows. Leaves out the rows in `skip`, which changed or were deleted since the task read them."""

    def note_job(self, record: BulkRecord) -> None: ...

    def note(self, lease: Lease, key: str, text: str) -> None:
        """Store a short text under a key, replacing the one before."""

    def noted(self, key: str) -> str:
        """The text under a key; empty when there is none."""

    def tell(self, lease: Lease, text: str) -> None:
        """Replace what `StoreReader.heard` returns. Does not wait for an open flush, and where that can be, works while
        the store can't be written. May be called from another thread, but from one at a time."""

    def bulk_records(self) -> list[BulkRecord]: ...

    def close(self) -> None: ...
