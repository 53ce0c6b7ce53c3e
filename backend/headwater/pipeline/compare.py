"""The tasks of a comparison of a source and its store: digests of both sides, the rows of partitions that differ.

Rows are distributed over partitions of a hash space, by key or, without one, by content; the digest of a partition is
the sum of its rows' hashes, on either side. A flaw of a row is hashed together with its text, so that flaws of several
rows can't cancel out. Usually nothing differs, and then only a vector of digests per task is transferred. A small table
is compared by one task, in memory, which takes less time than a DataFrame of both sides.

Tasks run on executors. Nothing here imports pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headwater.bulk.bound_table import (
    BoundTable,
    Times,
    bind_layouts,
    current_cells,
    has_right_lookups,
    in_right_buckets,
    join_keys,
)
from headwater.bulk.contract import CompareJob, Difference, RecountJob
from headwater.decode.copytext import join_cells, key_cells
from headwater.decode.wire import DecodeError
from headwater.oplog.change import Relation
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import SURELY_A_ROW, is_stub, read_stub, stored_line
from headwater.oplog.row_id import IdentityKind, RowIdentity, content_id, content_of
from headwater.pipeline.progress import TaskProgress
from headwater.pipeline.snapshot import Partition
from headwater.source.connect import source_errors
from headwater.source.rows.copy import read_lines
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store

SOUND, _FLAWED = "", "\0flawed"
"""The end of the text that is hashed for a row. No text of Postgres has a NUL."""

_63_BITS = np.uint64(0x7FFFFFFFFFFFFFFF)

Digests = npt.NDArray[np.uint64]


class ComparedRow(NamedTuple):
    """A row of either side. `place` decides its partition of the hash space; `line` is empty where only the digest is
    needed. A row that is too large for the store counts as its stub."""

    place: int
    key: str
    digest: int
    line: str


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of the source: those of one range of pages."""

    table: StoredTable
    partition: Partition

    def digests(self, job: CompareJob) -> Iterator[Digests]:
        """See `_digests`."""
        with source_errors(job.source):
            for lines in read_lines(job.source, job.snapshot, self.partition):
                yield _digests(job.keys, zip(self._keys(lines), lines, repeat(SOUND)))

    def _keys(self, lines: Sequence[str]) -> list[str]:
        identity, width = RowIdentity.of(self.table.relation), len(self.table.relation.columns)
        return [identity.key(key_cells(line, width, identity.columns)) for line in lines]

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        has_key = RowIdentity.of(self.table.relation).kind is IdentityKind.KEY
        with source_errors(job.source):
            for lines in read_lines(job.source, job.snapshot, self.partition):
                if has_key:
                    keys = self._keys(lines)
                    yield [keyed_row(job.keys, key, line, line) for key, line in zip(keys, lines, strict=True)]
                else:
                    yield [_content(job.keys, line) for line in lines]


@dataclass(frozen=True, slots=True)
class StoreRows:
    """Current rows of the store: those at places [first, end)."""

    table: StoredTable
    first: int
    end: int

    def digests(self, job: CompareJob) -> Iterator[Digests]:
        """See `_digests`."""
        for batch in self.lines(job):
            yield _digests(job.keys, batch)

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        kind = RowIdentity.of(self.table.relation).kind
        for batch in self.lines(job):
            found: list[ComparedRow] = []
            for row_id, line, mark in batch:
                if kind is IdentityKind.KEY:
                    found.append(keyed_row(job.keys, row_id, line, "", mark))
                else:
                    # Under former names of columns, its values are nulls here; it is looked up by its id
                    known = kind is IdentityKind.FULL and not is_stub(line)
                    found.append(_content(job.keys, line, mark, content_of(row_id) if known else None))
            yield found

    def lines(self, job: CompareJob) -> Iterator[list[StoredLine]]:
        layouts = self.table.layouts
        bounds = bind_layouts(job.plans, job.source.name, layouts, job.types, self.table.id, job.keys)
        has_clock = any(bound is not None and bound.has_clock for bound in bounds)
        has_joins = any(bound is not None and bound.has_joins for bound in bounds)
        is_judged, last = bounds[-1] is not None, len(layouts) - 1
        times, store = Times(), open_store(job.store)
        for batch in store.read_rows(self.table.id, self.first, self.end, job.source.batch_bytes):
            if not is_judged:
                yield [
                    (row[0], row[2] if row[1] == last or is_stub(row[2]) else _present_line(layouts, row), SOUND)
                    for _, row in batch
                ]
                continue
            found: list[StoredLine] = []
            if has_clock:  # a row that was evaluated again meanwhile may seem wrong: who merges looks again
                times = Times(job.now, store.read_flips(self.table.id, [row.row_id for _, row in batch]))
            if has_joins:
                keys = join_keys(layouts, bounds, (row for _, row in batch))
                times = replace(times, joined=store.read_joined(job.joined, keys))
            for _, row in batch:
                line, mark = row.line, SOUND
                if not is_stub(line):
                    line = _present_line(layouts, row)
                    if not _in_right_buckets(bounds, layouts, row, times):
                        mark = _FLAWED
                found.append((row.row_id, line, mark))
            yield found


StoredLine = tuple[str, str, str]
"""A row id, the row's line in the last layout, and its mark: _FLAWED where it is not in the right buckets."""


Rows = SourceRows | StoreRows


def keyed_row(keys: StoreKeys, key: str, line: str, kept: str, mark: str = SOUND) -> ComparedRow:
    """A row of a table with key, of which `line` counts and `kept` is kept."""
    digest = keys.compared(_keyed_text(key, line, mark))
    return ComparedRow(digest, key, digest, kept)


def _keyed_text(key: str, line: str, mark: str) -> str:
    """The text that is hashed for a row of a table with key. A row that differs has another place on either side, so
    two partitions differ, and both are read. Of a row that is too large, only the key counts: a stub can't be converted
    to another layout."""
    shown = "" if is_stub(line) or (len(line) > SURELY_A_ROW and is_stub(stored_line(line))) else line
    return f"{key}\0{shown}{mark}"


def _digests(keys: StoreKeys, rows: Iterable[StoredLine]) -> Digests:
    """The digests of rows of a table with key, which are their places, too. Numpy takes all numbers at once: this is
    done for every row, and nearly all of them are equal."""
    texts = (_keyed_text(key, line, mark) for key, line, mark in rows)
    return np.frombuffer(keys.all_compared(texts), dtype=">u8").astype(np.uint64) & _63_BITS


def _content(keys: StoreKeys, line: str, mark: str = SOUND, known: str | None = None) -> ComparedRow:
    """A row of a table without key. `known` is the id of its content, where the row's own id has it."""
    stored = stored_line(line)
    content = known or (read_stub(stored).content if is_stub(stored) else content_id(line))
    place = keys.compared(content if is_stub(stored) else line)
    digest = keys.compared(f"{place}{mark}") if mark else place
    return ComparedRow(place, content, digest, line)


def _present_line(layouts: Sequence[Relation], row: CurrentRow) -> str:
    """The row's line in the last layout; unchanged when it can't be read."""
    if row.layout == len(layouts) - 1:
        return row.line
    try:
        return join_cells(current_cells(layouts, row))
    except DecodeError:
        return row.line


def _in_right_buckets(
    bounds: Sequence[BoundTable | None], layouts: Sequence[Relation], row: CurrentRow, times: Times
) -> bool:
    try:
        return in_right_buckets(layouts, bounds, row, times) and has_right_lookups(layouts, bounds, row, times)
    except DecodeError:
        return False


@dataclass(frozen=True, slots=True)
class TableDigests:
    """The result of one task: how many rows, and the digest of each partition of the hash space."""

    table: int
    of_source: bool
    rows: int
    digests: bytes


@dataclass(frozen=True, slots=True)
class DigestTask:
    """Compute the digests of the rows, in `partitions` of the hash space, a power of two."""

    part: Rows
    partitions: int

    def run(self, job: CompareJob, number: int, attempt: str) -> TableDigests:
        digests: Digests = np.zeros(self.partitions, dtype=np.uint64)
        mask = np.uint64(self.partitions - 1)
        count = 0
        with TaskProgress(job.directory, number, attempt) as progress:
            for places, own in self._digests(job):
                np.add.at(digests, places & mask, own)
                count += len(own)
                progress.add(len(own))
        return TableDigests(self.part.table.id, isinstance(self.part, SourceRows), count, digests.tobytes())

    def _digests(self, job: CompareJob) -> Iterator[tuple[Digests, Digests]]:
        """Of each batch of rows, their places and digests."""
        if RowIdentity.of(self.part.table.relation).kind is IdentityKind.KEY:
            yield from ((own, own) for own in self.part.digests(job))
            return
        for rows in self.part.rows(job):
            places = np.array([row.place for row in rows], dtype=np.uint64)
            yield places, np.array([row.digest for row in rows], dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class RecountTask:
    """Count the job's rows. Returns, by row or content id, a line and how many rows there are."""

    part: SourceRows

    def run(self, job: RecountJob, number: int, attempt: str) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        contents = job.contents[self.part.table.id]
        with TaskProgress(job.compared.directory, number, attempt) as progress:
            for rows in self.part.rows(job.compared):
                for row in rows:
                    if row.key in contents:
                        found[row.key] = (row.line, found[row.key][1] + 1 if row.key in found else 1)
                progress.add(len(rows))
        return found


@dataclass(frozen=True, slots=True)
class RowsTask:
    """Read the rows in those of `partitions` that are in `differing`."""

    part: Rows
    partitions: int
    differing: frozenset[int]

    def rows(self, job: CompareJob) -> Iterator[list[ComparedRow]]:
        mask, wanted = self.partitions - 1, self.differing
        for rows in self.part.rows(job):
            yield [row for row in rows if row.place & mask in wanted]


MOST_CHARACTERS = 16 << 20
_A_ROW = 200
"""About how many characters' worth of memory a row takes besides its key and line."""


@dataclass(slots=True)
class _Same:
    """The rows of one key or content: how many the source has (`copies`) and the store (`stored`), and the least and
    greatest of their digests, which are the same if all rows are equal."""

    line: str
    least: int
    greatest: int
    copies: int = 0
    stored: int = 0


class BothSides:
    """All rows of one table, those of the source first. `size` is about how many characters are in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, _Same] = {}
        self.size = 0

    def of_source(self, rows: Sequence[ComparedRow]) -> None:
        for row in rows:
            same = self._add(row)
            same.line = max(same.line, row.line)
            same.copies += 1

    def of_store(self, rows: Sequence[ComparedRow]) -> None:
        for row in rows:
            self._add(row).stored += 1

    def _add(self, row: ComparedRow) -> _Same:
        same = self._rows.get(row.key)
        if same is None:
            same = self._rows[row.key] = _Same(row.line, row.digest, row.digest)
            self.size += len(row.key) + len(row.line) + _A_ROW
        elif row.digest < same.least:
            same.least = row.digest
        elif row.digest > same.greatest:
            same.greatest = row.digest
        return same

    def differences(self, table: int) -> list[Difference]:
        """The keys and contents that differ: not as often on both sides, or with several digests."""
        return [
            Difference(table, key, same.line, same.copies)
            for key, same in self._rows.items()
            if same.copies != same.stored or same.least != same.greatest
        ]


@dataclass(frozen=True, slots=True)
class WholeFound:
    source_rows: int
    store_rows: int
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class WholeTask:
    table: int
    source: tuple[SourceRows, ...]
    store: tuple[StoreRows, ...]

    def run(self, job: CompareJob, number: int, attempt: str) -> WholeFound | None:
        """Returns None when the table is too large for one task."""
        both = BothSides()
        counts = []
        with TaskProgress(job.directory, number, attempt) as progress:
            for parts, take in ((self.source, both.of_source), (self.store, both.of_store)):
                count = 0
                for rows in (rows for part in parts for rows in part.rows(job)):
                    take(rows)
                    count += len(rows)
                    progress.add(len(rows))
                    if both.size > MOST_CHARACTERS:
                        return None
                counts.append(count)
        return WholeFound(counts[0], counts[1], both.differences(self.table))
