"""Cutting a snapshot into partitions: ranges of pages of the tables that hold the rows."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.pipeline.partition import Partition
from headwater.source.snapshot import SnapshotJob

LARGEST_PAGES = 8_192  # 64 MB: small enough to show progress and to repeat, large enough to amortise a task
SMALLEST_PAGES = 512


def partitions(job: SnapshotJob, parallelism: int) -> list[Partition]:
    """Ranges for about four tasks a core, but none tiny and none huge. The last range of a leaf is open: pages that
    the table grew since were counted by nobody."""
    total = sum(leaf.pages for table in job.tables for leaf in table.published.leaves)
    size = min(LARGEST_PAGES, max(SMALLEST_PAGES, total // max(1, parallelism * 4) + 1))
    return [
        Partition(number, table, leaf, first, end)
        for number, (table, leaf, first, end) in enumerate(
            (table, leaf, first, end)
            for table in job.tables
            for leaf in table.published.leaves
            for first, end in _ranges(leaf.pages, size)
        )
    ]


def _ranges(pages: int, size: int) -> Iterator[tuple[int, int | None]]:
    starts = list(range(0, max(pages, 1), size))
    yield from zip(starts, [*starts[1:], None], strict=True)
