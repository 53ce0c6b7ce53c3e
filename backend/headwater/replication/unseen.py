"""Tables whose changes are published in part: what the stream does not show, a comparison now and then does."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headwater.source.catalog import PublishedTable
from headwater.storage.contract import Lease, StoreWriter

AUDIT_SECONDS = 900.0
_FIRST_SECONDS = 60.0

UNSEEN = "not all of its changes are published"
"""Why such a table is compared with the source."""


class UnseenAudit:
    """Has the tables compared with the source every `seconds`, those of them of which not all changes are seen.
    `step` is called between flushes."""

    def __init__(
        self, store: StoreWriter, lease: Lease, tag: str, tables: Sequence[PublishedTable], seconds: float
    ) -> None:
        self._store = store
        self._lease = lease
        self._tag = tag
        self._oids = frozenset(table.relation.oid for table in tables if table.unseen)
        self._seconds = seconds
        self._due = time.monotonic() + min(seconds, _FIRST_SECONDS)

    def step(self) -> None:
        """Mark the tables when it is time; bulk work takes it from there."""
        if not self._oids or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._seconds
        stored = self._store.tables(self._tag)
        marked = [table.id for table in stored if table.relation.oid in self._oids and not table.resync]
        self._store.mark_resync(self._lease, marked, UNSEEN)
