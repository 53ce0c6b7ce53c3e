"""Tables that publish only some of their changes: regular comparisons bring the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from headwater.source.catalog.published import PublishedTable
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Lease, StoreWriter

_FIRST_SECONDS = 60.0


class UnseenAudit:
    """Marks those of the tables that `look` returns that have unseen changes, every `seconds`. `step` is called between
    flushes."""

    def __init__(
        self, store: StoreWriter, lease: Lease, tag: str, look: Callable[[], Iterable[PublishedTable]], seconds: float
    ) -> None:
        self._store = store
        self._lease = lease
        self._tag = tag
        self._look = look
        self._seconds = seconds
        self._due = time.monotonic() + min(seconds, _FIRST_SECONDS)

    def step(self) -> None:
        """Mark the tables when it is time. The scheduler then compares them."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._seconds
        unseen = {table.relation.oid for table in self._look() if table.unseen}
        marked = [t.id for t in self._store.tables(self._tag) if t.relation.oid in unseen and not t.resync]
        if marked:
            self._store.mark_resync(self._lease, marked, ResyncReason(Cause.PARTLY_PUBLISHED))
