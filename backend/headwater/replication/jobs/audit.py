"""The audit: checks that source, current rows, buckets and lookups agree, and with repair makes them agree.

Rows come first, compared with the source and the rules (see `resync`); then histories and lookups, with the rows.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

from headwater.bulk.contract import BulkProgress, JobKind, VerifyOutcome
from headwater.replication.errors import BROKEN_BUCKET, BROKEN_LOOKUPS
from headwater.replication.jobs.background import Background
from headwater.replication.jobs.context import JobContext
from headwater.replication.jobs.job import Job
from headwater.replication.jobs.rebuild import Rebuild, repair_lookups, verify_job
from headwater.replication.jobs.resync import Order, Resync
from headwater.storage.contract.parts import BulkRecord

_log = logging.getLogger(__name__)

NAMED_BUCKETS = 100


class Audit(Job):
    """Audits the tables of the order: their rows and lookups. Buckets are checked only when the order has all
    tables."""

    def __init__(self, context: JobContext, order: Order) -> None:
        self._context = context
        self._order = order
        self._resync = Resync(context, order)
        self._rebuild: Rebuild | None = None
        self._on_rows = True
        self._steps = self._run()
        self._outcome: VerifyOutcome | None = None
        self._progress = BulkProgress(0, 0, 0, 0)
        self._ops = 0
        self._closed = threading.Event()

    @property
    def kind(self) -> JobKind:
        return JobKind.AUDIT

    def describe(self) -> str:
        if self._rebuild is not None:
            return self._rebuild.describe()
        if self._on_rows:
            return self._resync.describe()
        return f"checked {self._progress.rows:,} ops and rows of the store"

    def step(self) -> bool:
        return next(self._steps, True)

    def result(self) -> dict[str, object] | None:
        """What was found. None while tables are still to be compared that changed meanwhile."""
        if self._resync.result() is None:
            return None
        outcome = self._outcome or VerifyOutcome((), (), 0, 0, "", 0)
        return {
            **self._resync.findings.as_dict(),
            "ops_checked": outcome.ops,
            "buckets": [
                {"bucket": bucket.name or f"key {bucket.key}", "problem": bucket.problem}
                for bucket in outcome.buckets[:NAMED_BUCKETS]
            ],
            "broken_buckets": len(outcome.buckets),
            "lookups": len(outcome.lookups),
            "ops": self._resync.findings.ops + self._ops,
        }

    def close(self) -> None:
        self._closed.set()
        self._resync.close()
        if self._rebuild is not None:
            self._rebuild.close()

    def _run(self) -> Iterator[bool]:
        while not self._resync.step():
            yield False
        self._resync.unmark()
        self._resync.close()
        self._on_rows = False
        started = time.time()
        job = verify_job(self._context, self._order.plans, self._order.oids)
        verifying = Background(lambda: self._context.bulk.verify(job, self._note, self._closed), JobKind.VERIFICATION)
        while not verifying.done:
            yield False
        outcome = self._outcome = verifying.result()
        for bucket in outcome.buckets[:NAMED_BUCKETS]:
            _log.warning("[%s] bucket %s: %s", BROKEN_BUCKET, bucket.name or bucket.key, bucket.problem)
        if outcome.lookups:
            _log.warning(
                "[%s] %d rows have other lookups than the rules give them", BROKEN_LOOKUPS, len(outcome.lookups)
            )
        if self._order.repair:
            repair_lookups(self._context, outcome.lookups)
            if outcome.buckets:
                yield from self._build_anew(outcome)
        record = BulkRecord(
            kind=JobKind.VERIFICATION,
            source=self._context.tag,
            application=outcome.application,
            tasks=outcome.tasks,
            rows=outcome.rows,
            ops=outcome.ops,
            started=started,
            finished=time.time(),
        )
        self._context.store.note_job(record)

    def _build_anew(self, outcome: VerifyOutcome) -> Iterator[bool]:
        self._rebuild = Rebuild(self._context, self._order.plans, [bucket.key for bucket in outcome.buckets])
        while not self._rebuild.step():
            yield False
        self._ops = self._rebuild.ops

    def _note(self, progress: BulkProgress) -> None:
        self._progress = progress
        self._context.progress(progress)
