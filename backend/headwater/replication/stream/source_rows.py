"""Reads rows from the source that lack values which the stream left out."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from headwater.oplog.change import Cell
from headwater.oplog.lsn import ZERO, Lsn
from headwater.replication.tables.live import FullCells, LiveTable
from headwater.source.rows.fetch import Names, RowFetcher

READING_SECONDS = 1.0
_FIRST, _MOST = 4, 1_000


class SourceReads:
    """What the open flush has read from the source. The flush must not commit before the stream has passed `hold`,
    since what was read may be newer than the flush. `ahead` has the oids of tables with such values, `completed` of
    those whose rows lacked them. `at_once` is how many rows to read next, so that they have about `piece` bytes."""

    def __init__(self, fetcher: RowFetcher, piece: int) -> None:
        self._fetcher = fetcher
        self._piece = piece
        self._since = 0.0  # when the open flush first asked; 0 before
        self.at_once = _FIRST
        self.hold = ZERO
        self.ahead = set[int]()
        self.completed = set[int]()

    def names(self, oids: Collection[int]) -> Names:
        """The present names of tables in the source."""
        return self._fetcher.names(oids)

    def reset(self) -> None:
        """The flush has ended."""
        self._since, self.hold, self.at_once = 0.0, ZERO, _FIRST
        self.ahead.clear()
        self.completed.clear()

    @property
    def too_long(self) -> bool:
        """Whether reading has delayed the flush for too long, with rows that lack values coming as fast as they are
        read."""
        return self._since > 0 and time.monotonic() - self._since > READING_SECONDS

    def rows(
        self, table: LiveTable, keys: Sequence[Sequence[Cell]], files: Collection[int], xids: Sequence[int]
    ) -> list[FullCells | None] | None:
        """Present rows of the source by key, None for each that is gone. Returns None when the rows can't be read, or
        are not in `files` any more. A row that is not found is read again once the transactions `xids` are visible;
        without any, it is gone."""
        self._since = self._since or time.monotonic()
        found = self._fetcher.fetch(table.relation, keys, files)
        if found is not None and len(found.rows) < len(keys) and xids:
            seen = self._fetcher.wait_until_visible(xids)
            found = self._fetcher.fetch(table.relation, keys, files) if seen else None
        if found is None:
            return None
        self.hold = Lsn(max(self.hold, found.seen))
        self.ahead.add(table.relation.oid)
        self._measure(found.rows)
        key = table.identity.key
        rows = {key(row): row for row in found.rows}
        return [rows.get(key(cells)) for cells in keys]

    def _measure(self, rows: Sequence[FullCells]) -> None:
        size = sum(len(cell or "") for row in rows for cell in row) // max(1, len(rows))
        self.at_once = max(1, min(self._piece // max(1, size), self.at_once * 8, _MOST))
