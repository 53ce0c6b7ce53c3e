"""Merges what a comparison found with what the stream brought since.

The comparison knows the source as of a snapshot. A row that no later commit touched takes the snapshot's state. A
touched row keeps what was streamed, and takes from the snapshot only values that the stream left out as unchanged, even
if the row's key changed. Rows without key are counted: the copies in the snapshot, plus those that came since, minus
those that went.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from headwater.bulk.contract import Difference
from headwater.decode.copytext import join_cells, split_line
from headwater.decode.wire import DecodeError
from headwater.oplog.change import UNCHANGED, Cells
from headwater.oplog.limits import is_stub, stored_line
from headwater.oplog.row_id import IdentityKind, copy_id, random_id
from headwater.oplog.transform import decode_members, expected_members
from headwater.replication.jobs.copies import Copies
from headwater.replication.stream.access import StreamAccess
from headwater.replication.stream.lacking import completed
from headwater.replication.stream.touches import TableTouches
from headwater.replication.tables.generated import filled
from headwater.replication.tables.live import FullCells, LiveTable
from headwater.storage.contract.parts import CurrentRow

_FEWEST, _MOST = 100, 2_000
_SECONDS = 0.03

States = dict[str, FullCells | None]
"""What rows should be, by row id; None for one that should not be there."""


class Wanted(NamedTuple):
    """What rows are to be. Those in `waiting` are only evaluated again; they go on lacking values that later changes
    need."""

    states: States
    waiting: frozenset[str] = frozenset()


class Portion:
    """How many rows are merged between two flushes of the stream: as many as take about 30 ms, since all commits wait
    meanwhile."""

    def __init__(self) -> None:
        self._rows = _MOST // 4

    def of(self, differences: Sequence[Difference], room: int) -> int:
        """How many of the differences to merge: lines of `room` bytes at most, but at least one."""
        sizes = accumulate(len(difference.line) for difference in differences[: self._rows])
        return max(1, sum(size <= room for size in sizes))

    def took(self, rows: int, seconds: float) -> None:
        """Make the next portion smaller if this one took too long, and larger if it was a whole one and quick."""
        if seconds > _SECONDS or rows == self._rows:
            fitting = int(self._rows * _SECONDS / max(seconds, _SECONDS / 2))
            self._rows = min(max(fitting, self._rows // 2, _FEWEST), _MOST)


def wanted_states(
    stream: StreamAccess,
    table: LiveTable,
    touches: TableTouches,
    differences: Sequence[Difference],
    copies: Copies,
    *,
    reevaluate: bool = False,
) -> Wanted:
    """What the rows that differ are to be. Some may be right already. With `reevaluate`, rows are evaluated even if
    their values did not change."""
    if touches.truncated:
        return Wanted({})  # no row of the snapshot is left
    if table.identity.kind is IdentityKind.KEY:
        return _keyed(stream, table, touches, differences, reevaluate=reevaluate)
    return Wanted(_counted(table, touches, differences, copies))


def _keyed(
    stream: StreamAccess,
    table: LiveTable,
    touches: TableTouches,
    differences: Sequence[Difference],
    *,
    reevaluate: bool,
) -> Wanted:
    width = len(table.relation.columns)
    heirs = touches.heirs()
    states: States = {}
    patches: dict[str, tuple[frozenset[int], FullCells]] = {}
    streamed: list[str] = []
    for _, key, line, copies in differences:
        cells = split_line(line, width) if copies else None
        heir = heirs.get(key)
        if heir is not None and cells is not None:
            patches[heir[0]] = (heir[1], cells)
        elif key not in touches.rows:
            states[key] = cells
        elif reevaluate:
            streamed.append(key)
    lacking = stream.lacking(table)
    for row_id in [row_id for row_id in patches if _inherits_all(table, lacking.get(row_id), patches[row_id][0])]:
        columns, inherited = patches[row_id]
        states[row_id] = completed(lacking[row_id], inherited, columns)
    for row in stream.stored_rows(table, [row_id for row_id in patches if row_id not in lacking]):
        if not is_stub(row.line):  # a stub has no values to complete
            columns, inherited = patches[row.row_id]
            states[row.row_id] = completed(table.cells(row), inherited, columns)
    waiting: set[str] = set()
    for row in stream.stored_rows(table, streamed):
        if row.row_id not in states and not is_stub(row.line):
            states[row.row_id] = table.cells(row)
            if row.row_id in lacking:
                waiting.add(row.row_id)
    if table.computed:
        patched = [row_id for row_id in patches if row_id in states]
        states |= zip(patched, filled(stream.fill, table, [states[row_id] for row_id in patched]), strict=True)
    return Wanted(states, frozenset(waiting))


def _inherits_all(table: LiveTable, known: Cells | None, columns: frozenset[int]) -> bool:
    """Whether a row lacks values, and all of them are still as in the snapshot. Else the stream brought some since, in
    a row that is no longer trusted, and the row waits until it is read from the source."""
    return known is not None and {place for place, cell in enumerate(known) if cell is UNCHANGED} <= columns.union(
        table.computed
    )


def _counted(table: LiveTable, touches: TableTouches, differences: Sequence[Difference], stored: Copies) -> States:
    width = len(table.relation.columns)
    present = stored.of(table, touches, differences)
    states: States = {}
    for _, content, line, copies in differences:
        wanted = max(0, copies + touches.delta[content])
        cells = None if is_stub(line) else split_line(line, width)  # a stub: only the store has such rows
        if table.identity.kind is IdentityKind.FULL:
            ids = {copy_id(content, number) for number in range(1, wanted + 1)}
        else:
            kept = present[content][:wanted]
            ids = {*kept, *(random_id() for _ in range(wanted - len(kept)))}
        states |= dict.fromkeys((row_id for row_id in present[content] if row_id not in ids), None)
        if cells is not None:
            states |= dict.fromkeys(ids, cells)
    return states


def describe(stream: StreamAccess, table: LiveTable, states: Mapping[str, FullCells | None]) -> list[dict[str, object]]:
    """What is wrong with the rows that would change, for a person and without values."""
    problems: dict[str, dict[str, object] | None] = {
        row_id: None if cells is None else {"problem": "missing in the store"} for row_id, cells in states.items()
    }
    for row in stream.stored_rows(table, list(states)):
        cells = states[row.row_id]
        problems[row.row_id] = {"problem": "not in the source"} if cells is None else _problem(table, row, cells)
    return [{"row": row_id, **problem} for row_id, problem in problems.items() if problem is not None]


def _problem(table: LiveTable, row: CurrentRow, cells: FullCells) -> dict[str, object] | None:
    """What is wrong with a stored row that the source has too. None when nothing is."""
    if is_stub(row.line):
        stays = is_stub(stored_line(join_cells(cells)))
        return None if stays else {"problem": "left out as too large, but is not any more"}
    try:
        stored = table.cells(row)
    except DecodeError:
        return {"problem": "can't be read"}
    columns = [c.name for c, a, b in zip(table.relation.columns, stored, cells, strict=True) if a != b]
    if columns:
        return {"problem": "other values", "columns": columns}
    stands = _in_right_buckets(table, row.row_id, row.members, cells)
    return None if stands else {"problem": "not in the buckets that the rules give it"}


def _in_right_buckets(table: LiveTable, row_id: str, members: str, cells: FullCells) -> bool:
    puts = table.bound.transform.evaluate(cells, row_id).puts
    return expected_members(puts, table.bound.transform.keys) == set(decode_members(members, row_id))
