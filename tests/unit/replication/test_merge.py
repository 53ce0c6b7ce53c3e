"""What a comparison makes of rows that the stream touched since its snapshot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from headwater.oplog.change import UNCHANGED, Cells
from headwater.replication.jobs.merge import _inherits_all
from headwater.replication.tables.live import LiveTable


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
    table = cast(LiveTable, SimpleNamespace(computed=computed))
    assert _inherits_all(table, known, frozenset(columns)) is expected
