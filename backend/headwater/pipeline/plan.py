"""Cutting a snapshot into partitions: ranges of pages of the tables that hold the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.bulk.contract import SnapshotTable
from headwater.pipeline.partition import Partition
from headwater.source.catalog.published import PublishedTable

LARGEST_PAGES = 8_192  # 64 MB: small enough to show progress and to repeat, large enough to amortise a task
SMALLEST_PAGES = 2_048  # 16 MB, some tens of thousands of rows: less is read before another task has begun
_ROWS_A_PAGE = 60


def partitions(tables: Sequence[SnapshotTable], parallelism: int) -> list[Partition]:
    """Ranges for about four tasks a core, but none tiny and none huge. The last range of a leaf is open: pages that
    the table grew since were counted by nobody."""
    total = sum(leaf.pages for table in tables for leaf in table.published.leaves)
    size = min(LARGEST_PAGES, max(SMALLEST_PAGES, total // max(1, parallelism * 4) + 1))
    return [
        Partition(table, leaf, first, end)
        for table in tables
        for leaf in table.published.leaves
        for first, end in _ranges(leaf.pages, size)
    ]


def is_small(table: PublishedTable) -> bool:
    """Whether a table is thought to be as good as one part, however many leaves hold its rows."""
    return sum(leaf.pages for leaf in table.leaves) <= SMALLEST_PAGES


def expected_rows(tables: Sequence[SnapshotTable]) -> int:
    """How many rows the tables are thought to have. The planner has no number for one that was never analysed."""
    leaves = [leaf for table in tables for leaf in table.published.leaves]
    return sum(leaf.estimated_rows or leaf.pages * _ROWS_A_PAGE for leaf in leaves)


def _ranges(pages: int, size: int) -> Iterator[tuple[int, int | None]]:
    starts = list(range(0, max(pages, 1), size))
    yield from zip(starts, [*starts[1:], None], strict=True)
