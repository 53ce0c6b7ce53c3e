"""The data of current rows, and of what bulk jobs hand over to a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headwater.oplog.change import Relation


class CurrentRow(NamedTuple):
    """A source row as it is now. `line` is its COPY text and `members` the text of `encode_memberships`. `subkey` is
    the `subkey_origin` of a row that once had another id or another table, else None."""

    row_id: str
    layout: int
    line: str
    members: str
    subkey: str | None


new_row: Callable[[type[CurrentRow], tuple[str, int, str, str, str | None]], CurrentRow] = tuple.__new__
"""`new_row(CurrentRow, (…))`: a row in half the time of `CurrentRow(…)`."""


class PlacedRow(NamedTuple):
    """A current row and its place: a number within the table that stays the same as long as the row keeps its id. The
    order of places means nothing."""

    place: int
    row: CurrentRow


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table generation that a bulk job fills."""

    id: int
    relation: Relation


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task of a bulk job wrote: where it is and how much. `attempt` names the attempt that succeeded. A part
    of a comparison or rebuild is cut into `pages` that are taken over one by one while the stream runs; a part of a
    snapshot has none (0). `refused` describes the rows or ops that were too large, limited in number."""

    path: str
    table: int
    rows: int
    ops: int
    attempt: str
    pages: int = 0
    refused: tuple[str, ...] = ()


class Places(NamedTuple):
    """The places of a table's current rows: `ranges` [first, end), and the total number of `rows` in them."""

    ranges: tuple[tuple[int, int], ...]
    rows: int


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """The result of a bulk job: its parts, Spark's name for the application, and the number of tasks."""

    parts: tuple[StagedPart, ...]
    application: str
    tasks: int


@dataclass(frozen=True, slots=True)
class BulkRecord:
    """What a bulk job did, for status and audit. `started` and `finished` are in seconds since 1970."""

    kind: str
    source: str
    application: str
    tasks: int
    rows: int
    ops: int
    started: float
    finished: float


@dataclass(frozen=True, slots=True)
class JoinedLookup:
    """Where the rows are that a lookup gives: in `tables`, by id. `alone`: its entries have no values, so one tells as
    much as all."""

    tables: tuple[int, ...]
    alone: bool


JoinedLookups = Mapping[str, JoinedLookup]
"""By name, the lookups whose rows others are evaluated with, as far as they are complete."""
