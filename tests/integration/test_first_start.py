"""A first start that lacks something leaves nothing behind at the source."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from headwater.bulk.contract import EngineError
from headwater.embedded.java import NoJavaError
from headwater.errors import HeadwaterError
from headwater.pipeline.engine import Job, TaskRun
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.source.connect import connect
from headwater.source.rows.query import ComputedResult
from headwater.source.slot import drop_unread_slot, slot_name
from headwater_rules.plan import ComputedTable
from tests.support import command
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.plain_http import plain_http
from tests.support.sync_configs import NOTES


class BrokenEngine:
    """One that does not start."""

    def warm_up(self) -> None:
        """Nobody waits for it."""

    def preparing(self) -> str:
        return ""

    def result(self, table: ComputedTable, stop: threading.Event) -> ComputedResult:
        raise EngineError("Spark does not start", "master local[*]", code="HW_5102")

    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> AbstractContextManager[TaskRun[Job]]:
        raise EngineError("Spark does not start", "master local[*]", code="HW_5102")


@pytest.fixture
def first(deploy: Callable[..., Deployment], source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    deployment: Deployment = deploy(NOTES)
    return deployment


def slots(deployment: Deployment) -> list[tuple[str]]:
    return deployment.source.fetch("select slot_name from pg_replication_slots where database = current_database()")


def failure_of(deployment: Deployment, error: type[HeadwaterError]) -> None:
    with pytest.raises(error):
        deployment.start()


def test_failed_snapshot_leaves_no_slot(first: Deployment) -> None:
    working, first.bulk = first.bulk, BulkJobs(BrokenEngine())
    failure_of(first, EngineError)
    assert slots(first) == []
    first.bulk = working
    first.start()
    assert len(slots(first)) == 1
    assert first.rows("u") == {("notes", "1"): {"id": "1"}}


def test_no_slot_without_java(first: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoJavaError("Spark needs Java")

    monkeypatch.setattr("headwater.pipeline.spark.session.java_home", none)
    monkeypatch.setattr("headwater.replication.jobs.snapshot.SnapshotKeeper", None)  # making one would be another error
    first.bulk = BulkJobs(SparkEngine(Spark(SparkSettings())))
    failure_of(first, NoJavaError)


def test_login_that_sets_role(first: Deployment, source_db: SourceDb) -> None:
    """As Vault makes them: the login may replicate, and the role that owns the tables may not."""
    login, owner = f"{source_db.name}_login", f"{source_db.name}_owner"
    source_db.execute(f"create role {owner}; create role {login} login replication in role {owner}")
    source_db.execute(f"alter table notes owner to {owner}; alter role {login} set role = {owner}")
    try:
        first.user = login
        first.start()
        source_db.execute("insert into notes values ('2')")
        assert first.caught_up()
        first.stop()
        source_db.execute("drop publication headwater; create publication headwater for table notes")
        source_db.lose_slots()
        first.start()
        source_db.execute("insert into notes values ('3')")
        assert first.caught_up()
        first.stop()
        with connect(first.settings) as conn:
            assert conn.execute("select current_user").fetchone() == (owner,)
            drop_unread_slot(conn, slot_name(first.settings))
            assert conn.execute("select current_user").fetchone() == (owner,)
        assert source_db.fetch("select from pg_replication_slots where database = %s", source_db.name) == []
    finally:
        first.close()
        source_db.execute(f"drop owned by {login}, {owner}; drop role {login}, {owner}")


REFUSING = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pyarrow", "pandas", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
"""


@pytest.fixture
def no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started now find none of these packages."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(REFUSING)
    monkeypatch.setitem(command._CLEAN, "PYTHONPATH", str(folder))


@pytest.mark.usefixtures("no_spark")
def test_endpoint_works_without_spark(deploy: Deploy, source_db: SourceDb, launch: Launch) -> None:
    source_db.execute("create table notes (id text primary key)")
    deployment = deploy(NOTES).start()
    deployment.stop()
    config = config_of(deployment, port := free_port())
    endpoint = launch("api", config)

    endpoint.wait_for("Application startup complete")
    with plain_http(port) as http:
        assert http.get("/probes/liveness").status_code == 200
    replicator = launch("replicate", config)
    assert replicator.wait() == 1
    assert "[HW_8003] this command needs Spark" in replicator.output
    assert ".whl[spark]'" in replicator.output


@pytest.mark.parametrize(
    "config",
    ["config: {edition: 3}\nstreams: {}\n", "bucket_definitions: {}\n", "bucket_definitions: {b: {data: []}}\n"],
)
def test_config_without_queries(source_db: SourceDb, deploy: Callable[..., Deployment], config: str) -> None:
    source_db.execute("create table notes (id int primary key); insert into notes values (1)")
    deployment = deploy(config).start()

    source_db.execute("insert into notes values (2)")

    assert deployment.rows("u") == {}
