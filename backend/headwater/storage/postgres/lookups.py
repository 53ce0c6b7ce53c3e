"""Collects the lookup entries that a flush replaces, so that many rows need few statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import psycopg

from headwater.storage.postgres.copying import columns
from headwater.storage.postgres.tables import stored_id
from headwater.storage.shared.common import NAMEABLE
from headwater_rules.results import LookupEntry

_COLLECTED = 5_000

LookupRow = tuple[int, str, str, str]
"""Table, stored row id, key and output."""

_EACH = "unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) as e (table_id, row_id, key, output)"


class PendingLookups:
    """Used within one transaction. After `write`, `touched` holds the keys whose outputs changed."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._db = connection
        self._pending: dict[tuple[int, str], frozenset[LookupEntry]] = {}
        self.touched: set[str] = set()

    def entries(self, table: int, row_id: str) -> list[LookupEntry]:
        """The current entries of a row."""
        place = (table, stored_id(row_id)[0])
        if place in self._pending:
            return sorted(self._pending[place])
        return sorted(self._standing([place])[place])

    def replace(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None:
        self._pending[table, stored_id(row_id)[0]] = frozenset(entries)
        if len(self._pending) >= _COLLECTED:
            self.write()

    def write(self) -> None:
        """Write all collected replacements."""
        pending, self._pending = self._pending, {}
        if not pending:
            return
        standing = self._standing(list(pending))
        gone: list[LookupRow] = []
        new: list[LookupRow] = []
        for place, entries in pending.items():
            gone += [(*place, *entry) for entry in standing[place] - entries]
            new += [(*place, *entry) for entry in entries - standing[place]]
        if gone:
            self._db.execute(
                f"delete from lookups l using {_EACH} where l.table_id = e.table_id and l.row_id = e.row_id"
                " and l.key = e.key and l.output = e.output",
                columns(gone, 4),
            )
        if new:
            self._db.execute(
                f"insert into lookups (table_id, row_id, key, output) select * from {_EACH}", columns(new, 4)
            )
        if len(self.touched) <= NAMEABLE:  # above that, none is recorded
            self.touched.update(row[2] for row in gone + new)

    def _standing(self, places: Sequence[tuple[int, str]]) -> dict[tuple[int, str], set[LookupEntry]]:
        by_table: defaultdict[int, list[str]] = defaultdict(list)
        for table, row_id in places:
            by_table[table].append(row_id)
        found: dict[tuple[int, str], set[LookupEntry]] = {place: set() for place in places}
        query = "select row_id, key, output from lookups where table_id = %s and row_id = any(%s)"
        for table, row_ids in by_table.items():
            for row_id, key, output in self._db.execute(query, [table, row_ids]).fetchall():
                found[table, row_id].add(LookupEntry(key, output))
        return found

    def touch_all(self, table: int) -> None:
        """Record the keys of a whole table that is being removed, at most one more than are ever recorded."""
        rows = self._db.execute("select distinct key from lookups where table_id = %s limit %s", [table, NAMEABLE + 1])
        self.touched.update(row[0] for row in rows)
