"""The source is another server than before, or an earlier copy: devices get what differs, and nobody starts over."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries
from headwater.oplog.lsn import Lsn
from headwater.pipeline.jobs import BulkJobs
from headwater.source.slot import system_identity
from headwater.source.stream import ReplicationStream
from headwater.storage.sql.writer import StoreWriter
from tests.integration.standby import copy_of, end_of, promote, standby_of, wait_for
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import FAST, SourceDb, program_of
from tests.support.sync_configs import NOTES, NOTES_AND_OTHERS
from tests.support.waiting import wait_until

ROWS = 200


@pytest.fixture
def servers() -> Iterator[ExitStack]:
    """Ends servers that the test adds."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def primary(postgres_with: Callable[..., EmbeddedPostgres]) -> EmbeddedPostgres:
    server = postgres_with()
    source = SourceDb(server, "postgres")
    source.execute("create table notes (id text primary key, body text)")
    source.execute(f"insert into notes select i::text, 'x' || i from generate_series(1, {ROWS}) i")
    source.execute("create publication headwater for all tables")
    source.connection.close()
    return server


@pytest.fixture
def follow(tmp_path: Path, bulk: BulkJobs) -> Iterator[Callable[[EmbeddedPostgres], Deployment]]:
    """`follow(server)`: the test's one deployment, from now on from that server. Devices stay connected to it."""
    deployments: list[Deployment] = []

    def start(server: EmbeddedPostgres) -> Deployment:
        source = SourceDb(server, "postgres")
        for before in deployments:
            before.stop()
            before.source.connection.close()
            before.source = source
        if not deployments:
            deployments.append(Deployment(source, tmp_path / "store", NOTES, bulk))
        return deployments[0].start()

    yield start
    for deployment in deployments:
        deployment.close()
        deployment.source.connection.close()


Follow = Callable[[EmbeddedPostgres], Deployment]


def truth(deployment: Deployment) -> dict[tuple[str, str], dict[str, object]]:
    rows = deployment.source.fetch("select id, body from notes")
    return {("notes", key): {"id": key, "body": body} for key, body in rows}


class Connected:
    """A device over all that happens, and one that is new each time. `right` says that both show the truth."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._device = Device(deployment)
        assert self.right()
        self._buckets = deployment.buckets("a").keys()

    def right(self) -> bool:
        new = self._deployment.rows("a")  # after everything that was committed
        return self._device.rows() == new == truth(self._deployment)

    def never_started_over(self, ops: int, before: int) -> bool:
        """It is in the same buckets, was sent no more than so many ops, and nothing was read anew."""
        deployment = self._deployment
        return (
            deployment.buckets("a").keys() == self._buckets
            and deployment.op_count() - before == ops
            and deployment.kinds().count("snapshot") == 1
        )


def waiting_write(deployment: Deployment) -> str:
    """A device's write, acknowledged at the end of the source's log."""
    with psycopg.connect(deployment.source.dsn) as conn:
        position = conn.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchall()
    deployment.reader.create_write_checkpoint(["user/device"], {"default": int(position[0][0])})  # type: ignore[dict-item]
    return "user/device"


def visible(deployment: Deployment, key: str) -> bool:
    write, checkpoint = deployment.reader.write_checkpoint(key), deployment.reader.newest()
    assert write is not None
    assert checkpoint is not None
    return checkpoint.checkpoint.lsns["default"] >= write.lsns["default"]


def test_standby_without_last_commits(
    primary: EmbeddedPostgres, follow: Follow, servers: ExitStack, tmp_path: Path
) -> None:
    standby = standby_of(primary, tmp_path / "standby")
    servers.callback(standby.stop)
    deployment = follow(primary)
    device = Connected(deployment)
    deployment.source.execute("update notes set body = 'kept' where id = '1'")
    wait_for(standby, end_of(primary))
    standby.stop()
    deployment.source.execute(
        "update notes set body = 'lost' where id in ('2', '3'); insert into notes values ('9x', 'lost')"
    )
    before = deployment.op_count()
    assert device.right()
    write = waiting_write(deployment)
    deployment.stop()
    primary.stop()
    standby.start()
    promote(standby)
    follow(standby)
    deployment.source.execute("update notes set body = 'new' where id = '4'")
    wait_until(lambda: device.right() and settled(deployment), "the standby's rows")
    assert device.never_started_over(4, before)
    wait_until(lambda: visible(deployment, write), "the write to be acknowledged")
    deployment.close()
    assert deployment.problems() == []


def test_synchronised_slot_needs_no_compare(
    primary: EmbeddedPostgres, follow: Follow, servers: ExitStack, tmp_path: Path
) -> None:
    if primary.binaries.major < 17:
        pytest.skip("needs synchronised slots, which Postgres has from 17 on")
    with psycopg.connect(primary.dsn(), autocommit=True) as conn:
        conn.execute("select pg_create_physical_replication_slot('standby')")
    synchronised = {"primary_slot_name": "standby", "hot_standby_feedback": "on", "sync_replication_slots": "on"}
    standby = standby_of(primary, tmp_path / "standby", **synchronised)
    servers.callback(standby.stop)
    deployment = follow(primary)
    device = Connected(deployment)
    deployment.source.execute("update notes set body = 'kept' where id = '1'")
    ops = deployment.op_count()

    def synced() -> bool:
        deployment.caught_up()  # a slot is copied once the primary's has moved
        with psycopg.connect(standby.dsn(), autocommit=True) as conn:
            query = "select count(*) from pg_replication_slots where synced and not temporary"
            return conn.execute(query).fetchall() == [(1,)]

    wait_until(synced, "the slot to be copied")
    deployment.caught_up()
    deployment.stop()
    deployment.source.execute("update notes set body = 'missed' where id = '2'")
    wait_for(standby, end_of(primary))
    before = deployment.kinds()
    primary.stop()
    promote(standby)
    follow(standby)
    deployment.source.execute("update notes set body = 'new' where id = '3'")
    assert device.right()
    assert device.never_started_over(2, ops)
    assert deployment.kinds() == before


def test_source_back_in_time(
    primary: EmbeddedPostgres, follow: Follow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = follow(primary)
    device = Connected(deployment)
    deployment.source.execute("update notes set body = 'before' where id = '1'")
    deployment.caught_up()
    deployment.stop()
    deployment.source.connection.close()
    backup = copy_of(primary, tmp_path / "backup")
    follow(primary)
    deployment.source.execute("update notes set body = 'after' where id in ('2', '3')")
    before = deployment.op_count()
    assert device.right()
    write = waiting_write(deployment)
    deployment.stop()
    deployment.source.connection.close()
    primary.stop()
    rewind, early = StoreWriter.rewind_write_checkpoints, list[bool]()

    def rewound(store: StoreWriter, tag: str, lsn: Lsn) -> None:
        rewind(store, tag, lsn)
        early.append(visible(deployment, write))

    monkeypatch.setattr(StoreWriter, "rewind_write_checkpoints", rewound)
    with EmbeddedPostgres(backup, primary.binaries, primary.settings) as restored:
        follow(restored)
        wait_until(lambda: device.right() and settled(deployment), "the rows of then")
        assert early == [False], "the store has nothing of the restored source's log yet"
        assert device.never_started_over(2, before)
        wait_until(lambda: visible(deployment, write), "the write to be acknowledged")
        deployment.close()


@pytest.fixture
def other(postgres_binaries: PostgresBinaries, tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    """A server whose directory was laid out by itself, as none of a copied directory is."""
    with EmbeddedPostgres(tmp_path / "other", postgres_binaries, FAST) as server:
        yield server


def cluster(server: EmbeddedPostgres) -> str:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        return system_identity(conn).system_id


def test_other_cluster_with_same_tables(primary: EmbeddedPostgres, follow: Follow, other: EmbeddedPostgres) -> None:
    assert cluster(primary) != cluster(other)
    deployment = follow(primary)
    device, before = Connected(deployment), deployment.op_count()
    with psycopg.connect(other.dsn(), autocommit=True) as conn:
        conn.execute("create table first (id int); create table notes (id text primary key, body text)")
        conn.execute(f"insert into notes select i::text, 'x' || i from generate_series(1, {ROWS}) i")
        conn.execute("update notes set body = 'other' where id = '5'; delete from notes where id = '6'")
        conn.execute("create publication headwater for all tables")
    follow(other)
    wait_until(lambda: device.right() and settled(deployment), "the other cluster's rows")
    assert device.never_started_over(2, before)
    deployment.source.execute("update notes set body = 'live' where id = '7'")
    assert device.right()
    assert device.never_started_over(3, before)


SHOWN = {"public.notes": "true", "public.others": "true"}

SOURCE = """
create table notes (id text primary key, n int);
create table others (id text primary key, n int);
insert into notes select i::text, i from generate_series(1, 20) i;
insert into others values ('1', 1);
create publication headwater for all tables
"""

SINCE = "update notes set n = -n where n < 4; delete from notes where n = 9; insert into notes values ('new', 1)"


def rows_are_right(deployment: Deployment, device: Device) -> bool:
    return settled(deployment) and device.rows() == published_rows(deployment.source, SHOWN)


def goes_on(deployment: Deployment, device: Device) -> None:
    """What is restored is shown, and what is written to it afterwards; nothing was read anew."""
    wait_until(lambda: rows_are_right(deployment, device), "the rows of the copy")
    deployment.source.execute("update notes set n = 100 where id = '7'; insert into others values ('2', 2)")
    deployment.caught_up()
    assert device.rows() == published_rows(deployment.source, SHOWN)
    assert deployment.kinds() == ["snapshot", "re-sync"]
    deployment.close()
    assert deployment.problems() == []


def follows_nobody_elses(deployment: Deployment, database: str) -> None:
    """While somebody follows the other database by the slot, it is left to him."""
    settings = replace(deployment.settings, database=database)
    with deployment.store() as store:
        state = store.source_state("default")
    assert state is not None

    def said() -> bool:
        cause = deployment.health().cause
        return cause is not None and "another session reads" in cause.what

    with ReplicationStream(settings, state.slot, state.lsn, ["headwater"]):
        deployment.start(publish=False)
        wait_until(said, "the slot to be in use")
        deployment.stop()


@pytest.mark.parametrize("kept", [True, False], ids=["renamed", "dropped"])
def test_database_recreated_from_template(deploy: Deploy, source_db: SourceDb, kept: bool) -> None:
    source_db.execute(SOURCE)
    deployment = deploy(NOTES_AND_OTHERS).start()
    device = Device(deployment)
    name, copy = source_db.name, f"{source_db.name}_copy"
    deployment.stop()
    source_db.connection.close()
    with psycopg.connect(source_db.server.dsn(), autocommit=True) as admin:
        admin.execute(f"create database {copy} template {name}".encode())
        source_db.connection = psycopg.connect(source_db.dsn, autocommit=True)
        deployment.start()
        source_db.execute(SINCE)
        deployment.caught_up()
        deployment.stop()
        source_db.connection.close()
        if kept:
            admin.execute(f"alter database {name} rename to {name}_broken".encode())
        else:
            admin.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s",
                [name])  # fmt: skip
            admin.execute(f"drop database {name}".encode())
        admin.execute(f"alter database {copy} rename to {name}".encode())
        source_db.connection = psycopg.connect(source_db.dsn, autocommit=True)
        if kept:
            follows_nobody_elses(deployment, f"{name}_broken")
        deployment.start()
        goes_on(deployment, device)
        assert admin.execute(
            "select count(*) from pg_replication_slots where database like %s", [f"{name}%"]
        ).fetchall() == [(1,)]
        if kept:
            admin.execute(f"drop database {name}_broken".encode())


def test_server_restored_from_backup(
    postgres_with: Callable[..., EmbeddedPostgres], deploy_on: Deploy, tmp_path: Path
) -> None:
    server = postgres_with()
    program = program_of(server, "pg_basebackup")
    source = SourceDb(server, "postgres")
    source.execute(SOURCE)
    deployment = deploy_on(source, NOTES_AND_OTHERS).start()
    device = Device(deployment)
    address = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"]
    subprocess.run([program, *address, "-D", tmp_path / "backup", "-c", "fast"], check=True, capture_output=True)
    source.execute(SINCE)
    deployment.caught_up()
    assert device.rows() == published_rows(source, SHOWN)
    deployment.stop()
    source.connection.close()
    server.stop()
    with EmbeddedPostgres(tmp_path / "backup", server.binaries, server.settings) as restored:
        deployment.source = SourceDb(restored, "postgres")
        deployment.start()
        goes_on(deployment, device)
        deployment.source.connection.close()
