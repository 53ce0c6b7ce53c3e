"""Folding a chunk of changes: from many changes of a row to its first and last state, hence to at most one op each.

A fold belongs to one flush. It loads the rows it needs in bulk, follows the changes in memory, and writes what
differs at the end.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from headwater.decode.copytext import join_cells
from headwater.decode.errors import DecodeError
from headwater.oplog.change import UNCHANGED, Cell, Cells, Delete, Insert, RowChange, Update
from headwater.oplog.limits import (
    LEFT_OUT,
    SURELY_A_ROW,
    Kept,
    is_stub,
    left_out_of,
    op_refused,
    read_stub,
    row_refused,
    stored_line,
    stub_after,
    without_sizes,
)
from headwater.oplog.row_id import IdentityKind, copy_id, copy_number, random_id
from headwater.oplog.transform import BucketName, DraftOp
from headwater.replication.stream.contents import content_of
from headwater.replication.stream.lacking import Lacking
from headwater.replication.tables.generated import Fill, filled
from headwater.replication.tables.live import FullCells, LiveTable
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import Flush
from headwater_rules.results import RowResult

_UNKNOWN: FullCells = ("too large to be kept",)
"""The cells of a row of which the store has nothing to go by."""

_Known = tuple[Cell | Kept, ...]
"""What is known of a row: values, sizes of values in its place, and marks where there is nothing."""


class _Row:
    """A row's state before this fold, and now. `cells` None means there is none; `stub` is what is kept of one that is
    too large still."""

    __slots__ = ("before", "cells", "stub")

    def __init__(self, before: CurrentRow | None, cells: _Known | None) -> None:
        self.before = before
        self.cells = cells
        self.stub = ""


class _Written(NamedTuple):
    """What is to be written."""

    put: list[CurrentRow]
    gone: list[str]
    ops: list[DraftOp]
    buckets: dict[int, BucketName]


class Fold:
    """One chunk of changes on their way into a flush."""

    def __init__(
        self,
        flush: Flush,
        fill: Fill,
        lacking: Lacking,
        leave: Callable[[LiveTable], None],
        written: Mapping[int, set[str]],
        stale: Collection[int],
        ahead: Collection[int],
        piece: int,
    ) -> None:
        self._flush = flush
        self._piece = piece  # bytes of rows that are loaded or written at once
        self._fill = fill
        self._stale = stale  # table ids; what the store has of these may be older than what the stream left out
        self._ahead = ahead  # oids; rows of these that the flush has may have generated columns of a later moment
        self._lacking = lacking  # takes rows that can't be completed here
        self._leave = leave  # has a table compared with the source, since one without a key could not be completed
        self._incomplete = False  # whether any row of this fold may be so
        self._written = written  # by table id, where to note the rows that this fold writes
        self.evaluation_errors: list[str] = []
        self.refused: list[str] = []  # rows and ops that are too large, in words

    def apply(self, changes: Sequence[tuple[LiveTable, RowChange]]) -> int:
        """Write what the changes amount to. Returns the number of ops."""
        by_table: defaultdict[int, list[RowChange]] = defaultdict(list)
        tables: dict[int, LiveTable] = {}
        for table, change in changes:
            tables[table.id] = table
            by_table[table.id].append(change)
        return sum(self._apply_table(tables[table_id], rows) for table_id, rows in by_table.items())

    def _apply_table(self, table: LiveTable, changes: Sequence[RowChange]) -> int:
        match table.identity.kind:
            case IdentityKind.KEY:
                return sum(self._write(table, rows) for rows in self._fold_keyed(table, changes))
            case IdentityKind.FULL:
                return self._write(table, self._fold_multiset(table, changes))
            case IdentityKind.NOTHING:
                found = [self._whole(table, change) for change in changes if isinstance(change, Insert)]
                inserted: Sequence[FullCells | None] = [cells for cells in found if cells is not None]
                if table.computed:
                    inserted = filled(self._fill, table, inserted)
                return self._write(table, {random_id(): _Row(None, cells) for cells in inserted})

    def write(self, table: LiveTable, states: Mapping[str, FullCells | None], *, anew: bool = False) -> int:
        """Make rows what `states` says: their cells by row id, None for one that is not there. With `anew`, rows are
        evaluated even if their values are as they were. Returns the number of ops."""
        ids, done, ops = list(states), 0, 0
        while done < len(ids):
            rows = self._load(table, ids[done:], self._piece)
            for row_id, row in rows.items():
                row.cells = states[row_id]
            ops += self._write(table, rows, anew=anew)
            done += len(rows)
        return ops

    # keyed tables

    def _fold_keyed(self, table: LiveTable, changes: Sequence[RowChange]) -> Iterator[dict[str, _Row]]:
        """Mostly all at once; where the rows that are there are large, as many changes as concern those loaded. Each
        part is to be written before the next is asked for."""
        places = _places(table, changes)
        done = 0
        while done < len(changes):
            rest = places[done:]
            wanted = list(dict.fromkeys(row_id for place in rest for row_id in place))
            rows = self._load(table, wanted, self._piece)
            end = len(changes)
            if len(rows) < len(wanted):
                if not rows.keys() >= set(rest[0]):  # a row and the place that it moves to
                    rows = self._load(table, list(dict.fromkeys(rest[0])))
                lacking = (old not in rows or new not in rows for old, new in rest)
                end = done + next((number for number, lacks in enumerate(lacking) if lacks), len(rest))
            yield self._follow(table, changes[done:end], places[done:end], rows)
            done = end

    def _follow(
        self,
        table: LiveTable,
        changes: Sequence[RowChange],
        places: Sequence[tuple[str, str]],
        rows: dict[str, _Row],
    ) -> dict[str, _Row]:
        """Bring rows to where the changes leave them. Returns those that are complete."""
        if table.id in self._stale:
            self._distrust(table, {old: rows[old] for old, _ in places})  # others may be loaded, and stay as they are
        for change, (old_id, new_id) in zip(changes, places, strict=True):
            if type(change) is Delete:
                rows[old_id].cells = None
                continue
            known = rows[old_id].cells
            cells = self._merged(table, cast("Insert | Update", change), None if known is _UNKNOWN else known)
            if old_id != new_id:
                rows[old_id].cells = None
            rows[new_id].cells = cells
        if self._incomplete:
            rows = self._set_apart(table, rows)
        if table.computed:
            self._fill_in(table, rows)
        return rows

    def _distrust(self, table: LiveTable, rows: Mapping[str, _Row]) -> None:
        """Take no value from the store for a row of a table that changed unseen: with those that the stream brings, it
        would make a row that never was."""
        lacking = self._lacking.of(table.id)
        for row_id, row in rows.items():
            if row.cells is not None and row_id not in lacking:
                row.cells = (UNCHANGED,) * len(table.relation.columns)

    def _merged(self, table: LiveTable, change: Insert | Update, current: _Known | None) -> _Known:
        """The new row with every value that the stream left out and that is known here."""
        new: _Known = change.new
        if UNCHANGED not in new:
            return new
        if type(change) is Update and change.old is not None:
            kept = range(len(new)) if not change.old_is_key else table.identity.columns
            new = tuple(change.old[i] if cell is UNCHANGED and i in kept else cell for i, cell in enumerate(new))
        if current is not None:
            new = _completed(new, current)
        self._incomplete = self._incomplete or UNCHANGED in new or any(type(cell) is Kept for cell in new)
        return new

    def _set_apart(self, table: LiveTable, rows: dict[str, _Row]) -> dict[str, _Row]:
        """Keep rows that lack values out of the store, until these are known; returns all others."""
        complete: dict[str, _Row] = {}
        for row_id, row in rows.items():
            cells = row.cells
            if cells is not None and any(type(cell) is Kept for cell in cells):
                row.stub = self._still_too_large(row, cells)
                if not row.stub:
                    cells = tuple(UNCHANGED if type(cell) is Kept else cell for cell in cells)
            if cells is None or row.stub or UNCHANGED not in cells:
                complete[row_id] = row
            else:
                self._lacking.put(table.id, row_id, cast(Cells, cells))
                if row.before is not None and is_stub(row.before.line):  # after a restart this is all we know
                    self._flush.put_rows(table.id, [row.before._replace(line=without_sizes(row.before.line))])
        return complete

    def _still_too_large(self, row: _Row, cells: _Known) -> str:
        """The stub of a row, if the values that are not known keep it over the limit; their sizes are enough then."""
        if row.before is None or not is_stub(row.before.line) or UNCHANGED in cells:
            return ""
        sizes = [c.size if isinstance(c, Kept) else len(join_cells((cast("str | None", c),)).encode()) for c in cells]
        return stub_after(read_stub(row.before.line), sizes) or ""

    def _fill_in(self, table: LiveTable, rows: Mapping[str, _Row]) -> None:
        """Have generated columns computed, where what they are computed from is not what it was: Postgres keeps the
        values of the others, too."""
        lacking: list[_Row] = []
        ahead = table.relation.oid in self._ahead
        for row in rows.values():
            cells = cast("FullCells | None", row.cells)
            if cells is None or cells is _UNKNOWN:
                continue
            before = row.before
            known = _UNKNOWN if ahead or before is None or before.layout != table.layout else _cells(table, before)
            if known is _UNKNOWN or any(cells[place] != known[place] for place in table.inputs):
                lacking.append(row)
            else:
                row.cells = tuple(known[i] if i in table.computed else cell for i, cell in enumerate(cells))
        whole = [cast(FullCells, row.cells) for row in lacking]
        for row, found in zip(lacking, filled(self._fill, table, whole), strict=True):
            row.cells = found

    def _load(self, table: LiveTable, row_ids: Sequence[str], room: int = sys.maxsize) -> dict[str, _Row]:
        """These rows, or as many of the first as there is room for, in bytes."""
        found, count = self._flush.load(table.id, row_ids, room)
        lacking = self._lacking.of(table.id)
        self._incomplete = self._incomplete or bool(lacking)
        rows: dict[str, _Row] = {}
        for row_id in row_ids[:count]:
            before = found.get(row_id)
            rows[row_id] = _Row(before, None if before is None else _cells(table, before))
            if row_id in lacking:
                rows[row_id].cells = lacking[row_id]
        return rows

    # tables whose rows are known by their content

    def _fold_multiset(self, table: LiveTable, changes: Sequence[RowChange]) -> dict[str, _Row]:
        olds = [None if type(change) is Insert else cast("Update | Delete", change).old for change in changes]
        news = [
            None if type(change) is Delete else self._whole(table, cast("Insert | Update", change))
            for change in changes
        ]
        if table.computed:
            both = filled(self._fill, table, [*olds, *news])
            olds, news = list(both[: len(olds)]), both[len(olds) :]
        steps = [  # content gone; cells and content come
            (None if old is None else content_of(old), new, None if new is None else content_of(new))
            for old, new in zip(olds, news, strict=True)
        ]
        contents = dict.fromkeys(content for gone, _, come in steps for content in (gone, come) if content is not None)
        copies = {content: self._flush.copies(table.id, content) for content in contents}
        counts = {content: max(map(copy_number, ids), default=0) for content, ids in copies.items()}
        going = Counter(gone for gone, _, _ in steps)  # of equal rows, those with the highest numbers go
        last = [i for content, ids in copies.items() for i in ids if copy_number(i) > counts[content] - going[content]]
        rows = self._load(table, last)
        for gone, cells, come in steps:
            if gone == come:
                continue
            if gone is not None and counts[gone] > 0:
                rows[copy_id(gone, counts[gone])].cells = None
                counts[gone] -= 1
            if come is not None:
                counts[come] += 1
                row = rows.setdefault(copy_id(come, counts[come]), _Row(None, None))
                row.cells = cells
        return {row_id: row for row_id, row in rows.items() if row.cells is not _UNKNOWN}

    def _whole(self, table: LiveTable, change: Insert | Update) -> FullCells | None:
        """The new row; None for one that lacks values and has no key to ask for them by."""
        cells = self._merged(table, change, None)
        if UNCHANGED in cells:
            self._leave(table)
            return None
        return cast(FullCells, cells)

    # the result

    def _write(self, table: LiveTable, rows: Mapping[str, _Row], *, anew: bool = False) -> int:
        out = _Written([], [], [], {})
        room, written = self._piece, 0
        transform, layout, has_lookups = table.bound.transform, table.layout, table.bound.has_lookups
        convert, evaluate, enter, move = transform.convert, transform.program.evaluate, transform.enter, transform.move
        put, gone, ops, buckets = out.put, out.gone, out.ops, out.buckets
        for row_id, row in rows.items():
            before, cells = row.before, cast("FullCells | None", row.cells)
            if cells is None:
                if before is not None:
                    move(before.members, before.subkey, row_id, (), ops, buckets)
                    gone.append(row_id)
                    if has_lookups:
                        self._flush.replace_lookups(table.id, row_id, ())
                continue
            line = row.stub or join_cells(cells)
            too_large = bool(row.stub) or (len(line) > SURELY_A_ROW and is_stub(line := stored_line(line)))
            if before is not None and before.line == line and before.layout == layout and not anew:
                continue
            if too_large:
                puts, lookups, errors = self._refuse(table, row_id, line, before)
            else:
                puts, lookups, errors = evaluate(convert(cells), row_id)
            if before is None:
                members = enter(row_id, puts, ops, buckets)
                put.append(_new_row(CurrentRow, (row_id, layout, line, members, None)))
            else:
                members = move(before.members, before.subkey, row_id, puts, ops, buckets)
                put.append(CurrentRow(row_id, layout, line, members, before.subkey))
            if LEFT_OUT in members:
                self.refused += [op_refused(table.name, row_id, op.size) for op in left_out_of(members)]
            if has_lookups:
                self._flush.replace_lookups(table.id, row_id, lookups)
            if errors:
                self.evaluation_errors += errors
            room -= len(line)
            if room <= 0:
                written += self._hand_over(table, out)
                room = self._piece
        self._lacking.discard(table.id, rows)
        return written + self._hand_over(table, out)

    def _hand_over(self, table: LiveTable, out: _Written) -> int:
        """Write what was collected, and collect anew. Returns the number of ops."""
        noted = self._written.get(table.id)
        if noted is not None:
            noted.update(out.gone, (row.row_id for row in out.put))
        self._flush.delete_rows(table.id, out.gone)
        self._flush.put_rows(table.id, out.put)
        self._flush.append(out.ops, out.buckets)
        count = len(out.ops)
        for collected in (out.put, out.gone, out.ops, out.buckets):
            collected.clear()
        return count

    def _refuse(self, table: LiveTable, row_id: str, stub: str, before: CurrentRow | None) -> RowResult:
        """What comes of a row that is too large: nothing. Said once."""
        if before is None or not is_stub(before.line):
            self.refused.append(row_refused(table.name, row_id, read_stub(stub).size))
        return RowResult([], [], [])


def _places(table: LiveTable, changes: Sequence[RowChange]) -> list[tuple[str, str]]:
    """The row id before and after each change."""
    key = table.identity.key
    places: list[tuple[str, str]] = []
    for change in changes:
        if type(change) is Insert:
            row_id = key(change.new)
            places.append((row_id, row_id))
        elif type(change) is Update:
            old = change.old
            new_id = key(change.new if old is None else cast(Cells, _completed(change.new, old)))
            places.append((new_id if old is None else key(old), new_id))
        else:
            row_id = key(cast(Delete, change).old)
            places.append((row_id, row_id))
    return places


def _cells(table: LiveTable, row: CurrentRow) -> _Known:
    if is_stub(row.line):
        return _kept(table, row)
    try:
        return table.cells(row)
    except DecodeError:  # damaged in storage: the source has to say what is there
        return _UNKNOWN


def _kept(table: LiveTable, row: CurrentRow) -> _Known:
    """What a stub says of its row. Without a key, with generated columns or in another layout, sizes are not enough."""
    sizes = read_stub(row.line).sizes
    if (
        table.identity.kind is not IdentityKind.KEY
        or table.computed
        or row.layout != table.layout
        or len(sizes) != len(table.relation.columns)
    ):
        return _UNKNOWN
    return tuple(map(Kept, sizes))


_new_row: Callable[[type[CurrentRow], tuple[str, int, str, str, str | None]], CurrentRow] = tuple.__new__


def _completed(new: _Known, other: Sequence[Cell | Kept]) -> _Known:
    """`new` with its left-out values taken from `other`."""
    if UNCHANGED not in new or not other:
        return new
    return tuple(other[i] if cell is UNCHANGED else cell for i, cell in enumerate(new))
