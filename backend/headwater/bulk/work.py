"""Bulk work as live replication sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from headwater.bulk.contract import (
    BulkProgress,
    CompareJob,
    CompareOutcome,
    Difference,
    RecountJob,
    RekeyJob,
    ReprocessJob,
    SnapshotJob,
    VerifyJob,
    VerifyOutcome,
)
from headwater.storage.contract.parts import BulkOutcome

Report = Callable[[BulkProgress], None]
Stop = threading.Event | None


class BulkWork(Protocol):
    """Whoever reads whole tables for the replicator. Calls block until the work is done; they raise errors of ours
    for what a person has to mend, and retryable ones for what may go better the next time. Who sets `stop` wants the
    result no more: the work is ended soon, with GivenUpError."""

    def warm_up(self) -> None:
        """Begin to start whatever the work needs, without waiting for it. Raises an error of ours where something that
        it needs is not installed."""

    def preparing(self) -> str:
        """What work has to wait for at first, for a person: `starting Spark`. Empty when for nothing."""

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        """Read every table of the job into parts that a store can take over. Raises TableChangedError when a table
        was altered or rewritten meanwhile."""

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        """Evaluate current rows into parts of additions."""

    def rekey(self, job: RekeyJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        """Write a table's current rows into parts for a generation in which they have other ids."""

    def compare(
        self, job: CompareJob, progress: Report, found: Callable[[Sequence[Difference]], None], stop: Stop = None
    ) -> CompareOutcome:
        """Hand every row in which source and store differ to `found`, in batches. Raises TableChangedError as
        `snapshot` does."""

    def recount(
        self, job: RecountJob, progress: Report, found: Callable[[Sequence[Difference]], None], stop: Stop = None
    ) -> None:
        """Hand to `found` how often the source has the job's rows, but for those that it does not have. Raises
        TableChangedError as `snapshot` does."""

    def verify(self, job: VerifyJob, progress: Report, stop: Stop = None) -> VerifyOutcome:
        """Look whether histories and lookups hold what current rows say, beside whoever writes them. Raises
        TableChangedError when a table was truncated meanwhile."""

    def standing(
        self, job: VerifyJob, buckets: Collection[int], progress: Report, stop: Stop = None
    ) -> dict[int, list[str]]:
        """By table, ids of the rows that stand in any of these buckets (by key)."""
