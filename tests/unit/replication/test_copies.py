"""Rows without identity are looked up for many differences at once, whatever order these come in."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

from headwater.bulk.contract import Difference
from headwater.oplog.row_id import IdentityKind
from headwater.replication.jobs.merge import Copies
from headwater.replication.stream.access import StreamAccess
from headwater.replication.stream.change_log import RecordedChanges
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
    copies = Copies(cast("StreamAccess", looks))
    both = [Difference(each.id, f"c{n}", "line", 1) for n in range(10) for each in tables]
    for at in range(0, len(both), 4):
        copies.expect(both[at + 4 :])
        for each in tables:
            some = [difference for difference in both[at : at + 4] if difference.table == each.id]
            assert copies.of(each, touches, some).keys() == {difference.key for difference in some}
    assert looks.made == [1, 2]


def test_changed_rows_are_read_again() -> None:
    looks, touches = Looks(), RecordedChanges()
    copies = Copies(cast("StreamAccess", looks))
    first, second = Difference(1, "a", "line", 1), Difference(1, "b", "line", 1)
    copies.expect([second])
    copies.of(table(1), touches, [first])
    touches.delta["b"] += 1
    assert copies.of(table(1), touches, [second]) == {"b": ["1-b-2"]}
