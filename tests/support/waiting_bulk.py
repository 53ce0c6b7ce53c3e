"""Bulk work that a test holds back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headwater.bulk.contract import CompareJob, CompareOutcome, Difference
from headwater.pipeline.jobs import BulkJobs, Report
from tests.support.local_bulk import LocalEngine


class Waiting(BulkJobs):
    """Bulk work whose comparisons begin when they are let go."""

    def __init__(self) -> None:
        super().__init__(LocalEngine())
        self.begun, self.go = threading.Event(), threading.Event()

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
