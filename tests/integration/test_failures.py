"""What fails between a source and its devices: it is named while it lasts, and when it is mended devices go on from
where they were, without a restart and without reading the source again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries, StopMode
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.health import slot_findings
from headwater.source.slot import replication_connection
from headwater.source.stream import UNDECODABLE_TIMES, ReplicationStream, UndecodableError
from headwater.storage.contract.versions import Origin, VersionState
from tests.integration.followed_source import ROWS, SHOWN, FollowedSource, FollowSource, SmallDisk
from tests.support.changed_source import Device
from tests.support.fix_postgres import FAST
from tests.support.lost_slots import outrun, unread
from tests.support.network import Network
from tests.support.sync_configs import NOTES_AND_OTHERS
from tests.support.waiting import wait_until

NewServer = Callable[..., EmbeddedPostgres]
Step = str | Callable[[FollowedSource], None]
"""What is done: SQL, or anything else."""


@dataclass(frozen=True)
class Fault:
    """Something that keeps rows from flowing, and the code, the text and the remedy by which it is named. What befalls
    a whole server gets one of its own."""

    begin: Step
    mend: Step
    code: str
    what: str
    fix: str
    server: bool = False


def befall(followed: FollowedSource, begin: Step) -> None:
    """Begin a fault. What SQL changes concerns sessions that begin later."""
    if callable(begin):
        begin(followed)
    else:
        followed.sql(begin)
        followed.disconnect()


def change_password(followed: FollowedSource) -> None:
    hba = followed.server.data_dir / "pg_hba.conf"
    hba.write_text("host all follower 127.0.0.1/32 scram-sha-256\n" + hba.read_text(), encoding="utf-8")
    followed.sql("select pg_reload_conf(); alter role follower password 'wrong'")
    followed.disconnect()


def become_standby(followed: FollowedSource) -> None:
    (followed.server.data_dir / "standby.signal").touch()
    followed.server.restart()


DOWN = ("HW_2001", "cannot be reached", "check that Postgres runs there")
FAULTS = {
    "stopped": Fault(
        lambda followed: followed.server.stop(StopMode.FAST), lambda followed: followed.server.start(),
        *DOWN, server=True,
    ),
    "killed": Fault(
        lambda followed: followed.server.kill(), lambda followed: followed.server.start(), *DOWN, server=True
    ),
    "standby": Fault(
        become_standby, "select pg_promote(true, 60)", "HW_2001", "is a standby", "primary", server=True
    ),
    "network cut": Fault(
        lambda followed: followed.network.cut(), lambda followed: followed.network.mend(),
        "HW_2001", "cannot be reached", "firewall",
    ),
    "network that swallows everything": Fault(
        lambda followed: followed.network.swallow(), lambda followed: followed.network.mend(),
        "PSYNC_S1120", "did not answer for 4 s", "check the network",
    ),
    "role that may not log in": Fault(
        "alter role follower nologin", "alter role follower login",
        "HW_2002", "does not let this role log in", "ALTER ROLE follower LOGIN",
    ),
    "role that may not replicate": Fault(
        "alter role follower noreplication", "alter role follower replication",
        "HW_2002", "does not let this role replicate", "ALTER ROLE follower REPLICATION",
    ),
    "another password": Fault(
        change_password, "alter role follower password 'right'",
        "HW_2002", "rejects user name or password", "set username and password in replication.connections", server=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_fault_is_named_and_forgotten(follow_source: FollowSource, postgres_with: NewServer, fault: Fault) -> None:
    followed = follow_source(postgres_with() if fault.server else None)
    followed.sql("update notes set body = 'before' where id = '1'")
    befall(followed, fault.begin)
    wait_until(lambda: followed.names(fault.code, fault.what), "the cause to be named")
    cause = followed.cause()
    assert cause is not None
    assert fault.fix in cause.fix
    if callable(fault.mend):
        fault.mend(followed)
    else:
        followed.sql(fault.mend)
    followed.sql("update notes set body = 'later' where id = '2'; delete from notes where id = '3'")
    followed.goes_on()
    assert followed.cause() is None
    assert followed.kinds() == ["snapshot"]


FOREIGN = {
    "role that may not log in": "does not let this role log in: xxxx",
    "role that may not replicate": "does not give this role a right that it needs: xxxx",
    "another password": "rejects user name or password: xxxx",
}


@pytest.mark.parametrize("fault", FOREIGN)
def test_refusal_in_any_language(follow_source: FollowSource, postgres_with: NewServer, fault: str) -> None:
    followed = follow_source(postgres_with())
    followed.network.foreign = True
    befall(followed, FAULTS[fault].begin)
    followed.network.drop()
    wait_until(lambda: followed.names("HW_2002", FOREIGN[fault]), "the cause to be named")


LIMITS = {
    "alter role follower connection limit 0": ("allows this role no more", "ALTER ROLE follower CONNECTION LIMIT -1"),
    "alter database postgres connection limit 0": ("to this database", "ALTER DATABASE postgres CONNECTION LIMIT -1"),
    "senders": ("has all its WAL senders in use", "ALTER SYSTEM SET max_wal_senders = "),
    "hba": ("lets in nobody with this host", "pg_hba.conf, and reload it"),
    "alter role follower nologin": ("does not let this role log in", "ALTER ROLE follower LOGIN"),
    "alter database postgres set default_transaction_read_only = on": ("though it is no standby", "disk is full"),
}


def test_connection_limits_in_any_language(postgres_with: NewServer) -> None:
    server = postgres_with(max_wal_senders="4")
    hba = server.data_dir / "pg_hba.conf"
    lets_in = hba.read_text(encoding="utf-8")
    with psycopg.connect(server.dsn(), autocommit=True) as admin, Network(server.port) as network:
        admin.execute("create role follower login replication; create schema authorization follower")
        settings = SourceSettings("127.0.0.1", "postgres", "follower", port=network.port, sslmode="disable")
        for limit, (what, fix) in LIMITS.items():
            senders = [replication_connection(settings, "standby") for _ in range(4 if limit == "senders" else 0)]
            if limit == "hba":
                hba.write_text("host all follower 127.0.0.1/32 reject\n" + lets_in, encoding="utf-8")
            if limit.startswith("alter"):
                admin.execute(limit.encode())
            admin.execute("select pg_reload_conf()")
            for foreign in (False, True):
                network.foreign = foreign
                found = wait_for_refusal(settings)
                assert what in found.what, (limit, found)
                assert fix in found.fix, (limit, found)
                assert ("xxxx" in found.what) is foreign, found
            network.foreign = False
            hba.write_text(lets_in, encoding="utf-8")
            admin.execute("alter role follower login connection limit -1; alter database postgres connection limit -1")
            admin.execute("select pg_reload_conf()")
            for each in senders:
                each.finish()
            wait_until(lambda: accepts(settings), "the limit to be gone")
        read_only_until_the_remedy_is_copied(server, settings)
        admin.execute("set default_transaction_read_only = off")
        admin.execute("alter database postgres reset default_transaction_read_only")
        admin.execute("alter system set default_transaction_read_only = on")
        admin.execute("select pg_reload_conf()")
        read_only_until_the_remedy_is_copied(server, settings)


def read_only_until_the_remedy_is_copied(server: EmbeddedPostgres, settings: SourceSettings) -> None:
    def told(conn: psycopg.Connection) -> list[str]:
        return [f.fix for f in slot_findings(conn, "none", None) if f.code == "HW_2034"]

    def is_told() -> bool:
        with connect(settings) as conn:
            return told(conn) != []

    wait_until(is_told, "the setting to be taken up")
    with connect(settings) as conn, psycopg.connect(server.dsn(), autocommit=True) as copied:
        copied.execute(told(conn)[0].rpartition("or run ")[2].encode())
        assert told(conn) == []


def accepts(settings: SourceSettings) -> bool:
    try:
        with connect(settings):
            replication_connection(settings, "test").finish()
    except HeadwaterError:
        return False
    return True


def wait_for_refusal(settings: SourceSettings) -> HeadwaterError:
    """What comes of replicating, and of writing. The server takes up what was changed a moment later."""
    found: list[HeadwaterError] = []

    def refused() -> bool:
        try:
            with connect(settings) as conn, source_errors(settings):
                replication_connection(settings, "test").finish()
                conn.execute("create table follower.made (id int)")
                conn.execute("drop table follower.made")
        except HeadwaterError as error:
            found.append(error)
        return bool(found)

    wait_until(refused, "the refusal")
    return found[0]


def lose_slot(followed: FollowedSource) -> None:
    followed.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots")


def outrun_slot(followed: FollowedSource) -> None:
    outrun(followed.source)


@pytest.mark.parametrize("foreign", [False, True], ids=["in English", "in another language"])
@pytest.mark.parametrize("lose", [lose_slot, outrun_slot])
def test_lost_slot_costs_what_differs(
    follow_source: FollowSource, postgres_with: NewServer, lose: Callable[[FollowedSource], None], foreign: bool
) -> None:
    followed = follow_source(postgres_with(max_slot_wal_keep_size="64MB"))
    followed.network.foreign = foreign
    before = followed.deployment.op_count()
    followed.network.cut()
    wait_until(lambda: followed.names("HW_2001", "cannot be reached"), "the cause to be named")
    wait_until(
        lambda: not followed.source.fetch("select from pg_replication_slots where active"), "the slot to be left"
    )
    followed.sql("update notes set body = 'later' where id in ('2', '3'); delete from notes where id = '4'")
    lose(followed)
    followed.network.mend()
    followed.goes_on()
    assert followed.deployment.op_count() - before == 4
    assert followed.kinds() == ["snapshot", "re-sync"]


@pytest.mark.parametrize("foreign", [False, True], ids=["in English", "in another language"])
def test_slot_lost_while_read(follow_source: FollowSource, postgres_with: NewServer, foreign: bool) -> None:
    followed = follow_source(postgres_with(max_slot_wal_keep_size="64MB"))
    followed.network.foreign = foreign
    followed.network.drop()
    before = followed.deployment.op_count()
    with unread():
        followed.sql("update notes set body = 'later' where id in ('2', '3'); delete from notes where id = '4'")
        assert followed.source.fetch("select active from pg_replication_slots") == [(True,)]
        outrun(followed.source)
        followed.sql("update notes set body = 'last' where id = '5'")
    followed.goes_on()
    assert followed.deployment.op_count() - before == 5
    assert followed.kinds() == ["snapshot", "re-sync"]
    assert followed.source.fetch("select wal_status, active from pg_replication_slots") == [("reserved", True)]


def test_log_that_postgres_cannot_decode(follow_source: FollowSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decoding fails at the same place whenever it is tried, through a fault of Postgres."""
    followed = follow_source()
    before = followed.deployment.op_count()
    opened, starts = ReplicationStream.__init__, list[Lsn]()

    def failing(stream: ReplicationStream, settings: SourceSettings, slot: str, start: Lsn, *others: Any) -> None:
        starts.append(start)
        if start == starts[0]:
            raise UndecodableError("Postgres can't decode its log: could not map filenode to relation OID", "here", "")
        opened(stream, settings, slot, start, *others)

    followed.network.cut()
    wait_until(
        lambda: not followed.source.fetch("select from pg_replication_slots where active"), "the slot to be left"
    )
    followed.sql("update notes set body = 'later' where id in ('2', '3'); delete from notes where id = '4'")
    monkeypatch.setattr(ReplicationStream, "__init__", failing)
    followed.network.mend()
    followed.goes_on()
    assert followed.deployment.op_count() - before == 4
    assert followed.kinds() == ["snapshot", "re-sync"]
    assert len(starts) == UNDECODABLE_TIMES + 1


def remake_publication(followed: FollowedSource) -> None:
    """While nobody follows the stream, which has a row from in between."""
    followed.network.cut()
    wait_until(
        lambda: not followed.source.fetch("select from pg_replication_slots where active"), "the slot to be left"
    )
    followed.sql("drop publication headwater")
    followed.sql("update notes set body = 'later' where id in ('2', '3'); delete from notes where id = '4'")
    followed.sql("create publication headwater for all tables")
    followed.network.mend()


def test_recreated_publication_in_any_language(follow_source: FollowSource) -> None:
    followed = follow_source()
    followed.network.foreign = True
    remake_publication(followed)
    followed.goes_on()
    assert followed.kinds() == ["snapshot", "re-sync"]


def test_german_server(follow_source: FollowSource, german_postgres: EmbeddedPostgres) -> None:
    followed = follow_source(german_postgres)
    remake_publication(followed)
    followed.goes_on()
    assert followed.kinds() == ["snapshot", "re-sync"]
    change_password(followed)
    wait_until(lambda: followed.names("HW_2002", "rejects user name or password"), "the cause to be named")
    hba = german_postgres.data_dir / "pg_hba.conf"
    hba.write_text("host all postgres 127.0.0.1/32 trust\n", encoding="utf-8")
    followed.sql("select pg_reload_conf()")
    wait_until(lambda: followed.names("HW_2002", "pg_hba.conf"), "the cause to be named")


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
        "revoke select on notes from follower", "grant select on notes to follower",
        "HW_2018", "may not read public.notes", 'GRANT SELECT ON "public"."notes" TO "follower"',
        "permission denied for table notes",
    ),
    "right to the schema revoked": Hidden(
        "revoke usage on schema public from public, follower", "grant usage on schema public to public",
        "HW_2018", "may not use schema public", 'GRANT USAGE ON SCHEMA "public" TO "follower"',
        "permission denied for schema public",
    ),
    "row-level security": Hidden(
        "alter table notes enable row level security", "alter role follower bypassrls",
        "PSYNC_S1145", "row-level security hides rows of public.notes", 'ALTER ROLE "follower" BYPASSRLS',
        "would be affected by row-level security",
    ),
}  # fmt: skip


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
def test_unreadable_rows_are_named(
    follow_source: FollowSource, hidden: Hidden, caplog: pytest.LogCaptureFixture
) -> None:
    followed = follow_source()
    followed.sql(hidden.begin)
    wait_until(lambda: followed.finds(hidden.code), "the finding")
    finding = next(each for each in followed.deployment.health().findings if each.code == hidden.code)
    assert finding.fatal
    assert hidden.what in finding.what
    assert hidden.fix in finding.fix

    followed.sql("update notes set body = 'streamed' where id = '2'")
    wait_until(lambda: followed.device.rows() == followed.truth(), "what needs no right to read")
    followed.sql("alter table notes add column filled text default 'x'")  # whose rows can't be read
    followed.sql("insert into others values ('2', 'beside')")
    wait_until(lambda: ("others", "2") in followed.device.rows(), "commits to another table")
    wait_until(lambda: "public.notes" in followed.compared(), "the comparison")
    wait_until(lambda: "[HW_5101]" in caplog.text, "the comparison to fail")
    assert hidden.refused in caplog.text
    assert len(followed.device.rows()) == len(followed.truth())

    followed.sql(hidden.mend)
    followed.goes_on()
    wait_until(lambda: not followed.finds(hidden.code), "the finding to go")


def test_full_disk_of_store(
    follow_source: FollowSource, small_disk: Callable[[int], SmallDisk], caplog: pytest.LogCaptureFixture
) -> None:
    disk = small_disk(30)
    followed = follow_source(directory=disk.path / "store")
    disk.fill()
    followed.sql("insert into notes select 'big' || i, repeat('x', 1000) from generate_series(1, 2000) i")
    wait_until(lambda: caplog.text.count("the disk is full") > 1, "a second attempt")
    assert "free space on it" in caplog.text
    wait_until(
        lambda: followed.names("HW_4001", "the disk is full"), "the cause to be told though the store can't be written"
    )
    wait_until(lambda: (followed.deployment.health().lag_seconds or 0) > 0, "the lag")
    followed.sql("update notes set body = 'meanwhile' where id = '2'")
    disk.make_room()
    followed.goes_on()
    assert followed.kinds() == ["snapshot"]
    trouble = followed.deployment.health().trouble
    assert trouble is not None
    assert trouble.what == "the disk is full"


def fill_log(followed: FollowedSource) -> None:
    """Until the server stops for want of room."""
    for _ in range(8):
        followed.sql("update notes set body = body || 'x' where id = '2'; select pg_switch_wal()")


def test_full_disk_of_source(
    follow_source: FollowSource, small_disk: Callable[[int], SmallDisk], postgres_binaries: PostgresBinaries
) -> None:
    disk = small_disk(200)
    sizes = {**FAST, "min_wal_size": "32MB", "max_wal_size": "48MB"}
    with EmbeddedPostgres(disk.path / "data", postgres_binaries, sizes) as server:
        followed = follow_source(server)
        disk.fill()
        with pytest.raises(psycopg.errors.DiskFull):
            followed.sql("insert into notes select 'big' || i, repeat('x', 1000) from generate_series(1, 20000) i")
        with pytest.raises(psycopg.OperationalError):
            fill_log(followed)
        wait_until(lambda: followed.cause() is not None, "the cause to be named")
        disk.make_room()
        server.restart(StopMode.IMMEDIATE)
        followed.goes_on()
        assert followed.kinds() == ["snapshot"]
        followed.deployment.close()
        assert followed.deployment.problems() == []


def test_deploy_during_compare(follow_source: FollowSource) -> None:
    followed = follow_source()
    with psycopg.connect(followed.source.dsn) as writer:
        writer.execute("insert into others values ('open', 'x')")  # for which the comparison's snapshot waits
        followed.sql("alter table notes add column filled text default 'x'")
        wait_until(lambda: "public.notes" in followed.compared(), "the comparison")
        with followed.deployment.store() as store:
            fewer = NOTES_AND_OTHERS.replace("FROM notes", "FROM notes WHERE body <> 'x5'")
            number = store.deploy(fewer, Origin.COMMAND).id
        followed.sql("update notes set body = 'x5' where id = '6'")

    def served() -> bool:
        followed.deployment.raise_failure()
        with followed.deployment.store() as store:
            return {v.id: v.state for v in store.versions()}[number] is VersionState.ACTIVE

    wait_until(served, "the version to be served")
    followed.deployment.yaml = fewer
    followed.shown = {**SHOWN, "public.notes": "body <> 'x5'"}
    followed.device = Device(followed.deployment)
    followed.goes_on()
    assert len([key for key in followed.device.rows() if key[0] == "notes"]) == ROWS - 2
