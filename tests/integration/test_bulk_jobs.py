"""Bulk jobs that are cut short: the engine, the store or the lease goes away, and the job is done again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headwater.bulk.contract import EngineError, EngineLostError
from headwater.compaction.compactor import Compactor, Schedule
from headwater.errors import HeadwaterError
from headwater.pipeline.engine import Job
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.jobs import scheduler
from headwater.replication.jobs.sampling import SamplingSettings, sampling_results
from headwater.source.connect import SourceUnreachableError
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import RequestState
from headwater.storage.contract.versions import Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.compaction import CompactionStore
from tests.support.changed_source import settled
from tests.support.fix_headwater import HASTY, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.local_bulk import LocalEngine, LocalRun
from tests.support.network import Network
from tests.support.row_truth import device_rows, truth
from tests.support.sync_configs import ITEMS, NOTES
from tests.support.waiting import wait_until

MORE = NOTES.replace("*", "id, body, 'new' AS more")


@dataclass
class Stage:
    """A replicator that reaches its store over a network, and the store as everybody else reaches it."""

    source: SourceDb
    network: Network
    replicator: Deployment
    direct: Deployment

    @property
    def address(self) -> PostgresAddress:
        assert self.direct.storage is not None
        return self.direct.storage


@pytest.fixture
def stage(
    source_db: SourceDb,
    bulk: BulkJobs,
    postgres_storage: PostgresAddress,
    tmp_path: Path,
) -> Iterator[Stage]:
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute("insert into notes select i::text, 'body ' || i from generate_series(1, 300) i")
    source_db.execute("create publication headwater for all tables")
    with Network(source_db.server.port) as network:
        over = replace(postgres_storage, conninfo=make_conninfo(postgres_storage.conninfo, port=network.port))
        replicator = Deployment(source_db, tmp_path, NOTES, bulk, storage=over)
        direct = Deployment(source_db, tmp_path, NOTES, bulk, storage=postgres_storage)
        open_store(postgres_storage).open_writer().close()
        yield Stage(source_db, network, replicator, direct)
        direct.close()
        replicator.close()


@contextmanager
def store_away(stage: Stage) -> Iterator[None]:
    """The store can't be reached."""
    stage.network.cut()
    try:
        yield
    finally:
        stage.network.mend()


@contextmanager
def lease_lost(stage: Stage) -> Iterator[None]:
    """Another replicator has the lease."""
    with closing(open_store(stage.address).open_writer()) as store:
        change_leases(stage.address, "owner = 'another' where name = 'default'")
        lease = store.acquire("default", "another", 600.0)
        try:
            yield
        finally:
            store.release(lease)


def change_leases(address: PostgresAddress, change: str) -> None:
    """Whoever holds them."""
    execute(address, f"update leases set {change}")


def execute(address: PostgresAddress, statement: str) -> None:
    """In the store's schema."""
    with psycopg.connect(address.conninfo, autocommit=True, options=f"-c search_path={address.schema}") as db:
        db.execute(statement.encode())


Fault = Callable[[Stage], AbstractContextManager[None]]
FAULTS: dict[Fault, str] = {store_away: "[HW_4008]", lease_lost: "[HW_4003]"}
"""And the codes by which they are named."""


def snapshot(stage: Stage) -> Callable[[], bool]:
    stage.replicator.start(publish=False)
    return lambda: stage.direct.reader.newest() is not None


def deploy(stage: Stage) -> Callable[[], bool]:
    stage.direct.yaml = MORE
    with stage.direct.store() as store:
        number = store.deploy(MORE, Origin.COMMAND).id

    def served() -> bool:
        with stage.direct.store() as store:
            state = next(version.state for version in store.versions() if version.id == number)
        assert state is not VersionState.FAILED
        return state is VersionState.ACTIVE

    return served


def request(kind: str) -> Callable[[Stage], Callable[[], bool]]:
    def begin(stage: Stage) -> Callable[[], bool]:
        with stage.direct.store() as store:
            number = store.submit(kind, "default", '{"repair": true}' if kind == "audit" else "{}")

        def done() -> bool:
            with stage.direct.store() as store:
                found = store.request(number)
            assert found is not None
            assert found.state is not RequestState.FAILED, found.result
            return found.state is RequestState.DONE

        return done

    return begin


JOBS = {
    "snapshot": (snapshot, "snapshot"),
    "deploy": (deploy, "reprocess"),
    "re-sync": (request("resync"), "compare"),
    "audit": (request("audit"), "verify"),
    "rebuild": (request("audit"), "rows_in_buckets"),
}


BEFORE, AFTER = "before its tasks", "after its tasks"
OFTEN = ((store_away, BEFORE), (lease_lost, AFTER))
CASES = [
    pytest.param(name, fault, moment, marks=() if OFTEN[number % 2] == (fault, moment) else pytest.mark.long)
    for number, name in enumerate(JOBS)
    for fault, moment in product(FAULTS, (BEFORE, AFTER))
]
"""Every kind of job cut short in every way, of which each kind and each way is tried often."""


@pytest.mark.parametrize(("name", "fault", "moment"), CASES)
def test_interrupted_job_is_done_again(
    stage: Stage,
    name: str,
    moment: str,
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begin, method = JOBS[name]
    if name != "snapshot":
        stage.replicator.start()
        stage.direct.caught_up()
    if name == "rebuild":
        execute(stage.address, "update buckets set checksum = checksum + 1")
    harm, work, began = ExitStack(), getattr(BulkJobs, method), threading.Event()

    def cut_short() -> None:
        if not began.is_set():
            harm.enter_context(fault(stage))
            began.set()

    def working(jobs: BulkJobs, *args: Any) -> Any:
        if moment == BEFORE:
            cut_short()
        outcome = work(jobs, *args)
        cut_short()
        return outcome

    monkeypatch.setattr(BulkJobs, method, working)
    ended = begin(stage)
    wait_until(began.is_set, "the job to be cut short", 30)
    wait_until(lambda: FAULTS[fault] in caplog.text, "the cause to be named", 30)
    assert not ended()
    harm.close()
    wait_until(ended, "the job to be done", 40)
    columns = "*, 'new' as more" if name == "deploy" else "*"
    assert device_rows(stage.direct) == truth(stage.source, "notes", columns)
    audit = stage.direct.ask("audit")
    assert (audit["differences"], audit["broken_buckets"]) == ({}, 0)
    assert [record.kind for record in stage.direct.bulk_records()].count("snapshot") == 1
    stage.replicator.raise_failure()
    assert "given up" not in caplog.text


@pytest.mark.parametrize("fault", FAULTS)
def test_interrupted_compaction_is_done_again(
    stage: Stage, fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.replicator.start()
    for _ in range(3):
        stage.source.execute("update notes set body = body || 'x'")
        stage.direct.caught_up()
    caplog.set_level(logging.INFO)
    before, began, write = stage.direct.op_count(), threading.Event(), CompactionStore.replace

    def cut_short(store: CompactionStore, *args: Any) -> Any:
        if not began.is_set():
            if fault is store_away:
                stage.network.cut()
            else:
                change_leases(stage.address, "owner = 'another', epoch = epoch + 1 where name = 'compaction'")
            began.set()
        return write(store, *args)

    monkeypatch.setattr(CompactionStore, "replace", cut_short)
    assert stage.replicator.storage is not None
    compaction = Compactor(stage.replicator.storage, "test", schedule=Schedule(0.05, 0.0), policy=CompactionPolicy())
    compaction.start()
    try:
        wait_until(began.is_set, "the compaction to be cut short", 30)
        wait_until(lambda: "histories are not compacted for now" in caplog.text, "the cause to be named", 30)
        if fault is store_away:
            stage.network.mend()
        else:
            change_leases(stage.address, "expires_at = now() where name = 'compaction'")
        assert device_rows(stage.direct) == truth(stage.source, "notes")
        wait_until(lambda: "compacted 1 buckets" in caplog.text, "the compaction", 30)
    finally:
        compaction.stop()
    assert stage.direct.op_count() <= before
    assert device_rows(stage.direct) == truth(stage.source, "notes")
    audit = stage.direct.ask("audit")
    assert (audit["differences"], audit["broken_buckets"]) == ({}, 0)


pytestmark = pytest.mark.timeout(200)

ANOTHER = """
  copies:
    auto_subscribe: true
    query: SELECT id FROM items AS copies
"""
TIMES = 6  # more often than a job may fail
PAUSE = 0.01
EAGER = SamplingSettings(rate=1e9, share=1.0, rest=0.0, delay=0.0)


class DyingEngine(LocalEngine):
    """Ends in the midst of the next `times` jobs of a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.times = "", 0
        self.error: HeadwaterError = EngineLostError("it has ended", "test", "it is started again")

    @contextmanager
    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> Iterator[LocalRun[Job]]:
        with super().run(job, what, stop) as run:
            yield run
            if what == self.kind and self.times:
                self.times -= 1
                raise self.error


@pytest.fixture
def engine() -> DyingEngine:
    return DyingEngine()


@pytest.fixture
def deployment(deploy: Callable[..., Deployment], source_db: SourceDb, engine: DyingEngine) -> Deployment:
    source_db.execute("create table items (id text primary key, body text)")
    source_db.execute("insert into items select i::text, 'body' from generate_series(1, 100) i")
    made: Deployment = deploy(ITEMS)
    made.bulk = BulkJobs(engine)
    made.intervals = replace(HASTY, retry=PAUSE)
    return made.start()


@pytest.mark.parametrize(
    "error",
    [EngineLostError("it has ended", "test", "it is started again"), EngineError("Spark does not start", "test")],
    ids=["ended", "not started"],
)
def test_lost_engine_fails_no_version(
    deployment: Deployment, engine: DyingEngine, source_db: SourceDb, error: EngineError
) -> None:
    engine.kind, engine.times, engine.error = "reprocess", TIMES, error
    version = deployment.redeploy(ITEMS + ANOTHER)
    assert (engine.times, version.state) == (0, VersionState.ACTIVE)
    assert len(deployment.rows("a")) == 200


def test_sampling_expects_no_rows_of_a_version_that_waits(deployment: Deployment, engine: DyingEngine) -> None:
    deployment.stop()
    deployment.sampling = EAGER
    deployment.start()
    engine.kind, engine.times = "reprocess", TIMES
    assert deployment.redeploy(ITEMS + ANOTHER).state is VersionState.ACTIVE
    with deployment.store() as store:
        cycles = sampling_results(store, "default").cycles
        wait_until(lambda: sampling_results(store, "default").cycles > cycles, "a cycle of sampling")
        assert sampling_results(store, "default").findings == ()


def test_waiting_version_is_named(deployment: Deployment, engine: DyingEngine, source_db: SourceDb) -> None:
    engine.kind, engine.times = "reprocess", 1000
    with deployment.store() as store:
        version = store.deploy(ITEMS + ANOTHER, Origin.COMMAND).id

        def noted() -> str:
            found = next(each for each in store.versions() if each.id == version)
            assert found.state is VersionState.PROCESSING
            return found.note

        wait_until(lambda: "waits" in noted(), "the version to wait")
        assert noted().endswith("starts again: [HW_5106] it has ended (test); it is started again")
        source_db.execute("insert into items values ('new', 'body')")
        deployment.caught_up()
        assert "waits" in noted(), "the stream waits for nothing"
        engine.times = 0


def test_altered_table_and_audit_wait(deployment: Deployment, engine: DyingEngine, source_db: SourceDb) -> None:
    engine.kind, engine.times = "comparison", TIMES
    source_db.execute("alter table items add column extra int default 7")
    wait_until(lambda: not engine.times and settled(deployment), "the comparison")
    assert {row["extra"] for row in deployment.rows("a").values()} == {7}
    engine.kind, engine.times = "verification", TIMES
    audited = deployment.ask("audit")
    assert (engine.times, audited["state"], audited["buckets"]) == (0, "done", [])


def test_given_up_request_blocks_no_other(
    deployment: Deployment, engine: DyingEngine, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_GIVEN_UP_SECONDS", 3600.0)
    engine.kind, engine.times = "verification", scheduler._ATTEMPTS
    engine.error = SourceUnreachableError("it answers with an error", "test", "see its log")
    given_up = deployment.ask("audit")
    assert (given_up["state"], engine.times) == ("failed", 0)
    assert "it answers with an error" in given_up["error"]
    assert deployment.ask("audit")["state"] == "done"
