"""Completing rows of tables with generated columns that the stream does not bring."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from headwater.oplog.change import Cell, Cells
from headwater.oplog.row_id import IdentityKind
from headwater.replication.tables.live import FullCells, LiveTable
from headwater.source.rows.generated import GeneratedValues, NotComputedError, NotComputedLockedError

_log = logging.getLogger(__name__)

Fetch = Callable[[LiveTable, Sequence[Sequence[Cell]]], list[FullCells | None]]
"""Reads rows by their keys from the source, None for one that is gone; the flush then waits for the stream to pass
what it saw."""

Fill = Callable[[LiveTable, Sequence[FullCells]], list[FullCells | None]]
"""Rows with what Postgres computes for their generated columns; None for one that is gone from the source."""


@dataclass(frozen=True, slots=True)
class Filler:
    """Fills rows of a table in. Asks for the whole row where Postgres refuses to compute: that is slow, and right only
    once the stream has passed it, which `fetch` sees to."""

    values: GeneratedValues
    fetch: Fetch

    def fill(self, table: LiveTable, rows: Sequence[FullCells]) -> list[FullCells | None]:
        """See `Fill`. Raises NotComputedError where rows can't be asked for by a key, NotComputedLockedError where
        somebody keeps the table locked."""
        if not rows or not table.computed:
            return list(rows)
        try:
            computed = self.values.compute(table.relation, rows)
        except NotComputedLockedError:
            raise
        except NotComputedError as error:
            if table.identity.kind is not IdentityKind.KEY:
                raise
            _log.warning("%s; its rows are read from the source meanwhile", error)
            return [
                None if found is None else _with(row, table.computed, [found[place] for place in table.computed])
                for row, found in zip(rows, self.fetch(table, rows), strict=True)
            ]
        return [_with(row, table.computed, values) for row, values in zip(rows, computed, strict=True)]


def filled(fill: Fill, table: LiveTable, rows: Iterable[Cells | None]) -> list[FullCells | None]:
    """Complete rows filled in; None stays."""
    wanted = list(rows)
    found = iter(fill(table, [cast(FullCells, row) for row in wanted if row is not None]))
    return [None if row is None else next(found) for row in wanted]


def _with(row: FullCells, places: Sequence[int], values: Sequence[str | None]) -> FullCells:
    cells = list(row)
    for place, value in zip(places, values, strict=True):
        cells[place] = value
    return tuple(cells)
