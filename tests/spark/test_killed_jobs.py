"""Spark's JVM is killed in the midst of each kind of bulk job, as by a machine that runs out of memory: the job is done
again from its beginning, and until then devices are served, commits reach them, and nothing half-done is seen."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyspark import SparkContext

import headwater.pipeline.snapshot
from headwater.cli.compact import SparkCompaction
from headwater.compaction.compactor import Compactor, Schedule
from headwater.pipeline.engine import Job
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.spark.engine import SparkEngine, SparkRun
from headwater.pipeline.spark.session import Spark
from headwater.storage.contract.versions import Origin, VersionState
from tests.support.changed_source import Device, Rows, published_rows, settled
from tests.support.fix_headwater import Deployment
from tests.support.store_checker import leftovers
from tests.support.store_file import store_file
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

STREAMS = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    queries: [SELECT * FROM items, SELECT * FROM others]
"""
ANOTHER = """
  copies:
    auto_subscribe: true
    query: SELECT id, body FROM items AS copies
  news:
    auto_subscribe: true
    query: SELECT * FROM news
"""
SHOWN = {"public.items": "true", "public.others": "true"}
ROWS = 20_000


class KillingEngine(SparkEngine):
    """Kills the JVM as soon as Spark is at work on the first job of each kind; `killed` names the kinds. Then
    `meanwhile` is called, which has to come to its end before the job can be begun again."""

    def __init__(self, spark: Spark) -> None:
        super().__init__(spark)
        self.killed: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self._failures: list[BaseException] = []

    @contextmanager
    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> Iterator[SparkRun[Job]]:
        over = threading.Event()
        with super().run(job, what, stop) as run:
            killer = threading.Thread(target=self._kill, args=(what, over))
            if what not in self.killed:
                killer.start()
            try:
                yield run
            finally:
                over.set()
                if killer.ident is not None:
                    killer.join()

    def _kill(self, what: str, over: threading.Event) -> None:
        context = SparkContext._active_spark_context
        assert context is not None
        while not over.wait(0.002):
            if context.statusTracker().getActiveJobsIds():
                break
        else:
            return
        SparkContext._gateway.proc.kill()  # type: ignore[union-attr]  # where Spark keeps it
        try:
            self.meanwhile()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._failures.append(error)
        self.killed.append(what)

    def has_killed(self, *kinds: str) -> bool:
        """Whether it killed jobs of all these kinds. Raises what was wrong meanwhile."""
        for failure in self._failures:
            raise failure
        return set(kinds) <= set(self.killed)


@pytest.fixture
def engine(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> KillingEngine:
    """Of jobs in many parts each, small as they are."""
    monkeypatch.setattr(headwater.pipeline.snapshot, "SMALLEST_PAGES", 2)
    return KillingEngine(spark)


@pytest.fixture
def deployment(deploy: Callable[..., Deployment], source_db: SourceDb, engine: KillingEngine) -> Deployment:
    """Not started."""
    source_db.execute("create table items (id text primary key, body text)")
    source_db.execute(f"insert into items select i::text, 'body ' || i from generate_series(1, {ROWS}) i")
    source_db.execute("create table others (id text primary key, body text)")
    made: Deployment = deploy(STREAMS)
    made.bulk = BulkJobs(engine)
    return made


def truth(deployment: Deployment) -> Rows:
    return published_rows(deployment.source, SHOWN)


def served(deployment: Deployment) -> Callable[[], None]:
    """What looks whether a commit reaches a device now."""
    numbers = itertools.count()
    deployment.reader.newest()

    def look() -> None:
        number = f"meanwhile {next(numbers)}"
        with psycopg.connect(deployment.source.dsn, autocommit=True) as conn:
            conn.execute("insert into others values (%s, 'x')", [number])
        wait_until(lambda: ("others", number) in Device(deployment).rows(), "a commit while there is no Spark", 60)

    return look


def ends_well(deployment: Deployment) -> None:
    """Everything is as if nothing had been killed."""
    source = deployment.source
    deployment.caught_up()
    with deployment.store() as store:
        assert VersionState.FAILED not in {version.state for version in store.versions()}
    deployment.close()
    assert deployment.problems() == []
    assert list(deployment.directory.glob("stage/part-*")) == []
    assert leftovers(deployment.directory).keys() <= {"files"}  # how far the last job was
    slots = source.fetch("select slot_name, temporary from pg_replication_slots where database = current_database()")
    assert [temporary for _, temporary in slots] == [False]


def test_a_first_read_is_begun_again_and_nothing_of_it_is_seen_before(
    deployment: Deployment, engine: KillingEngine
) -> None:
    def nothing() -> None:
        with deployment.reader.snapshot() as snapshot:
            assert snapshot is None

    engine.meanwhile = nothing
    deployment.reader.newest()
    deployment.start()
    assert engine.has_killed("snapshot")
    assert Device(deployment).rows() == truth(deployment)
    ends_well(deployment)


def test_tables_that_were_altered_are_compared_and_get_other_ids(
    deployment: Deployment, engine: KillingEngine, source_db: SourceDb
) -> None:
    device = Device(deployment.start())
    device.rows()
    engine.meanwhile = served(deployment)
    source_db.execute("alter table items add column extra text default 'filled'")
    wait_until(lambda: engine.has_killed("comparison") and settled(deployment), "the comparison")
    source_db.execute("alter table items replica identity full")
    wait_until(lambda: engine.has_killed("re-key") and settled(deployment), "the re-key")
    source_db.execute("update items set body = 'changed' where id < '2'")
    deployment.caught_up()
    assert device.rows() == truth(deployment)
    ends_well(deployment)


def test_a_deploy_is_done_again_and_served_when_it_is_whole(
    deployment: Deployment, engine: KillingEngine, source_db: SourceDb
) -> None:
    """Some of it was written already when the table that is new in it is read."""
    source_db.execute("create table news (id text primary key, body text)")
    source_db.execute(f"insert into news select i::text, 'news ' || i from generate_series(1, {ROWS}) i")
    device = Device(deployment.start())
    device.rows()
    commit_is_seen = served(deployment)

    def old_config_is_served() -> None:
        with deployment.store() as store:
            assert [version.state for version in store.versions()] == [VersionState.ACTIVE, VersionState.PROCESSING]
        commit_is_seen()
        with deployment.reader.snapshot() as snapshot:
            assert snapshot is not None
            assert snapshot.config.yaml == STREAMS

    engine.meanwhile = old_config_is_served
    engine.killed.remove("snapshot")
    with deployment.store() as store:
        version = store.deploy(STREAMS + ANOTHER, Origin.COMMAND).id

        def active() -> bool:
            deployment.raise_failure()
            state = next(each.state for each in store.versions() if each.id == version)
            assert state is not VersionState.FAILED
            return state is VersionState.ACTIVE

        wait_until(active, "the version to be served")
    assert engine.has_killed("reprocess", "comparison")
    deployment.yaml = STREAMS + ANOTHER
    source_db.execute("delete from items where id < '3'; update news set body = 'changed' where id < '2'")
    deployment.caught_up()
    items = {key: row for key, row in truth(deployment).items() if key[0] == "items"}
    copies: Rows = {("copies", key): row for (_, key), row in items.items()}
    assert device.rows() == truth(deployment) | copies | published_rows(source_db, {"public.news": "true"})
    ends_well(deployment)


def test_an_audit_comes_to_its_end_and_mends(deployment: Deployment, engine: KillingEngine) -> None:
    deployment.start()
    deployment.caught_up()
    deployment.stop()
    with store_file(deployment.directory) as db:
        db.execute("update buckets set checksum = (checksum + 1) & 4294967295")
        assert db.changes() == 1
    deployment.start()
    engine.meanwhile = lambda: None  # no device can have the bucket until it is mended
    audited = deployment.ask("audit", repair=True)
    assert engine.has_killed("comparison", "verification", "search for rows")
    assert (audited["state"], audited["broken_buckets"], audited["rows"]) == ("done", 1, [])
    engine.meanwhile = served(deployment)
    engine.killed.remove("verification")
    audited = deployment.ask("audit")
    assert engine.has_killed("verification")
    assert (audited["state"], audited["broken_buckets"], audited["rows"]) == ("done", 0, [])
    assert Device(deployment).rows() == truth(deployment)
    ends_well(deployment)


def test_histories_are_compacted_in_the_end(
    deployment: Deployment, engine: KillingEngine, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.compaction.compactor.LARGE_OPS", 1)
    device = Device(deployment.start())
    for number in range(3):
        source_db.execute("update items set body = %s", f"version {number}")
        deployment.caught_up()
    assert device.rows() == truth(deployment)
    engine.meanwhile = served(deployment)
    compaction = Compactor(
        deployment.address,
        "test:compaction",
        schedule=Schedule(interval=0.05, min_age=0.0),
        run_shares=SparkCompaction(engine),
    )
    compaction.start()
    try:
        wait_until(lambda: engine.has_killed("compaction"), "the compaction to begin")
        wait_until(lambda: deployment.op_count_now() < 1.5 * ROWS, "the history to be short")
    finally:
        compaction.stop()
    deployment.caught_up()
    assert device.rows() == Device(deployment).rows() == truth(deployment)
    ends_well(deployment)
