"""The interface through which replication has bulk work done."""

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
    """Reads and writes whole tables for the replicator. Calls block until the work is done. They raise an error with
    kind RETRY for what may pass, others for what a person has to fix; GivenUpError soon after `stop` was set;
    EngineError when the engine is not available."""

    def warm_up(self) -> None:
        """Begin to start what the work needs, without waiting for it. Raises an error of ours when something is not
        installed."""

    def preparing(self) -> str:
        """What work is waiting for now, for a person: `starting Spark`. Empty when for nothing."""

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        """Read every table of the job into parts that a store can take over. Raises TableChangedError when a table
        was altered or rewritten meanwhile."""

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        """Evaluate current rows into parts of additions."""

    def rekey(self, job: RekeyJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        """Write a table's current rows, with other ids, into parts for a new generation."""

    def compare(
        self, job: CompareJob, progress: Report, found: Callable[[Sequence[Difference]], None], stop: Stop = None
    ) -> CompareOutcome:
        """Hand every row in which source and store differ to `found`, in batches. Raises TableChangedError as
        `snapshot` does."""

    def recount(
        self, job: RecountJob, progress: Report, found: Callable[[Sequence[Difference]], None], stop: Stop = None
    ) -> None:
        """Hand to `found` how often the source has the job's rows. Rows that it does not have are left out. Raises
        TableChangedError as `snapshot` does."""

    def verify(self, job: VerifyJob, progress: Report, stop: Stop = None) -> VerifyOutcome:
        """Verify histories and lookups against current rows, while these may be written. Raises TableChangedError when
        a table was truncated meanwhile."""

    def rows_in_buckets(
        self, job: VerifyJob, buckets: Collection[int], progress: Report, stop: Stop = None
    ) -> dict[int, list[str]]:
        """By table, ids of the rows that are in any of these buckets (by key)."""
