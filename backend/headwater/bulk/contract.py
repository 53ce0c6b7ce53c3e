"""What bulk jobs have to do and what they find, as told between those who ask for them and those who run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from headwater.decode.catalog import TypeCatalog
from headwater.errors import HeadwaterError, Kind
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import SourceSettings
from headwater.storage.address import StoreAddress
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan


class TableChangedError(HeadwaterError):
    """A table was rewritten, truncated or altered while it was read, so what was read is worth nothing."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_2301"


class TableLockedError(HeadwaterError):
    """Somebody keeps a table locked, so that it can't be read, nor be told what it is."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_2302"


class EngineError(HeadwaterError):
    """What runs bulk jobs is not there, which says nothing of a job that it was given: that can be begun again as often
    as it takes."""

    code: ClassVar[str] = "HW_5100"


class EngineLostError(EngineError):
    """It ended in the midst of its work, as by a machine that ran out of memory. It is started again with the next
    job."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_5106"


class GivenUpError(HeadwaterError):
    """Nobody wants a job's result any more."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_5104"


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table to read, whose rows belong to generation `table_id` of the store."""

    table_id: int
    published: PublishedTable


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """Read whole tables into a store that has nothing of them. `snapshot` is the exported snapshot's name; `salt` is
    the store's, for subkeys; `directory` is for progress, on this machine."""

    source: SourceSettings
    snapshot: str
    tables: tuple[SnapshotTable, ...]
    plan: SyncPlan
    types: TypeCatalog
    salt: bytes
    store: StoreAddress
    directory: str


@dataclass(frozen=True, slots=True)
class ReprocessTable:
    """Current rows to read: those at places within `ranges`, each [first, end), one for a task; about `rows`."""

    stored: StoredTable
    ranges: tuple[tuple[int, int], ...]
    rows: int


@dataclass(frozen=True, slots=True)
class ReprocessJob:
    """Evaluate current rows by a plan that has only row sides which are not complete; write what comes of it as
    pages of additions. `piece` is about how many bytes of rows are read at once, or are in a page."""

    tag: str
    tables: tuple[ReprocessTable, ...]
    plan: SyncPlan
    types: TypeCatalog
    salt: bytes
    store: StoreAddress
    directory: str
    piece: int


@dataclass(frozen=True, slots=True)
class RekeyJob:
    """Write a table's current rows, those at places within `ranges`, into generation `target` under the ids that its
    last layout gives them; about `rows`. With plans come its lookups. `piece` is about how many bytes of rows are read
    at once."""

    tag: str
    stored: StoredTable
    target: int
    ranges: tuple[tuple[int, int], ...]
    rows: int
    plans: tuple[SyncPlan, ...]
    types: TypeCatalog
    salt: bytes
    store: StoreAddress
    directory: str
    piece: int


@dataclass(frozen=True, slots=True)
class CompareTable:
    """A table to read on both sides: as the snapshot sees it, and as the store has it."""

    published: PublishedTable
    stored: StoredTable
    ranges: tuple[tuple[int, int], ...]
    rows: int


@dataclass(frozen=True, slots=True)
class CompareJob:
    """Find the rows in which a source and its store differ. With `plans`, current rows are evaluated too, and those
    whose memberships are not what their rules give are reported as different."""

    source: SourceSettings
    snapshot: str
    tables: tuple[CompareTable, ...]
    plans: tuple[SyncPlan, ...]
    types: TypeCatalog
    store: StoreAddress
    directory: str


@dataclass(frozen=True, slots=True)
class RecountJob:
    """Count how often the source has these rows, by table, under the snapshot of a comparison. They are named as in
    `Difference`: by their id, or where nothing identifies them by their content."""

    compared: CompareJob
    contents: Mapping[int, frozenset[str]]


class Difference(NamedTuple):
    """One row, or one content of a table whose rows nothing identifies, in which source and store differ.

    `key` is the row id, or for a table without key the content id (`row_id.content_id`). `line` is the row's COPY
    text: in the source, or, where only the store has such content, there. `copies` is how often the source has it.
    """

    table: int
    key: str
    line: str
    copies: int


@dataclass(frozen=True, slots=True)
class CompareOutcome:
    """How much was compared: rows on either side, partitions of the hash space that differ, and Spark's part in it."""

    source_rows: int
    store_rows: int
    partitions: int
    differing: int
    application: str
    tasks: int


@dataclass(frozen=True, slots=True)
class VerifyTable:
    """Current rows to look at: those at places within `ranges`, each [first, end). `stored` is None for a table of
    another source, whose rows count in buckets only."""

    id: int
    stored: StoredTable | None
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """See whether the lookups of these tables are what the plans give, and with `buckets` whether every history is
    sound and leads to the rows that stand in its bucket. `tables` then holds all that the store has."""

    tag: str
    tables: tuple[VerifyTable, ...]
    plans: tuple[SyncPlan, ...]
    types: TypeCatalog
    salt: bytes
    store: StoreAddress
    directory: str
    buckets: bool = True


class BrokenBucket(NamedTuple):
    """A bucket whose history is not what it should be, and why. Its name may be unknown."""

    key: int
    name: str
    problem: str


class BrokenLookups(NamedTuple):
    """A row whose lookups are not what the rules give. The row may be gone."""

    table: int
    row_id: str


@dataclass(frozen=True, slots=True)
class VerifyOutcome:
    """What a verification found, how many ops and rows it looked at, and Spark's part in it."""

    buckets: tuple[BrokenBucket, ...]
    lookups: tuple[BrokenLookups, ...]
    ops: int
    rows: int
    application: str
    tasks: int


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """How far a bulk job is. `rows_expected` is an estimate and may be short of the truth; 0 where nobody knows. `what`
    names the kind of job for a person. `over` says that it has ended, well or not."""

    rows: int
    rows_expected: int
    tasks: int
    tasks_expected: int
    what: str = "snapshot"
    over: bool = False

    def __str__(self) -> str:
        if self.over or not self.rows_expected:
            return f"{self.rows:,} rows"
        return f"{self.rows:,} of about {max(self.rows, self.rows_expected):,} rows"
