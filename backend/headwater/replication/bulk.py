"""Bulk work as live replication sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headwater.source.snapshot import BulkProgress, SnapshotJob
from headwater.storage.contract import BulkOutcome


class BulkWork(Protocol):
    """Whoever reads whole tables for the replicator."""

    def warm_up(self) -> None:
        """Begin to start whatever the work needs. Returns at once."""

    def snapshot(self, job: SnapshotJob, progress: Callable[[BulkProgress], None]) -> BulkOutcome:
        """Read every table of the job into parts that a store can take over.

        Raises TableChangedError when a table was altered or rewritten meanwhile, other errors of ours for what a
        person has to mend.
        """
