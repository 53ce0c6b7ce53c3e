"""Compares a small table in the memory of one task, which takes less time than a DataFrame of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.bulk.contract import CompareJob, Difference
from headwater.pipeline.compare import ComparedRow, SourceRows, StoreRows
from headwater.pipeline.progress import TaskProgress

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
    """How many rows each side has, and the differences."""

    source_rows: int
    store_rows: int
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class WholeTask:
    """Compare a table that is estimated to be small."""

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
