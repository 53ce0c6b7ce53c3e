"""Spark's JVM is killed in the midst of each kind of bulk job, as by a machine that runs out of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark import SparkContext

import headwater.pipeline.plan
from headwater.pipeline.engine import Job
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.session import Spark
from headwater.pipeline.spark_engine import SparkEngine, SparkRun
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deployment, wait_until
from tests.support.store_checker import leftovers

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

STREAMS = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT * FROM items
"""
ANOTHER = """
  copies:
    auto_subscribe: true
    query: SELECT id, body FROM items AS copies
"""


class KillingEngine(SparkEngine):
    """Kills the JVM as soon as Spark is at work on the first job of each kind; `killed` names the kinds."""

    def __init__(self, spark: Spark) -> None:
        super().__init__(spark)
        self.killed: set[str] = set()

    @contextmanager
    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> Iterator[SparkRun[Job]]:
        kind, over = type(job).__name__, threading.Event()
        with super().run(job, what, stop) as run:
            killer = threading.Thread(target=self._kill, args=(kind, over))
            if kind not in self.killed:
                killer.start()
            try:
                yield run
            finally:
                over.set()
                if killer.ident is not None:
                    killer.join()

    def _kill(self, kind: str, over: threading.Event) -> None:
        context = SparkContext._active_spark_context
        assert context is not None
        process = psutil.Process(SparkContext._gateway.proc.pid)  # type: ignore[union-attr]  # where Spark keeps it
        while not over.wait(0.01):
            if context.statusTracker().getActiveJobsIds():
                self.killed.add(kind)
                process.kill()
                return


@pytest.fixture
def engine(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> KillingEngine:
    """Of jobs in many parts each, small as they are."""
    monkeypatch.setattr(headwater.pipeline.plan, "SMALLEST_PAGES", 2)
    return KillingEngine(spark)


def test_every_kind_of_job_is_done_again(
    deploy: Callable[..., Deployment], source_db: SourceDb, engine: KillingEngine
) -> None:
    source_db.execute("create table items (id text primary key, body text)")
    source_db.execute("insert into items select i::text, 'body ' || i from generate_series(1, 20000) i")
    deployment = deploy(STREAMS)
    deployment.bulk = BulkJobs(engine)
    deployment.start()
    assert engine.killed == {"SnapshotJob"}
    device = Device(deployment)
    device.rows()

    source_db.execute("alter table items add column extra text default 'filled'")
    wait_until(lambda: "CompareJob" in engine.killed and settled(deployment), "the comparison")
    source_db.execute("alter table items replica identity full")
    wait_until(lambda: "RekeyJob" in engine.killed and settled(deployment), "the re-key")
    deployment.redeploy(STREAMS + ANOTHER)
    assert "ReprocessJob" in engine.killed
    audited = deployment.ask("audit")
    assert (audited["state"], audited["buckets"], audited["rows"]) == ("done", [], [])
    assert "VerifyJob" in engine.killed

    deployment.caught_up()
    truth = published_rows(source_db, {"public.items": "true"})
    copies = {("copies", key): {"id": row["id"], "body": row["body"]} for (_, key), row in truth.items()}
    assert device.rows() == truth | copies
    deployment.close()
    assert deployment.problems() == []
    assert list(deployment.directory.glob("stage/part-*")) == []
    assert leftovers(deployment.directory).keys() <= {"files"}  # how far the last job was
    slots = source_db.fetch("select slot_name, temporary from pg_replication_slots where database = current_database()")
    assert len(slots) == 1
    assert not slots[0][1]
