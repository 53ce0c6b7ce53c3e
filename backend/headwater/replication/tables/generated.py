"""Completes rows with generated columns, which the stream does not bring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from headwater.oplog.change import Cell, Cells, FullCells
from headwater.oplog.row_id import IdentityKind
from headwater.replication.tables.live import LiveTable
from headwater.source.rows.generated import GeneratedValues, NotComputedError, NotComputedLockedError

_log = logging.getLogger(__name__)

Fetch = Callable[[LiveTable, Sequence[Sequence[Cell]]], list[FullCells | None]]
"""Reads rows from the source by their keys, None for one that is gone. The flush then waits for the stream to pass the
position that was read."""

Fill = Callable[[LiveTable, Sequence[FullCells]], list[FullCells | None]]
"""Rows with the values that Postgres computes for generated columns; None for one that is gone from the source."""


@dataclass(frozen=True, slots=True)
class Filler:
    """Completes rows of a table. Reads the whole row where Postgres refuses to compute: that is slow, and the values
    may be newer than the stream, for which `fetch` makes the flush wait."""

    values: GeneratedValues
    fetch: Fetch

    def fill(self, table: LiveTable, rows: Sequence[FullCells]) -> list[FullCells | None]:
        """See `Fill`. Raises NotComputedError where rows can't be read by key, NotComputedLockedError while the table
        is locked."""
        if not rows or not table.computed:
            return list(rows)
        try:
            computed = self.values.compute(table.relation, rows)
        except NotComputedLockedError:
            raise
        except NotComputedError as error:
            if table.identity.kind is not IdentityKind.KEY:
                raise
            _log.warning("%s; its rows are read from the source instead", error)
            return [
                None if found is None else _with(row, table.computed, [found[place] for place in table.computed])
                for row, found in zip(rows, self.fetch(table, rows), strict=True)
            ]
        return [_with(row, table.computed, values) for row, values in zip(rows, computed, strict=True)]


def filled(fill: Fill, table: LiveTable, rows: Iterable[Cells | None]) -> list[FullCells | None]:
    """The rows with generated columns computed; None stays None. No other value may be missing."""
    wanted = list(rows)
    found = iter(fill(table, [cast(FullCells, row) for row in wanted if row is not None]))
    return [None if row is None else next(found) for row in wanted]


def _with(row: FullCells, places: Sequence[int], values: Sequence[str | None]) -> FullCells:
    cells = list(row)
    for place, value in zip(places, values, strict=True):
        cells[place] = value
    return tuple(cells)
