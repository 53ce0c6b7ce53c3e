"""Rows that lack values which only the source has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headwater.oplog.change import UNCHANGED, Cells
from headwater.replication.tables.live import FullCells

_NONE: Mapping[str, Cells] = {}


class Lacking:
    """By table id and row id, what the stream told of rows that can't be stored yet: the values that it left out, and
    that nobody here has, are marked in them. They stay out of the store until somebody completes them."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Cells]] = {}

    def of(self, table: int) -> Mapping[str, Cells]:
        """Such rows of a table."""
        return self._rows.get(table, _NONE)

    def tables(self) -> list[int]:
        """Which tables have any."""
        return list(self._rows)

    def put(self, table: int, row_id: str, cells: Cells) -> None:
        """What is known of a row now."""
        self._rows.setdefault(table, {})[row_id] = cells

    def discard(self, table: int, row_ids: Iterable[str]) -> None:
        """They are complete, or gone."""
        rows = self._rows.get(table)
        if rows is None:
            return
        for row_id in row_ids:
            rows.pop(row_id, None)
        if not rows:
            del self._rows[table]

    def forget(self, table: int) -> None:
        """The table is empty, or no more."""
        self._rows.pop(table, None)


def completed(known: Cells, source: FullCells, computed: Collection[int]) -> FullCells:
    """What is `known` of a row, with what it lacks, and the columns that Postgres computes, from the row as the source
    has it."""
    return tuple(source[i] if cell is UNCHANGED or i in computed else cell for i, cell in enumerate(known))
