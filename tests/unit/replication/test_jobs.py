"""What jobs leave to threads, and how the sampling audit compares a row."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from headwater.oplog.limits import ROW_LIMIT, stored_line
from headwater.replication.jobs import job
from headwater.replication.jobs.job import Background
from headwater.replication.jobs.sampling_checks import same_row
from headwater.replication.tables.live import LiveTable
from headwater.storage.contract.parts import CurrentRow
from tests.support.waiting import wait_until


@pytest.mark.parametrize("late", [False, True], ids=["there", "awaited"])
def test_error_of_disposal_is_logged(late: bool, caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    def dispose(found: int) -> None:
        raise ValueError(f"{found} can't be closed")

    if not late:
        go_on.set()
    work = Background(lambda: 7 if go_on.wait() else 0, "work")
    if not late:
        assert work.result() == 7
    work.discard(dispose)
    go_on.set()
    wait_until(lambda: caplog.records, "the error")
    (record,) = caplog.records
    assert (record.name, record.levelno) == (job.__name__, logging.WARNING)
    assert "7 can't be closed" in caplog.text


HUGE = "1\t" + "x" * ROW_LIMIT


@pytest.mark.parametrize(
    ("layout", "stored", "line", "same"),
    [
        (1, "1\tx", "1\tx", True),
        (1, "1\tx", "1\ty", False),
        (1, "1\t\\x", "1\tx", False),
        (1, HUGE, HUGE, False),
        (1, stored_line(HUGE), HUGE, True),
        (1, stored_line(HUGE), "1\tx", False),
        (0, "1", "1\t\\N", True),
        (0, "1", "1\tx", False),
    ],
    ids=["same", "other", "damaged", "no stub", "stub", "stub of a small row", "earlier layout", "earlier and other"],
)
def test_same_row(layout: int, stored: str, line: str, same: bool) -> None:
    columns = [SimpleNamespace(name="id"), SimpleNamespace(name="body")]
    live = SimpleNamespace(
        layout=1, relation=SimpleNamespace(columns=columns), intact_cells=lambda row: (*row.line.split("\t"), None)[:2]
    )
    assert same_row(cast("LiveTable", live), CurrentRow("1", layout, stored, "", None), line) is same
