"""What every store promises. Live replication, bulk jobs and the endpoint know this page and no back end.

A store is dumb and durable: it keeps what it is given, numbers ops, and returns finished lines. It knows nothing
of rules or of Postgres. Calls block; the endpoint makes them from threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.errors import HeadwaterError, Kind
from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import BucketName, DraftOp
from headwater_rules.results import LookupEntry


class StoreError(HeadwaterError):
    """The store can't do what was asked: it is damaged, full, or of another format."""

    code = "HW_4001"


class StoreBusyError(HeadwaterError):
    """Another process holds the store's write lock for longer than we wait."""

    kind = Kind.RETRY
    code = "HW_4002"


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
    up to which every commit is contained. Neither part ever goes back."""

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
    checkpoint may follow. `size` is the number of ops."""

    ops: bytes
    size: int
    next_after: OpId
    more: bool


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
        """The newest checkpoint, or None while there is no active config with a checkpoint."""

    def checkpoint(self) -> tuple[Checkpoint, int] | None:
        """The newest checkpoint and the id of the active config: cheap, for polling after a wake-up."""

    def touched(self, after: OpId, upto: OpId) -> Touched:
        """What changed in (after, upto]."""

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        """Ops with after < op_id <= upto, at most 1,000 and cut before 1 MiB of row data, except that one op larger
        than that comes alone. An empty chunk has `size` 0 and `more` False. Starts at the bucket's last CLEAR at or
        below `upto`, whatever stands before it."""

    def listen(self) -> Listener: ...

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        """A new id for each key (duplicates share one), one above its last, valid once checkpoints reach `lsns`."""

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        """Those created or replaced after `after_seq`, in order of `seq`."""

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None: ...

    def replicator_alive(self) -> bool:
        """Whether some replicator holds an unexpired lease."""

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
    """One generation of a source table. Rows name the layout (a position in `layouts`) that they were written in."""

    id: int
    source: str
    layouts: tuple[Relation, ...]
    fingerprint: str

    @property
    def relation(self) -> Relation:
        return self.layouts[-1]


class CurrentRow(NamedTuple):
    """A row as the source has it now. `line` is its COPY text; `members` is the text of `encode_members`."""

    row_id: str
    layout: int
    line: str
    members: str
    subkey: str | None


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

    def copies(self, table: int, content: str) -> list[str]:
        """Row ids of the copies of an identical row, in no order."""

    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]: ...

    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        """Insert or replace."""

    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None: ...

    def replace_lookups(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None: ...

    def append(self, ops: Sequence[DraftOp], buckets: Mapping[int, BucketName]) -> None:
        """Number and keep ops. `buckets` names every bucket among them that may be new; a bucket built anew starts
        with a CLEAR."""

    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        """A new, empty generation of the table, whose id is returned; its lookups are gone. Every bucket of
        `definitions` that holds anything is cleared by one op."""

    def table_members(self, table: int) -> Iterable[tuple[str, str, str | None]]:
        """(row id, members, subkey) of every row of the table."""

    def commit(self, source: str, progress: Progress) -> Checkpoint: ...

    def rollback(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table generation that a bulk job is filling."""

    id: int
    relation: Relation


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task left behind for the store: where it is, and how much. `attempt` names the try that succeeded."""

    path: str
    table: int
    rows: int
    ops: int
    attempt: str


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """What a bulk job left: its parts, Spark's name for the application, and how many tasks it ran."""

    parts: tuple[StagedPart, ...]
    application: str
    tasks: int


@dataclass(frozen=True, slots=True)
class BulkRecord:
    """What a bulk job did, for status and audit. Times in seconds since 1970."""

    kind: str
    source: str
    application: str
    tasks: int
    rows: int
    ops: int
    started: float
    finished: float


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

    def active_config(self) -> StoredConfig | None: ...

    def activate_config(self, lease: Lease, yaml: str) -> StoredConfig:
        """Make a config active whose rows are all there already."""

    def begin(self, lease: Lease) -> Flush: ...

    def subkey_salt(self) -> bytes: ...

    def staging_directory(self) -> str:
        """Where tasks of a bulk job leave their parts; emptied by `discard_staged`."""

    def discard_staged(self, lease: Lease) -> None:
        """Drop what an unfinished bulk job left."""

    def stage_tables(self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]]) -> list[StagedTable]:
        """New generations, invisible until published, for relations and their fingerprints."""

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        """Take parts over. Work in their size, in short transactions; readers see nothing of it."""

    def publish(
        self, lease: Lease, state: SourceState, tables: Sequence[StagedTable], config: str, record: BulkRecord
    ) -> Checkpoint:
        """Put staged tables in the place of all tables of the source, in one short transaction: number the segments,
        clear what stood in their buckets before, move the source to `state.lsn` and make `config` active. Work in
        the number of buckets and segments, not of rows."""

    def bulk_records(self) -> list[BulkRecord]: ...

    def close(self) -> None: ...
