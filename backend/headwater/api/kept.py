"""Keeps what is costly to find for a while, and finds it again beside those who ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Seen(Generic[Found]):
    """What was found, and when that began, in seconds since 1970."""

    found: Found
    at: float


class Kept(Generic[Found]):
    """The last result of `find`. One that is older than `fresh` seconds is found again in a thread of its own, of which
    there is one; one that is older than `usable` is not given any more, and who asks waits. Thread-safe."""

    def __init__(self, find: Callable[[], Found], fresh: float, usable: float, name: str) -> None:
        self._find = find
        self._fresh = fresh
        self._usable = usable
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"headwater-{name}")
        self._kept: tuple[float, Seen[Found]] | None = None  # with when it was found, by the monotonic clock
        self._finding: Future[Seen[Found]] | None = None

    def get(self, timeout: float | None = None) -> Seen[Found]:
        """What was found. Raises TimeoutError after so many seconds of waiting, and what `find` raises."""
        with self._lock:
            age = float("inf") if self._kept is None else time.monotonic() - self._kept[0]
            if self._kept is not None and age < self._fresh:
                return self._kept[1]
            if self._finding is None:
                self._finding = self._pool.submit(self._run)
            if self._kept is not None and age < self._usable:
                return self._kept[1]
            finding = self._finding
        return finding.result(timeout)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> Seen[Found]:
        at, began = time.time(), time.monotonic()
        try:
            seen = Seen(self._find(), at)
            with self._lock:
                self._kept = began, seen
        finally:
            with self._lock:
                self._finding = None
        return seen
