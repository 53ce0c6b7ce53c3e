"""What fails between a source and its devices: it is named while it lasts, and when it is mended devices go on from
where they were, without a restart and without reading the source again."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries, StopMode
from headwater.pipeline.jobs import SparkBulk
from headwater.replication.health import State, Trouble
from headwater.storage.versions import Origin, VersionState
from tests.support.changed_source import Device, Rows, published_rows, settled
from tests.support.fix_headwater import Deployment, wait_until
from tests.support.fix_postgres import FAST, SourceDb
from tests.support.network import Network

pytestmark = pytest.mark.spark

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
ROWS = 200

SOURCE = f"""
create table notes (id text primary key, body text);
create table others (id text primary key, body text);
insert into notes select i::text, 'x' || i from generate_series(1, {ROWS}) i;
insert into others values ('1', 'one');
create role follower login replication password 'right';
grant select on all tables in schema public to follower;
create publication headwater for all tables;
"""


@dataclass
class World:
    """A source on a server of its own, followed over a network by a role of few rights, and a device."""

    server: EmbeddedPostgres
    source: SourceDb
    network: Network
    deployment: Deployment
    device: Device
    shown: Mapping[str, str] = field(default_factory=lambda: SHOWN)

    def sql(self, text: str) -> None:
        """As a superuser, whatever became of earlier connections."""
        self.source.connection.close()
        self.source.connection = psycopg.connect(self.source.dsn, autocommit=True)
        self.source.execute(text)

    def disconnect(self) -> None:
        """End what the role has open: rights and passwords are looked at when somebody comes."""
        self.sql("select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'follower'")

    def truth(self) -> Rows:
        return published_rows(self.source, self.shown)

    def kinds(self) -> list[str]:
        return [record.kind for record in self.deployment.bulk_records()]

    def cause(self) -> Trouble | None:
        """Why rows do not flow, as the store has it."""
        self.deployment.raise_failure()
        health = self.deployment.health()
        assert health is not None
        assert (health.cause is None) or health.state is State.RETRYING
        return health.cause

    def streams(self) -> bool:
        self.deployment.raise_failure()
        health = self.deployment.health()
        return health is not None and health.state is State.STREAMING

    def names(self, code: str, what: str) -> bool:
        cause = self.cause()
        return cause is not None and cause.code == code and what in cause.what

    def finds(self, code: str) -> bool:
        """Whether the source's health is said to lack this."""
        self.deployment.raise_failure()
        health = self.deployment.health()
        return health is not None and code in {finding.code for finding in health.findings}

    def compared(self) -> set[str]:
        """Tables that are compared with the source."""
        health = self.deployment.health()
        return set() if health is None else {each.table for each in health.compared}

    def goes_on(self) -> None:
        """Wait until the device has everything, and hold the replicator to have gone on from where it was."""
        self.sql("insert into others values ('after', 'all')")
        wait_until(lambda: self.device.rows() == self.truth(), "the device to show the truth")
        wait_until(lambda: settled(self.deployment) and self.streams(), "the stream to be quiet")
        assert self.device.rows() == self.truth()
        assert self.kinds().count("snapshot") == 1


@dataclass
class SmallDisk:
    """A file system of its own, of a given size."""

    path: Path

    def fill(self) -> None:
        """Leave no room on it."""
        with contextlib.suppress(OSError), (self.path / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def make_room(self) -> None:
        (self.path / "filler").unlink()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """`small_disk(megabytes)`. Skips the test where nobody may mount one."""
    with ExitStack() as stack:

        def make(megabytes: int) -> SmallDisk:
            path = tmp_path / "small"
            path.mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
            try:
                subprocess.run(command, check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                pytest.skip("needs the right to mount a file system, to have one that is full")
            stack.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
            return SmallDisk(path)

        yield make


@pytest.fixture
def world_of(
    small_disk: Callable[[int], SmallDisk],  # which goes after what is on it
    postgres_with: Callable[..., EmbeddedPostgres],
    spark_bulk: SparkBulk,
    tmp_path: Path,
) -> Iterator[Callable[..., World]]:
    """`world_of(setting="value")` makes a source, unless it is given one, and starts following it."""
    with ExitStack() as stack:

        def make(
            server: EmbeddedPostgres | None = None, directory: Path = tmp_path / "store", **settings: str
        ) -> World:
            server = server or postgres_with(**settings)
            source = SourceDb(server, "postgres")
            stack.callback(lambda: source.connection.close())  # noqa: PLW0108 - the last one of several
            source.execute(SOURCE)
            network = stack.enter_context(Network(server.port))
            deployment = Deployment(
                source,
                directory,
                CONFIG,
                spark_bulk,
                user="follower",
                password="right",
                port=network.port,
                silence_seconds=4.0,
            )
            stack.callback(deployment.close)
            deployment.start()
            world = World(server, source, network, deployment, Device(deployment))
            deployment.caught_up()
            assert world.device.rows() == world.truth()
            return world

        yield make


World_ = Callable[..., World]


@dataclass(frozen=True)
class Fault:
    """Something that keeps rows from flowing, and the code, the text and the remedy by which it is named."""

    begin: Callable[[World], None]
    mend: Callable[[World], None]
    code: str
    what: str
    fix: str


def refuse_login(world: World) -> None:
    world.sql("alter role follower nologin")
    world.disconnect()


def refuse_replication(world: World) -> None:
    world.sql("alter role follower noreplication")
    world.disconnect()


def change_password(world: World) -> None:
    hba = world.server.data_dir / "pg_hba.conf"
    hba.write_text("host all follower 127.0.0.1/32 scram-sha-256\n" + hba.read_text(), encoding="utf-8")
    world.sql("select pg_reload_conf(); alter role follower password 'wrong'")
    world.disconnect()


def become_standby(world: World) -> None:
    (world.server.data_dir / "standby.signal").touch()
    world.server.restart()


FAULTS = {
    "stopped": Fault(
        lambda world: world.server.stop(StopMode.FAST),
        lambda world: world.server.start(),
        "HW_2001",
        "cannot be reached",
        "check that Postgres runs there",
    ),
    "killed": Fault(
        lambda world: world.server.kill(),
        lambda world: world.server.start(),
        "HW_2001",
        "cannot be reached",
        "check that Postgres runs there",
    ),
    "standby": Fault(
        become_standby,
        lambda world: world.sql("select pg_promote(true, 60)"),
        "HW_2001",
        "is a standby",
        "primary",
    ),
    "network cut": Fault(
        lambda world: world.network.cut(),
        lambda world: world.network.mend(),
        "HW_2001",
        "cannot be reached",
        "firewall",
    ),
    "network that swallows everything": Fault(
        lambda world: world.network.swallow(),
        lambda world: world.network.mend(),
        "PSYNC_S1120",
        "said nothing for 4 s",
        "check the network",
    ),
    "role that may not log in": Fault(
        refuse_login,
        lambda world: world.sql("alter role follower login"),
        "HW_2002",
        "does not let this role log in",
        "ALTER ROLE follower LOGIN",
    ),
    "role that may not replicate": Fault(
        refuse_replication,
        lambda world: world.sql("alter role follower replication"),
        "HW_2002",
        "does not let this role replicate",
        "ALTER ROLE follower REPLICATION",
    ),
    "another password": Fault(
        change_password,
        lambda world: world.sql("alter role follower password 'right'"),
        "HW_2002",
        "rejects user name or password",
        "set username and password in replication.connections",
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_while_it_lasts_and_forgotten_when_it_is_mended(world_of: World_, fault: Fault) -> None:
    world = world_of()
    world.sql("update notes set body = 'before' where id = '1'")
    fault.begin(world)
    wait_until(lambda: world.names(fault.code, fault.what), "the cause to be named")
    cause = world.cause()
    assert cause is not None
    assert fault.fix in cause.fix
    fault.mend(world)
    world.sql("update notes set body = 'later' where id = '2'; delete from notes where id = '3'")
    world.goes_on()
    assert world.cause() is None
    assert world.kinds() == ["snapshot"]
    world.deployment.close()
    assert world.deployment.problems() == []


def test_a_reader_of_the_slot_that_is_ended_comes_again(world_of: World_) -> None:
    world = world_of()
    for body in ("first", "second"):
        world.sql("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where active")
        world.sql(f"update notes set body = '{body}' where id = '2'")
        world.goes_on()
        world.sql("delete from others where id = 'after'")
    assert world.kinds() == ["snapshot"]


def lose_slot(world: World) -> None:
    world.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots")


def outrun_slot(world: World) -> None:
    for _ in range(8):
        world.sql("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
    world.sql("checkpoint")
    assert world.source.fetch("select wal_status from pg_replication_slots") == [("lost",)]


@pytest.mark.parametrize("lose", [lose_slot, outrun_slot])
def test_a_lost_slot_costs_what_differs(world_of: World_, lose: Callable[[World], None]) -> None:
    world = world_of(max_slot_wal_keep_size="64MB")
    before = world.deployment.op_count()
    world.network.cut()
    wait_until(lambda: world.names("HW_2001", "cannot be reached"), "the cause to be named")
    wait_until(lambda: not world.source.fetch("select from pg_replication_slots where active"), "the slot to be left")
    world.sql("update notes set body = 'later' where id in ('2', '3'); delete from notes where id = '4'")
    lose(world)
    world.network.mend()
    world.goes_on()
    assert world.deployment.op_count() - before == 4
    assert world.kinds() == ["snapshot", "re-sync"]
    world.deployment.close()
    assert world.deployment.problems() == []


@dataclass(frozen=True)
class Hidden:
    """What hides a table's rows from the role, though the stream still brings changes of them."""

    begin: str
    mend: str
    code: str
    what: str
    fix: str
    refused: str


HIDDEN = {
    "right to read revoked": Hidden(
        "revoke select on notes from follower",
        "grant select on notes to follower",
        "HW_2018",
        "may not read public.notes",
        'GRANT SELECT ON "public"."notes" TO "follower"',
        "permission denied for table notes",
    ),
    "right to the schema revoked": Hidden(
        "revoke usage on schema public from public, follower",
        "grant usage on schema public to public",
        "HW_2018",
        "may not use schema public",
        'GRANT USAGE ON SCHEMA "public" TO "follower"',
        "permission denied for schema public",
    ),
    "row-level security": Hidden(
        "alter table notes enable row level security",
        "alter role follower bypassrls",
        "PSYNC_S1145",
        "row-level security hides rows of public.notes",
        'ALTER ROLE "follower" BYPASSRLS',
        "would be affected by row-level security",
    ),
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
def test_rows_that_cannot_be_read_are_named_and_nothing_is_taken_from_devices(
    world_of: World_, hidden: Hidden, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_of()
    world.sql(hidden.begin)
    wait_until(lambda: world.finds(hidden.code), "the finding")
    health = world.deployment.health()
    assert health is not None
    finding = next(each for each in health.findings if each.code == hidden.code)
    assert finding.fatal
    assert hidden.what in finding.what
    assert hidden.fix in finding.fix

    world.sql("update notes set body = 'streamed' where id = '2'")
    wait_until(lambda: world.device.rows() == world.truth(), "what needs no right to read")
    world.sql("alter table notes add column filled text default 'x'")  # whose rows can't be read
    world.sql("insert into others values ('2', 'beside')")
    wait_until(lambda: ("others", "2") in world.device.rows(), "commits to another table")
    wait_until(lambda: "public.notes" in world.compared(), "the comparison")
    wait_until(lambda: "[HW_5101]" in caplog.text, "the comparison to fail")
    assert hidden.refused in caplog.text
    assert len(world.device.rows()) == len(world.truth())

    world.sql(hidden.mend)
    world.goes_on()
    wait_until(lambda: not world.finds(hidden.code), "the finding to go")
    world.deployment.close()
    assert world.deployment.problems() == []


def test_a_full_disk_of_the_store_is_told_and_waited_for(
    world_of: World_, small_disk: Callable[[int], SmallDisk], caplog: pytest.LogCaptureFixture
) -> None:
    disk = small_disk(30)
    world = world_of(directory=disk.path / "store")
    disk.fill()
    world.sql("insert into notes select 'big' || i, repeat('x', 1000) from generate_series(1, 2000) i")
    wait_until(lambda: caplog.text.count("the disk is full") > 1, "a second attempt")
    assert "free space on it" in caplog.text
    world.sql("update notes set body = 'meanwhile' where id = '2'")
    disk.make_room()
    world.goes_on()
    assert world.kinds() == ["snapshot"]
    health = world.deployment.health()
    assert health is not None
    assert health.trouble is not None
    assert health.trouble.what == "the disk is full"
    world.deployment.close()
    assert world.deployment.problems() == []


def fill_log(world: World) -> None:
    """Until the server stops for want of room."""
    for _ in range(8):
        world.sql("update notes set body = body || 'x' where id = '2'; select pg_switch_wal()")


def test_a_full_disk_of_the_source_loses_nothing(
    world_of: World_, small_disk: Callable[[int], SmallDisk], postgres_binaries: PostgresBinaries
) -> None:
    disk = small_disk(200)
    sizes = {**FAST, "min_wal_size": "32MB", "max_wal_size": "48MB"}
    with EmbeddedPostgres(disk.path / "data", postgres_binaries, sizes) as server:
        world = world_of(server)
        disk.fill()
        with pytest.raises(psycopg.errors.DiskFull):
            world.sql("insert into notes select 'big' || i, repeat('x', 1000) from generate_series(1, 20000) i")
        with pytest.raises(psycopg.OperationalError):
            fill_log(world)
        wait_until(lambda: world.cause() is not None, "the cause to be named")
        disk.make_room()
        server.restart(StopMode.IMMEDIATE)
        world.goes_on()
        assert world.kinds() == ["snapshot"]
        world.deployment.close()
        assert world.deployment.problems() == []


def test_a_config_that_is_deployed_while_tables_are_compared(world_of: World_) -> None:
    world = world_of()
    with psycopg.connect(world.source.dsn) as writer:
        writer.execute("insert into others values ('open', 'x')")  # for which the comparison's snapshot waits
        world.sql("alter table notes add column filled text default 'x'")
        wait_until(lambda: "public.notes" in world.compared(), "the comparison")
        with world.deployment.store() as store:
            fewer = CONFIG.replace("FROM notes", "FROM notes WHERE body <> 'x5'")
            number = store.deploy(fewer, Origin.COMMAND).id
        world.sql("update notes set body = 'x5' where id = '6'")

    def served() -> bool:
        world.deployment.raise_failure()
        with world.deployment.store() as store:
            return {v.id: v.state for v in store.versions()}[number] is VersionState.ACTIVE

    wait_until(served, "the version to be served")
    world.deployment.yaml = fewer
    world.shown = {**SHOWN, "public.notes": "body <> 'x5'"}
    world.device = Device(world.deployment)
    world.goes_on()
    assert len([key for key in world.device.rows() if key[0] == "notes"]) == ROWS - 2
    world.deployment.close()
    assert world.deployment.problems() == []
