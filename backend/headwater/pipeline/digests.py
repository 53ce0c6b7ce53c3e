"""The comparison of a source and its store: digests of both sides first, then the rows behind those that differ.

Most of the time nothing differs, and then a vector of digests per task is all that travels. Rows are fetched only
from partitions of the hash space that differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwater.bulk.jobs import CompareJob, CompareOutcome
from headwater.pipeline.compare import DigestTask, Rows, RowsTask, SourceRows, StoreRows, TableDigests
from headwater.pipeline.engine import Found, Run
from headwater.pipeline.partition import Partition

_FEWEST_PARTITIONS, _MOST_PARTITIONS = 1 << 10, 1 << 16
_ROWS_A_PARTITION = 8


def find_differences(
    run: Run[CompareJob], job: CompareJob, source_parts: Sequence[Partition], found: Found
) -> CompareOutcome:
    """Hand every difference to `found`, in batches."""
    tables = {table.stored.id: table for table in job.tables}
    parts: list[Rows] = [SourceRows(tables[part.table.table_id].stored, part) for part in source_parts]
    parts += [StoreRows(table.stored, *places) for table in job.tables for places in table.ranges]
    sizes = {table.stored.id: _partitions(table.rows) for table in job.tables}
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
    """Enough that few rows share a partition, a power of two."""
    wanted = max(_FEWEST_PARTITIONS, min(_MOST_PARTITIONS, rows // _ROWS_A_PARTITION))
    return 1 << (wanted - 1).bit_length()


def _differing(found: Sequence[TableDigests], sizes: dict[int, int]) -> dict[int, frozenset[int]]:
    """By table, the partitions in which the two sides are not equal."""
    sums = {table: np.zeros(size, dtype=np.uint64) for table, size in sizes.items()}
    for part in found:
        digests = np.frombuffer(part.digests, dtype=np.uint64)
        if part.of_source:
            sums[part.table] += digests
        else:
            sums[part.table] -= digests
    return {table: frozenset(map(int, np.flatnonzero(total))) for table, total in sums.items()}
