"""What the log says of bulk work."""

from __future__ import annotations

import logging

import pytest

from headwater.bulk.contract import BulkProgress
from headwater.cli import progress as display


def test_two_kinds_of_work(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, display.__name__)
    monkeypatch.setattr(display, "_LINE_SECONDS", 0.0)
    tell = display.BulkProgressDisplay()
    for progress in (
        BulkProgress(0, 0, 0, 0, "merge", over=True),  # there was nothing to merge
        BulkProgress(0, 1000, 0, 4, "comparison"),
        BulkProgress(500, 1000, 2, 4, "comparison"),
        BulkProgress(2000, 0, 0, 0, "merge"),
        BulkProgress(1000, 1000, 4, 4, "comparison"),
        BulkProgress(1200, 1000, 4, 4, "comparison", over=True),
        BulkProgress(4500, 0, 0, 0, "merge", over=True),
        BulkProgress(0, 1000, 0, 4, "comparison"),
        BulkProgress(0, 1000, 0, 4, "comparison", over=True),  # it failed
    ):
        tell(progress)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(" rows")[0] + ("." if line.endswith("over") else "") for line in said] == [
        "comparison: 0 of about 1,000",
        "comparison: 500 of about 1,000",
        "merge: 2,000",
        "comparison: 1,000 of about 1,000",
        "comparison: 1,200.",
        "merge: 4,500.",
        "comparison: 0 of about 1,000",
        "comparison: 0.",
    ]
    assert said[1].endswith("task 2 of 4, 0 s left")
    assert "task" not in said[2], "a merge has none"
