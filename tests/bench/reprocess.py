"""A new version of the sync config: stored rows evaluated anew, beside the snapshot of the same rows."""

from __future__ import annotations

import time

from headwater.storage.contract.versions import Origin, VersionState
from headwater.storage.open import open_store
from tests.bench import data, report
from tests.bench.world import Meter, world


def run(rows: int) -> None:
    report.heading(f"reprocess after a rule edit, {rows:,} small rows")
    with world(fsync="off") as place:
        place.execute(data.TABLE, data.insert(rows), "vacuum analyze items")
        place.execute("create publication headwater for table items")
        place.serve(data.STREAMS)
        place.wait_ready()
        record = place.bulk_record()
        snapshot = rows / (record.finished - record.started)
        assert place.process is not None
        store = open_store(place.address).open_writer()
        try:
            with Meter(place.process.pid).measure() as usage:
                version = store.deploy(data.STREAMS.replace("SELECT *", "SELECT id, title, n"), Origin.COMMAND)
                while next(v for v in store.versions() if v.id == version.id).state is not VersionState.ACTIVE:
                    time.sleep(0.05)
        finally:
            store.close()
        report.line("deployed to served", rows / usage.seconds, "rows/s", "snapshot with Spark's start", snapshot)
        report.usage(usage, rows / 1e6)
