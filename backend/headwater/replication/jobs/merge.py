"""Merges what a comparison found with what the stream brought since.

The comparison knows the source as of a snapshot. A row that no later commit touched takes the snapshot's state. A
touched row keeps what was streamed, and takes from the snapshot only values that the stream left out as unchanged, even
if the row's key changed. Rows without key are counted: the copies in the snapshot, plus those that came since, minus
those that went.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Final

from headwater.bulk.bound_table import Times, stands
from headwater.bulk.contract import Difference
from headwater.decode.copytext import join_cells, split_line
from headwater.oplog.change import UNCHANGED, Cells, FullCells
from headwater.oplog.limits import is_stub, stored_line
from headwater.oplog.row_id import IdentityKind, copy_id, random_id
from headwater.replication.jobs.job import JobContext
from headwater.replication.stream.change_log import ChangeLog, RecordedChanges
from headwater.replication.stream.flush_builder import FlushBuilder
from headwater.replication.stream.fold import completed
from headwater.replication.stream.step_size import StepSize
from headwater.replication.tables.live import LiveTable, filled
from headwater.storage.contract.parts import CurrentRow

_NAMED_ROWS = 100
_LOOKED_UP_AHEAD: Final = 50_000  # differences, at once


States = dict[str, FullCells | None]
"""What rows should be, by row id; None for one that should not be there."""


@dataclass(slots=True)
class ResyncFindings:
    """What a comparison found. `rows` has the first differences of each table, `ops` the number of ops that repaired
    them."""

    tables: list[str] = field(default_factory=list)
    compared: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)
    ops: int = 0

    def as_dict(self) -> dict[str, object]:
        return {
            "tables": self.tables,
            "rows_compared": self.compared,
            "differences": self.differences,
            "rows": self.rows,
            "ops": self.ops,
        }


class Merge:
    """Merges the differences that one comparison finds, and notes them in `findings`. Without `repair`, it only notes
    them. With `verify`, rows are evaluated even if their values did not change."""

    def __init__(
        self, context: JobContext, log: ChangeLog, findings: ResyncFindings, *, repair: bool, verify: bool
    ) -> None:
        self._context = context
        self._log = log
        self._findings = findings
        self._repair = repair
        self._verify = verify
        self._step = StepSize()
        self._copies = Copies(context.stream)
        self._reported = defaultdict[int, set[str]](set)  # by table id, keys of differences; see `_differences`

    def next_batch(self, differences: Sequence[Difference], oids: frozenset[int]) -> int:
        """Merge the first of these differences. Returns how many. Leaves out tables that are not among `oids`: of one
        that changed or was truncated since, the snapshot says nothing."""
        count = self._fitting(differences)
        self._copies.expect(differences[count:])
        started = time.perf_counter()
        oid_of = {table.id: oid for oid, table in self._context.stored().items()}
        for table_id in dict.fromkeys(difference.table for difference in differences[:count]):
            oid = oid_of.get(table_id)
            table = None if oid not in oids else self._context.stream.table(oid)
            if oid is not None and table is not None:
                self._merge(table, self._log.of(oid), self._differences(table_id, differences[:count]))
        self._step.took(count, time.perf_counter() - started)
        return count

    def _fitting(self, differences: Sequence[Difference]) -> int:
        """How many of the differences to merge at once: lines of `batch_bytes` at most, but at least one."""
        sizes = accumulate(len(difference.line) for difference in differences[: self._step.rows])
        return max(1, sum(size <= self._context.source.batch_bytes for size in sizes))

    def _merge(self, table: LiveTable, touches: RecordedChanges, differences: Sequence[Difference]) -> None:
        if touches.truncated:
            return  # no row of the snapshot is left
        found, waiting = self._findings, frozenset[str]()
        if table.identity.kind is IdentityKind.KEY:
            states, waiting = self._keyed(table, touches, differences)
        else:
            states = self._counted(table, touches, differences)
        problems = self._problems(table, states)
        if problems:
            found.differences[table.name] = found.differences.get(table.name, 0) + len(problems)
        if len(found.rows) < _NAMED_ROWS:
            found.rows += [{"table": table.name, **problem} for problem in problems[:_NAMED_ROWS]]
        if self._repair and states:
            found.ops += self._context.stream.merge(table, states, waiting=waiting, reevaluate=self._verify)

    def _differences(self, table: int, differences: Sequence[Difference]) -> list[Difference]:
        """The differences of a table. Without repair, those that were not reported before: differences that are not
        repaired are found again when touched rows are counted."""
        found = [difference for difference in differences if difference.table == table]
        if self._repair:
            return found
        before = self._reported[table]
        new = [difference for difference in found if difference.key not in before]
        before.update(difference.key for difference in new)
        return new

    def _keyed(
        self, table: LiveTable, touches: RecordedChanges, differences: Sequence[Difference]
    ) -> tuple[States, frozenset[str]]:
        """What the rows that differ are to be; some may be right already. The second ones are only evaluated again:
        they go on lacking values that later changes need."""
        stream = self._context.stream
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
            elif self._verify:
                streamed.append(key)
        incomplete = stream.incomplete.of(table.id)
        for row_id, (columns, inherited) in patches.items():
            if _inherits_all(table, incomplete.get(row_id), columns):
                states[row_id] = completed(incomplete[row_id], inherited, columns)
        for row in stream.stored_rows(table, [row_id for row_id in patches if row_id not in incomplete]):
            if not is_stub(row.line):  # a stub has no values to complete
                columns, inherited = patches[row.row_id]
                states[row.row_id] = completed(table.cells(row), inherited, columns)
        waiting: set[str] = set()
        for row in stream.stored_rows(table, streamed):
            if row.row_id not in states and not is_stub(row.line):
                states[row.row_id] = table.cells(row)
                if row.row_id in incomplete:
                    waiting.add(row.row_id)
        patched = [row_id for row_id in patches if row_id in states]
        states |= zip(patched, filled(stream.fill, table, [states[row_id] for row_id in patched]), strict=True)
        return states, frozenset(waiting)

    def _counted(self, table: LiveTable, touches: RecordedChanges, differences: Sequence[Difference]) -> States:
        width = len(table.relation.columns)
        present = self._copies.of(table, touches, differences)
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

    def _problems(self, table: LiveTable, states: States) -> list[dict[str, object]]:
        """What is wrong with the rows that would change, for a person and without values."""
        problems: dict[str, dict[str, object] | None] = {
            row_id: None if cells is None else {"problem": "missing in the store"} for row_id, cells in states.items()
        }
        stream = self._context.stream
        times = stream.times(table, states)
        for row in stream.stored_rows(table, list(states)):
            cells = states[row.row_id]
            problems[row.row_id] = _problem(table, row, cells, times)
        return [{"row": row_id, **problem} for row_id, problem in problems.items() if problem is not None]


def _inherits_all(table: LiveTable, known: Cells | None, columns: frozenset[int]) -> bool:
    """Whether a row lacks values, and all of them are still as in the snapshot. Else the stream brought some since, in
    a row that is no longer trusted, and the row waits until it is read from the source."""
    return known is not None and {place for place, cell in enumerate(known) if cell is UNCHANGED} <= columns.union(
        table.computed
    )


def _problem(table: LiveTable, row: CurrentRow, cells: FullCells | None, times: Times) -> dict[str, object] | None:
    """What is wrong with a stored row, given that of the source. None when nothing is."""
    if cells is None:
        return {"problem": "not in the source"}
    found = difference(table, row, cells)
    if found is not None or is_stub(row.line):
        return found
    return None if stands(table.bound, cells, row, times) else {"problem": "not in the buckets that the rules give it"}


def difference(table: LiveTable, row: CurrentRow, cells: FullCells) -> dict[str, object] | None:
    """How the values of a stored row differ from those in the source. None when they do not."""
    if is_stub(row.line):
        stays = is_stub(stored_line(join_cells(cells)))
        return None if stays else {"problem": "left out as too large, but is not any more"}
    stored = table.intact_cells(row)
    if stored is None:
        return {"problem": "can't be read"}
    columns = [c.name for c, a, b in zip(table.relation.columns, stored, cells, strict=True) if a != b]
    return {"problem": "other values", "columns": columns} if columns else None


class Copies:
    """Ids of the stored copies of rows without key, by content, for one comparison. Where the replica identity is
    nothing, each look reads the whole table: what is merged later is looked up together with what is merged now."""

    def __init__(self, stream: FlushBuilder) -> None:
        self._stream = stream
        self._later: Sequence[Difference] = ()
        self._found: dict[tuple[int, str], tuple[int, list[str]]] = {}

    def expect(self, later: Sequence[Difference]) -> None:
        """What is merged after the next differences."""
        self._later = later

    def of(self, table: LiveTable, touches: RecordedChanges, differences: Sequence[Difference]) -> dict[str, list[str]]:
        """The ids of the rows that are stored with the contents of these differences."""
        if table.identity.kind is IdentityKind.FULL:
            return self._stream.copies(table, {each.key: each.line for each in differences})
        contents = dict.fromkeys(each.key for each in differences)
        if not all(self._is_known(table, touches, content) for content in contents):
            self._look(table, touches, differences)
        return {content: self._found.pop((table.id, content))[1] for content in contents}

    def _is_known(self, table: LiveTable, touches: RecordedChanges, content: str) -> bool:
        """Whether it was looked up, and the stream has brought no more rows with this content since."""
        found = self._found.get((table.id, content))
        return found is not None and found[0] == touches.delta[content]

    def _look(self, table: LiveTable, touches: RecordedChanges, differences: Sequence[Difference]) -> None:
        all_of_it = chain(differences, islice(self._later, _LOOKED_UP_AHEAD))
        lines = {each.key: each.line for each in all_of_it if each.table == table.id}
        others = {place: found for place, found in self._found.items() if place[0] != table.id}
        self._found = others | {
            (table.id, content): (touches.delta[content], row_ids)
            for content, row_ids in self._stream.copies(table, lines).items()
        }
