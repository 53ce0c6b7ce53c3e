"""Progress of a job's tasks: each writes a small file beside its part, and the driver sums them up. Of tasks on other
machines the driver knows only how many have finished, from the engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headwater.bulk.contract import BulkProgress

_SECONDS = 0.25


class TaskProgress:
    """Counts the rows done by one attempt of a task. Writes nothing where the driver's directory is not: on another
    machine, whose files would be neither read nor removed."""

    def __init__(self, directory: str, number: int, attempt: str) -> None:
        self._path = Path(directory) / f"progress-{number:05d}-{attempt}"
        self._file: int | None = None
        with suppress(FileNotFoundError):
            self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        self._rows = 0

    def __enter__(self) -> TaskProgress:
        return self

    def add(self, rows: int) -> None:
        self._rows += rows
        if self._file is not None:
            os.pwrite(self._file, self._rows.to_bytes(8, "big"), 0)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        os.close(self._file)
        if failed is not None:
            self._path.unlink(missing_ok=True)
            return
        with suppress(FileNotFoundError):  # the job was given up
            self._path.with_name(f"{self._path.name}-done").touch()


class ProgressReporter:
    """A context manager that calls `progress` every quarter of a second, from a thread. `what` is the job's kind;
    `remote_tasks_done` returns how many tasks have finished on other machines, 0 if none run there."""

    def __init__(
        self,
        what: str,
        directory: str,
        expected: int,
        tasks: int,
        progress: Callable[[BulkProgress], None],
        remote_tasks_done: Callable[[], int] = lambda: 0,
    ) -> None:
        self._what = what
        self._directory = Path(directory)
        self._expected = expected
        self._tasks = tasks
        self._progress = progress
        self._remote_tasks_done = remote_tasks_done
        self._before = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        for old in self._directory.glob("progress-*"):
            old.unlink(missing_ok=True)
        self._before = self._remote_tasks_done()
        self._progress(BulkProgress(0, self._expected, 0, self._tasks, self._what))
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._report(over=True)

    def _watch(self) -> None:
        while not self._done.wait(_SECONDS):
            self._report()

    def _report(self, *, over: bool = False) -> None:
        rows = 0
        finished: set[str] = set()
        for path in self._directory.glob("progress-*"):
            if path.name.endswith("-done"):
                finished.add(path.name.split("-")[1])
                continue
            with suppress(OSError):
                rows += int.from_bytes(path.read_bytes(), "big")
        done = max(len(finished), min(self._remote_tasks_done() - self._before, self._tasks))
        if done > len(finished) and self._tasks:
            rows = max(rows, self._expected * done // self._tasks)
        self._progress(BulkProgress(rows, self._expected, done, self._tasks, self._what, over))
