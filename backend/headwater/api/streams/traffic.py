"""Counts what the streams of a process were sent, for metrics and traces."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headwater.api.refusals import Refusals
from headwater.storage.contract.reader import FlushMark
from headwater.sync.interest import SourceChange

if TYPE_CHECKING:
    from headwater.telemetry.traces import Traces  # needs packages that may be missing

DELAYS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histogram's buckets, in seconds. One more bucket is for longer delays."""

CLIENT_GONE = "client gone"
NOT_READING = "client not reading"
FAILED = "failed"


class Delays:
    """A histogram that one thread writes and others may read. Without a lock it is many times faster."""

    def __init__(self) -> None:
        self.counts = [0] * (len(DELAYS) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(DELAYS, seconds)] += 1
        self.seconds += seconds


class Traffic:
    """The counters of all streams. Use it in one event loop; any thread may read the figures."""

    def __init__(self, refusals: Refusals, traces: Traces | None = None, now: Callable[[], float] = time.time) -> None:
        self.refusals = refusals
        self._traces = traces
        self._now = now
        self.operations = 0
        self.plain_bytes = 0
        """Bytes before compression."""
        self.sent_bytes = 0
        self.delays = Delays()
        """The time from a commit at the source until a device was sent a complete checkpoint with it."""
        self._ended: dict[str, int] = {}

    def ended(self) -> Mapping[str, int]:
        """Numbers of ended streams, by reason."""
        return self._ended.copy()

    def sent(self, plain: int, sent: int) -> None:
        """Count bytes that were sent, before and after compression."""
        self.plain_bytes += plain
        self.sent_bytes += sent

    def change(self, flushes: Sequence[FlushMark]) -> SourceChange | None:
        """The change that these flushes make; None without flushes."""
        if not flushes:
            return None
        committed = min(flush.committed_at for flush in flushes)
        return SourceChange(committed, self._now(), self._traces.choose(flushes) if self._traces is not None else None)

    def delivered(self, change: SourceChange, user_id: str, client_id: str | None) -> None:
        """Record that a device was sent a complete checkpoint with the change. Call it once for each device."""
        now = self._now()
        self.delays.note(max(0.0, now - change.committed))
        if change.traced is not None and self._traces is not None:
            self._traces.delivered(change.traced, change.learned, now, user_id, client_id)

    def end(self, reason: str) -> None:
        """Count a stream that ended. `reason` is that of `Stream`."""
        kind = NOT_READING if reason.endswith(NOT_READING) else reason.partition(":")[0]
        self._ended[kind] = self._ended.get(kind, 0) + 1
