"""Divides a snapshot into partitions: ranges of pages of the leaves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.bulk.contract import SnapshotTable
from headwater.pipeline.partition import Partition
from headwater.source.catalog.published import PublishedTable

LARGEST_PAGES = 8_192  # 64 MB: small enough to show progress and to repeat, large enough for the overhead of a task
SMALLEST_PAGES = 2_048  # 16 MB, some tens of thousands of rows: less takes less time than starting another task
_ROWS_A_PAGE = 60


def partitions(tables: Sequence[SnapshotTable], parallelism: int) -> list[Partition]:
    """Ranges for about four tasks a core, but none tiny and none huge. The last range of a leaf has no end, since the
    leaf may have grown since its size was read."""
    total = sum(leaf.pages for table in tables for leaf in table.published.leaves)
    size = min(LARGEST_PAGES, max(SMALLEST_PAGES, total // max(1, parallelism * 4) + 1))
    return [
        Partition(table, leaf, first, end)
        for table in tables
        for leaf in table.published.leaves
        for first, end in _ranges(leaf.pages, size)
    ]


def is_small(table: PublishedTable) -> bool:
    """Whether a table is estimated to be small enough for one task, however many leaves it has."""
    return sum(leaf.pages for leaf in table.leaves) <= SMALLEST_PAGES


def expected_rows(tables: Sequence[SnapshotTable]) -> int:
    """About how many rows the tables have. The planner has no estimate for a table that was never analysed."""
    leaves = [leaf for table in tables for leaf in table.published.leaves]
    return sum(leaf.estimated_rows or leaf.pages * _ROWS_A_PAGE for leaf in leaves)


def _ranges(pages: int, size: int) -> Iterator[tuple[int, int | None]]:
    starts = list(range(0, max(pages, 1), size))
    yield from zip(starts, [*starts[1:], None], strict=True)
