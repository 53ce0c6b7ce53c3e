"""Folds a chunk of changes: many changes of a row become its state before and after, and so at most one op a bucket.

A fold belongs to one flush. It loads the rows that it needs in bulk, applies the changes in memory, and writes what
differs at the end.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import cast

from headwater.decode.copytext import join_cells
from headwater.decode.wire import DecodeError
from headwater.oplog.change import UNCHANGED, Cell, Cells, Delete, Insert, RowChange, Update
from headwater.oplog.limits import KnownSize, is_stub, read_stub, stub_after, without_sizes
from headwater.oplog.row_id import IdentityKind, copy_id, copy_number, random_id
from headwater.replication.stream.contents import content_of
from headwater.replication.stream.lacking import Lacking
from headwater.replication.stream.row_writer import AS_STORED, KnownCells, RowState, RowWriter
from headwater.replication.tables.live import Fill, FullCells, LiveTable, filled
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import Flush

_UNKNOWN: FullCells = ("too large to be kept",)
"""The cells of a row of which no value is stored."""


class Fold:
    """Applies one chunk of changes to a flush. Rows that lack values go to `lacking`. A change of a table without key
    that lacks values is left to a comparison, through `leave`. For tables in `stale` (ids) no value is taken from the
    store. Generated columns of tables in `ahead` (oids) are always computed: the flush has values of them that were
    read from the source, and may be newer. `written` is as for `RowWriter`; `piece` is how many bytes of rows are
    loaded or written at once."""

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
        self._piece = piece
        self._fill = fill
        self._stale = stale
        self._ahead = ahead
        self._lacking = lacking
        self._leave = leave
        self._incomplete = False  # whether any row of this fold may lack values
        self._writer = RowWriter(flush, lacking, written, piece)

    @property
    def refused(self) -> list[str]:
        """Rows and ops that are too large, in words."""
        return self._writer.refused

    @property
    def evaluation_errors(self) -> list[str]:
        """Errors of rules, in words."""
        return self._writer.evaluation_errors

    def apply(self, changes: Sequence[tuple[LiveTable, RowChange]]) -> int:
        """Write the rows that the changes lead to. Returns the number of ops."""
        by_table: defaultdict[int, list[RowChange]] = defaultdict(list)
        tables: dict[int, LiveTable] = {}
        for table, change in changes:
            tables[table.id] = table
            by_table[table.id].append(change)
        return sum(self._apply_table(tables[table_id], rows) for table_id, rows in by_table.items())

    def _apply_table(self, table: LiveTable, changes: Sequence[RowChange]) -> int:
        match table.identity.kind:
            case IdentityKind.KEY:
                return sum(self._writer.write(table, rows) for rows in self._fold_keyed(table, changes))
            case IdentityKind.FULL:
                return self._writer.write(table, self._fold_multiset(table, changes))
            case IdentityKind.NOTHING:
                found = [self._whole(table, change) for change in changes if isinstance(change, Insert)]
                inserted: Sequence[FullCells | None] = [cells for cells in found if cells is not None]
                if table.computed:
                    inserted = filled(self._fill, table, inserted)
                return self._writer.write(table, {random_id(): RowState(None, cells) for cells in inserted})

    def write(self, table: LiveTable, states: Mapping[str, FullCells | None], *, reevaluate: bool = False) -> int:
        """Make rows what `states` says: their cells by row id, None for a row that is to be deleted. With `reevaluate`,
        rows are evaluated even if their values did not change. Returns the number of ops."""
        ids, done, ops = list(states), 0, 0
        while done < len(ids):
            rows = self._load(table, ids[done:], self._piece)
            for row_id, row in rows.items():
                row.cells = states[row_id]
            ops += self._writer.write(table, rows, reevaluate=reevaluate)
            done += len(rows)
        return ops

    # keyed tables

    def _fold_keyed(self, table: LiveTable, changes: Sequence[RowChange]) -> Iterator[dict[str, RowState]]:
        """Usually one part; where stored rows are large, several, each with the changes whose rows fit into `piece`.
        Each part has to be written before the next is taken."""
        places = _places(table, changes)
        done = 0
        while done < len(changes):
            rest = places[done:]
            wanted = list(dict.fromkeys(row_id for place in rest for row_id in place))
            rows = self._load(table, wanted, self._piece)
            end = len(changes)
            if len(rows) < len(wanted):
                if not rows.keys() >= set(rest[0]):  # a row, and the id that it changes to
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
        rows: dict[str, RowState],
    ) -> dict[str, RowState]:
        """Apply the changes to the rows. Returns those that are complete."""
        if table.id in self._stale:
            self._distrust(table, {old: rows[old] for old, _ in places})  # not the others that were loaded
        for change, (old_id, new_id) in zip(changes, places, strict=True):
            if type(change) is Delete:
                rows[old_id].cells = None
                continue
            cells: KnownCells = cast("Insert | Update", change).new
            if UNCHANGED in cells:
                cells = self._merged(table, cast("Insert | Update", change), _known(table, rows[old_id]))
            if old_id != new_id:
                rows[old_id].cells = None
            rows[new_id].cells = cells
        if self._incomplete:
            rows = self._set_apart(table, rows)
        if table.computed:
            self._fill_in(table, rows)
        return rows

    def _distrust(self, table: LiveTable, rows: Mapping[str, RowState]) -> None:
        """Take no values from the store for rows of a stale table: mixed with those from the stream, they could make a
        row that never existed."""
        lacking = self._lacking.of(table.id)
        for row_id, row in rows.items():
            if row.cells is not None and row_id not in lacking:
                row.cells = (UNCHANGED,) * len(table.relation.columns)

    def _merged(self, table: LiveTable, change: Insert | Update, current: KnownCells | None) -> KnownCells:
        """The new row, with the values that the stream left out taken from the old row or the store, where known."""
        new: KnownCells = change.new
        if UNCHANGED not in new:
            return new
        if type(change) is Update and change.old is not None:
            kept = range(len(new)) if not change.old_is_key else table.identity.columns
            new = tuple(change.old[i] if cell is UNCHANGED and i in kept else cell for i, cell in enumerate(new))
        if current is not None:
            new = _completed(new, current)
        self._incomplete = self._incomplete or UNCHANGED in new or any(type(cell) is KnownSize for cell in new)
        return new

    def _set_apart(self, table: LiveTable, rows: dict[str, RowState]) -> dict[str, RowState]:
        """Move rows that lack values to `lacking`. Returns all others."""
        complete: dict[str, RowState] = {}
        for row_id, row in rows.items():
            cells = row.cells
            if cells is not None and any(type(cell) is KnownSize for cell in cells):
                row.stub = self._still_too_large(row, cells)
                if not row.stub:
                    cells = tuple(UNCHANGED if type(cell) is KnownSize else cell for cell in cells)
            if cells is None or row.stub or UNCHANGED not in cells:
                complete[row_id] = row
            else:
                self._lacking.put(table.id, row_id, cast(Cells, cells))
                if row.before is not None and is_stub(row.before.line):  # after a restart, only the stub is known
                    self._flush.put_rows(table.id, [row.before._replace(line=without_sizes(row.before.line))])
        return complete

    def _still_too_large(self, row: RowState, cells: KnownCells) -> str:
        """The new stub of a row, if it is too large whatever its unknown values are: their sizes are known."""
        if row.before is None or not is_stub(row.before.line) or UNCHANGED in cells:
            return ""
        sizes = [
            c.size if isinstance(c, KnownSize) else len(join_cells((cast("str | None", c),)).encode()) for c in cells
        ]
        return stub_after(read_stub(row.before.line), sizes) or ""

    def _fill_in(self, table: LiveTable, rows: Mapping[str, RowState]) -> None:
        """Compute generated columns of rows whose inputs changed. Others keep their values, as in Postgres."""
        lacking: list[RowState] = []
        ahead = table.relation.oid in self._ahead
        for row in rows.values():
            cells = cast("FullCells | None", row.cells)
            if cells is None or cells is _UNKNOWN or cells is AS_STORED:
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

    def _load(self, table: LiveTable, row_ids: Sequence[str], room: int = sys.maxsize) -> dict[str, RowState]:
        """These rows, or as many of the first as fit into `room` bytes."""
        found, count = self._flush.load(table.id, row_ids, room)
        lacking = self._lacking.of(table.id)
        self._incomplete = self._incomplete or bool(lacking)
        rows: dict[str, RowState] = {}
        for row_id in row_ids[:count]:
            before = found.get(row_id)
            rows[row_id] = RowState(before, None if before is None else AS_STORED)
            if row_id in lacking:
                rows[row_id].cells = lacking[row_id]
        return rows

    # tables without key, whose rows are counted by their content

    def _fold_multiset(self, table: LiveTable, changes: Sequence[RowChange]) -> dict[str, RowState]:
        olds = [None if type(change) is Insert else cast("Update | Delete", change).old for change in changes]
        news = [
            None if type(change) is Delete else self._whole(table, cast("Insert | Update", change))
            for change in changes
        ]
        if table.computed:
            both = filled(self._fill, table, [*olds, *news])
            olds, news = list(both[: len(olds)]), both[len(olds) :]
        steps = [  # content that goes; cells and content that come
            (None if old is None else content_of(old), new, None if new is None else content_of(new))
            for old, new in zip(olds, news, strict=True)
        ]
        contents = dict.fromkeys(content for gone, _, come in steps for content in (gone, come) if content is not None)
        copies = {content: self._flush.copies(table.id, content) for content in contents}
        counts = {content: max(map(copy_number, ids), default=0) for content, ids in copies.items()}
        going = Counter(gone for gone, _, _ in steps)  # the copies with the highest numbers go
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
                row = rows.setdefault(copy_id(come, counts[come]), RowState(None, None))
                row.cells = cells
        return {row_id: row for row_id, row in rows.items() if row.cells is not _UNKNOWN}

    def _whole(self, table: LiveTable, change: Insert | Update) -> FullCells | None:
        """The new row. None when it lacks values, which can't be read from the source without a key."""
        cells = self._merged(table, change, None)
        if UNCHANGED in cells:
            self._leave(table)
            return None
        return cast(FullCells, cells)


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


def _known(table: LiveTable, row: RowState) -> KnownCells | None:
    """What is known of a row as it is now."""
    cells = row.cells
    if cells is AS_STORED and row.before is not None:
        cells = _cells(table, row.before)
    return None if cells is _UNKNOWN else cells


def _cells(table: LiveTable, row: CurrentRow) -> KnownCells:
    if is_stub(row.line):
        return _kept(table, row)
    try:
        return table.cells(row)
    except DecodeError:  # damaged in storage: the source has to say what is there
        return _UNKNOWN


def _kept(table: LiveTable, row: CurrentRow) -> KnownCells:
    """The sizes in a row's stub. They are no use without a key, with generated columns, or in another layout."""
    sizes = read_stub(row.line).sizes
    if (
        table.identity.kind is not IdentityKind.KEY
        or table.computed
        or row.layout != table.layout
        or len(sizes) != len(table.relation.columns)
    ):
        return _UNKNOWN
    return tuple(map(KnownSize, sizes))


def _completed(new: KnownCells, other: Sequence[Cell | KnownSize]) -> KnownCells:
    """`new` with its left-out values taken from `other`."""
    if UNCHANGED not in new or not other:
        return new
    return tuple(other[i] if cell is UNCHANGED else cell for i, cell in enumerate(new))
