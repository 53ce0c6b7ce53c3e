"""What the log, or a terminal, shows of bulk work."""

from __future__ import annotations

import io
import logging
import sys

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


def test_lines_between_bars_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    tell = display.BulkProgressDisplay()
    for progress in (
        BulkProgress(10, 1000, 0, 4, "comparison"),
        BulkProgress(20, 0, 0, 0, "merge"),
        BulkProgress(30, 0, 0, 0, "merge", over=True),
        BulkProgress(1000, 1000, 4, 4, "comparison", over=True),
    ):
        tell(progress)
    terminal.write("a line of the log\n")
    tell(BulkProgress(10, 1000, 0, 4, "snapshot"))
    tell(BulkProgress(1000, 1000, 4, 4, "snapshot", over=True))
    before, _, after = terminal.getvalue().partition("a line of the log\n")
    up = "\x1b[1A"  # moves the cursor to the line above
    assert up in before, "two bars are drawn over each other"
    assert "snapshot" in after
    assert up not in after
