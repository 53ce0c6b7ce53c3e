"""Counts what a replicator has done since its process started, and reports each flush."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from headwater.bulk.contract import BulkProgress, JobKind
from headwater.telemetry.trace_choice import Flushed

POSTGRES_EPOCH = 946_684_800
"""2000-01-01, in seconds since 1970."""

_BRINGS_ROWS = frozenset({JobKind.SNAPSHOT, JobKind.MERGE})
"""Bulk work that counts as replicated rows: it stores the rows that it reads. Comparisons read many more."""


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
    """Call `received` and `stored` in the replicator's thread; the other methods in any. `flushed` is called with each
    flush that clients can see, and must be fast."""

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
        """All totals since the process started."""
        bulk = self._bulk
        return Totals(self._rows + bulk.rows, self._transactions, self._bytes, self._chunks + bulk.chunks)
