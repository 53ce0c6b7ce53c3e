"""Turns of the threads of one process at writing to a store.

The database itself has its writers try again and again, or lets whoever comes back first go first: of several sources
that are followed in one process, a busy one would keep the others waiting. Here they go in the order in which they
came, and whoever writes can see that others wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


class Turns:
    """One thread at a time has the turn. A turn may be given back by another thread than took it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()
        self._elsewhere = 0

    @property
    def waited_for(self) -> bool:
        """Whether another thread waits for its turn."""
        return bool(self._waiting) or self._elsewhere > 0

    def take(self, seconds: float) -> bool:
        """Wait at most so long for the turn. Returns whether it came. Interrupted, whoever waits next has it."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            ours = threading.Event()
            self._waiting.append(ours)
        try:
            ours.wait(seconds)
        except BaseException:
            if not self._leave(ours):
                self.give()
            raise
        return not self._leave(ours)

    def _leave(self, ours: threading.Event) -> bool:
        """Leave the queue. Returns False when the turn came before."""
        with self._lock:
            if ours.is_set():
                return False
            self._waiting.remove(ours)
        return True

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Be seen to wait, where the database itself lets writers wait in their order and finds deadlocks."""
        with self._lock:
            self._elsewhere += 1
        try:
            yield
        finally:
            with self._lock:
                self._elsewhere -= 1

    def give(self) -> None:
        """End the turn: the next thread has it."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


@cache
def turns_at(place: str) -> Turns:
    """The turns at a store, by its place."""
    return Turns()
