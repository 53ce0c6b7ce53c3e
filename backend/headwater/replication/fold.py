"""Folding a chunk of changes: from many changes of a row to its first and last state, hence to at most one op each.

A fold belongs to one flush. It loads the rows it needs in bulk, follows the changes in memory, and writes what
differs at the end.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from headwater.decode.copytext import join_cells
from headwater.decode.errors import DecodeError
from headwater.oplog.change import UNCHANGED, Cell, Cells, Delete, Insert, RowChange, Update
from headwater.oplog.limits import (
    LEFT_OUT,
    SURELY_A_ROW,
    is_stub,
    left_out_of,
    op_refused,
    read_stub,
    row_refused,
    stored_line,
)
from headwater.oplog.row_id import IdentityKind, copy_id, copy_number, random_id
from headwater.oplog.transform import BucketName, DraftOp
from headwater.replication.contents import content_of
from headwater.replication.errors import RowIncompleteError
from headwater.replication.filling import Fetch, Fill, filled
from headwater.replication.live import FullCells, LiveTable
from headwater.storage.contract import Flush
from headwater.storage.parts import CurrentRow
from headwater_rules.results import RowResult

_UNKNOWN: FullCells = ("too large to be kept",)
"""The cells of a row of which the store has only a stub."""


class _Row:
    """A row's state before this fold, and now. `cells` None means there is none."""

    __slots__ = ("before", "cells")

    def __init__(self, before: CurrentRow | None, cells: FullCells | None) -> None:
        self.before = before
        self.cells = cells


class _Written(NamedTuple):
    """What is to be written."""

    put: list[CurrentRow]
    gone: list[str]
    ops: list[DraftOp]
    buckets: dict[int, BucketName]


class Fold:
    """One chunk of changes on their way into a flush."""

    def __init__(self, flush: Flush, fetch: Fetch, fill: Fill, written: Mapping[int, set[str]], piece: int) -> None:
        self._flush = flush
        self._piece = piece  # bytes of rows that are loaded or written at once
        self._fetch = fetch
        self._fill = fill
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
                inserted = [self._inserted(table, change) for change in changes if isinstance(change, Insert)]
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
            self._follow(table, changes[done:end], places[done:end], rows)
            yield rows
            done = end

    def _follow(
        self,
        table: LiveTable,
        changes: Sequence[RowChange],
        places: Sequence[tuple[str, str]],
        rows: Mapping[str, _Row],
    ) -> None:
        for change, (old_id, new_id) in zip(changes, places, strict=True):
            if type(change) is Delete:
                rows[old_id].cells = None
                continue
            known = rows[old_id].cells
            cells = self._complete(table, cast("Insert | Update", change), None if known is _UNKNOWN else known)
            if old_id != new_id:
                rows[old_id].cells = None
            rows[new_id].cells = cells
        if table.computed:
            self._fill_in(table, rows)

    def _fill_in(self, table: LiveTable, rows: Mapping[str, _Row]) -> None:
        """Have generated columns computed, where what they are computed from is not what it was: Postgres keeps the
        values of the others, too."""
        lacking: list[_Row] = []
        for row in rows.values():
            cells = row.cells
            if cells is None or cells is _UNKNOWN:
                continue
            before = row.before
            known = _UNKNOWN if before is None or before.layout != table.layout else _cells(table, before)
            if known is _UNKNOWN or any(cells[place] != known[place] for place in table.inputs):
                lacking.append(row)
            else:
                row.cells = tuple(known[i] if i in table.computed else cell for i, cell in enumerate(cells))
        for row, found in zip(lacking, filled(self._fill, table, [row.cells for row in lacking]), strict=True):
            row.cells = found

    def _load(self, table: LiveTable, row_ids: Sequence[str], room: int = sys.maxsize) -> dict[str, _Row]:
        """These rows, or as many of the first as there is room for, in bytes."""
        found, count = self._flush.load(table.id, row_ids, room)
        rows: dict[str, _Row] = {}
        for row_id in row_ids[:count]:
            before = found.get(row_id)
            rows[row_id] = _Row(before, None if before is None else _cells(table, before))
        return rows

    def _complete(self, table: LiveTable, change: Insert | Update, current: FullCells | None) -> FullCells | None:
        """The new row with every value that the stream left out; None when the source does not have it any more."""
        new = change.new
        if UNCHANGED not in new:
            return cast(FullCells, new)
        if type(change) is Update and change.old is not None and not change.old_is_key:
            new = _completed(new, change.old)
        if UNCHANGED in new and current is not None:
            new = _completed(new, current)
        if UNCHANGED not in new:
            return cast(FullCells, new)
        if table.identity.kind is not IdentityKind.KEY:
            raise RowIncompleteError(
                "a row without a key lacks a value that only the source has",
                f"{table.relation.schema}.{table.relation.name}",
                "the table is read again",
            )
        key = new if type(change) is Insert else _completed(new, cast(Update, change).old or ())
        fetched = self._fetch(table, key)
        # A row that is gone by now has its DELETE or key change ahead in the stream, before the flush may commit
        return None if fetched is None else cast(FullCells, _completed(new, fetched))

    # tables whose rows are known by their content

    def _fold_multiset(self, table: LiveTable, changes: Sequence[RowChange]) -> dict[str, _Row]:
        olds = [None if type(change) is Insert else cast("Update | Delete", change).old for change in changes]
        news = [
            None if type(change) is Delete else self._inserted(table, cast("Insert | Update", change))
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

    def _inserted(self, table: LiveTable, change: Insert | Update) -> FullCells | None:
        return self._complete(table, change, None)

    # the result

    def _write(self, table: LiveTable, rows: Mapping[str, _Row], *, anew: bool = False) -> int:
        out = _Written([], [], [], {})
        room, written = self._piece, 0
        transform, layout, has_lookups = table.bound.transform, table.layout, table.bound.has_lookups
        convert, evaluate, enter, move = transform.convert, transform.program.evaluate, transform.enter, transform.move
        put, gone, ops, buckets = out.put, out.gone, out.ops, out.buckets
        for row_id, row in rows.items():
            before, cells = row.before, row.cells
            if cells is None:
                if before is not None:
                    move(before.members, before.subkey, row_id, (), ops, buckets)
                    gone.append(row_id)
                    if has_lookups:
                        self._flush.replace_lookups(table.id, row_id, ())
                continue
            line = join_cells(cells)
            too_large = len(line) > SURELY_A_ROW and is_stub(line := stored_line(line))
            if before is not None and before.line == line and before.layout == layout and not anew:
                continue
            puts, lookups, errors = self._refuse(table, row_id, line) if too_large else evaluate(convert(cells), row_id)
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

    def _refuse(self, table: LiveTable, row_id: str, stub: str) -> RowResult:
        """What comes of a row that is too large: nothing."""
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
            new_id = key(_completed(change.new, old) if old is not None else change.new)
            places.append((new_id if old is None else key(old), new_id))
        else:
            row_id = key(cast(Delete, change).old)
            places.append((row_id, row_id))
    return places


def _cells(table: LiveTable, row: CurrentRow) -> FullCells:
    if is_stub(row.line):
        return _UNKNOWN
    try:
        return table.cells(row)
    except DecodeError:  # damaged in storage: the source has to say what is there
        return _UNKNOWN


_new_row: Callable[[type[CurrentRow], tuple[str, int, str, str, str | None]], CurrentRow] = tuple.__new__


def _completed(new: Cells, other: Sequence[Cell]) -> Cells:
    """`new` with its left-out values taken from `other`."""
    if UNCHANGED not in new or not other:
        return new
    return tuple(other[i] if cell is UNCHANGED else cell for i, cell in enumerate(new))
