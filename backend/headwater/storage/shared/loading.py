"""Reading current rows in batches of bounded size in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater.storage.sql.flush import Flush

BATCH_BYTES = 16 << 20
"""Default size of a batch of rows in bytes, approximate."""


def batched(rows: Iterable[PlacedRow], count: int, room: int) -> Iterator[list[PlacedRow]]:
    """Batches of at most `count` rows and about `room` bytes."""
    batch, left = list[PlacedRow](), room
    for row in rows:
        batch.append(row)
        left -= len(row.row.line)
        if left <= 0 or len(batch) >= count:
            yield batch
            batch, left = [], room
    if batch:
        yield batch


def loaded_rows(flush: Flush, table: int, row_ids: Sequence[str], room: int) -> Iterator[CurrentRow]:
    """The current rows among `row_ids`, unordered. Holds about `room` bytes of them at a time."""
    done = 0
    while done < len(row_ids):
        rows, count = flush.load(table, row_ids[done:], room)
        done += count
        yield from rows.values()
