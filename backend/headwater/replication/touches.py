"""What the stream does to a table while bulk work reads it: rows that the stream knows better than what was read.

A re-sync reads the source under a snapshot that holds exactly the commits before some position. What the stream
brings from there on wins over the snapshot, but for values that it left out as unchanged: those still come from it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headwater.oplog.change import UNCHANGED, Cells, Delete, Insert, RowChange, Update
from headwater.oplog.lsn import Lsn
from headwater.oplog.row_id import IdentityKind
from headwater.replication.contents import content_of
from headwater.replication.filling import Fill, filled
from headwater.replication.live import LiveTable


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
    _uncounted: list[tuple[LiveTable, RowChange]] = field(default_factory=list)  # generated columns are not computed

    def heirs(self) -> dict[str, tuple[str, frozenset[int]]]:
        """By the row whose values they still have: touched rows, and the columns that they have from it."""
        return {
            inherited.origin: (row_id, inherited.columns)
            for row_id, inherited in self.rows.items()
            if inherited.columns
        }

    def _truncate(self) -> None:
        self.rows.clear()
        self.delta.clear()
        self._uncounted.clear()
        self.truncated = True

    def _note(self, table: LiveTable, change: RowChange) -> None:
        if table.identity.kind is not IdentityKind.KEY:
            if table.computed:
                self._uncounted.append((table, change))
            else:
                self._count(*_went_and_came(change))
            return
        key = table.identity.key
        match change:
            case Delete():
                self.rows[key(change.old)] = _STREAMED
            case Insert():
                row_id = key(change.new)
                self.rows[row_id] = Inherited(row_id, _left_out(change.new))
            case Update():
                self._update(table, change)

    def _update(self, table: LiveTable, change: Update) -> None:
        key, old, new = table.identity.key, change.old, change.new
        old_id = key(new if old is None else old)
        new_id = key(new if old is None else tuple(o if n is UNCHANGED else n for n, o in zip(new, old, strict=True)))
        before = self.rows.get(old_id)
        left_out = _left_out(new) if old is None or change.old_is_key else frozenset[int]()
        if before is None:
            inherited = Inherited(old_id, left_out)
        else:
            inherited = Inherited(before.origin, before.columns & left_out)
        if old_id != new_id:
            self.rows[old_id] = _STREAMED
        self.rows[new_id] = inherited

    def _count(self, went: Cells | None, came: Cells | None) -> None:
        if went is not None:
            self.delta[content_of(went)] -= 1
        if came is not None and UNCHANGED not in came:  # else the fold asks for the table to be read again
            self.delta[content_of(came)] += 1

    def _count_filled(self, fill: Fill) -> None:
        while self._uncounted:
            table = self._uncounted[0][0]
            some, self._uncounted = self._uncounted[:_FILLED_AT_ONCE], self._uncounted[_FILLED_AT_ONCE:]
            pairs = [_went_and_came(change) for _, change in some]
            went = filled(fill, table, [pair[0] for pair in pairs])
            came = filled(fill, table, [None if pair[1] is None or UNCHANGED in pair[1] else pair[1] for pair in pairs])
            for gone, come in zip(went, came, strict=True):
                self._count(gone, come)


_FILLED_AT_ONCE = 5_000


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


_Event = tuple[Lsn, LiveTable, RowChange | None]


class TouchLog:
    """Records what the stream does to some tables, by oid.

    The position from which it counts is known only after recording began: `begin_at` tells it. Until then changes
    are kept as they are.
    """

    def __init__(self, oids: frozenset[int], fill: Fill) -> None:
        self._oids = oids
        self._fill = fill
        self._start: Lsn | None = None
        self._early: list[_Event] = []
        self._spoiled: dict[int, Lsn] = {}
        self._tables: dict[int, TableTouches] = {oid: TableTouches() for oid in oids}

    def note(self, commit: Lsn, table: LiveTable, change: RowChange) -> None:
        """A change of a transaction whose commit record begins at `commit`."""
        if table.relation.oid in self._oids:
            self._take((commit, table, change))

    def truncate(self, commit: Lsn, table: LiveTable) -> None:
        """A TRUNCATE in such a transaction."""
        if table.relation.oid in self._oids:
            self._take((commit, table, None))

    def spoil(self, commit: Lsn, oid: int) -> None:
        """Not all of what such a transaction did to a table is known."""
        if oid in self._oids:
            self._spoiled[oid] = commit

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
        touches = self._tables[oid]
        touches._count_filled(self._fill)
        return touches

    def _take(self, event: _Event) -> None:
        commit, table, change = event
        if self._start is None:
            self._early.append(event)
        elif commit >= self._start and change is None:
            self._tables[table.relation.oid]._truncate()
        elif commit >= self._start and change is not None:
            self._tables[table.relation.oid]._note(table, change)
