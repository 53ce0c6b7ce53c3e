"""How far the stream has come and what the store has of it: facts, each with its time, noted by the thread that follows
the stream and by the one that asks the source."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from headwater.oplog.lsn import ZERO, Lsn

_PROBES = 1000
_LATELY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Flow:
    """All times are in seconds since 1970; None: never since the replicator began.

    The store has every commit up to `stored`. The stream was read last at `read_at`, brought something last at
    `brought_at`, and everything that it had brought was stored last at `stored_at`. Of what it brought, the store lacks
    `unstored_bytes`, the oldest of which came at `unstored_since`. The source was asked last at `asked_at`, when its
    log ended at `log_end`; `refusal` says why it could not be asked since. The store has everything from before
    `caught_up_at`, and lacks something from before `behind_since`, where that is known.
    """

    stored: Lsn = ZERO
    read_at: float | None = None
    brought_at: float | None = None
    stored_at: float | None = None
    unstored_since: float | None = None
    unstored_bytes: int = 0
    asked_at: float | None = None
    log_end: Lsn = ZERO
    refusal: str = ""
    caught_up_at: float | None = None
    behind_since: float | None = None

    def moved(self, seconds: float) -> Flow:
        """The same by a clock that is so far ahead."""

        def at(time: float | None) -> float | None:
            return None if time is None else time + seconds

        return replace(
            self,
            read_at=at(self.read_at),
            brought_at=at(self.brought_at),
            stored_at=at(self.stored_at),
            unstored_since=at(self.unstored_since),
            asked_at=at(self.asked_at),
            caught_up_at=at(self.caught_up_at),
            behind_since=at(self.behind_since),
        )


class FlowMeter:
    """Notes the facts. `begun`, `received` and `settled` belong to the thread of the stream, `asked` and `not_asked` to
    the one that asks the source; any may look at `flow`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # of the probes
        self._probes: deque[tuple[float, Lsn]] = deque()
        self._stored = ZERO
        self._read_at: float | None = None
        self._brought_at: float | None = None
        self._stored_at: float | None = None
        self._unstored_since: float | None = None
        self._unstored_bytes = 0
        self._asked: tuple[float, Lsn] | None = None
        self._refusal = ""
        self._caught_up_at: float | None = None
        self._committed_at = 0.0
        self._flushed_at = 0.0

    def flow(self) -> Flow:
        """The facts as of now."""
        with self._lock:
            behind = self._probes[0][0] if self._probes else None
        asked_at, log_end = self._asked or (None, ZERO)
        if behind is not None and self._clock() - self._flushed_at < _LATELY_SECONDS:
            behind = min(behind, self._committed_at)  # it catches up, and comes to commits from before it could ask
        return Flow(
            self._stored,
            self._read_at,
            self._brought_at,
            self._stored_at,
            self._unstored_since,
            self._unstored_bytes,
            asked_at,
            log_end,
            self._refusal,
            self._caught_up_at,
            behind,
        )

    # the thread of the stream

    def begun(self, stored: Lsn) -> None:
        """The stream is followed from there; what an earlier attempt received comes again."""
        self._read_at = self._clock()
        self._unstored_since, self._unstored_bytes = None, 0
        self._has(stored)

    def received(self, size: int) -> None:
        """The stream was read, and brought so many bytes."""
        self._read_at = now = self._clock()
        if size:
            self._brought_at = now
            self._unstored_since = self._unstored_since or now
            self._unstored_bytes += size

    def settled(self, position: Lsn, *, everything: bool, committed_at: float) -> None:
        """The store has all up to `position`, and `everything` that was received, or not. The newest commit in it was
        made at `committed_at`."""
        if position > self._stored:
            self._unstored_since, self._unstored_bytes = self._brought_at, 0  # what is missing came with the last batch
            self._has(position)
        if everything:
            self._stored_at = self._clock()
            self._unstored_since, self._unstored_bytes = None, 0
        if committed_at != self._committed_at:
            self._committed_at, self._flushed_at = committed_at, self._clock()

    # the thread that asks

    def asked(self, log_end: Lsn, asked_at: float) -> None:
        """The source's log ended there at that time."""
        self._asked, self._refusal = (asked_at, log_end), ""
        with self._lock:
            if len(self._probes) == _PROBES:
                self._probes.pop()  # not the oldest, which says for how long
            self._probes.append((asked_at, log_end))
        self._prove()

    def not_asked(self, why: str) -> None:
        """The source could not be asked."""
        self._refusal = why

    def _has(self, stored: Lsn) -> None:
        self._stored = stored
        if self._probes:
            self._prove()

    def _prove(self) -> None:
        """Take the ends of the log that the store has reached as proof that it has all from before they were seen."""
        with self._lock:
            while self._probes and self._probes[0][1] <= self._stored:
                self._caught_up_at = self._probes.popleft()[0]
