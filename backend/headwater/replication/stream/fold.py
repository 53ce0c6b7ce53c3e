"""Folds a chunk of changes: many changes of a row become its state before and after, and so at most one op a bucket.

A fold belongs to one flush. It loads the rows that it needs in bulk, applies the changes in memory, and writes what
differs at the end.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeGuard

from headwater.bulk.bound_table import oversized_ops_of, oversized_row
from headwater.decode.copytext import join_cells, line_parts
from headwater.oplog.change import (
    UNCHANGED,
    Cell,
    Cells,
    Delete,
    FullCells,
    Insert,
    LargeCells,
    RowChange,
    Update,
    fill_unchanged,
    is_full,
)
from headwater.oplog.limits import (
    SURELY_A_ROW,
    KnownSize,
    is_stub,
    read_stub,
    stored_line,
    stub_after,
    stub_for,
    without_sizes,
)
from headwater.oplog.row_id import IdentityKind, copy_id, copy_number, random_id
from headwater.oplog.transform import OVERSIZED, Buckets, DraftOp
from headwater.replication.stream.change_log import content_of
from headwater.replication.tables.live import Fill, LiveTable, filled
from headwater.storage.contract.parts import CurrentRow, new_row
from headwater.storage.sql.flush import Flush

KnownCells = tuple[Cell | KnownSize, ...]
"""What is known of a row: values, the size of a value in its place, or UNCHANGED where there is nothing."""


@dataclass(frozen=True, slots=True)
class PartialRow:
    """A row that lacks values."""

    cells: KnownCells


@dataclass(frozen=True, slots=True)
class OversizedRow:
    """A row that is too large whatever the values are that it lacks, and what is stored of it."""

    stub: str


class AsStored(Enum):
    """A row that no change has touched yet. Its values are read from its text only if they are needed."""

    AS_STORED = "as stored"


AS_STORED: Final = AsStored.AS_STORED

RowCells = FullCells | PartialRow | OversizedRow | AsStored | None
"""What a row is: None when there is no row."""


class RowState:
    """A row before the changes, and now."""

    __slots__ = ("before", "cells")

    def __init__(self, before: CurrentRow | None, cells: RowCells) -> None:
        self.before = before
        self.cells = cells


_NO_ROWS: Mapping[str, Cells] = {}


class IncompleteRows:
    """By table id and row id, rows with values that neither the stream nor the store has, such as TOASTed ones that an
    UPDATE did not touch. These are UNCHANGED in their cells. Such rows are not stored until they are completed."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Cells]] = {}

    def of(self, table: int) -> Mapping[str, Cells]:
        return self._rows.get(table, _NO_ROWS)

    def tables(self) -> list[int]:
        return list(self._rows)

    def put(self, table: int, row_id: str, cells: Cells) -> None:
        """Keep what is known of a row."""
        self._rows.setdefault(table, {})[row_id] = cells

    def discard(self, table: int, row_ids: Iterable[str]) -> None:
        """These rows are complete, or deleted."""
        rows = self._rows.get(table)
        if rows is None:
            return
        for row_id in row_ids:
            rows.pop(row_id, None)
        if not rows:
            del self._rows[table]

    def clear(self, table: int) -> None:
        """The table is empty, or gone."""
        self._rows.pop(table, None)


def completed(known: Cells, source: FullCells, columns: Collection[int]) -> FullCells:
    """A row with the `known` cells, but those that are UNCHANGED, and those in `columns`, from the source's row."""
    return tuple(source[i] if cell is UNCHANGED or i in columns else cell for i, cell in enumerate(known))


class Fold:
    """Applies one chunk of changes to a flush, loading and writing about `batch_bytes` of rows at once. `written` is as
    for `RowWriter`."""

    def __init__(
        self,
        flush: Flush,
        incomplete: IncompleteRows,
        batch_bytes: int,
        *,
        fill: Fill,
        defer_to_resync: Callable[[LiveTable], None],
        written: Mapping[int, set[str]],
        stale: Collection[int] = (),
        read_ahead: Collection[int] = (),
    ) -> None:
        self._flush = flush
        self._incomplete = incomplete  # where rows go that lack values
        self._batch_bytes = batch_bytes
        self._fill = fill
        self._defer_to_resync = defer_to_resync  # for a table without key, a change of which lacks values
        self._stale = stale  # ids of tables for which no value is taken from the store
        # Oids of tables of which the flush has values that were read from the source, and may be newer: their generated
        # columns are always computed
        self._read_ahead = read_ahead
        self._may_lack = False  # whether any row of this fold may lack values
        self._writer = RowWriter(flush, incomplete, written, batch_bytes)

    @property
    def oversized(self) -> list[str]:
        """Rows and ops that are too large, in words."""
        return self._writer.oversized

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
                return self._writer.write(table, self._fold_copies(table, changes))
            case IdentityKind.NOTHING:
                found = [self._full_row(table, change) for change in changes if isinstance(change, Insert)]
                inserted: Sequence[FullCells | None] = [cells for cells in found if cells is not None]
                if table.computed:
                    inserted = filled(self._fill, table, inserted)
                return self._writer.write(table, {random_id(): RowState(None, cells) for cells in inserted})

    def write(self, table: LiveTable, states: Mapping[str, FullCells | None], *, reevaluate: bool = False) -> int:
        """Make rows what `states` says: their cells by row id, None for a row that is to be deleted. With `reevaluate`,
        rows are evaluated even if their values did not change. Returns the number of ops."""
        ids, done, ops = list(states), 0, 0
        while done < len(ids):
            rows = self._load(table, ids[done:], self._batch_bytes)
            for row_id, row in rows.items():
                row.cells = states[row_id]
            ops += self._writer.write(table, rows, reevaluate=reevaluate)
            done += len(rows)
        return ops

    def _load(self, table: LiveTable, row_ids: Sequence[str], byte_budget: int = sys.maxsize) -> dict[str, RowState]:
        """These rows, or as many of the first as fit into the budget."""
        found, count = self._flush.load(table.id, row_ids, byte_budget)
        incomplete = self._incomplete.of(table.id)
        self._may_lack = self._may_lack or bool(incomplete)
        rows: dict[str, RowState] = {}
        for row_id in row_ids[:count]:
            before = found.get(row_id)
            rows[row_id] = RowState(before, None if before is None else AS_STORED)
            if row_id in incomplete:
                rows[row_id].cells = PartialRow(incomplete[row_id])
        return rows

    # keyed tables

    def _fold_keyed(self, table: LiveTable, changes: Sequence[RowChange]) -> Iterator[dict[str, RowState]]:
        """Usually one part; where stored rows are large, several, each with the changes whose rows fit into the budget.
        Each part has to be written before the next is taken."""
        row_ids = _row_ids(table, changes)
        done = 0
        while done < len(changes):
            rest = row_ids[done:]
            wanted = list(dict.fromkeys(row_id for old_and_new in rest for row_id in old_and_new))
            rows = self._load(table, wanted, self._batch_bytes)
            end = len(changes)
            if len(rows) < len(wanted):
                if not rows.keys() >= set(rest[0]):  # a row, and the id that it changes to
                    rows = self._load(table, list(dict.fromkeys(rest[0])))
                missing = (old not in rows or new not in rows for old, new in rest)
                end = done + next((number for number, is_missing in enumerate(missing) if is_missing), len(rest))
            yield self._follow(table, changes[done:end], row_ids[done:end], rows)
            done = end

    def _follow(
        self,
        table: LiveTable,
        changes: Sequence[RowChange],
        row_ids: Sequence[tuple[str, str]],
        rows: dict[str, RowState],
    ) -> dict[str, RowState]:
        """Apply the changes to the rows. Returns those that are complete."""
        if table.id in self._stale:
            self._ignore_stored(table, {old: rows[old] for old, _ in row_ids})  # not the others that were loaded
        for change, (old_id, new_id) in zip(changes, row_ids, strict=True):
            if type(change) is Delete:
                rows[old_id].cells = None
                continue
            new = change.new
            cells = new if is_full(new) else self._merged(table, change, _known(table, rows[old_id]))
            if old_id != new_id:
                rows[old_id].cells = None
            rows[new_id].cells = cells
        if self._may_lack:
            rows = self._set_apart(table, rows)
        if table.computed:
            self._compute(table, rows)
        return rows

    def _ignore_stored(self, table: LiveTable, rows: Mapping[str, RowState]) -> None:
        """Take no values from the store for rows of a stale table: mixed with those from the stream, they could make a
        row that never existed."""
        incomplete = self._incomplete.of(table.id)
        for row_id, row in rows.items():
            if row.cells is not None and row_id not in incomplete:
                row.cells = PartialRow((UNCHANGED,) * len(table.relation.columns))

    def _merged(self, table: LiveTable, change: Insert | Update, current: KnownCells | None) -> FullCells | PartialRow:
        """The new row, with the values that the stream left out taken from the old row or the store, where known."""
        new: Cells = change.new
        if type(change) is Update and (old := change.old) is not None:
            kept = range(len(new)) if not change.old_is_key else table.identity.columns
            new = tuple([old[i] if cell is UNCHANGED and i in kept else cell for i, cell in enumerate(new)])
        cells: KnownCells = new if current is None else fill_unchanged(new, current)
        if _has_values(cells):
            return cells
        self._may_lack = True
        return PartialRow(cells)

    def _set_apart(self, table: LiveTable, rows: dict[str, RowState]) -> dict[str, RowState]:
        """Move rows that lack values to the incomplete ones. Returns all others."""
        complete: dict[str, RowState] = {}
        for row_id, row in rows.items():
            if not isinstance(row.cells, PartialRow):
                complete[row_id] = row
            elif stub := _still_too_large(row.before, row.cells):
                row.cells = OversizedRow(stub)
                complete[row_id] = row
            else:
                cells = tuple([UNCHANGED if isinstance(cell, KnownSize) else cell for cell in row.cells.cells])
                self._incomplete.put(table.id, row_id, cells)
                if row.before is not None and is_stub(row.before.line):  # after a restart, only the stub is known
                    self._flush.put_rows(table.id, [row.before._replace(line=without_sizes(row.before.line))])
        return complete

    def _compute(self, table: LiveTable, rows: Mapping[str, RowState]) -> None:
        """Compute generated columns of rows whose inputs changed. Others keep their values, as in Postgres."""
        changed: list[tuple[RowState, FullCells]] = []
        read_ahead = table.relation.oid in self._read_ahead
        for row in rows.values():
            cells, before = row.cells, row.before
            if not isinstance(cells, tuple):
                continue
            known = None
            if before is not None and before.layout == table.layout and not read_ahead and not is_stub(before.line):
                known = table.intact_cells(before)
            if known is None or any(cells[i] != known[i] for i in table.inputs):
                changed.append((row, cells))
            else:
                row.cells = tuple(known[i] if i in table.computed else cell for i, cell in enumerate(cells))
        computed = filled(self._fill, table, [cells for _, cells in changed])
        for (row, _), cells in zip(changed, computed, strict=True):
            row.cells = cells

    # tables without key, whose rows are counted by their content

    def _fold_copies(self, table: LiveTable, changes: Sequence[RowChange]) -> dict[str, RowState]:
        """Equal rows are numbered copies, of which those with the highest numbers go first."""
        steps = self._steps(table, changes)
        contents = dict.fromkeys(content for gone, come, _ in steps for content in (gone, come) if content is not None)
        copies = {content: self._flush.copies(table.id, content) for content in contents}
        counts = {content: max(map(copy_number, ids), default=0) for content, ids in copies.items()}
        going = Counter(gone for gone, _, _ in steps)
        last = [i for content, ids in copies.items() for i in ids if copy_number(i) > counts[content] - going[content]]
        rows = self._load(table, last)
        for gone, come, cells in steps:
            if gone == come:
                continue
            if gone is not None and counts[gone] > 0:
                rows[copy_id(gone, counts[gone])].cells = None
                counts[gone] -= 1
            if come is not None:
                counts[come] += 1
                rows.setdefault(copy_id(come, counts[come]), RowState(None, None)).cells = cells
        return rows

    def _steps(
        self, table: LiveTable, changes: Sequence[RowChange]
    ) -> list[tuple[str | None, str | None, FullCells | None]]:
        """Of each change: the content that goes, the content that comes, and its cells."""
        olds: Sequence[Cells | None] = [None if type(change) is Insert else change.old for change in changes]
        news: Sequence[FullCells | None] = [
            None if type(change) is Delete else self._full_row(table, change) for change in changes
        ]
        if table.computed:
            both = filled(self._fill, table, [*olds, *news])
            olds, news = both[: len(olds)], both[len(olds) :]
        return [
            (None if old is None else content_of(old), None if new is None else content_of(new), new)
            for old, new in zip(olds, news, strict=True)
        ]

    def _full_row(self, table: LiveTable, change: Insert | Update) -> FullCells | None:
        """The new row. None when it lacks values, which can't be read from the source without a key."""
        cells = change.new if is_full(change.new) else self._merged(table, change, None)
        if isinstance(cells, PartialRow):
            self._defer_to_resync(table)
            return None
        return cells


def _row_ids(table: LiveTable, changes: Sequence[RowChange]) -> list[tuple[str, str]]:
    """The row id before and after each change."""
    key = table.identity.key
    ids: list[tuple[str, str]] = []
    for change in changes:
        if type(change) is Insert:
            row_id = key(change.new)
            ids.append((row_id, row_id))
        elif type(change) is Update and (old := change.old) is not None:
            ids.append((key(old), key(fill_unchanged(change.new, old))))
        else:
            row_id = key(change.old if type(change) is Delete else change.new)
            ids.append((row_id, row_id))
    return ids


def _known(table: LiveTable, row: RowState) -> KnownCells | None:
    """What is known of a row as it is now. None when nothing is, or there is no row."""
    cells, before = row.cells, row.before
    if cells is AS_STORED and before is not None:
        return _sizes_in_stub(table, before) if is_stub(before.line) else table.intact_cells(before)
    if isinstance(cells, tuple):
        return cells
    return cells.cells if isinstance(cells, PartialRow) else None


def _sizes_in_stub(table: LiveTable, row: CurrentRow) -> KnownCells | None:
    """They are no use without a key, with generated columns, or in another layout."""
    sizes = read_stub(row.line).sizes
    if (
        table.identity.kind is not IdentityKind.KEY
        or table.computed
        or row.layout != table.layout
        or len(sizes) != len(table.relation.columns)
    ):
        return None
    return tuple(map(KnownSize, sizes))


def _still_too_large(before: CurrentRow | None, row: PartialRow) -> str:
    """The new stub of a row, if it is too large whatever its unknown values are: their sizes are known."""
    if before is None or not is_stub(before.line):
        return ""
    sizes: list[int] = []
    for cell in row.cells:
        if cell is UNCHANGED:
            return ""
        sizes.append(cell.size if isinstance(cell, KnownSize) else len(join_cells((cell,)).encode()))
    return stub_after(read_stub(before.line), sizes) or ""


def _has_values(cells: KnownCells) -> TypeGuard[FullCells]:
    return UNCHANGED not in cells and KnownSize not in map(type, cells)


class RowWriter:
    """Writes rows into one flush, as stored rows, ops and lookups, about `batch_bytes` at once. Rows that are written
    are taken out of `incomplete`, and their ids added to `written`, for the tables (by id) that it has."""

    def __init__(
        self, flush: Flush, incomplete: IncompleteRows, written: Mapping[int, set[str]], batch_bytes: int
    ) -> None:
        self._flush = flush
        self._incomplete = incomplete
        self._written = written
        self._batch_bytes = batch_bytes
        self._flips: dict[str, int | None] = {}  # of rows of a table whose rules read the clock
        self.evaluation_errors: list[str] = []
        self.oversized: list[str] = []  # rows and ops that are too large, in words

    def write(self, table: LiveTable, rows: Mapping[str, RowState], *, reevaluate: bool = False) -> int:
        """Write rows by their ids; without `reevaluate`, only those that changed. Returns the number of ops."""
        put, gone, ops, buckets = list[CurrentRow](), list[str](), list[DraftOp](), Buckets()
        bound = table.bound.at(self._flush.now).knowing(self._flush.joined, _evaluated(rows))
        transform, layout, has_lookups, has_clock = bound.transform, table.layout, bound.has_lookups, bound.has_clock
        write, written, byte_budget = transform.write, 0, self._batch_bytes
        for row_id, row in rows.items():
            before, cells = row.before, row.cells
            if isinstance(cells, tuple):
                is_large = type(cells) is LargeCells
                line = _line_of_large(cells) if is_large else join_cells(cells)
                if (is_large or len(line) > SURELY_A_ROW) and is_stub(line := stored_line(line)):
                    cells = OversizedRow(line)
            elif isinstance(cells, OversizedRow):
                line = cells.stub
            else:
                if cells is None and before is not None:
                    gone.append(row_id)
                    self._remove(table, before, ops, buckets)
                continue
            if before is not None and before.line == line and before.layout == layout and not reevaluate:
                continue
            previous, origin = ("", None) if before is None else (before.members, before.subkey)
            if isinstance(cells, tuple):
                members, lookups, errors, flip = write(previous, origin, row_id, cells, ops, buckets)
            else:
                members, lookups, errors = transform.move(previous, origin, row_id, (), ops, buckets), (), ()
                flip = None
                self._report_oversized(table, row_id, line, before)
            put.append(new_row(CurrentRow, (row_id, layout, line, members, origin)))
            if has_clock:
                self._flips[row_id] = flip
            if OVERSIZED in members:
                self.oversized += oversized_ops_of(table.name, row_id, members)
            if has_lookups:
                self._flush.replace_lookups(table.id, row_id, lookups)
            self.evaluation_errors += errors
            byte_budget -= len(line)
            if byte_budget <= 0:
                written += self._flush_batch(table, put, gone, ops, buckets)
                byte_budget = self._batch_bytes
        self._incomplete.discard(table.id, rows)
        return written + self._flush_batch(table, put, gone, ops, buckets)

    def _report_oversized(self, table: LiveTable, row_id: str, stub: str, before: CurrentRow | None) -> None:
        """Report a row when it becomes too large."""
        if before is None or not is_stub(before.line):
            self.oversized.append(oversized_row(table.name, row_id, read_stub(stub).size))

    def _remove(self, table: LiveTable, row: CurrentRow, ops: list[DraftOp], buckets: Buckets) -> None:
        table.bound.transform.move(row.members, row.subkey, row.row_id, (), ops, buckets)
        if table.bound.has_lookups:
            self._flush.replace_lookups(table.id, row.row_id, ())
        if table.bound.has_clock:
            self._flips[row.row_id] = None

    def _flush_batch(
        self, table: LiveTable, put: list[CurrentRow], gone: list[str], ops: list[DraftOp], buckets: Buckets
    ) -> int:
        """Write what was collected, and clear it. Returns the number of ops."""
        written = self._written.get(table.id)
        if written is not None:
            written.update(gone, (row.row_id for row in put))
        self._flush.delete_rows(table.id, gone)
        self._flush.put_rows(table.id, put)
        self._flush.append(ops, buckets)
        if self._flips:
            self._flush.put_flips(table.id, self._flips)
        count = len(ops)
        for collected in (put, gone, ops, buckets, self._flips):
            collected.clear()
        return count


def _evaluated(rows: Mapping[str, RowState]) -> Iterator[tuple[FullCells, str]]:
    """The rows that rules are evaluated on, each its cells and id."""
    for row_id, row in rows.items():
        if isinstance(row.cells, tuple) and type(row.cells) is not LargeCells:
            yield row.cells, row_id


def _line_of_large(cells: FullCells) -> str:
    """The line of a row, or its stub, without a copy of a row that is too large."""
    return stub_for(line_parts(cells)) or join_cells(cells)
