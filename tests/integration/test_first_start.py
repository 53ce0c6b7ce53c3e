"""A first start that fails leaves nothing behind at the source: a slot that nobody reads would hold its log back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from headwater.embedded.java import NoJava
from headwater.errors import HeadwaterError
from headwater.pipeline.engine import Job, Run
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark, SparkError
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import SourceDb

CONFIG = "config: {edition: 3}\nstreams: {notes: {auto_subscribe: true, query: SELECT * FROM notes}}\n"


class BrokenEngine:
    """One that does not start."""

    def warm_up(self) -> None:
        """Nobody waits for it."""

    def preparing(self) -> str:
        return ""

    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> AbstractContextManager[Run[Job]]:
        raise SparkError("Spark does not start", "master local[*]")


@pytest.fixture
def first(deploy: Callable[..., Deployment], source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    deployment: Deployment = deploy(CONFIG)
    return deployment


def slots(deployment: Deployment) -> list[tuple[str]]:
    return deployment.source.fetch("select slot_name from pg_replication_slots where database = current_database()")


def failure_of(deployment: Deployment, error: type[HeadwaterError]) -> None:
    with pytest.raises(error):
        deployment.start()


def test_a_snapshot_that_fails_leaves_no_slot(first: Deployment) -> None:
    working, first.bulk = first.bulk, BulkJobs(BrokenEngine())
    failure_of(first, SparkError)
    assert slots(first) == []
    first.bulk = working
    first.start()
    assert len(slots(first)) == 1
    assert first.rows("u") == {("notes", "1"): {"id": "1"}}


def test_without_java_no_slot_is_made(first: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoJava("Spark needs Java")

    monkeypatch.setattr("headwater.pipeline.spark.session.java_home", none)
    monkeypatch.setattr("headwater.replication.jobs.snapshot.SnapshotKeeper", None)  # making one would be another error
    first.bulk = BulkJobs(SparkEngine(Spark(SparkSettings())))
    failure_of(first, NoJava)
