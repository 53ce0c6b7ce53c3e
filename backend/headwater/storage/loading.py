"""Loading current rows within a flush, however many bytes they have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.storage.contract import Flush
from headwater.storage.parts import CurrentRow


def loaded_rows(flush: Flush, table: int, row_ids: Sequence[str], room: int) -> Iterator[CurrentRow]:
    """The rows among `row_ids` that exist, in no order. About `room` bytes of them are held at a time."""
    done = 0
    while done < len(row_ids):
        rows, count = flush.load(table, row_ids[done:], room)
        done += count
        yield from rows.values()
