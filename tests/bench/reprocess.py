"""A new version of the sync config: stored rows evaluated anew, beside the snapshot of the same rows."""

from __future__ import annotations

import time

from headwater.storage.contract.versions import Origin, VersionState
from tests.bench import data, report
from tests.bench.service import Meter, bench_service


def run(rows: int) -> None:
    report.heading(f"reprocess after a rule edit, {rows:,} small rows")
    with bench_service(fsync="off") as service:
        publication = "create publication headwater for table items"
        service.serve_ready(data.STREAMS, data.TABLE, data.insert(rows), "vacuum analyze items", publication)
        record = service.bulk_record()
        snapshot = rows / (record.finished - record.started)
        with service.store() as store, Meter(service.pid).measure() as usage:
            version = store.deploy(data.STREAMS.replace("SELECT *", "SELECT id, title, n"), Origin.COMMAND)
            while next(v for v in store.versions() if v.id == version.id).state is not VersionState.ACTIVE:
                time.sleep(0.05)
        report.line("deployed to served", rows / usage.seconds, "rows/s", "snapshot with Spark's start", snapshot)
        report.usage(usage, rows / 1e6)
