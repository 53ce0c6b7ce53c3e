"""Bulk work that a test holds back."""

from __future__ import annotations

import threading

from headwater.bulk.contract import CompareJob, CompareOutcome, Report, ReprocessJob, SnapshotJob, Stop
from headwater.pipeline.engine import Found
from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.parts import BulkOutcome
from tests.support.local_bulk import LocalEngine


class Waiting(BulkJobs):
    """Bulk work of which the jobs that are `held` begin when they are let go: `compare`, `snapshot` or `reprocess`."""

    def __init__(self, *held: str) -> None:
        super().__init__(LocalEngine())
        self._held = held or ("compare",)
        self.begun, self.go = threading.Event(), threading.Event()

    def _wait(self, job: str, stop: Stop = None) -> None:
        if job in self._held:
            self.begun.set()
            while not self.go.wait(0.01) and not (stop is not None and stop.is_set()):
                pass

    def snapshot(self, job: SnapshotJob, progress: Report) -> BulkOutcome:
        self._wait("snapshot")
        return super().snapshot(job, progress)

    def reprocess(self, job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        self._wait("reprocess", stop)
        return super().reprocess(job, progress, stop)

    def compare(self, job: CompareJob, progress: Report, found: Found, stop: Stop = None) -> CompareOutcome:
        self._wait("compare", stop)
        return super().compare(job, progress, found, stop)
