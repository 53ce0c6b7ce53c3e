"""Entries of lookups by key: what rows of other tables give, and which rows depend on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.storage.contract.parts import JoinedLookup, JoinedLookups
from headwater.storage.sql.cursor import Cursor
from headwater_rules.results import UNKNOWN

NO_LIMIT = 1 << 60


def name_of(key: str) -> str:
    """The name of the lookup that a key belongs to."""
    return key.partition("[")[0]


def outputs(db: Cursor, lookups: JoinedLookups, keys: Sequence[str]) -> dict[str, list[str]]:
    """The outputs under keys of these lookups, by key; one at most where it tells all. Other keys are left out."""
    found: dict[str, list[str]] = {key: [] for key in keys if name_of(key) in lookups}
    by_lookup: dict[str, list[str]] = {}
    for key in found:
        by_lookup.setdefault(name_of(key), []).append(key)
    for name, those in by_lookup.items():
        lookup = lookups[name]
        for key, output in db.dialect.outputs_under(db, lookup.tables, those, 1 if lookup.alone else NO_LIMIT):
            found[key].append(output)
    return found


@dataclass(slots=True)
class ChangedKey:
    """The outputs that a transaction has taken away from a key, and those that it has added, in all. `outdated` says
    that what it had become was read, and changed again."""

    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    outdated: bool = False
    _is_read: bool = False

    def read(self) -> None:
        """A row is evaluated with what the key gives now."""
        self._is_read = True

    def take(self, output: str) -> None:
        """A row gives an output no more, maybe one that the transaction has added itself."""
        self.outdated = self._is_read
        _cancel(output, self.new, self.gone)

    def add(self, output: str) -> None:
        """A row gives an output, maybe one that the transaction has taken away itself."""
        self.outdated = self._is_read
        _cancel(output, self.gone, self.new)


def _cancel(output: str, opposite: list[str], kept: list[str]) -> None:
    if output in opposite:
        opposite.remove(output)
    else:
        kept.append(output)


def differs(db: Cursor, lookup: JoinedLookup, key: str, changed: ChangedKey) -> bool:
    """Whether the row that a join finds by a key, the one with the least output, is another one after a change, or was
    another one for some row meanwhile."""
    if changed.outdated or UNKNOWN in changed.gone or UNKNOWN in changed.new:
        return True
    most = len(changed.new) + 1 if lookup.alone else NO_LIMIT
    now = [output for _, output in db.dialect.outputs_under(db, lookup.tables, [key], most)]
    if lookup.alone:
        if UNKNOWN in now:  # what is left may not be what went
            return True
        return (bool(changed.gone) or len(now) > len(changed.new)) is not bool(now)
    kept = Counter(now) - Counter(changed.new)  # which may be gone with their whole table
    return min(now, default=None) != min([*kept.elements(), *changed.gone], default=None)


FoundRow = tuple[str, str]
"""A row's place in an index, from which to go on, and its id."""


def rows_under(db: Cursor, table: int, key: str, after: str | None, most: int) -> list[FoundRow]:
    """Rows of a table with an entry under a key, ordered, behind a place."""
    whole = db.dialect.whole_row_id.format("r")
    behind = ">=" if after is None else ">"  # an id may be the empty text
    query = (
        f"select r.row_id, {whole} from lookups l join rows_{table:d} r on r.row_id = l.row_id"
        f" where {db.dialect.has_key} and l.table_id = ?2 and l.row_id {behind} ?3 order by l.row_id limit ?4"
    )
    return [(place, row_id) for place, row_id in db.rows(query, key, table, after or "", most)]


def rows_after(db: Cursor, table: int, after: str | None, most: int) -> list[FoundRow]:
    """Rows of a table, ordered, behind a place."""
    whole = db.dialect.whole_row_id.format("r")
    behind = ">=" if after is None else ">"
    query = f"select r.row_id, {whole} from rows_{table:d} r where r.row_id {behind} ? order by r.row_id limit ?"
    return [(place, row_id) for place, row_id in db.rows(query, after or "", most)]
