"""Shows progress: a bar or a changing line on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headwater.bulk.contract import BulkProgress
from headwater.storage.contract.store import StoreBusyError

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_LINE_SECONDS = 5.0


class _Work:
    """Running work of one kind."""

    def __init__(self, bar: TaskID) -> None:
        self.bar = bar
        self.started = self.said_at = time.monotonic()


class BulkProgressDisplay:
    """Shows rows done, rows expected, rate and remaining time for each kind of running work. Call it with each report,
    from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._console = Console(file=sys.stderr)
        self._bars = self._no_bars()
        self._works: dict[str, _Work] = {}

    def __call__(self, progress: BulkProgress) -> None:
        with self._lock:
            work = self._works.get(progress.what)
            if work is None:
                if progress.over:
                    return
                work = _Work(self._bars.add_task(progress.what, total=None, said="", rate=0.0))
                self._works[progress.what] = work
            rate = progress.rows / max(time.monotonic() - work.started, 1e-3)
            if progress.over:
                del self._works[progress.what]
            if self._console.is_terminal:
                self._draw(work.bar, progress, rate)
            elif progress.over or time.monotonic() - work.said_at >= _LINE_SECONDS:
                work.said_at = time.monotonic()
                _log.info("%s: %s", progress.what, ", ".join(_words(progress, rate)))
            if not self._works:
                self._clear()

    def _no_bars(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}, {task.fields[rate]:,.0f}/s"),
            TimeRemainingColumn(),
            console=self._console,
        )

    def _draw(self, bar: TaskID, progress: BulkProgress, rate: float) -> None:
        total = max(progress.rows, progress.rows_expected) if progress.rows_expected or progress.over else None
        self._bars.start()
        self._bars.update(bar, completed=progress.rows, total=total, said=str(progress), rate=rate)

    def _clear(self) -> None:
        """Leave what is drawn, and draw none of it again with the next. A Progress that is started again would first
        erase as many lines as it drew last, whatever was logged since."""
        if self._bars.live.is_started:
            self._bars.stop()
        self._bars = self._no_bars()


def _words(progress: BulkProgress, rate: float) -> list[str]:
    words = [str(progress), f"{rate:,.0f} rows/s"]
    if progress.tasks_expected:
        words.append(f"task {progress.tasks} of {progress.tasks_expected}")
    if progress.over:
        words.append("over")
    elif progress.rows_expected:
        words.append(_time_left(progress.rows, max(progress.rows, progress.rows_expected), rate))
    return words


def _time_left(rows: int, expected: int, rate: float) -> str:
    """The remaining time, once enough rows are done for an estimate: tasks take a while to start."""
    return f"{(expected - rows) / rate:.0f} s left" if rows * 50 > expected else "time left unknown yet"


_PAUSE = 0.2


def polled(ask: Callable[[], Answer]) -> Iterator[Answer]:
    """What the store answers, again and again: without end."""
    while True:
        with contextlib.suppress(StoreBusyError):  # a long transaction of the replicator
            yield ask()
        time.sleep(_PAUSE)


class WaitDisplay:
    """Shows what is waited for: a changing line on a terminal, a line every few seconds elsewhere. Whoever interrupts
    it is told what goes on without the command."""

    def __init__(self, goes_on: str) -> None:
        self._goes_on = goes_on
        self._console = Console(stderr=True)
        self._status = self._console.status("")
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> WaitDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._status.stop()
        if kind is KeyboardInterrupt:
            click.echo(self._goes_on, err=True)
            raise click.Abort from None

    def say(self, text: str) -> None:
        if self._console.is_terminal:
            self._status.update(text)
            self._status.start()
        elif text != self._said and (not self._said or time.monotonic() - self._said_at >= _LINE_SECONDS):
            self._said, self._said_at = text, time.monotonic()
            click.echo(f"waiting: {text}", err=True)


_QUIET_SECONDS = 1.0


@contextlib.contextmanager
def scan_progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, for work of `total` pages that takes longer than a second. Gives a function to call after
    each page."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task, started = bar.add_task(what, total=total), time.monotonic()

    def page_done() -> None:
        bar.advance(task)
        if sys.stderr.isatty() and time.monotonic() - started >= _QUIET_SECONDS:
            bar.start()

    try:
        yield page_done
    finally:
        if bar.live.is_started:
            bar.stop()
