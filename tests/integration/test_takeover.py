"""Another replicator, a source that comes back, a supervisor: whoever takes over, nothing is lost or done twice."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import urllib.request
from collections.abc import Collection
from pathlib import Path

import pytest

import headwater.replication.versions
from headwater.oplog.lsn import Lsn
from headwater.replication.replicator import LEASE_SECONDS
from headwater.replication.versions import ConfigFile, deploy_file
from headwater.storage.contract.store import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    ReplicationProgress,
    StoreUnreachableError,
)
from headwater.storage.contract.versions import Origin, VersionState
from headwater.storage.sql.writer import StoreWriter
from headwater.storage.sqlite.writer import SqliteWriter
from tests.integration import small_bulk
from tests.support.each_once import OWNERS, assert_each_once, snapshot_of_empty_table, write
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.processes import Running, wait_gone
from tests.support.store_file import nobody_writes, store_file, store_tables
from tests.support.sync_configs import OWN_NOTES
from tests.support.waiting import wait_until


@pytest.fixture
def deployment(request: pytest.FixtureRequest, deploy: Deploy, source_db: SourceDb) -> Deployment:
    """A store that has read an empty table, with nobody at work on it. Embedded, if the test does not say more."""
    where = {} if getattr(request, "param", None) is None else {"on_postgres": request.param == "postgres"}
    return snapshot_of_empty_table(deploy(OWN_NOTES, **where))


EACH_STORE = pytest.mark.parametrize(
    "deployment", ["embedded", pytest.param("postgres", marks=pytest.mark.long)], indirect=True
)


def replicator(launch: Launch, deployment: Deployment) -> Running:
    return launch("replicate", config_of(deployment, free_port()))


# two replicators


def walsenders(source: SourceDb) -> list[int]:
    """Pids of the source's processes that stream from the database."""
    rows = source.fetch(
        "select pid from pg_stat_activity where backend_type = 'walsender' and datname = current_database()"
    )
    return [row[0] for row in rows]


def two_replicators(launch: Launch, deployment: Deployment) -> tuple[Running, Running]:
    """One that has everything, and one that waits for it to end."""
    first = replicator(launch, deployment)
    write(deployment.source, range(20))
    assert_each_once(deployment, 20)
    reading = walsenders(deployment.source)
    second = replicator(launch, deployment)
    second.wait_for("another replicator is running")
    assert walsenders(deployment.source) == reading
    assert len(reading) == 1
    return first, second


def lengthen_leases(deployment: Deployment, seconds: int) -> None:
    """By so much, or so that they are over, if it is negative."""
    if deployment.storage is not None:
        with store_tables(deployment.storage) as conn:
            conn.execute("update leases set expires_at = expires_at + make_interval(secs => %s)", [seconds])
        return
    with store_file(deployment.directory) as db:
        db.execute("update leases set expires_at = expires_at + ?", (seconds,))


@EACH_STORE
def test_paused_replicator_is_replaced_and_fenced(deployment: Deployment, launch: Launch) -> None:
    first, second = two_replicators(launch, deployment)
    # Not while it holds the store's write lock, which nobody could take from it
    first.pause_when(lambda: nobody_writes(deployment.address), "a pause between two transactions")
    # These the source still sends to the first, which will find them in its socket when it goes on
    write(deployment.source, range(20, 40))
    written = deployment.source.fetch("select pg_current_wal_lsn()")[0][0]
    wait_until(
        lambda: (
            deployment.source.fetch(
                "select count(*) from pg_stat_replication r join pg_stat_activity a using (pid)"
                " where a.datname = current_database() and r.sent_lsn >= %s",
                written,
            )[0][0]
            == 1
        ),
        "the source to send them",
    )
    second.wait_for("following the stream")
    write(deployment.source, range(40, 60))
    assert_each_once(deployment, 60)  # else the deleted rows may be stored together with their deletion
    deployment.source.execute("delete from notes where n between 20 and 29")  # and would put these back
    assert_each_once(deployment, 60, removed=10)
    reading = walsenders(deployment.source)
    first.resume()
    first.wait_for("[HW_4003] another replicator took over")
    first.wait_for("another replicator is running")
    write(deployment.source, range(60, 80))
    assert_each_once(deployment, 80, removed=10)
    assert walsenders(deployment.source) == reading, "the first ended the second's stream"
    second.ask_to_end()
    assert second.wait() == 0
    first.wait_for("following the stream", 2)
    write(deployment.source, range(80, 100))
    assert_each_once(deployment, 100, removed=10)
    assert "Traceback" not in first.output


def stolen(deployment: Deployment, store: StoreWriter) -> Lease:
    """The lease in the hands of somebody else, whoever held it."""
    while True:
        lengthen_leases(deployment, -3600)
        with contextlib.suppress(LeaseHeldError):
            return store.acquire("default", "thief", 600.0)


@EACH_STORE
def test_lost_lease_is_waited_for(deployment: Deployment, source_db: SourceDb) -> None:
    deployment.start()
    write(source_db, range(3))
    deployment.caught_up()
    with deployment.store() as store:
        lease = stolen(deployment, store)
        write(source_db, range(3, 6))
        wait_until(lambda: not walsenders(source_db), "the stream to be given up", 30)
        deployment.raise_failure()
        with deployment.reader.snapshot() as snapshot:
            assert snapshot is not None, "clients are served meanwhile"
        deployment.yaml = OWN_NOTES.replace("auth.user_id()", "auth.user_id() AND n >= 0")
        version = store.deploy(deployment.yaml, Origin.FILE)
        store.renew(lease)
        store.release(lease)
        wait_until(lambda: store.versions()[-1].state is VersionState.ACTIVE, "what is newest to be served", 60)
        assert store.versions()[-1].id == version.id, "not what the replicator began with, once more"
    write(source_db, range(6, 9))
    assert {key for owner in OWNERS for key in deployment.rows(owner)} == {("notes", f"n{n}") for n in range(9)}
    assert deployment.kinds() == ["snapshot", "reprocess"]


def test_store_restart_during_takeover(deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    source_db.execute("create table notes (id text primary key, owner text, body text)")
    source_db.execute("insert into notes values ('1', 'a', 'there')")
    failures = [StoreUnreachableError("the store's database cannot be reached")] * 2

    def deployed_later(store: StoreWriter, lease: Lease, yaml: str, sources: Collection[str]) -> None:
        if failures:
            raise failures.pop()
        deploy_file(store, lease, yaml, sources)

    monkeypatch.setattr(headwater.replication.versions, "deploy_file", deployed_later)
    deployment = deploy(OWN_NOTES).start()
    wait_until(lambda: ("notes", "1") in deployment.rows("a"), "the row")


def test_deploy_fenced_after_lost_lease(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other holder may have deployed a newer file."""
    source_db.execute("create table notes (id text primary key, owner text, body text)")
    deployment = deploy(OWN_NOTES)
    held: list[Lease] = []
    deployed: list[str] = []

    def deployed_later(store: StoreWriter, lease: Lease, yaml: str, sources: Collection[str]) -> None:
        if not held:
            held.append(stolen(deployment, store))
            raise StoreUnreachableError("the store's database cannot be reached")
        deployed.append(yaml)
        deploy_file(store, lease, yaml, sources)

    monkeypatch.setattr(headwater.replication.versions, "deploy_file", deployed_later)
    source_db.execute("create publication headwater for all tables")
    deployment.start(publish=False)
    wait_until(lambda: LeaseLostError.code in caplog.text, "the loss to be noticed")
    assert not deployed
    with deployment.store() as store:
        store.release(held[0])
    wait_until(lambda: bool(deployed), "its own turn")


def test_standby_with_an_older_file_leaves_the_newer_one(deployment: Deployment, launch: Launch) -> None:
    config, newer = config_of(deployment, free_port()), deployment.yaml.replace("auth.user_id()", "auth.user_id() ")
    assert newer != deployment.yaml

    def served(file: str) -> bool:
        with deployment.store() as store:
            return [each.yaml for each in store.versions() if each.state is VersionState.ACTIVE] == [file]

    def replaced(running: Running) -> None:
        running.ask_to_end()
        assert running.wait() == 0

    with deployment.store() as store:
        former = store.acquire("default", "thief", 600.0)
        standby = launch("replicate", config)
        standby.wait_for("another replicator is running")
        file = ConfigFile(newer, ["default"])  # as a process does that starts with it now
        file.begin(store)
        file.deploy(store, former)
        store.release(former)
    standby.wait_for("another process has a newer one, which stays")
    wait_until(lambda: served(newer), "the newer file to be served")
    replaced(standby)
    again = launch("replicate", config)
    again.wait_for("following the stream")
    assert served(newer), "nor does a start of the same process bring the older one back"
    replaced(again)


@EACH_STORE
def test_killed_replicator_is_replaced_early(deployment: Deployment, launch: Launch) -> None:
    first, second = two_replicators(launch, deployment)
    # Not while it holds the store's write lock, which nobody could take from it
    first.pause_when(lambda: nobody_writes(deployment.address), "a pause between two transactions")
    lengthen_leases(deployment, 3600)
    first.kill()
    second.wait_for("following the stream")
    write(deployment.source, range(20, 40))
    assert_each_once(deployment, 40)


def test_long_transaction_keeps_lease(tmp_path: Path) -> None:
    """Who waits for the lock meanwhile gets it at the commit, and must find a lease that has just begun."""
    small_bulk.run(tmp_path, "text")
    first, second = SqliteWriter(tmp_path), SqliteWriter(tmp_path)
    lease = first.acquire("default", "first", LEASE_SECONDS)
    flush = first.begin(lease)
    first._db.execute("update leases set expires_at = 0")  # as if it had taken longer than that
    flush.commit("default", ReplicationProgress(Lsn(1000)))
    with pytest.raises(LeaseHeldError):
        second.acquire("default", "second", LEASE_SECONDS)
    first.close()
    second.close()


@EACH_STORE
def test_orderly_end_hands_over(deployment: Deployment, launch: Launch) -> None:
    first, second = two_replicators(launch, deployment)
    first.ask_to_end()
    assert first.wait() == 0
    second.wait_for("following the stream")
    write(deployment.source, range(20, 40))
    assert_each_once(deployment, 40)


# the source goes away


@EACH_STORE
def test_killed_walsender_is_replaced(deployment: Deployment, launch: Launch) -> None:
    running = replicator(launch, deployment)
    rows = 0
    for times in itertools.count(1):
        running.wait_for("following the stream", times)
        if times == 4:
            break
        (walsender,) = walsenders(deployment.source)
        write(deployment.source, range(rows, rows + 50))
        deployment.source.execute("select pg_terminate_backend(%s)", walsender)
        write(deployment.source, range(rows + 50, rows + 100))
        rows += 100
    assert_each_once(deployment, rows)
    assert "Traceback" not in running.output


# the whole service


def service(launch: Launch, deployment: Deployment, **more: object) -> Running:
    """`headwater serve`, with its endpoint ready and its replicator at work. What is named goes into its config."""
    port = free_port()
    running = launch("serve", {**config_of(deployment, port), **more})

    def ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/probes/readiness", timeout=5) as answer:
                return bool(json.load(answer))
        except OSError:
            assert running.alive, running.output
            return False

    wait_until(ready, "the endpoint")
    running.wait_for("following the stream")
    return running


def slot_is_free(source: SourceDb) -> bool:
    return source.fetch("select active from pg_replication_slots where database = current_database()") == [(False,)]


@EACH_STORE
def test_service_restarts_replicator(deployment: Deployment, launch: Launch) -> None:
    metrics = free_port()
    running = service(launch, deployment, telemetry={"prometheus_port": metrics})
    (child,) = [process for process in running.family() if "replicate" in process.cmdline()]
    write(deployment.source, range(10))
    child.kill()
    running.wait_for("following the stream", 2)
    write(deployment.source, range(10, 20))
    assert_each_once(deployment, 20)

    def told(*counted: str) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=5) as answer:
            page = answer.read().decode()
        return all(re.search(f"^powersync_{each}", page, re.MULTILINE) for each in counted)

    both = ('rows_replicated_total{source="default"} [1-9]', "concurrent_connections 0.0")
    wait_until(lambda: told(*both), "one page to tell of both processes")
    family = running.family()
    assert len(family) >= 2
    running.ask_to_end()
    assert running.wait() == 0
    wait_gone(family)
    assert "is killed" not in running.output
    wait_until(lambda: slot_is_free(deployment.source), "the slot to be free")


def test_nothing_outlives_killed_service(deployment: Deployment, launch: Launch) -> None:
    running = service(launch, deployment)
    family = running.family()
    running.kill()
    wait_gone(family)
    wait_until(lambda: slot_is_free(deployment.source), "the slot to be free")
