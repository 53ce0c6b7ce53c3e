"""Progress of bulk work on the terminal: a bar where somebody watches, a line now and then where a log is written."""

from __future__ import annotations

import logging
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headwater.bulk.jobs import BulkProgress

_log = logging.getLogger(__name__)

_LINE_SECONDS = 5.0


class BulkProgressDisplay:
    """Call it with each report on `what`. Shows rows done, rows expected, rate and time left."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._started = 0.0
        self._said_at = 0.0
        self._over = True

    def __call__(self, progress: BulkProgress) -> None:
        now = time.monotonic()
        if self._over:
            self._started = self._said_at = now
        expected = max(progress.rows, progress.rows_expected)
        rate = progress.rows / max(now - self._started, 1e-3)
        finished = progress.tasks >= progress.tasks_expected
        if finished and self._over:
            return
        self._over = finished
        if self._console.is_terminal:
            self._draw(progress, expected, rate, finished=finished)
        elif finished or now - self._said_at >= _LINE_SECONDS:
            self._said_at = now
            left = "done" if finished else _time_left(progress.rows, expected, rate)
            _log.info(
                "%s: %d of about %d rows, %.0f rows/s, task %d of %d, %s",
                progress.what, progress.rows, expected, rate, progress.tasks, progress.tasks_expected, left,
            )  # fmt: skip

    def _draw(self, progress: BulkProgress, expected: int, rate: float, *, finished: bool) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn(progress.what),
                BarColumn(),
                TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows, {task.fields[rate]:,.0f}/s"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(progress.what, total=expected, rate=0.0)
            self._bar.start()
        self._bar.update(self._task, completed=progress.rows, total=expected, rate=rate)
        if finished:
            self._bar.stop()
            self._bar = None


def _time_left(rows: int, expected: int, rate: float) -> str:
    """Nothing can be said before some rows are through: the tasks have to start first."""
    return f"{(expected - rows) / rate:.0f} s left" if rows * 50 > expected else "time left unknown yet"
