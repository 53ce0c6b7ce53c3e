"""What is held up in the middle of a load: a paused replicator, a locked store, a source that is stopped at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import Mock

import psycopg
import pytest

from headwater.embedded.postgres import StopMode
from headwater.replication import own_slot
from headwater.source import stream
from headwater.source.slot import walsender
from tests.support.each_once import OWNERS, Writer, assert_each_once, snapshot_of_empty_table
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.local_bulk import Waiting
from tests.support.store_file import nobody_writes, store_file, store_tables
from tests.support.sync_configs import NOTES, OWN_NOTES
from tests.support.waiting import wait_until

LARGE = 40_000
INSERT = (
    f"insert into notes select 'n' || i, (array['a', 'b', 'c'])[i % 3 + 1], i from generate_series(0, {LARGE - 1}) i"
)


def test_replicator_paused_within_flush(deploy: Deploy, source_db: SourceDb, launch: Launch) -> None:
    deployment = snapshot_of_empty_table(deploy(OWN_NOTES))
    running = launch("replicate", config_of(deployment, free_port()))
    running.wait_for("following the stream")
    source_db.execute(INSERT)

    running.pause_when(lambda: not nobody_writes(deployment.address), "a pause within a flush")
    assert deployment.op_count_now() == 0
    source_db.execute("insert into notes values ('n40000', 'b', 40000)")
    running.resume()
    assert_each_once(deployment, LARGE + 1)
    assert running.alive


def shows_the_truth(deployment: Deployment) -> bool:
    rows = [row for owner in OWNERS for row in deployment.rows(owner).values()]
    truth = [{"id": r[0], "owner": r[1], "n": r[2]} for r in deployment.source.fetch("select id, owner, n from notes")]
    return sorted(rows, key=str) == sorted(truth, key=str)


@contextmanager
def lock_of(deployment: Deployment) -> Iterator[None]:
    """Nobody else can write to the store."""
    if deployment.storage is None:
        with store_file(deployment.directory) as db:
            db.execute("begin immediate")
            yield
            db.execute("rollback")
        return
    with store_tables(deployment.storage) as conn:
        conn.execute("lock table ops in exclusive mode")
        yield


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
def test_store_locked_under_load(deploy: Deploy, source_db: SourceDb, on_postgres: bool) -> None:
    deployment = deploy(OWN_NOTES, on_postgres=on_postgres)
    source_db.execute("create table notes (id text primary key, owner text not null, n int)")
    deployment.start()
    writer = Writer(source_db)
    writer.start()
    try:
        writer.allow(300)
        wait_until(lambda: deployment.op_count_now() > 20, "the load to arrive")
        with lock_of(deployment):
            seen = deployment.op_count_now()
            wait_until(lambda: writer.written == 300, "the load to be written")
            source_db.execute("update notes set n = -n")
            assert deployment.op_count_now() == seen
        deployment.caught_up()
        assert shows_the_truth(deployment)
    finally:
        writer.end()
    assert deployment.kinds() == ["snapshot"]


def reader_of(source: SourceDb) -> int:
    """The pid of the walsender that reads the database's slot."""
    ((pid,),) = source.fetch(
        "select active_pid from pg_replication_slots where database = current_database() and active"
    )
    return int(pid)


def paused(source: SourceDb, pid: int, *, working: bool) -> bool:
    """Pause a walsender if it works, or waits, as asked for."""
    os.kill(pid, signal.SIGSTOP)
    found = walsender(source.connection, pid)
    if found is not None and found.works is working:
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def test_silent_walsender_is_told_from_busy(
    deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_db.execute("create table notes (id text primary key); create table apart (id int)")
    source_db.execute("create role follower login replication; grant select on notes to follower")
    source_db.execute("create publication headwater for table notes")
    deployment = deploy(NOTES)
    deployment.user, deployment.silence_seconds = "follower", 1.0
    deployment.start()
    asked = Mock(wraps=walsender)
    monkeypatch.setattr(stream, "walsender", asked)
    pid = reader_of(source_db)
    try:
        with psycopg.connect(source_db.dsn, autocommit=True) as other, ThreadPoolExecutor() as pool:
            pool.submit(other.execute, "insert into apart select generate_series(1, 400000)")
            wait_until(lambda: paused(source_db, pid, working=True), "Postgres to decode", pause=0.001)
        source_db.execute("insert into notes values ('first')")
        wait_until(lambda: asked.call_count >= 3, "several looks at what keeps the source silent")
    finally:
        os.kill(pid, signal.SIGCONT)
    try:
        assert deployment.rows("u").keys() == {("notes", "first")}
        assert reader_of(source_db) == pid
        assert f"its walsender {pid} is at work" in caplog.text
        assert "did not answer" not in caplog.text

        wait_until(lambda: paused(source_db, pid, working=False), "an idle walsender")
        wait_until(lambda: f"its walsender {pid} waits for us" in caplog.text, "the silence to be noticed")
    finally:
        os.kill(pid, signal.SIGCONT)
    source_db.execute("insert into notes values ('second')")
    assert deployment.rows("u").keys() == {("notes", "first"), ("notes", "second")}
    deployment.close()
    source_db.execute("drop owned by follower; drop role follower")


class Doomed(Writer):
    """Whose server goes."""

    def run(self) -> None:
        with contextlib.suppress(psycopg.OperationalError):
            super().run()


def idle(deployment: Deployment) -> None:
    snapshot_of_empty_table(deployment).start().caught_up()


def within_a_transaction(deployment: Deployment) -> None:
    deployment.memory_bytes = 4  # it takes many seconds
    snapshot_of_empty_table(deployment).start()
    deployment.source.execute(INSERT)
    wait_until(lambda: not nobody_writes(deployment.address), "the transaction to be applied")


def within_a_comparison(deployment: Deployment) -> None:
    snapshot_of_empty_table(deployment).start()
    with deployment.store() as store:
        store.submit("resync", "default", "{}")
    assert isinstance(deployment.bulk, Waiting)
    wait_until(deployment.bulk.begun.is_set, "the comparison to hold a snapshot")


def within_the_first_snapshot(deployment: Deployment) -> None:
    deployment.source.execute("create table notes (id text primary key, owner text not null, n int)")
    deployment.source.execute("create publication headwater for all tables")
    deployment.bulk = Waiting("compare", "snapshot")
    deployment.start(publish=False)
    wait_until(deployment.bulk.begun.is_set, "the slot's snapshot to be held")


@pytest.mark.parametrize("held_up", [idle, within_a_transaction, within_a_comparison, within_the_first_snapshot])
def test_source_shutdown_is_not_delayed(
    source_with: Callable[..., SourceDb],
    deploy_on: Deploy,
    monkeypatch: pytest.MonkeyPatch,
    held_up: Callable[[Deployment], None],
) -> None:
    monkeypatch.setattr(own_slot, "_LAST_SECONDS", 0.5)
    source = source_with()
    server = source.server
    deployment = deploy_on(source, OWN_NOTES, bulk=Waiting())
    held_up(deployment)
    source.connection.close()
    server.stop(StopMode.FAST)
    assert "database system is shut down" in server.log_file.read_text()
    assert deployment.op_count_now() == 0, "the transaction did not have to be applied first"
    server.start()
    source.connection = psycopg.connect(source.dsn, autocommit=True)
    assert isinstance(deployment.bulk, Waiting)
    deployment.bulk.go.set()
    deployment.memory_bytes = 64 << 20
    deployment.stop()
    assert shows_the_truth(deployment.start())


def test_source_crash_during_load(source_with: Callable[..., SourceDb], deploy_on: Deploy) -> None:
    source = source_with(synchronous_commit="on", full_page_writes="on")
    server = source.server
    deployment = snapshot_of_empty_table(deploy_on(source, OWN_NOTES)).start()
    for _ in range(2):
        with psycopg.connect(source.dsn) as open_transaction:
            open_transaction.execute(
                INSERT.replace("'n'", "'open '")
            )  # it never commits, though much of it is in the log
            writer = Doomed(source)
            writer.start()
            writer.allow(10_000)
            seen = deployment.op_count_now()
            wait_until(lambda seen=seen: deployment.op_count_now() > seen + 40, "the load to arrive")  # type: ignore[misc]
            source.connection.close()
            server.stop(StopMode.IMMEDIATE)
            writer.end()
            open_transaction.close()
        server.start()
        source.connection = psycopg.connect(source.dsn, autocommit=True)
        assert source.fetch("select count(*) > 30 from notes") == [(True,)]
        assert shows_the_truth(deployment)
        source.execute("delete from notes where n > 5; update notes set id = 'before ' || id")
    assert shows_the_truth(deployment)
    assert deployment.kinds() == ["snapshot"]
