"""Writing rows into a flush: what a fold or a comparison made of them, as stored rows, ops and lookups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from headwater.decode.copytext import join_cells, line_parts
from headwater.oplog.change import Cell, LargeCells
from headwater.oplog.limits import (
    LEFT_OUT,
    SURELY_A_ROW,
    KnownSize,
    is_stub,
    left_out_of,
    op_refused,
    read_stub,
    row_refused,
    stored_line,
    stub_for,
)
from headwater.oplog.transform import Buckets, DraftOp, Written
from headwater.replication.stream.lacking import Lacking
from headwater.replication.tables.live import FullCells, LiveTable
from headwater.storage.contract.parts import CurrentRow, new_row
from headwater.storage.contract.store import Flush

KnownCells = tuple[Cell | KnownSize, ...]
"""What is known of a row: values, the size of a value in its place, or UNCHANGED where there is nothing."""


AS_STORED: FullCells = ("as it was before",)
"""The cells of a row that no change has touched yet. Reading them from its text is left until they are needed."""


class RowState:
    """A row before the changes, and now. `cells` is None when there is no row, and AS_STORED at first; `stub` is what
    is stored of a row that is still too large."""

    __slots__ = ("before", "cells", "stub")

    def __init__(self, before: CurrentRow | None, cells: KnownCells | None) -> None:
        self.before = before
        self.cells = cells
        self.stub = ""


class _Batch(NamedTuple):
    """What is handed to the flush next."""

    put: list[CurrentRow]
    gone: list[str]
    ops: list[DraftOp]
    buckets: Buckets


class RowWriter:
    """Writes into one flush, about `piece` bytes of rows at once. Rows that are written are taken out of `lacking`, and
    their ids added to `written`, for the tables (by id) that it has."""

    def __init__(self, flush: Flush, lacking: Lacking, written: Mapping[int, set[str]], piece: int) -> None:
        self._flush = flush
        self._lacking = lacking
        self._written = written
        self._piece = piece
        self.evaluation_errors: list[str] = []
        self.refused: list[str] = []  # rows and ops that are too large, in words

    def write(self, table: LiveTable, rows: Mapping[str, RowState], *, reevaluate: bool = False) -> int:
        """Write rows by their ids; without `reevaluate`, only those that changed. Returns the number of ops."""
        out = _Batch([], [], [], {})
        room, written = self._piece, 0
        transform, layout, has_lookups = table.bound.transform, table.layout, table.bound.has_lookups
        write, move = transform.write, transform.move
        put, gone, ops, buckets = out.put, out.gone, out.ops, out.buckets
        for row_id, row in rows.items():
            before, cells = row.before, cast("FullCells | None", row.cells)
            if cells is AS_STORED:
                continue
            if cells is None:
                if before is not None:
                    move(before.members, before.subkey, row_id, (), ops, buckets)
                    gone.append(row_id)
                    if has_lookups:
                        self._flush.replace_lookups(table.id, row_id, ())
                continue
            stub = row.stub or (stub_for(line_parts(cells)) if type(row.cells) is LargeCells else "")
            line = stub or join_cells(cells)
            too_large = bool(stub) or (len(line) > SURELY_A_ROW and is_stub(line := stored_line(line)))
            if before is not None and before.line == line and before.layout == layout and not reevaluate:
                continue
            previous, subkey = ("", None) if before is None else (before.members, before.subkey)
            if too_large:
                self._refuse(table, row_id, line, before)
                made = Written(move(previous, subkey, row_id, (), ops, buckets), (), ())
            else:
                made = write(previous, subkey, row_id, cells, ops, buckets)
            members, lookups, errors = made
            put.append(new_row(CurrentRow, (row_id, layout, line, members, subkey)))
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

    def _hand_over(self, table: LiveTable, out: _Batch) -> int:
        """Write what was collected, and clear it. Returns the number of ops."""
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

    def _refuse(self, table: LiveTable, row_id: str, stub: str, before: CurrentRow | None) -> None:
        """Report a row that is too large, once, when it becomes too large. It has no puts and lookups."""
        if before is None or not is_stub(before.line):
            self.refused.append(row_refused(table.name, row_id, read_stub(stub).size))
