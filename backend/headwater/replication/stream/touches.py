"""Records which rows the stream changes while a comparison reads them.

A re-sync reads the source under a snapshot that contains exactly the commits before some position. What the stream
brings from there on is newer and wins, except for values that it left out as unchanged: those are still as in the
snapshot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from headwater.oplog.change import UNCHANGED, Cells, Delete, Insert, RowChange, Update
from headwater.oplog.lsn import ZERO, Lsn
from headwater.oplog.row_id import IdentityKind
from headwater.replication.stream.contents import content_of
from headwater.replication.tables.live import Fill, LiveTable, filled


@dataclass(frozen=True, slots=True)
class Inherited:
    """Values of a touched row that are still as in the snapshot: the `columns` (positions) of its row `origin`."""

    origin: str
    columns: frozenset[int]


_STREAMED = Inherited("", frozenset())


@dataclass(slots=True)
class TableTouches:
    """What was touched in one table since the snapshot's position.

    `rows` has the ids of keyed rows that were inserted, changed or deleted. `delta` counts, by content, how often rows
    without key came (or, below zero, went). `truncated`: no row of the snapshot is left.
    """

    rows: dict[str, Inherited] = field(default_factory=dict)
    delta: Counter[str] = field(default_factory=Counter)
    truncated: bool = False

    def heirs(self) -> dict[str, tuple[str, frozenset[int]]]:
        """By row id in the snapshot: the touched row that still has values of it, and in which columns."""
        return {
            inherited.origin: (row_id, inherited.columns)
            for row_id, inherited in self.rows.items()
            if inherited.columns
        }

    @property
    def to_count(self) -> frozenset[str]:
        """Contents that came or went, and ids of rows whose values are under another key now: such changes can hide a
        difference from the comparison."""
        moved = {origin for origin, (row_id, _) in self.heirs().items() if origin != row_id}
        return frozenset(self.delta) | moved

    def _truncate(self) -> None:
        self.rows.clear()
        self.delta.clear()
        self.truncated = True

    def _note(self, touch: _Touch) -> None:
        if not touch.keyed:
            if touch.went is not None:
                self.delta[touch.went] -= 1
            if touch.came is not None:
                self.delta[touch.came] += 1
        elif touch.came is None:
            self.rows[touch.went or ""] = _STREAMED
        elif touch.went is None:
            self.rows[touch.came] = Inherited(touch.came, touch.left_out)
        else:
            self._update(touch.went, touch.came, touch.left_out)

    def _update(self, old_id: str, new_id: str, left_out: frozenset[int]) -> None:
        before = self.rows.get(old_id)
        if before is None:
            inherited = Inherited(old_id, left_out)
        else:
            inherited = Inherited(before.origin, before.columns & left_out)
        if old_id != new_id:
            self.rows[old_id] = _STREAMED
        self.rows[new_id] = inherited


class _Touch(NamedTuple):
    """A change without its values: which row went and which came, by id or, unless `keyed`, by content; and the columns
    of the new row that the stream left out."""

    keyed: bool
    went: str | None
    came: str | None
    left_out: frozenset[int] = frozenset()


def _touch(table: LiveTable, change: RowChange) -> _Touch:
    if table.identity.kind is not IdentityKind.KEY:
        return _counted(*_went_and_came(change))
    key = table.identity.key
    match change:
        case Delete(old=old):
            return _Touch(True, key(old), None)
        case Insert(new=new):
            return _Touch(True, None, key(new), _left_out(new))
        case Update(old=None, new=new):
            return _Touch(True, key(new), key(new), _left_out(new))
        case Update(old=old, new=new):
            came = tuple(o if n is UNCHANGED else n for n, o in zip(new, old or (), strict=True))
            return _Touch(True, key(old or ()), key(came), _left_out(new) if change.old_is_key else frozenset())


def _counted(went: Cells | None, came: Cells | None) -> _Touch:
    known = None if came is None or UNCHANGED in came else came  # for such a row the fold marks the whole table
    return _Touch(False, None if went is None else content_of(went), None if known is None else content_of(known))


def _went_and_came(change: RowChange) -> tuple[Cells | None, Cells | None]:
    """The row before and after a change of a table without key."""
    match change:
        case Insert(new=new):
            return None, new
        case Update(old=old, new=new):
            return old or (), _completed(new, old or ())
        case Delete(old=old):
            return old, None


def _left_out(cells: Cells) -> frozenset[int]:
    return frozenset(position for position, cell in enumerate(cells) if cell is UNCHANGED)


def _completed(new: Cells, old: Cells) -> Cells:
    return tuple(old[i] if cell is UNCHANGED and old else cell for i, cell in enumerate(new))


_Event = tuple[Lsn, int, _Touch | None]
"""Where the commit record begins, the table's oid, and a change of it; None for a TRUNCATE."""

_FILLED_AT_ONCE, _FILLED_BYTES = 5_000, 8 << 20


class TouchLog:
    """Records what the stream does to some tables, by oid.

    The snapshot's position is known only after recording began: `begin_at` gives it. Until then, all changes are kept.
    Values are not kept, except of a few rows whose generated columns have to be computed for their content id.
    """

    def __init__(self, oids: frozenset[int], fill: Fill) -> None:
        self._oids = oids
        self._fill = fill
        self._start: Lsn | None = None
        self._early: list[_Event] = []
        self._spoiled: dict[int, Lsn] = {}
        self._tables: dict[int, TableTouches] = {oid: TableTouches() for oid in oids}
        self._unfilled: list[tuple[Lsn, LiveTable, RowChange]] = []
        self._room = _FILLED_BYTES

    def note(self, commit: Lsn, table: LiveTable, change: RowChange) -> None:
        """A change of a transaction whose commit record begins at `commit`."""
        if table.relation.oid not in self._oids:
            return
        if table.identity.kind is IdentityKind.NOTHING and not isinstance(change, Insert):
            return  # only inserts of such tables are applied, though some partitions may stream more
        if not table.computed or table.identity.kind is IdentityKind.KEY:
            self._take((commit, table.relation.oid, _touch(table, change)))
            return
        self._unfilled.append((commit, table, change))
        self._room -= sum(_size(cells) for cells in _went_and_came(change))
        if len(self._unfilled) >= _FILLED_AT_ONCE or self._room <= 0:
            self._fill_in()

    def truncate(self, commit: Lsn, table: LiveTable) -> None:
        """A TRUNCATE, in such a transaction."""
        if table.relation.oid in self._oids:
            self._fill_in()
            self._take((commit, table.relation.oid, None))

    def spoil(self, commit: Lsn, oid: int) -> None:
        """Some change of such a transaction to a table is unknown."""
        if oid in self._oids:
            self._spoiled[oid] = max(commit, self._spoiled.get(oid, ZERO))

    def lacks(self, oid: int) -> None:
        """Rows of a table lack values, and the transaction that changed them is unknown."""
        if self._start is not None:
            self.spoil(self._start, oid)

    @property
    def spoiled(self) -> frozenset[int]:
        """Tables whose comparison has to begin again, since a change that is unknown is not in its snapshot."""
        start = self._start
        return frozenset[int]() if start is None else frozenset(o for o, at in self._spoiled.items() if at >= start)

    def begin_at(self, position: Lsn) -> None:
        """The snapshot contains exactly the commits whose record begins before `position`."""
        self._start = position
        early, self._early = self._early, []
        for event in early:
            self._take(event)

    def of(self, oid: int) -> TableTouches:
        """What was touched in a table."""
        self._fill_in()
        return self._tables[oid]

    def _take(self, event: _Event) -> None:
        commit, oid, touch = event
        if self._start is None:
            self._early.append(event)
        elif commit >= self._start and touch is None:
            self._tables[oid]._truncate()
        elif commit >= self._start and touch is not None:
            self._tables[oid]._note(touch)

    def _fill_in(self) -> None:
        unfilled, self._unfilled, self._room = self._unfilled, [], _FILLED_BYTES
        for _, group in groupby(unfilled, key=lambda event: id(event[1])):
            events = list(group)
            table = events[0][1]
            pairs = [_went_and_came(change) for _, _, change in events]
            went = filled(self._fill, table, [pair[0] for pair in pairs])
            came = filled(
                self._fill, table, [None if pair[1] is None or UNCHANGED in pair[1] else pair[1] for pair in pairs]
            )
            for (commit, _, _), gone, come in zip(events, went, came, strict=True):
                self._take((commit, table.relation.oid, _counted(gone, come)))


def _size(cells: Cells | None) -> int:
    return sum(len(cell) for cell in cells or () if isinstance(cell, str))
