"""A source that is put back from an earlier copy of it: devices get what differs, and nobody starts over."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.stream import ReplicationStream
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.fix_postgres import SourceDb, program_of

if TYPE_CHECKING:
    from headwater.pipeline.jobs import BulkJobs


CONFIG = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    queries:
      - SELECT * FROM notes
      - SELECT * FROM others
"""

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
    assert [record.kind for record in deployment.bulk_records()] == ["snapshot", "re-sync"]
    deployment.close()
    assert deployment.problems() == []


def follows_nobody_elses(deployment: Deployment, database: str) -> None:
    """While somebody follows the other database by the slot, it is left to him."""
    settings = replace(deployment.settings, database=database)
    with deployment.store() as store:
        state = store.source_state("default")
    assert state is not None

    def said() -> bool:
        health = deployment.health()
        return health is not None and health.cause is not None and "another session reads" in health.cause.what

    with ReplicationStream(settings, state.slot, state.lsn, ["headwater"]):
        deployment.start(publish=False)
        wait_until(said, "the slot to be in use")
        deployment.stop()


@pytest.mark.parametrize("kept", [True, False], ids=["renamed", "dropped"])
def test_a_database_that_is_made_anew_from_a_template(deploy: Deploy, source_db: SourceDb, kept: bool) -> None:
    source_db.execute(SOURCE)
    deployment = deploy(CONFIG).start()
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


def test_a_server_that_is_put_back_from_a_base_backup(
    postgres_with: Callable[..., EmbeddedPostgres], bulk: BulkJobs, tmp_path: Path
) -> None:
    server = postgres_with()
    program = program_of(server, "pg_basebackup")
    source = SourceDb(server, "postgres")
    source.execute(SOURCE)
    deployment = Deployment(source, tmp_path / "store", CONFIG, bulk).start()
    try:
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
    finally:
        deployment.close()
