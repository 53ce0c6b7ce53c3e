"""What every store promises. Live replication, bulk jobs and the endpoint know this page and no back end.

A store is dumb and durable: it keeps what it is given, numbers ops, and returns finished lines. It knows nothing
of rules or of Postgres. Calls block; the endpoint makes them from threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from headwater.errors import HeadwaterError, Kind
from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import BucketName, DraftOp
from headwater.storage.contract.parts import BulkRecord, CurrentRow, Places, StagedPart, StagedTable
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater_rules.results import LookupEntry


class StoreError(HeadwaterError):
    """The store can't do what was asked: it is damaged, full, or of another format."""

    code = "HW_4001"


class StoreGoneError(StoreError):
    """A file of the embedded store was removed or replaced under those who have it open."""

    code = "HW_4010"


class StoreBusyError(HeadwaterError):
    """Another process holds the store's write lock for longer than we wait."""

    kind = Kind.RETRY
    code = "HW_4002"


class StoreUnreachableError(HeadwaterError):
    """The store's database does not answer, or not now; nothing of an open transaction was kept."""

    kind = Kind.RETRY
    code = "HW_4008"


class PartLostError(HeadwaterError):
    """What a task of a bulk job wrote is not there any more, or damaged; nothing of it was taken over."""

    kind = Kind.RETRY
    code = "HW_4009"


class LeaseLostError(HeadwaterError):
    """Another replicator took over; nothing of this transaction was kept."""

    code = "HW_4003"


class LeaseHeldError(HeadwaterError):
    """Another replicator is at work on this source."""

    kind = Kind.RETRY
    code = "PSYNC_S1003"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A consistent state that clients may see: every op up to `op_id`, and per source tag the position in its log
    up to which every commit is contained. The first part never goes back, the second only where the source did."""

    op_id: OpId
    lsns: Mapping[str, Lsn]


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """A deployed sync config. `id` grows with each one; a stream ends when another becomes active."""

    id: int
    yaml: str


@dataclass(frozen=True, slots=True)
class BucketTotal:
    """Sum of the op checksums (unsigned, modulo 2^32) and number of ops that a client starting at 0 will see."""

    checksum: int
    count: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of one bucket's history. `ops` holds finished op objects (JSON, UTF-8) joined by commas, ready to stand
    between `"data":[` and `]`. `next_after` is the last op id covered; `more` says that ops up to the asked-for
    checkpoint may follow. `size` is the number of ops. `overtaken` says that what the bucket held at the asked-for
    checkpoint is not whole any more, because compaction went past it: a checkpoint that such a chunk belongs to must
    not be completed; a newer one is there already."""

    ops: bytes
    size: int
    next_after: OpId
    more: bool
    overtaken: bool = False


@dataclass(frozen=True, slots=True)
class BucketMarks:
    """Where a bucket's history stands: its last CLEAR, how far compaction went, its newest op. Compaction moves one of
    the first two with the first change it makes to ops that were there. Whoever removes what must not be sent any more
    moves one of them with the last."""

    clear_op: OpId
    compacted_op: OpId
    last_op: OpId


@dataclass(frozen=True, slots=True)
class Touched:
    """What changed between two checkpoints, by bucket name and lookup key. None means "anything": too much to name.
    May name more than changed, never less."""

    buckets: frozenset[str] | None
    lookups: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class WriteCheckpoint:
    """The newest write of one client (`key` is user and client): its data is in every checkpoint whose positions
    reach `lsns`. `seq` grows with each change of any of them."""

    key: str
    id: int
    lsns: Mapping[str, Lsn]
    seq: int


class StoreSnapshot(Protocol):
    """One consistent view: all answers belong to `checkpoint`."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def config(self) -> StoredConfig: ...

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        """Totals at the checkpoint. A bucket the store never saw has 0 and 0; every name asked for is answered."""

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        """Outputs standing under each key at the checkpoint."""


class Listener(Protocol):
    """Learns that the store moved. A file descriptor for an event loop: readable after a commit elsewhere."""

    def fileno(self) -> int: ...

    def drain(self) -> None:
        """Take what is there, so that the descriptor is unreadable until the next commit."""

    def close(self) -> None: ...


class StoreReader(Protocol):
    """The endpoint's side. Safe to call from several threads at once."""

    def snapshot(self) -> AbstractContextManager[StoreSnapshot | None]:
        """The newest checkpoint and the config to serve, which is the active one or the endpoint's own (see
        `storage.contract.versions.OwnConfig`); None while there is no active config with a checkpoint. While it is
        open, all that its thread asks the reader for is seen at the same moment."""

    def checkpoint(self) -> tuple[Checkpoint, int] | None:
        """The newest checkpoint and the id of the config to serve: cheap, for polling after a wake-up."""

    def touched(self, after: OpId, upto: OpId) -> Touched:
        """What changed in (after, upto]."""

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        """Ops with after < op_id <= upto, at most 1,000 and cut before 1 MiB of row data, except that one op larger
        than that comes alone. An empty chunk has `size` 0 and `more` False. Starts at the bucket's last CLEAR at or
        below `upto`, whatever stands before it."""

    def marks(self, buckets: Sequence[str]) -> dict[str, BucketMarks]:
        """Where these buckets stand now; one that the store never saw is left out. Cheap: caches ask before every
        answer."""

    def listen(self) -> Listener: ...

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        """A new id for each key (duplicates share one), one above its last, valid once checkpoints reach `lsns`."""

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        """Ids that clients chose, by key: one above the last replaces it, valid once checkpoints reach `lsns`; any
        other changes nothing, but that the same one counts as asked for anew. Returns the ids that are stored then.
        They share their numbers with those of `create_write_checkpoint`."""

    def forget_write_requests(self, seconds: float) -> int:
        """Forget the write checkpoints whose ids clients chose and have not asked for in so long. Returns how many."""

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        """Those created or replaced after `after_seq`, in order of `seq`."""

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None: ...

    def replicator_alive(self) -> bool:
        """Whether some replicator holds an unexpired lease."""

    def noted(self, key: str) -> str:
        """What the replicator noted under a key; empty when there is nothing."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write what belongs to one source. A newer holder has a higher epoch."""

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
    """One generation of a source table. Rows name the layout (a position in `layouts`) that they were written in.
    `resync` says why its rows are being compared with the source, if they are."""

    id: int
    source: str
    layouts: tuple[Relation, ...]
    fingerprint: str
    resync: ResyncReason | None = None

    def has(self, *causes: Cause) -> bool:
        """Whether it is being compared for one of these causes."""
        return self.resync is not None and self.resync.cause in causes

    @property
    def relation(self) -> Relation:
        return self.layouts[-1]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a source's log stands when a flush commits. `committed_us` is the newest commit's time, counted from
    2000-01-01, or 0 when there was none."""

    lsn: Lsn
    committed_us: int = 0


class Flush(Protocol):
    """One store transaction. Nothing of it is seen before `commit`, nothing is left of it after `rollback`.

    Ops are numbered in the order in which they are handed over. Every method raises LeaseLostError once a newer
    lease exists.
    """

    def current(self, table: int, row_ids: Sequence[str]) -> dict[str, CurrentRow]:
        """The rows among `row_ids` that exist."""

    def load(self, table: int, row_ids: Sequence[str], room: int) -> tuple[dict[str, CurrentRow], int]:
        """The rows that exist among the first of `row_ids`, and how many of these were looked at: as many as have no
        more than about `room` bytes together, and one at least."""

    def copies(self, table: int, content: str) -> list[str]:
        """Row ids of the copies of an identical row, in no order."""

    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]: ...

    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        """Insert or replace."""

    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None: ...

    def replace_lookups(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None: ...

    def append(self, ops: Sequence[DraftOp], buckets: Mapping[int, BucketName]) -> None:
        """Number and keep ops. `buckets` names every bucket among them that may be new; a bucket built anew starts
        with a CLEAR. Ops of a bucket that neither exists nor is named are left out: its definition was retired."""

    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        """A new, empty generation of the table, whose id is returned; its lookups are gone. Every bucket of
        `definitions` that holds anything is cleared by one op."""

    def begin_anew(self, bucket: int, name: BucketName | None) -> None:
        """Forget all that a bucket (by its key) holds, damaged or not, and begin it with a CLEAR: its rows are to be
        appended again. One that is not there is made when `name` says what it is. Earlier checkpoints are overtaken
        there."""

    def table_members(self, table: int) -> Iterable[tuple[str, str, str | None]]:
        """(row id, members, subkey) of every row of the table."""

    def mark_resync(self, table: int, reason: ResyncReason) -> None:
        """Say with this transaction why a table has to be compared with the source: what it writes of it is not all."""

    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        """Row ids by line, for tables whose rows nothing else identifies. Reads the whole table."""

    def commit(self, source: str, progress: Progress) -> Checkpoint: ...

    def rollback(self) -> None: ...


class StoreWriter(Protocol):
    """The replicator's side: one thread, under a lease per source."""

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        """Take the lease if it is free, expired, ours or held by a process that is no more. Raises LeaseHeldError."""

    def renew(self, lease: Lease) -> None:
        """Raises LeaseLostError when a newer one exists. May be called from another thread."""

    def release(self, lease: Lease) -> None: ...

    def source_state(self, tag: str) -> SourceState | None: ...

    def tables(self, tag: str) -> list[StoredTable]:
        """The active generations of a source's tables."""

    def begin(self, lease: Lease) -> Flush: ...

    def subkey_salt(self) -> bytes: ...

    def inbox(self) -> int:
        """A number that has grown when a request or a version was handed in. Cheap, for polling."""

    def staging_directory(self) -> str:
        """A directory of this machine for progress and parts of a bulk job; emptied by `discard_staged`."""

    def discard_staged(self, lease: Lease) -> None:
        """Drop what an unfinished bulk job left."""

    def stage_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], *, indexed: bool = False
    ) -> list[StagedTable]:
        """New generations, invisible until published, for relations and their fingerprints. Whole parts are quicker
        staged without an index, pages while the stream flows with one."""

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        """Take parts over. Work in their size, in short transactions; readers see nothing of it."""

    def stage_page(self, lease: Lease, part: StagedPart, page: int) -> bool:
        """Take rows and lookups of one page over into an indexed generation, in one short transaction; readers see
        nothing of it. False, and nothing was done, when one of its rows has an id that is there."""

    def publish(
        self,
        lease: Lease,
        state: SourceState,
        tables: Sequence[StagedTable],
        version: int,
        sides: Mapping[str, str],
        record: BulkRecord,
    ) -> Checkpoint:
        """Put staged tables in the place of all tables of the source, in one short transaction: number the segments,
        clear what stood in their buckets before, move the source to `state.lsn` and activate `version`, whose row
        sides (see `storage.contract.versions`) are complete with it. Work in the number of buckets and segments, not of
        rows."""

    def create_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], resync: ResyncReason | None
    ) -> list[StoredTable]:
        """New, empty, active generations, whose rows a re-sync is to bring; `resync` is its reason."""

    def add_layout(self, lease: Lease, table: int, relation: Relation, fingerprint: str) -> StoredTable:
        """Rows of the table are written in this form from now on. Rows there keep the layout they have."""

    def replace_table(self, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None) -> bool:
        """Put a staged generation in the place of an active one, of which it has the rows under other ids: with the
        layouts and the fingerprint of that one, to be compared with the source for the reason `resync`. No op is
        written. False, and nothing was done, when two of its rows have the same id, or the active one is no more."""

    def mark_resync(self, lease: Lease, tables: Sequence[int], reason: ResyncReason | None) -> None:
        """Say why tables are being compared with the source; empty when that is over."""

    def drop_table(self, lease: Lease, table: int) -> None:
        """Forget a table that has no row left in any bucket."""

    def move_source(self, lease: Lease, state: SourceState) -> None:
        """Follow the source from another slot, and position, than before."""

    def cap_writes(self, tag: str, lsn: Lsn) -> None:
        """The source's log ends at `lsn`, before where it once did: nobody's write is waited for beyond that."""

    def place_ranges(self, table: int, rows: int) -> Places:
        """All rows of the table, in ranges of about `rows` of them each."""

    def take_page(self, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> Checkpoint:
        """Take one page of a part of additions in one short transaction: number its ops, add members and lookups to
        its rows. Rows in `skip` changed since the task read them, or are gone: nothing of theirs is taken."""

    def note_job(self, record: BulkRecord) -> None: ...

    def note(self, lease: Lease, key: str, text: str) -> None:
        """Keep a short text under a key, in place of the one before."""

    def noted(self, key: str) -> str:
        """The text under a key; empty when there is none."""

    def bulk_records(self) -> list[BulkRecord]: ...

    def close(self) -> None: ...
