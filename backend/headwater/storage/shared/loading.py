"""Reading current rows, a few at a time however many bytes they have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater.storage.contract.store import Flush

BATCH_BYTES = 16 << 20
"""About how many bytes of rows are read at once where nobody says otherwise."""


def batched(rows: Iterable[PlacedRow], count: int, room: int) -> Iterator[list[PlacedRow]]:
    """Batches of at most `count` rows, and no more than about `room` bytes."""
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
    """The rows among `row_ids` that exist, in no order. About `room` bytes of them are held at a time."""
    done = 0
    while done < len(row_ids):
        rows, count = flush.load(table, row_ids[done:], room)
        done += count
        yield from rows.values()
