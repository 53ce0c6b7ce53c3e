"""What runs bulk jobs may end in the midst of them, however often: no job is given up for that, no version fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headwater.bulk.contract import EngineError, EngineLostError
from headwater.errors import HeadwaterError
from headwater.pipeline.engine import Job
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.jobs import scheduler
from headwater.source.connect import SourceUnreachableError
from headwater.storage.contract.versions import Origin, VersionState
from tests.support.changed_source import settled
from tests.support.fix_headwater import HASTY, Deployment, wait_until
from tests.support.local_bulk import LocalEngine, LocalRun

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = pytest.mark.timeout(200)

CONFIG = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT * FROM items
"""
ANOTHER = """
  copies:
    auto_subscribe: true
    query: SELECT id FROM items AS copies
"""
TIMES = 6  # more often than a job may fail
PAUSE = 0.01


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
    made: Deployment = deploy(CONFIG)
    made.bulk = BulkJobs(engine)
    made.intervals = replace(HASTY, retry=PAUSE)
    return made.start()


@pytest.mark.parametrize(
    "error",
    [EngineLostError("it has ended", "test", "it is started again"), EngineError("Spark does not start", "test")],
    ids=["ended", "not started"],
)
def test_no_version_fails_for_it_and_the_stream_goes_on(
    deployment: Deployment, engine: DyingEngine, source_db: SourceDb, error: EngineError
) -> None:
    engine.kind, engine.times, engine.error = "reprocess", TIMES, error
    version = deployment.redeploy(CONFIG + ANOTHER)
    assert (engine.times, version.state) == (0, VersionState.ACTIVE)
    assert len(deployment.rows("a")) == 200
    deployment.close()
    assert deployment.problems() == []


def test_it_is_said_of_the_version_that_waits(deployment: Deployment, engine: DyingEngine, source_db: SourceDb) -> None:
    engine.kind, engine.times = "reprocess", 1000
    with deployment.store() as store:
        version = store.deploy(CONFIG + ANOTHER, Origin.COMMAND).id

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


def test_a_table_that_was_altered_and_an_audit_wait_as_long(
    deployment: Deployment, engine: DyingEngine, source_db: SourceDb
) -> None:
    engine.kind, engine.times = "comparison", TIMES
    source_db.execute("alter table items add column extra int default 7")
    wait_until(lambda: not engine.times and settled(deployment), "the comparison")
    assert {row["extra"] for row in deployment.rows("a").values()} == {7}
    engine.kind, engine.times = "verification", TIMES
    audited = deployment.ask("audit")
    assert (engine.times, audited["state"], audited["buckets"]) == (0, "done", [])


def test_the_next_request_does_not_wait_for_one_that_was_given_up(
    deployment: Deployment, engine: DyingEngine, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_GIVEN_UP_SECONDS", 3600.0)
    engine.kind, engine.times = "verification", scheduler._ATTEMPTS
    engine.error = SourceUnreachableError("it answers with an error", "test", "see its log")
    given_up = deployment.ask("audit")
    assert (given_up["state"], engine.times) == ("failed", 0)
    assert "it answers with an error" in given_up["error"]
    assert deployment.ask("audit")["state"] == "done"
