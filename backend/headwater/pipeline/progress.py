"""Progress of a job's tasks: each writes a small file beside its part, and the driver sums them up."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headwater.bulk.contract import BulkProgress

_SECONDS = 0.25


class TaskProgress:
    """Counts the rows done by one attempt of a task."""

    def __init__(self, directory: str, number: int, attempt: str) -> None:
        self._path = Path(directory) / f"progress-{number:05d}-{attempt}"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_CREAT | os.O_WRONLY, 0o600)
        self._rows = 0

    def __enter__(self) -> TaskProgress:
        return self

    def add(self, rows: int) -> None:
        self._rows += rows
        os.pwrite(self._file, self._rows.to_bytes(8, "big"), 0)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        os.close(self._file)
        if failed is None:
            self._path.with_name(f"{self._path.name}-done").touch()
        else:
            self._path.unlink(missing_ok=True)


class ProgressReporter:
    """A context manager that calls `progress` every quarter of a second, from a thread. `what` is the job's kind."""

    def __init__(
        self, what: str, directory: str, expected: int, tasks: int, progress: Callable[[BulkProgress], None]
    ) -> None:
        self._what = what
        self._directory = Path(directory)
        self._expected = expected
        self._tasks = tasks
        self._progress = progress
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def __enter__(self) -> None:
        for old in self._directory.glob("progress-*"):
            old.unlink(missing_ok=True)
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
        self._progress(BulkProgress(rows, self._expected, len(finished), self._tasks, self._what, over))
