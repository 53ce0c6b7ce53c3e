"""The time that rules see while the stream is followed, and whether it is time to evaluate rows again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from headwater.errors import HeadwaterError
from headwater.replication.stream.registry import TableRegistry
from headwater.replication.tables.live import LiveTable
from headwater.storage.contract.store import Lease
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.writer import StoreWriter

LOOK_AGAIN = 1_000_000
"""Microseconds between two looks for rows whose time has come."""

NEVER = 1 << 62
"""After all times."""

_AHEAD = 60_000_000
"""Microseconds by which clocks of servers may differ without a word."""

_log = logging.getLogger(__name__)


class FlushTime:
    """The time that rules see in flushes of a source. It is stored with them, and never goes back."""

    def __init__(self, clock: Callable[[], int], store: StoreWriter, source: str) -> None:
        self._clock = clock
        self._store = store
        self._source = source
        self._is_read = False  # whether any rule reads it
        self._look_at = 0
        self._left_over: list[int] = []
        self.now = 0

    def renew(self, tables: TableRegistry) -> None:
        """The rules or tables are others now."""
        self._is_read = any(table.bound.has_clock for table in tables.tables.values())
        self._look_at = 0
        self._left_over = [table.id for table in tables.tables.values() if not table.bound.has_clock]
        if self._is_read:
            self.now = max(self.now, self._store.tick(self._source))
            if self.now - self._clock() > _AHEAD:
                _log.warning("%s", _stands_still(self._source, self.now))

    def begin(self, flush: Flush) -> None:
        """Give a new flush its time."""
        if self._is_read:
            self.now = max(self.now, self._clock())
            flush.set_tick(self._source, self.now)

    def left_over(self) -> list[int]:
        """Tables, by id, that have times of rows though no rule reads the clock there any more. Their rows may have
        entries by rules that are only being deployed, so there are none before these are complete."""
        if self._left_over:
            flipping = self._store.tables_with_flips(self._source)
            self._left_over = [table for table in self._left_over if table in flipping]
        if self._left_over:
            known, complete = self._store.known_definitions(), self._store.complete_definitions(self._source)
            if not known.keys() <= complete.keys():
                self._left_over = []
        return self._left_over

    def move(self, lease: Lease) -> int:
        """The time for work beside the flushes. It is stored first, so that no flush is at an earlier one."""
        self.now = max(self.now, self._store.move_tick(lease, self._source, self._clock()))
        return self.now

    def is_due(self, tables: Sequence[LiveTable]) -> bool:
        """Whether rows of these tables have to be evaluated again. Once a second, so that many are evaluated at once;
        more often while `more_due` says that there are."""
        if not tables or self._clock() < self._look_at:
            return False
        now = max(self.now, self._clock())
        first = self._store.next_flip([table.id for table in tables])
        self._look_at = now + LOOK_AGAIN
        return first is not None and first <= now

    def more_due(self) -> None:
        """Not all rows were evaluated that are due."""
        self._look_at = 0


def _stands_still(source: str, until: int) -> HeadwaterError:
    last = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(until / 1_000_000))
    what = f"the source's clock is behind the time that rules have seen: time windows stand still until {last}"
    return HeadwaterError(what, source, "correct the clock of the source's server", code="HW_2037")
