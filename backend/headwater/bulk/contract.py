"""Bulk jobs as data: what each has to do, and what it returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headwater.decode.types import TypeCatalog
from headwater.errors import HeadwaterError
from headwater.oplog.keys import StoreKeys
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import SourceSettings
from headwater.storage.address import StoreAddress
from headwater.storage.contract.parts import JoinedLookups
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan


class JobKind(StrEnum):
    """Kinds of bulk work, as records of jobs, progress and metrics name them."""

    SNAPSHOT = "snapshot"
    REPROCESS = "reprocess"
    DEPLOY = "deploy"
    REKEY = "re-key"
    RESYNC = "re-sync"
    COMPARISON = "comparison"
    RECOUNT = "recount"
    MERGE = "merge"
    DIFFERENCES = "look at differences"
    AUDIT = "audit"
    VERIFICATION = "verification"
    REBUILD = "rebuild"
    SEARCH = "search for rows"
    REWRITE = "rows put again"
    REFRESH = "refresh"


class EngineError(HeadwaterError):
    """The engine that runs bulk jobs is not available. The job is not at fault and can be repeated any number of
    times."""

    code = "HW_5100"


class EngineLostError(EngineError):
    """The engine ended during a job, for example when the machine ran out of memory. It is started again with the next
    job."""

    code = "HW_5106"


class GivenUpError(HeadwaterError):
    """The job was cancelled."""

    code = "HW_5104"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkJob:
    """What every job has. `directory` is for progress files, on this machine. `now` is the time at which rows are
    evaluated, in microseconds since 1970; 0 where no rule reads the clock. `joined` are the lookups of rows that others
    are evaluated with."""

    types: TypeCatalog
    keys: StoreKeys
    store: StoreAddress
    directory: str
    now: int = 0
    joined: JoinedLookups = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table to read into generation `table_id` of the store."""

    table_id: int
    published: PublishedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotJob(BulkJob):
    """Read whole tables into a store that has no rows of them. `snapshot` is the exported snapshot's name."""

    source: SourceSettings
    snapshot: str
    tables: tuple[SnapshotTable, ...]
    plan: SyncPlan


@dataclass(frozen=True, slots=True)
class ReprocessTable:
    """Current rows to read, about `rows`: those at places within `ranges`, each [first, end), one for each task."""

    stored: StoredTable
    ranges: tuple[tuple[int, int], ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReprocessJob(BulkJob):
    """Evaluate current rows by a plan that has only incomplete row sides, and write the results as pages of additions.
    `batch_bytes` is about how many bytes of rows are read at once, or are in a page."""

    source_name: str
    tables: tuple[ReprocessTable, ...]
    plan: SyncPlan
    batch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RekeyJob(BulkJob):
    """Write a table's current rows, about `rows` at places within `ranges`, into generation `target`, under the ids
    that the last layout gives them. The plans are for lookups. `batch_bytes` is about how many bytes of rows are read
    at once."""

    source_name: str
    stored: StoredTable
    target: int
    ranges: tuple[tuple[int, int], ...]
    rows: int
    plans: tuple[SyncPlan, ...]
    batch_bytes: int


@dataclass(frozen=True, slots=True)
class CompareTable:
    """A table to read on both sides: from the snapshot, and from the store."""

    published: PublishedTable
    stored: StoredTable
    ranges: tuple[tuple[int, int], ...]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob(BulkJob):
    """Find the rows in which a source and its store differ. With `plans`, current rows are evaluated too, and count as
    different when they are in other buckets than the rules give."""

    source: SourceSettings
    snapshot: str
    tables: tuple[CompareTable, ...]
    plans: tuple[SyncPlan, ...]


@dataclass(frozen=True, slots=True)
class RecountJob:
    """Count how often the source has these rows, by table, in the snapshot of a comparison. They are named as in
    `Difference`: by row id, or by content id for tables without key."""

    compared: CompareJob
    contents: Mapping[int, frozenset[str]]


class Difference(NamedTuple):
    """One row, or one content of a table without key, in which source and store differ.

    `key` is the row id, or for a table without key the content id (`row_id.content_id`). `line` is the row's COPY
    text in the source, or in the store if only that has it. `copies` is how often the source has it.
    """

    table: int
    key: str
    line: str
    copies: int


@dataclass(frozen=True, slots=True)
class CompareOutcome:
    """How much was compared: rows of both sides, partitions of the hash space, and how many of these differ;
    `application` and `tasks` are Spark's."""

    source_rows: int
    store_rows: int
    partitions: int
    differing: int
    application: str
    tasks: int


@dataclass(frozen=True, slots=True)
class VerifyTable:
    """Current rows to verify: those at places within `ranges`, each [first, end). `stored` is None for a table of
    another source, of which only the rows in buckets count."""

    id: int
    stored: StoredTable | None
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob(BulkJob):
    """Verify that the lookups of these tables of a source are what the plans give, and with `buckets`
    that the ops of each of its buckets are sound and add up to their rows. `tables` then has all tables that may have
    rows in these buckets, also those of other sources."""

    source_name: str
    tables: tuple[VerifyTable, ...]
    plans: tuple[SyncPlan, ...]
    buckets: bool = True


class BrokenBucket(NamedTuple):
    """A bucket whose history is wrong, and why. Its name may be unknown."""

    key: int
    name: str
    problem: str


class BrokenLookups(NamedTuple):
    """A row whose lookups are not what the rules give. The row may be deleted."""

    table: int
    row_id: str


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """What a verification found, and how many ops and rows it checked; `application` and `tasks` are Spark's."""

    buckets: tuple[BrokenBucket, ...]
    lookups: tuple[BrokenLookups, ...]
    ops: int
    rows: int
    application: str
    tasks: int


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """How far a bulk job is. `rows_expected` is an estimate, which may be too low; 0 if unknown. `what` is the kind of
    job. `over` says that it has ended, whether it succeeded or not."""

    rows: int
    rows_expected: int
    tasks: int
    tasks_expected: int
    what: str = JobKind.SNAPSHOT
    over: bool = False

    def __str__(self) -> str:
        if self.over or not self.rows_expected:
            return f"{self.rows:,} rows"
        return f"{self.rows:,} of about {max(self.rows, self.rows_expected):,} rows"


Report = Callable[[BulkProgress], None]
Stop = threading.Event | None
"""Set to have a job given up soon."""
