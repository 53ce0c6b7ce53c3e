"""Finds the stored copies of rows without key."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

from headwater.bulk.contract import Difference
from headwater.oplog.row_id import IdentityKind
from headwater.replication.stream.access import StreamAccess
from headwater.replication.stream.touches import TableTouches
from headwater.replication.tables.live import LiveTable

_AHEAD: Final = 50_000
"""So many differences are looked up at once."""


class Copies:
    """Row ids by content, for one comparison. Where nothing but its values tells a row, a look reads the whole table:
    what is merged later is looked up with what is merged now."""

    def __init__(self, stream: StreamAccess) -> None:
        self._stream = stream
        self._later: Sequence[Difference] = ()
        self._found: dict[tuple[int, str], tuple[int, list[str]]] = {}

    def expect(self, later: Sequence[Difference]) -> None:
        """What is merged after the next differences."""
        self._later = later

    def of(self, table: LiveTable, touches: TableTouches, differences: Sequence[Difference]) -> dict[str, list[str]]:
        """The ids of the rows that are stored with the contents of these differences."""
        if table.identity.kind is IdentityKind.FULL:
            return self._stream.copies(table, {each.key: each.line for each in differences})
        contents = dict.fromkeys(each.key for each in differences)
        if not all(self._is_known(table, touches, content) for content in contents):
            self._look(table, touches, differences)
        return {content: self._found.pop((table.id, content))[1] for content in contents}

    def _is_known(self, table: LiveTable, touches: TableTouches, content: str) -> bool:
        """Whether it was looked up, and the stream has brought no more rows with this content since."""
        found = self._found.get((table.id, content))
        return found is not None and found[0] == touches.delta[content]

    def _look(self, table: LiveTable, touches: TableTouches, differences: Sequence[Difference]) -> None:
        all_of_it = chain(differences, islice(self._later, _AHEAD))
        lines = {each.key: each.line for each in all_of_it if each.table == table.id}
        others = {place: found for place, found in self._found.items() if place[0] != table.id}
        self._found = others | {
            (table.id, content): (touches.delta[content], row_ids)
            for content, row_ids in self._stream.copies(table, lines).items()
        }
