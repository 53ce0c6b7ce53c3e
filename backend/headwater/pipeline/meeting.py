"""Where the rows of both sides of a table meet in memory; and the comparison of a small table by one task, which costs
less than to have Spark group and join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.bulk.contract import CompareJob, Difference
from headwater.pipeline.compare import ComparedRow, SourceRows, StoreRows
from headwater.pipeline.progress import TaskProgress

MOST_CHARACTERS = 16 << 20
_A_ROW = 200
"""What a row takes in memory besides its key and line."""


@dataclass(slots=True)
class _Met:
    """The rows of one key, or content: how many there are on either side, and the least and greatest of their digests,
    which are one when all of them are alike."""

    line: str
    least: int
    greatest: int
    copies: int = 0
    stored: int = 0


class Meeting:
    """All rows of one table, those of the source first. `size` is about how many characters it holds."""

    def __init__(self) -> None:
        self._met: dict[str, _Met] = {}
        self.size = 0

    def of_source(self, rows: Sequence[ComparedRow]) -> None:
        for row in rows:
            met = self._meet(row)
            met.line = max(met.line, row.line)
            met.copies += 1

    def of_store(self, rows: Sequence[ComparedRow]) -> None:
        for row in rows:
            self._meet(row).stored += 1

    def _meet(self, row: ComparedRow) -> _Met:
        met = self._met.get(row.key)
        if met is None:
            met = self._met[row.key] = _Met(row.line, row.digest, row.digest)
            self.size += len(row.key) + len(row.line) + _A_ROW
        elif row.digest < met.least:
            met.least = row.digest
        elif row.digest > met.greatest:
            met.greatest = row.digest
        return met

    def differences(self, table: int) -> list[Difference]:
        """What the sides do not have alike: not as often, or with several digests."""
        return [
            Difference(table, key, met.line, met.copies)
            for key, met in self._met.items()
            if met.copies != met.stored or met.least != met.greatest
        ]


@dataclass(frozen=True, slots=True)
class WholeFound:
    """How many rows of each side there were, and what they do not have alike."""

    source_rows: int
    store_rows: int
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class WholeTask:
    """Compare a table that is thought to be small."""

    table: int
    source: tuple[SourceRows, ...]
    store: tuple[StoreRows, ...]

    def run(self, job: CompareJob, number: int, attempt: str) -> WholeFound | None:
        """None when it is more than one task should hold."""
        meeting = Meeting()
        counts = []
        with TaskProgress(job.directory, number, attempt) as progress:
            for parts, take in ((self.source, meeting.of_source), (self.store, meeting.of_store)):
                count = 0
                for rows in (rows for part in parts for rows in part.rows(job)):
                    take(rows)
                    count += len(rows)
                    progress.add(len(rows))
                    if meeting.size > MOST_CHARACTERS:
                        return None
                counts.append(count)
        return WholeFound(counts[0], counts[1], meeting.differences(self.table))
