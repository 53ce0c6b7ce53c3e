"""What the stream does to a table while bulk work reads it: rows that the stream knows better than what was read.

A re-sync reads the source under a snapshot that holds exactly the commits before some position. What the stream
brings from there on wins over the snapshot, but for values that it left out as unchanged: those still come from it.
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
from headwater.replication.tables.generated import Fill, filled
from headwater.replication.tables.live import LiveTable


@dataclass(frozen=True, slots=True)
class Inherited:
    """Values of a touched row that are still what the snapshot has: in `columns` (positions), of row `origin`."""

    origin: str
    columns: frozenset[int]


_STREAMED = Inherited("", frozenset())


@dataclass(slots=True)
class TableTouches:
    """What was touched in one table since the snapshot's position.

    `rows` are ids of keyed rows that changed, went or came. `delta` counts, by content, how often rows that nothing
    identifies came (or, below zero, went). After a TRUNCATE nothing that the snapshot saw is left.
    """

    rows: dict[str, Inherited] = field(default_factory=dict)
    delta: Counter[str] = field(default_factory=Counter)
    truncated: bool = False

    def heirs(self) -> dict[str, tuple[str, frozenset[int]]]:
        """By the row whose values they still have: touched rows, and the columns that they have from it."""
        return {
            inherited.origin: (row_id, inherited.columns)
            for row_id, inherited in self.rows.items()
            if inherited.columns
        }

    @property
    def to_count(self) -> frozenset[str]:
        """Contents that came or went, and ids of rows whose values others have taken along: changes of these can hide
        that something differs."""
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
    """What a change did, without its values: which row went and which came, by its id or, where `keyed` is not, by its
    content; and the columns of the new row that the stream left out."""

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
    known = None if came is None or UNCHANGED in came else came  # else the fold asks for the table to be read again
    return _Touch(False, None if went is None else content_of(went), None if known is None else content_of(known))


def _went_and_came(change: RowChange) -> tuple[Cells | None, Cells | None]:
    """The row before a change and after it, where nothing but its content identifies it."""
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

    The position from which it counts is known only after recording began: `begin_at` tells it. Until then it is kept
    what each change did. Values of rows are kept nowhere, but for those of a few whose generated columns have to be
    computed before their content is known.
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
            return  # such rows only come: some partitions may tell more, which nobody takes in
        if not table.computed or table.identity.kind is IdentityKind.KEY:
            self._take((commit, table.relation.oid, _touch(table, change)))
            return
        self._unfilled.append((commit, table, change))
        self._room -= sum(_size(cells) for cells in _went_and_came(change))
        if len(self._unfilled) >= _FILLED_AT_ONCE or self._room <= 0:
            self._fill_in()

    def truncate(self, commit: Lsn, table: LiveTable) -> None:
        """A TRUNCATE in such a transaction."""
        if table.relation.oid in self._oids:
            self._fill_in()
            self._take((commit, table.relation.oid, None))

    def spoil(self, commit: Lsn, oid: int) -> None:
        """Not all of what such a transaction did to a table is known."""
        if oid in self._oids:
            self._spoiled[oid] = max(commit, self._spoiled.get(oid, ZERO))

    def lacks(self, oid: int) -> None:
        """Rows of a table lack values that nobody can tell, whatever transaction they are from."""
        if self._start is not None:
            self.spoil(self._start, oid)

    @property
    def spoiled(self) -> frozenset[int]:
        """Tables whose comparison has to begin anew, since such a transaction is not in its snapshot."""
        start = self._start
        return frozenset[int]() if start is None else frozenset(o for o, at in self._spoiled.items() if at >= start)

    def begin_at(self, position: Lsn) -> None:
        """The snapshot holds all commits whose record begins before `position`, and no other."""
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
