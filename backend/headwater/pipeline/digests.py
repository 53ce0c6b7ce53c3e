"""Compares a source and its store: first digests of both sides, then the rows of partitions that differ.

Usually nothing differs, and then only a vector of digests per task is transferred. Rows are transferred only from
partitions of the hash space that differ. A small table is compared by one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headwater.bulk.contract import CompareJob, CompareOutcome, CompareTable
from headwater.pipeline.compare import DigestTask, Rows, RowsTask, SourceRows, StoreRows, TableDigests
from headwater.pipeline.engine import Found, Run
from headwater.pipeline.partition import Partition
from headwater.pipeline.plan import is_small
from headwater.pipeline.small_table import WholeTask

_FEWEST_PARTITIONS, _MOST_PARTITIONS = 1 << 10, 1 << 16
_ROWS_A_PARTITION = 8
_WHOLE_AT_ONCE = 16  # tables whose differences are in the driver's memory together


def find_differences(
    run: Run[CompareJob], job: CompareJob, source_parts: Sequence[Partition], found: Found
) -> CompareOutcome:
    """Hand every difference to `found`, in batches."""
    sides = {table.stored.id: _Sides.of(table, source_parts) for table in job.tables}
    whole = [
        WholeTask(table.stored.id, sides[table.stored.id].source, sides[table.stored.id].store)
        for table in job.tables
        if is_small(table.published) and len(table.ranges) <= 1
    ]
    small = _compare_whole(run, whole, found)
    outcome = _compare_digests(
        run, {table.stored.id: table for table in job.tables if table.stored.id not in small}, sides, found
    )
    return CompareOutcome(
        source_rows=outcome.source_rows + sum(w.source_rows for w in small.values()),
        store_rows=outcome.store_rows + sum(w.store_rows for w in small.values()),
        partitions=outcome.partitions + len(small),
        differing=outcome.differing + sum(w.differs for w in small.values()),
        application=run.application,
        tasks=outcome.tasks + len(whole),
    )


@dataclass(frozen=True, slots=True)
class _Sides:
    """The parts of a table on both sides."""

    source: tuple[SourceRows, ...]
    store: tuple[StoreRows, ...]

    @classmethod
    def of(cls, table: CompareTable, source_parts: Sequence[Partition]) -> _Sides:
        return cls(
            tuple(SourceRows(table.stored, part) for part in source_parts if part.table.table_id == table.stored.id),
            tuple(StoreRows(table.stored, *places) for places in table.ranges),
        )


class _Whole(NamedTuple):
    """The result for a small table, without the differences, which were handed over."""

    source_rows: int
    store_rows: int
    differs: bool


def _compare_whole(run: Run[CompareJob], tasks: Sequence[WholeTask], found: Found) -> dict[int, _Whole]:
    """Results by table. Tables that were larger than expected are left out."""
    small: dict[int, _Whole] = {}
    for start in range(0, len(tasks), _WHOLE_AT_ONCE):
        some = tasks[start : start + _WHOLE_AT_ONCE]
        for task, outcome in zip(some, run.tasks(some), strict=True):
            if outcome is None:
                continue
            if outcome.differences:
                found(outcome.differences)
            small[task.table] = _Whole(outcome.source_rows, outcome.store_rows, bool(outcome.differences))
    return small


def _compare_digests(
    run: Run[CompareJob], tables: Mapping[int, CompareTable], sides: Mapping[int, _Sides], found: Found
) -> CompareOutcome:
    parts: list[Rows] = [part for table in tables for part in sides[table].source]
    parts += [part for table in tables for part in sides[table].store]
    sizes = {number: _partitions(table.rows) for number, table in tables.items()}
    digests = run.tasks([DigestTask(part, sizes[part.table.id]) for part in parts])
    differing = _differing(digests, sizes)
    tasks = [
        RowsTask(part, sizes[part.table.id], differing[part.table.id]) for part in parts if differing[part.table.id]
    ]
    if tasks:
        run.differences(tasks, found)
    return CompareOutcome(
        source_rows=sum(d.rows for d in digests if d.of_source),
        store_rows=sum(d.rows for d in digests if not d.of_source),
        partitions=sum(sizes.values()),
        differing=sum(map(len, differing.values())),
        application=run.application,
        tasks=len(parts) + len(tasks),
    )


def _partitions(rows: int) -> int:
    """A power of two that leaves few rows in a partition."""
    wanted = max(_FEWEST_PARTITIONS, min(_MOST_PARTITIONS, rows // _ROWS_A_PARTITION))
    return 1 << (wanted - 1).bit_length()


def _differing(found: Sequence[TableDigests], sizes: dict[int, int]) -> dict[int, frozenset[int]]:
    """By table, the partitions in which the two sides differ."""
    sums = {table: np.zeros(size, dtype=np.uint64) for table, size in sizes.items()}
    for part in found:
        digests = np.frombuffer(part.digests, dtype=np.uint64)
        if part.of_source:
            sums[part.table] += digests
        else:
            sums[part.table] -= digests
    return {table: frozenset(map(int, np.flatnonzero(total))) for table, total in sums.items()}
