"""What a bulk job has to read: tables under an exported snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwater.decode.catalog import TypeCatalog
from headwater.errors import HeadwaterError, Kind
from headwater.source.catalog import PublishedTable
from headwater.source.connect import SourceSettings
from headwater_rules.plan import SyncPlan


class TableChangedError(HeadwaterError):
    """A table was rewritten, truncated or altered while it was read, so what was read is worth nothing."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_2301"


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """A table to read into generation `table_id` of the store."""

    table_id: int
    published: PublishedTable


@dataclass(frozen=True, slots=True)
class SnapshotJob:
    """Everything that tasks need. `snapshot` is the exported snapshot's name; `salt` is the store's, for subkeys."""

    source: SourceSettings
    snapshot: str
    tables: tuple[SnapshotTable, ...]
    plan: SyncPlan
    types: TypeCatalog
    salt: bytes
    directory: str


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """How far a bulk job is. `rows_expected` is the planner's estimate and may be short of the truth."""

    rows: int
    rows_expected: int
    tasks: int
    tasks_expected: int
