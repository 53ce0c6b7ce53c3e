"""Shows the progress of a scan of the store's rows on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_QUIET_SECONDS = 1.0


class ScanProgress:
    """A bar on a terminal, for work of `total` pages that takes longer than a second. A context manager that returns a
    function to call after each page."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> Callable[[], None]:
        return self._page_done

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _page_done(self) -> None:
        self._done += 1
        if self._bar is None:
            if not sys.stderr.isatty() or time.monotonic() - self._started < _QUIET_SECONDS:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            self._bar.add_task(self._what, total=self._total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self._done)
