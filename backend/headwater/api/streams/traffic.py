"""What the streams of a process were sent, counted for operators."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headwater.api.refusals import Refusals
from headwater.storage.contract.reader import FlushMark
from headwater.sync.interest import Change

DELAYS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of what delays are counted in, in seconds; beyond the last there is one more."""

CLIENT_GONE = "client gone"
NOT_READING = "client not reading"
FAILED = "failed"


class Delays:
    """A histogram for one thread, which others may read. Many times cheaper than one with a lock."""

    def __init__(self) -> None:
        self.counts = [0] * (len(DELAYS) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(DELAYS, seconds)] += 1
        self.seconds += seconds


class DeviceTraces(Protocol):
    """Follows some changes on their way to devices."""

    def choose(self, flushes: Sequence[FlushMark]) -> FlushMark | None:
        """The flush among these whose way is traced, if there is one."""

    def delivered(self, change: Change, at: float, user_id: str, client_id: str | None) -> None:
        """A device has got a change with a traced flush, at this time."""


class Traffic:
    """Lives in the event loop; its figures may be read from any thread."""

    def __init__(
        self, refusals: Refusals, traces: DeviceTraces | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.refusals = refusals
        self._traces = traces
        self._now = now
        self.operations = 0
        self.plain_bytes = 0
        """Bytes before compression."""
        self.sent_bytes = 0
        self.delays = Delays()
        """From the commit at the source until a device was sent a complete checkpoint with it."""
        self._ended: dict[str, int] = {}

    def ended(self) -> Mapping[str, int]:
        """How many streams have ended, by why."""
        return self._ended.copy()

    def sent(self, plain: int, sent: int) -> None:
        """So many bytes went out."""
        self.plain_bytes += plain
        self.sent_bytes += sent

    def change(self, flushes: Sequence[FlushMark]) -> Change | None:
        """The change that these flushes brought; None without any."""
        if not flushes:
            return None
        committed = min(flush.committed_at for flush in flushes)
        return Change(committed, self._now(), self._traces.choose(flushes) if self._traces is not None else None)

    def delivered(self, change: Change, user_id: str, client_id: str | None) -> None:
        """A device was sent a complete checkpoint with the change. To be called once for it and the device."""
        now = self._now()
        self.delays.note(max(0.0, now - change.committed))
        if change.traced is not None and self._traces is not None:
            self._traces.delivered(change, now, user_id, client_id)

    def end(self, reason: str) -> None:
        """A stream has ended, as `Stream` says why."""
        kind = NOT_READING if reason.endswith(NOT_READING) else reason.partition(":")[0]
        self._ended[kind] = self._ended.get(kind, 0) + 1
