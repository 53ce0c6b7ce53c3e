"""What a comparison makes of rows that the stream touched since its snapshot, and how it looks up rows without key."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from headwater.bulk.contract import Difference
from headwater.oplog.change import UNCHANGED, Cells
from headwater.oplog.row_id import IdentityKind
from headwater.replication.jobs.merge import Copies, _inherits_all
from headwater.replication.stream.change_log import RecordedChanges
from headwater.replication.stream.flush_builder import FlushBuilder
from headwater.replication.tables.live import LiveTable


class Looks:
    """Stands for the store: each look finds one row of each content."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def copies(self, table: LiveTable, contents: Mapping[str, str]) -> dict[str, list[str]]:
        self.made.append(table.id)
        return {content: [f"{table.id}-{content}-{len(self.made)}"] for content in contents}


def table(number: int) -> LiveTable:
    return cast("LiveTable", SimpleNamespace(id=number, identity=SimpleNamespace(kind=IdentityKind.NOTHING)))


def test_tables_in_turn_are_read_once() -> None:
    looks, touches, tables = Looks(), RecordedChanges(), [table(1), table(2)]
    copies = Copies(cast("FlushBuilder", looks))
    both = [Difference(each.id, f"c{n}", "line", 1) for n in range(10) for each in tables]
    for at in range(0, len(both), 4):
        copies.expect(both[at + 4 :])
        for each in tables:
            some = [difference for difference in both[at : at + 4] if difference.table == each.id]
            assert copies.of(each, touches, some).keys() == {difference.key for difference in some}
    assert looks.made == [1, 2]


def test_changed_rows_are_read_again() -> None:
    looks, touches = Looks(), RecordedChanges()
    copies = Copies(cast("FlushBuilder", looks))
    first, second = Difference(1, "a", "line", 1), Difference(1, "b", "line", 1)
    copies.expect([second])
    copies.of(table(1), touches, [first])
    touches.delta["b"] += 1
    assert copies.of(table(1), touches, [second]) == {"b": ["1-b-2"]}


@pytest.mark.parametrize(
    ("known", "columns", "computed", "expected"),
    [
        (None, {1}, (), False),
        (("1", UNCHANGED, "x"), {1}, (), True),
        (("1", UNCHANGED, UNCHANGED), {1}, (), False),
        (("1", UNCHANGED, UNCHANGED), {1}, (2,), True),
    ],
)
def test_inherits_all(known: Cells | None, columns: set[int], computed: tuple[int, ...], expected: bool) -> None:
    lacking = cast("LiveTable", SimpleNamespace(computed=computed))
    assert _inherits_all(lacking, known, frozenset(columns)) is expected
