"""What fails between a source and its devices: it is named while it lasts, and when it is mended devices go on from
where they were, without a restart and without reading the source again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries, StopMode
from headwater.errors import HeadwaterError
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.health import slot_findings
from headwater.source.slot import replication_connection
from headwater.storage.contract.versions import Origin, VersionState
from tests.integration.world import CONFIG, ROWS, SHOWN, NewWorld, SmallDisk, World
from tests.support.changed_source import Device
from tests.support.fix_headwater import wait_until
from tests.support.fix_postgres import FAST
from tests.support.lost_slots import outrun, unread
from tests.support.network import Network

NewServer = Callable[..., EmbeddedPostgres]


@dataclass(frozen=True)
class Fault:
    """Something that keeps rows from flowing, and the code, the text and the remedy by which it is named. What befalls
    a whole server gets one of its own."""

    begin: Callable[[World], None]
    mend: Callable[[World], None]
    code: str
    what: str
    fix: str
    server: bool = False


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
        server=True,
    ),
    "killed": Fault(
        lambda world: world.server.kill(),
        lambda world: world.server.start(),
        "HW_2001",
        "cannot be reached",
        "check that Postgres runs there",
        server=True,
    ),
    "standby": Fault(
        become_standby,
        lambda world: world.sql("select pg_promote(true, 60)"),
        "HW_2001",
        "is a standby",
        "primary",
        server=True,
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
        "did not answer for 4 s",
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
        server=True,
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_while_it_lasts_and_forgotten_when_it_is_mended(
    world_of: NewWorld, postgres_with: NewServer, fault: Fault
) -> None:
    world = world_of(postgres_with() if fault.server else None)
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


FOREIGN = {
    "role that may not log in": (refuse_login, "does not let this role log in: xxxx"),
    "role that may not replicate": (refuse_replication, "does not give this role a right that it needs: xxxx"),
    "another password": (change_password, "rejects user name or password: xxxx"),
}


@pytest.mark.parametrize(("begin", "what"), FOREIGN.values(), ids=FOREIGN)
def test_a_refusal_is_understood_in_any_language(
    world_of: NewWorld, postgres_with: NewServer, begin: Callable[[World], None], what: str
) -> None:
    world = world_of(postgres_with())
    world.network.foreign = True
    begin(world)
    world.network.drop()
    wait_until(lambda: world.names("HW_2002", what), "the cause to be named")


LIMITS = {
    "alter role follower connection limit 0": ("allows this role no more", "ALTER ROLE follower CONNECTION LIMIT -1"),
    "alter database postgres connection limit 0": ("to this database", "ALTER DATABASE postgres CONNECTION LIMIT -1"),
    "senders": ("has all its WAL senders in use", "ALTER SYSTEM SET max_wal_senders = "),
    "hba": ("lets in nobody with this host", "pg_hba.conf, and reload it"),
    "alter role follower nologin": ("does not let this role log in", "ALTER ROLE follower LOGIN"),
    "alter database postgres set default_transaction_read_only = on": ("though it is no standby", "disk is full"),
}


def test_each_limit_of_connections_is_named_with_its_own_remedy_in_any_language(postgres_with: NewServer) -> None:
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


def test_a_reader_of_the_slot_that_is_ended_comes_again(world_of: NewWorld) -> None:
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
    outrun(world.source)


@pytest.mark.parametrize("foreign", [False, True], ids=["in English", "in another language"])
@pytest.mark.parametrize("lose", [lose_slot, outrun_slot])
def test_a_lost_slot_costs_what_differs(
    world_of: NewWorld, postgres_with: NewServer, lose: Callable[[World], None], foreign: bool
) -> None:
    world = world_of(postgres_with(max_slot_wal_keep_size="64MB"))
    world.network.foreign = foreign
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


@pytest.mark.parametrize("foreign", [False, True], ids=["in English", "in another language"])
def test_a_slot_that_is_lost_while_it_is_read_costs_what_differs(
    world_of: NewWorld, postgres_with: NewServer, foreign: bool
) -> None:
    world = world_of(postgres_with(max_slot_wal_keep_size="64MB"))
    world.network.foreign = foreign
    world.network.drop()
    before = world.deployment.op_count()
    with unread():
        world.sql("update notes set body = 'later' where id in ('2', '3'); delete from notes where id = '4'")
        assert world.source.fetch("select active from pg_replication_slots") == [(True,)]
        outrun(world.source)
        world.sql("update notes set body = 'last' where id = '5'")
    world.goes_on()
    assert world.deployment.op_count() - before == 5
    assert world.kinds() == ["snapshot", "re-sync"]
    assert world.source.fetch("select wal_status, active from pg_replication_slots") == [("reserved", True)]
    world.deployment.close()
    assert world.deployment.problems() == []


def remake_publication(world: World) -> None:
    """While nobody follows the stream, which has a row from in between."""
    world.network.cut()
    wait_until(lambda: not world.source.fetch("select from pg_replication_slots where active"), "the slot to be left")
    world.sql("drop publication headwater")
    world.sql("update notes set body = 'later' where id in ('2', '3'); delete from notes where id = '4'")
    world.sql("create publication headwater for all tables")
    world.network.mend()


def test_a_publication_that_was_made_again_is_understood_in_any_language(world_of: NewWorld) -> None:
    world = world_of()
    world.network.foreign = True
    remake_publication(world)
    world.goes_on()
    assert world.kinds() == ["snapshot", "re-sync"]


def test_a_server_that_speaks_german_is_understood(world_of: NewWorld, german_postgres: EmbeddedPostgres) -> None:
    world = world_of(german_postgres)
    remake_publication(world)
    world.goes_on()
    assert world.kinds() == ["snapshot", "re-sync"]
    change_password(world)
    wait_until(lambda: world.names("HW_2002", "rejects user name or password"), "the cause to be named")
    hba = german_postgres.data_dir / "pg_hba.conf"
    hba.write_text("host all postgres 127.0.0.1/32 trust\n", encoding="utf-8")
    world.sql("select pg_reload_conf()")
    wait_until(lambda: world.names("HW_2002", "pg_hba.conf"), "the cause to be named")


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
    world_of: NewWorld, hidden: Hidden, caplog: pytest.LogCaptureFixture
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
    world_of: NewWorld, small_disk: Callable[[int], SmallDisk], caplog: pytest.LogCaptureFixture
) -> None:
    disk = small_disk(30)
    world = world_of(directory=disk.path / "store")
    disk.fill()
    world.sql("insert into notes select 'big' || i, repeat('x', 1000) from generate_series(1, 2000) i")
    wait_until(lambda: caplog.text.count("the disk is full") > 1, "a second attempt")
    assert "free space on it" in caplog.text
    wait_until(
        lambda: world.names("HW_4001", "the disk is full"), "the cause to be told though the store can't be written"
    )
    wait_until(lambda: (told := world.deployment.health()) is not None and (told.lag_seconds or 0) > 0, "the lag")
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
    world_of: NewWorld, small_disk: Callable[[int], SmallDisk], postgres_binaries: PostgresBinaries
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


def test_a_config_that_is_deployed_while_tables_are_compared(world_of: NewWorld) -> None:
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
