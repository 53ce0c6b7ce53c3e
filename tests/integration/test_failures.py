"""What fails between a source and its devices: it is named while it lasts, and when it is mended devices go on from
where they were, without a restart and without reading the source again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres, StopMode
from headwater.pipeline.jobs import SparkBulk
from headwater.replication.health import State, Trouble
from tests.support.changed_source import Device, Rows, published_rows, settled
from tests.support.fix_headwater import Deployment, wait_until
from tests.support.fix_postgres import SourceDb
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

    def sql(self, text: str) -> None:
        """As a superuser, whatever became of earlier connections."""
        self.source.connection.close()
        self.source.connection = psycopg.connect(self.source.dsn, autocommit=True)
        self.source.execute(text)

    def disconnect(self) -> None:
        """End what the role has open: rights and passwords are looked at when somebody comes."""
        self.sql("select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'follower'")

    def truth(self) -> Rows:
        return published_rows(self.source, SHOWN)

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

    def goes_on(self) -> None:
        """Wait until the device has everything, and hold the replicator to have gone on from where it was."""
        self.sql("insert into others values ('after', 'all')")
        wait_until(lambda: self.device.rows() == self.truth(), "the device to show the truth")
        wait_until(lambda: settled(self.deployment) and self.streams(), "the stream to be quiet")
        assert self.device.rows() == self.truth()
        assert self.kinds().count("snapshot") == 1


@pytest.fixture
def world_of(
    postgres_with: Callable[..., EmbeddedPostgres], spark_bulk: SparkBulk, tmp_path: Path
) -> Iterator[Callable[..., World]]:
    """`world_of(setting="value")` makes a source, and starts following it."""
    with ExitStack() as stack:

        def make(**settings: str) -> World:
            server = postgres_with(**settings)
            source = SourceDb(server, "postgres")
            stack.callback(lambda: source.connection.close())
            source.execute(SOURCE)
            network = stack.enter_context(Network(server.port))
            deployment = Deployment(
                source,
                tmp_path / "store",
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
