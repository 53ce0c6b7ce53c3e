"""A source that is followed by a role of few rights over a network that a test cuts, with a device connected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.replication.status import ReplicationState, Trouble
from tests.support.changed_source import Device, Rows, published_rows, settled
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.network import Network
from tests.support.waiting import wait_until

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
class FollowedSource:
    """A source, followed over a network by a role of few rights, and a device."""

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
        return self.deployment.kinds()

    def cause(self) -> Trouble | None:
        """Why rows do not flow, as the store has it."""
        self.deployment.raise_failure()
        health = self.deployment.health()
        assert (health.cause is None) or health.state is ReplicationState.RETRYING
        return health.cause

    def streams(self) -> bool:
        self.deployment.raise_failure()
        return self.deployment.health().state is ReplicationState.STREAMING

    def names(self, code: str, what: str) -> bool:
        cause = self.cause()
        return cause is not None and cause.code == code and what in cause.what

    def finds(self, code: str) -> bool:
        """Whether the source's health is said to lack this."""
        self.deployment.raise_failure()
        return code in {finding.code for finding in self.deployment.health().findings}

    def compared(self) -> set[str]:
        """Tables that are compared with the source."""
        return {each.table for each in self.deployment.health().compared}

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


FollowSource = Callable[..., FollowedSource]
"""`follow_source(server)` makes a source there, or on the session's server, and starts following it."""
