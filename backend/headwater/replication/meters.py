"""Measures what a replicator does: totals that it counts, and how far the stream has come and the store has it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from headwater.bulk.contract import BulkProgress, JobKind
from headwater.oplog.lsn import ZERO, Lsn
from headwater.telemetry.trace_choice import Flushed

POSTGRES_EPOCH = 946_684_800
"""2000-01-01, in seconds since 1970."""

_BRINGS_ROWS = frozenset({JobKind.SNAPSHOT, JobKind.MERGE})
"""Bulk work that counts as replicated rows: it stores the rows that it reads. Comparisons read many more."""

_PROBES = 1000
_LATELY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals that only grow. `rows` are row changes in flushes, and rows that bulk work stored; `transactions` are
    the source's, and `bytes` those received of its stream. A chunk is what was received of the stream at once, or what
    one task of a snapshot read."""

    rows: int = 0
    transactions: int = 0
    bytes: int = 0
    chunks: int = 0


class Figures:
    """Counts what a replicator has done since its process started. Call `received` and `stored` in the replicator's
    thread; the other methods in any. `flushed` is called with each flush that clients can see, and must be fast."""

    def __init__(self, flushed: Callable[[Flushed], None] = lambda _: None) -> None:
        self.flushed = flushed
        self._rows = self._transactions = self._bytes = self._chunks = 0
        self._lock = threading.Lock()
        self.committed_at = 0.0  # of the newest commit in the store, by the clock of the source; 0 while not known
        self._bulk = Totals()
        self._last = BulkProgress(0, 0, 0, 0)

    def received(self, size: int) -> None:
        """Count a part of the stream, of so many bytes."""
        self._chunks += 1
        self._bytes += size

    def stored(self, transactions: int, rows: int, committed_us: int) -> None:
        """Count the transactions and row changes of a committed flush, whose newest commit was made then (0: none)."""
        self._transactions += transactions
        self._rows += rows
        if committed_us:
            self.committed_at = POSTGRES_EPOCH + committed_us / 1e6

    def worked(self, progress: BulkProgress) -> None:
        """Count the progress of bulk work."""
        with self._lock:
            last, self._last = self._last, progress
            if progress.what not in _BRINGS_ROWS:
                return
            if last.what != progress.what or last.over or progress.rows < last.rows:
                last = BulkProgress(0, 0, 0, 0)  # this is another job
            rows = self._bulk.rows + progress.rows - last.rows
            self._bulk = Totals(rows=rows, chunks=self._bulk.chunks + max(0, progress.tasks - last.tasks))

    def totals(self) -> Totals:
        bulk = self._bulk
        return Totals(self._rows + bulk.rows, self._transactions, self._bytes, self._chunks + bulk.chunks)


@dataclass(slots=True)
class Flow:
    """How far the stream has come and what the store has of it. All times are in seconds since 1970; None: never since
    the replicator began.

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
        times = {name: at + seconds for name in _FLOW_TIMES if (at := getattr(self, name)) is not None}
        return replace(self, **times)


_FLOW_TIMES = ("read_at", "brought_at", "stored_at", "unstored_since", "asked_at", "caught_up_at", "behind_since")


class FlowMeter:
    """Measures the `Flow`. `begun`, `received` and `settled` belong to the thread of the stream, `asked` and
    `not_asked` to the one that asks the source; any may call `flow`."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # of the probes
        self._probes: deque[tuple[float, Lsn]] = deque()
        self._flow = Flow()  # each field is written by one thread
        self._committed_at = 0.0
        self._flushed_at = 0.0

    def flow(self) -> Flow:
        """The facts as of now."""
        with self._lock:
            flow = replace(self._flow, behind_since=self._probes[0][0] if self._probes else None)
        if flow.behind_since is not None and self._clock() - self._flushed_at < _LATELY_SECONDS:
            # It catches up, and comes to commits from before it could ask
            flow.behind_since = min(flow.behind_since, self._committed_at)
        return flow

    def begun(self, stored: Lsn) -> None:
        """The stream is followed from there; what an earlier attempt received comes again."""
        self._flow.read_at = self._clock()
        self._flow.unstored_since, self._flow.unstored_bytes = None, 0
        self._has(stored)

    def received(self, size: int) -> None:
        """The stream was read, and brought so many bytes."""
        flow = self._flow
        flow.read_at = now = self._clock()
        if size:
            flow.brought_at = now
            flow.unstored_since = flow.unstored_since or now
            flow.unstored_bytes += size

    def settled(self, position: Lsn, *, everything: bool, committed_at: float) -> None:
        """The store has all up to `position`, and `everything` that was received, or not. The newest commit in it was
        made at `committed_at`."""
        flow = self._flow
        if position > flow.stored:
            flow.unstored_since, flow.unstored_bytes = flow.brought_at, 0  # what is missing came with the last batch
            self._has(position)
        if everything:
            flow.stored_at = self._clock()
            flow.unstored_since, flow.unstored_bytes = None, 0
        if committed_at != self._committed_at:
            self._committed_at, self._flushed_at = committed_at, self._clock()

    def asked(self, log_end: Lsn, asked_at: float) -> None:
        """The source's log ended there at that time."""
        with self._lock:
            self._flow.asked_at, self._flow.log_end, self._flow.refusal = asked_at, log_end, ""
            if len(self._probes) == _PROBES:
                self._probes.pop()  # not the oldest, which says for how long
            self._probes.append((asked_at, log_end))
        self._prove()

    def not_asked(self, why: str) -> None:
        """The source could not be asked."""
        self._flow.refusal = why

    def _has(self, stored: Lsn) -> None:
        self._flow.stored = stored
        if self._probes:
            self._prove()

    def _prove(self) -> None:
        """Take the ends of the log that the store has reached as proof that it has all from before they were seen."""
        with self._lock:
            while self._probes and self._probes[0][1] <= self._flow.stored:
                self._flow.caught_up_at = self._probes.popleft()[0]
