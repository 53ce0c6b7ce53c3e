"""Rows that lack values which only the source has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from headwater.oplog.change import UNCHANGED, Cells
from headwater.replication.tables.live import FullCells

_NONE: Mapping[str, Cells] = {}


class Lacking:
    """By table id and row id, rows with values that neither the stream nor the store has. These are UNCHANGED in their
    cells. Such rows are not stored until they are completed."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Cells]] = {}

    def of(self, table: int) -> Mapping[str, Cells]:
        """The rows of a table that lack values."""
        return self._rows.get(table, _NONE)

    def tables(self) -> list[int]:
        """The tables that have such rows."""
        return list(self._rows)

    def put(self, table: int, row_id: str, cells: Cells) -> None:
        """Note what is known of a row."""
        self._rows.setdefault(table, {})[row_id] = cells

    def discard(self, table: int, row_ids: Iterable[str]) -> None:
        """These rows are complete, or deleted."""
        rows = self._rows.get(table)
        if rows is None:
            return
        for row_id in row_ids:
            rows.pop(row_id, None)
        if not rows:
            del self._rows[table]

    def forget(self, table: int) -> None:
        """The table is empty, or gone."""
        self._rows.pop(table, None)


def completed(known: Cells, source: FullCells, computed: Collection[int]) -> FullCells:
    """A row with the `known` cells, but those that are UNCHANGED, and the `computed` columns, from the source's row."""
    return tuple(source[i] if cell is UNCHANGED or i in computed else cell for i, cell in enumerate(known))
