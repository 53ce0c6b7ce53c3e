"""Records which rows the stream changes while a bulk job reads them.

A re-sync reads the source under a snapshot that contains exactly the commits before some position. What the stream
brings from there on is newer and wins, except for values that it left out as unchanged: those are still as in the
snapshot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, cast

from headwater.decode.copytext import join_cells
from headwater.oplog.change import UNCHANGED, Cells, Delete, FullCells, Insert, RowChange, Update, fill_unchanged
from headwater.oplog.lsn import ZERO, Lsn
from headwater.oplog.row_id import IdentityKind, content_id
from headwater.replication.tables.live import Fill, LiveTable, filled

_FILLED_AT_ONCE, _FILLED_BYTES = 5_000, 8 << 20


@dataclass(frozen=True, slots=True)
class Inherited:
    """Values of a touched row that are still as in the snapshot: the `columns` (positions) of its row `origin`."""

    origin: str
    columns: frozenset[int]


_STREAMED = Inherited("", frozenset())


class _Touch(NamedTuple):
    """A change without its values: which row went and which came, by id or, unless `keyed`, by content; and the columns
    of the new row that the stream left out."""

    keyed: bool
    went: str | None
    came: str | None
    unchanged: frozenset[int] = frozenset()


@dataclass(slots=True)
class RecordedChanges:
    """The changes of one table since the snapshot's position.

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

    def add(self, touch: _Touch | None) -> None:
        """Take in the next change; None is a TRUNCATE."""
        if touch is None:
            self.rows.clear()
            self.delta.clear()
            self.truncated = True
        elif not touch.keyed:
            if touch.went is not None:
                self.delta[touch.went] -= 1
            if touch.came is not None:
                self.delta[touch.came] += 1
        elif touch.came is None:
            self.rows[touch.went or ""] = _STREAMED
        elif touch.went is None:
            self.rows[touch.came] = Inherited(touch.came, touch.unchanged)
        else:
            before = self.rows.get(touch.went) or Inherited(touch.went, touch.unchanged)
            if touch.went != touch.came:
                self.rows[touch.went] = _STREAMED
            self.rows[touch.came] = Inherited(before.origin, before.columns & touch.unchanged)


class ChangeLog:
    """Records what the stream does to some tables, by oid.

    The snapshot's position is known only after recording began: `begin_at` gives it. Until then, all changes are kept.
    Values are not kept, except of a few rows whose generated columns have to be computed for their content id.
    """

    def __init__(self, oids: frozenset[int], fill: Fill) -> None:
        self._fill = fill
        self._start: Lsn | None = None
        self._early: list[tuple[Lsn, int, _Touch | None]] = []  # before the position is known
        self._unknown: dict[int, Lsn] = {}  # the last commit with an unknown change, by oid
        self._tables = {oid: RecordedChanges() for oid in oids}
        self._unfilled: list[tuple[Lsn, LiveTable, RowChange]] = []
        self._byte_budget = _FILLED_BYTES

    def record(self, commit: Lsn, table: LiveTable, change: RowChange) -> None:
        """A change of a transaction whose commit record begins at `commit`."""
        if table.relation.oid not in self._tables:
            return
        if table.identity.kind is IdentityKind.NOTHING and not isinstance(change, Insert):
            return  # only inserts of such tables are applied, though some partitions may stream more
        if not table.computed or table.identity.kind is IdentityKind.KEY:
            self._add(commit, table.relation.oid, _touch(table, change))
            return
        self._unfilled.append((commit, table, change))
        self._byte_budget -= sum(len(c) for cells in _old_and_new(change) for c in cells or () if isinstance(c, str))
        if len(self._unfilled) >= _FILLED_AT_ONCE or self._byte_budget <= 0:
            self._compute()

    def truncate(self, commit: Lsn, table: LiveTable) -> None:
        """A TRUNCATE, in such a transaction."""
        if table.relation.oid in self._tables:
            self._compute()
            self._add(commit, table.relation.oid, None)

    def invalidate(self, commit: Lsn, oid: int) -> None:
        """Some change of such a transaction to a table is unknown."""
        if oid in self._tables:
            self._unknown[oid] = max(commit, self._unknown.get(oid, ZERO))

    def mark_incomplete(self, oid: int) -> None:
        """Rows of a table lack values, and the transaction that changed them is unknown."""
        if self._start is not None:
            self.invalidate(self._start, oid)

    @property
    def invalidated(self) -> frozenset[int]:
        """Tables whose comparison has to begin again, since a change that is unknown is not in its snapshot."""
        start = self._start
        return frozenset[int]() if start is None else frozenset(o for o, at in self._unknown.items() if at >= start)

    def begin_at(self, position: Lsn) -> None:
        """The snapshot contains exactly the commits whose record begins before `position`."""
        self._start = position
        early, self._early = self._early, []
        for event in early:
            self._add(*event)

    def of(self, oid: int) -> RecordedChanges:
        """What was recorded of a table."""
        self._compute()
        return self._tables[oid]

    def _add(self, commit: Lsn, oid: int, touch: _Touch | None) -> None:
        if self._start is None:
            self._early.append((commit, oid, touch))
        elif commit >= self._start:
            self._tables[oid].add(touch)

    def _compute(self) -> None:
        """Compute the generated columns of the rows that were kept for it, and add their changes."""
        unfilled, self._unfilled, self._byte_budget = self._unfilled, [], _FILLED_BYTES
        for _, group in groupby(unfilled, key=lambda event: id(event[1])):
            events = list(group)
            table = events[0][1]
            pairs = [_old_and_new(change) for _, _, change in events]
            old = filled(self._fill, table, [before for before, _ in pairs])
            new = filled(self._fill, table, [None if UNCHANGED in (after or ()) else after for _, after in pairs])
            for (commit, _, _), before, after in zip(events, old, new, strict=True):
                self._add(commit, table.relation.oid, _counted(before, after))


class Recording:
    """What bulk jobs have recorded of the stream: in `logs`, every change; in `written`, by table id, the ids of the
    rows that are written or deleted, for the tables that it has."""

    def __init__(self) -> None:
        self.logs: list[ChangeLog] = []
        self.written: dict[int, set[str]] = {}
        self.marked = False  # whether the stream marked a table to be compared with the source

    def stop(self, log: ChangeLog) -> None:
        """Record nothing in a log any more."""
        if log in self.logs:
            self.logs.remove(log)

    def watch(self, tables: Sequence[int]) -> Mapping[int, set[str]]:
        """By table id, the ids of all rows that are written or deleted from here on. One watch at a time."""
        self.written = {table: set() for table in tables}
        return self.written

    def take_marked(self) -> bool:
        """Whether the stream marked a table since the last call."""
        marked, self.marked = self.marked, False
        return marked


def content_of(cells: Cells) -> str:
    """The content id of a complete row, which identifies rows without key."""
    return content_id(join_cells(cast(FullCells, cells)))


def _touch(table: LiveTable, change: RowChange) -> _Touch:
    if table.identity.kind is not IdentityKind.KEY:
        return _counted(*_old_and_new(change))
    key = table.identity.key
    match change:
        case Delete(old=old):
            return _Touch(True, key(old), None)
        case Insert(new=new):
            return _Touch(True, None, key(new), _unchanged(new))
        case Update(old=None, new=new):
            return _Touch(True, key(new), key(new), _unchanged(new))
        case Update(old=old, new=new):
            unchanged = _unchanged(new) if change.old_is_key else frozenset[int]()
            return _Touch(True, key(old or ()), key(fill_unchanged(new, old or ())), unchanged)


def _counted(old: Cells | None, new: Cells | None) -> _Touch:
    known = None if new is None or UNCHANGED in new else new  # for such a row the fold marks the whole table
    return _Touch(False, None if old is None else content_of(old), None if known is None else content_of(known))


def _old_and_new(change: RowChange) -> tuple[Cells | None, Cells | None]:
    """The row before and after a change of a table without key."""
    match change:
        case Insert(new=new):
            return None, new
        case Update(old=old, new=new):
            return old or (), fill_unchanged(new, old or ())
        case Delete(old=old):
            return old, None


def _unchanged(cells: Cells) -> frozenset[int]:
    return frozenset(position for position, cell in enumerate(cells) if cell is UNCHANGED)
