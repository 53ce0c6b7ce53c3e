"""Runs the long part of a job in a thread, while the job is stepped between flushes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Runs a function once, in a thread. `result` returns what it returned, or raises what it raised."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._dispose: Callable[[Result], object] | None = None
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Result:
        """Waits for the end."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def discard(self, dispose: Callable[[Result], object]) -> None:
        """Have `dispose` called with the result, now or as soon as there is one. Not called after an error."""
        with self._lock:
            if not self._result:
                self._dispose = dispose
                return
        dispose(self._result[0])

    def _run(self) -> None:
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error
            return
        with self._lock:
            self._result.append(result)
            dispose = self._dispose
        if dispose is not None:
            dispose(result)
