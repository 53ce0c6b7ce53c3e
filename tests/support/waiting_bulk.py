"""Bulk work that a test holds back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headwater.bulk.contract import CompareJob, CompareOutcome, Difference, Report, SnapshotJob
from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.parts import BulkOutcome
from tests.support.local_bulk import LocalEngine


class Waiting(BulkJobs):
    """Bulk work whose comparisons begin when they are let go; with `snapshots`, first snapshots too."""

    def __init__(self, *, snapshots: bool = False) -> None:
        super().__init__(LocalEngine())
        self._snapshots = snapshots
        self.begun, self.go = threading.Event(), threading.Event()

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        if self._snapshots:
            self.begun.set()
            assert self.go.wait(60)
        return super().snapshot(job, progress)

    def compare(
        self,
        job: CompareJob,
        progress: Report,
        found: Callable[[Sequence[Difference]], None],
        stop: threading.Event | None = None,
    ) -> CompareOutcome:
        self.begun.set()
        while not self.go.wait(0.01) and not (stop is not None and stop.is_set()):
            pass
        return super().compare(job, progress, found, stop)
