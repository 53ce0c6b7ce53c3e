"""Current rows, and what bulk jobs leave for a store to take over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headwater.oplog.change import Relation
from headwater.oplog.transform import BucketName, DraftOp
from headwater_rules.results import LookupEntry


class CurrentRow(NamedTuple):
    """A row as the source has it now. `line` is its COPY text; `members` is the text of `encode_members`; `subkey` is
    the `subkey_origin` of a row that had another id, or another table, once."""

    row_id: str
    layout: int
    line: str
    members: str
    subkey: str | None


class PlacedRow(NamedTuple):
    """A current row with its number within the table: the same for as long as the row keeps its id, in no order that
    means anything."""

    place: int
    row: CurrentRow


@dataclass(frozen=True, slots=True)
class StagedTable:
    """A table generation that a bulk job is filling."""

    id: int
    relation: Relation


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one task left behind for the store: where it is, and how much. `attempt` names the try that succeeded.
    A part has `pages` to be taken one by one while the stream flows; one of a snapshot has none. `refused` says, in
    words, which rows or ops were too large, as far as there is room for it."""

    path: str
    table: int
    rows: int
    ops: int
    attempt: str
    pages: int = 0
    refused: tuple[str, ...] = ()


class Places(NamedTuple):
    """Where a table's current rows are: `ranges` [first, end) of places, and how many `rows` stand in all of them."""

    ranges: tuple[tuple[int, int], ...]
    rows: int


class PartWriter(Protocol):
    """What a task of a bulk job writes into. A context manager: left without `finish`, it leaves nothing."""

    def __enter__(self) -> PartWriter: ...

    def __exit__(self, *_: object) -> None: ...

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[int, BucketName],
    ) -> None:
        """Keep a batch. `lookups` pairs row ids with entries; `buckets` names every bucket of the ops. In a part of
        additions a row's `members` are those that come on top of what it has, and its `line` is empty."""

    def end_page(self) -> None:
        """What was written since the last page can be taken by itself."""

    def finish(self) -> StagedPart:
        """All is written and durable enough to be taken over."""


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
