"""What threatens a source is said before it happens, and the replicator keeps how it stands."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import psycopg
import pytest

import headwater.replication.monitor
from headwater.embedded.postgres import StopMode
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.replication.status import ReplicationState, SourceStatus, from_json
from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness import health
from headwater.source.readiness.checks import source_findings
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import look, slot_findings
from headwater.source.slot import READERS
from headwater.storage.address import StoreAddress
from headwater.storage.contract.store import StoreUnreachableError
from headwater.storage.open import open_store
from headwater.storage.store import Store
from headwater_rules.plan import TablePattern
from tests.support.fix_headwater import WATCHED, Deploy, Deployment, plan_of
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import NOTES, auto_streams
from tests.support.waiting import wait_until

SLOT = "headwater_default"


def found(settings: SourceSettings) -> dict[str, Finding]:
    """What is found, of all tables."""
    with connect(settings) as conn:
        oids = {oid for (oid,) in conn.execute("select oid::int8 from pg_class").fetchall()}
        return {finding.code: finding for finding in look(conn, settings, SLOT, oids).findings}


def own_server(source_with: Callable[..., SourceDb], **options: str) -> SourceDb:
    """A server with a publication and a slot that nobody reads."""
    source = source_with(**options)
    source.execute("create table notes (id int primary key); create publication headwater for table notes")
    source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", SLOT)
    return source


def fill_segments(source: SourceDb, count: int) -> None:
    for _ in range(count):
        source.execute("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")


def test_slot_budget_half_used(source_with: Callable[..., SourceDb]) -> None:
    source = own_server(source_with, max_slot_wal_keep_size="128MB", max_wal_size="2GB")
    settings = source.settings()
    assert found(settings) == {}
    fill_segments(source, 6)
    warned = found(settings)["HW_2021"]
    assert not warned.fatal
    assert warned.what == "more than half of the 128 MB of log that the slot may hold is used up"
    assert "max_slot_wal_keep_size = '256MB'" in warned.fix
    fill_segments(source, 6)
    urgent = found(settings)["HW_2021"]
    assert urgent.fatal
    assert "lost at the source's next checkpoint" in urgent.what
    source.execute("checkpoint")
    slot = look(source.connection, settings, SLOT, ()).slot
    assert slot is not None
    assert slot.wal_status == "lost"


def test_oldest_transaction_age(source_with: Callable[..., SourceDb]) -> None:
    source = own_server(source_with, autovacuum_freeze_max_age="100000")
    assert found(source.settings()) == {}
    source.execute(
        "do $$ begin for i in 1..50100 loop"
        " begin perform pg_current_xact_id(); insert into notes values (1); raise exception 'x';"
        " exception when raise_exception then null; end; end loop; end $$"
    )
    assert "vacuuming its catalog" in found(source.settings())["HW_2022"].what


def test_foreign_inactive_slot(source_with: Callable[..., SourceDb]) -> None:
    source = own_server(source_with, max_wal_size="2GB")
    source.execute("select pg_create_physical_replication_slot('standby', true)")
    fill_segments(source, 66)
    forgotten = found(source.settings())["HW_2023"]
    assert 'nobody reads the replication slot "standby"' in forgotten.what
    assert "run SELECT pg_drop_replication_slot('standby')" in forgotten.fix


def test_standby_blocks_stream(source_with: Callable[..., SourceDb]) -> None:
    source = own_server(source_with)
    source.needs(17, "synchronized_standby_slots")
    settings = source.settings()
    source.execute("select pg_drop_replication_slot(%s)", SLOT)
    source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)", SLOT)
    source.execute("select pg_create_physical_replication_slot('down')")
    source.execute("alter system set synchronized_standby_slots = 'gone, down'")
    source.execute("select pg_reload_conf()")
    wait_until(lambda: "HW_2032" in found(settings), "the setting to be in force")
    told = [f.what for f in look(source.connection, settings, SLOT, set()).findings if f.code == "HW_2032"]
    assert [what.partition(", ")[2] for what in sorted(told)] == ["which nobody reads", "which does not exist"]


@pytest.mark.parametrize(
    ("sql", "code", "what", "fix"),
    [
        (
            "alter publication headwater set (publish = 'insert, delete')",
            "PSYNC_S1142",
            "update, truncate of public.notes is not published",
            "SET (publish = 'insert, update, delete, truncate')",
        ),
        ("drop publication headwater", "PSYNC_S1141", 'publication "headwater" does not exist', "source prepare"),
    ],
)
def test_stream_blocker_is_named(source_db: SourceDb, sql: str, code: str, what: str, fix: str) -> None:
    source_db.execute("create table notes (id int primary key, body text not null)")
    source_db.execute("create publication headwater for table notes")
    assert found(source_db.settings()) == {}
    source_db.execute(sql)
    (finding,) = found(source_db.settings()).values()
    assert finding.code == code
    assert what in finding.what
    assert fix in finding.fix


@pytest.mark.parametrize(
    ("sql", "form"),
    [
        ("create view v as select 1 as id", "a view"),
        ("create materialized view v as select 1 as id", "a materialized view"),
        ("create unlogged table v (id int primary key)", "an unlogged table"),
        (
            "create foreign data wrapper w; create server s foreign data wrapper w; create foreign table v () server s",
            "a foreign table",
        ),
    ],
)
def test_unstreamable_is_named_by_kind(source_db: SourceDb, sql: str, form: str) -> None:
    source_db.execute("create publication headwater")
    pattern = TablePattern("default", "public", "v")
    for told, change in (
        ("no table matches public.v", "select"),
        (f"public.v, which the sync config names, is {form}", sql),
    ):
        source_db.execute(change)
        with connect(source_db.settings()) as conn:
            (finding,) = look(conn, source_db.settings(), SLOT, (), [pattern]).findings
        assert finding.code == "HW_2019"
        assert told in finding.what


def test_unwritable_table_is_named_without_rule(source_db: SourceDb) -> None:
    source_db.execute(
        "create table notes (id int primary key); create table log (line text); insert into log values ('x');"
        " create table quiet (line text); alter table quiet replica identity nothing;"
        " create publication headwater for all tables"
    )
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        source_db.execute("update log set line = 'y'")
    settings, notes = source_db.settings(), [TablePattern("default", "public", "notes")]
    with connect(settings) as conn:
        for findings in (look(conn, settings, SLOT, (), notes).findings, source_findings(conn, settings, notes)):
            (finding,) = [f for f in findings if f.code in {"HW_2036", "HW_2017"}]
            assert finding.code == "HW_2036"
            assert finding.what == "public.log has no primary key, so Postgres refuses its updates and deletes"
            assert "or take it out of the publication: the sync config does not name it" in finding.fix
        source_db.execute("".join(f"create table other_{number} (a int);" for number in range(12)))
        told = [f.what for f in source_findings(conn, settings, notes) if f.code == "HW_2036"]
        assert (len(told), told[-1][:46]) == (11, "Postgres refuses updates and deletes of 3 more")
        source_db.execute("create publication inserts for table log with (publish = 'insert')")
        only = replace(settings, publications=("inserts",))
        assert "HW_2036" not in {f.code for f in source_findings(conn, only, notes)}


def test_unnamed_children_are_named(source_db: SourceDb) -> None:
    source_db.execute(
        "create table m (id int primary key); create table m1 (primary key (id)) inherits (m);"
        " create table m2 (primary key (id)) inherits (m); create publication headwater for all tables;"
        " create table p (id int primary key) partition by range (id); create table p1 partition of p default"
    )
    settings = source_db.settings()
    with connect(settings) as conn:
        for names, heirs in ((["m", "p"], "2 tables inherit"), (["m", "m1"], "a table inherits"), (["m%"], "")):
            patterns = [TablePattern("default", "public", name) for name in names]
            findings = look(conn, settings, SLOT, (), patterns).findings
            assert [f.code for f in findings] == (["HW_2035"] if heirs else [])
            assert all(f"of public.m only its own rows reach devices: {heirs}" in f.what for f in findings)


def test_foreign_version_notes_are_ignored() -> None:
    assert from_json("") is None
    assert from_json('{"state": "dreaming"}') is None
    assert from_json("[]") is None


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id text primary key, body text); insert into notes values ('1')")
    return deploy(NOTES, intervals=WATCHED)


def standing(deployment: Deployment) -> SourceStatus:
    """How the replicator says it stands."""
    wait_until(lambda: deployment.health().at is not None, "the first look")
    deployment.raise_failure()
    return deployment.health()


def flows(deployment: Deployment) -> bool:
    """The stream flows, and the source was looked at."""
    deployment.raise_failure()
    health = deployment.health()
    return health.state is ReplicationState.STREAMING and health.slot is not None


def attempts(deployment: Deployment) -> int:
    """Errors in a row."""
    cause = standing(deployment).cause
    return 0 if cause is None else cause.attempts


def test_warnings_are_logged_once_and_resolved(
    deployment: Deployment, source_db: SourceDb, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.replication.monitor")
    deployment.intervals = replace(deployment.intervals, health=0.2)
    deployment.start()
    wait_until(lambda: flows(deployment), "the first look")
    assert standing(deployment).findings == ()
    for _ in range(2):
        source_db.execute("alter table notes drop constraint notes_pkey")
        wait_until(lambda: [f.code for f in standing(deployment).findings] == ["HW_2017"], "the warning")
        source_db.execute("alter table notes add primary key (id)")
        wait_until(lambda: standing(deployment).findings == (), "the warning to go")
    said = [record.getMessage() for record in caplog.records if "HW_2017" in record.getMessage()]
    assert [line.partition("[")[0] for line in said] == ["", "resolved: "] * 2
    wait_until(lambda: standing(deployment).state is ReplicationState.STREAMING, "the comparison to end")
    deployment.stop()
    assert standing(deployment).state is ReplicationState.STOPPED
    assert standing(deployment).cause is None


def test_open_transactions_block_start_and_compare(
    source_with: Callable[..., SourceDb],
    deploy_on: Deploy,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of a session, one that was prepared and forgotten; seen by a role that may see what others do, and by one
    that may not."""
    caplog.set_level(logging.INFO, "headwater")
    source = source_with(max_prepared_transactions="2")
    source.execute("create table notes (id text primary key, body text); create table other (id text primary key)")
    source.execute("create role follower login replication; create publication headwater for all tables")
    source.execute("grant select on notes to follower")
    source.execute("create database shop")
    forgotten = psycopg.connect(source.server.dsn("shop"), autocommit=True)
    pid = forgotten.info.backend_pid
    forgotten.execute("create table carts (id int)")
    forgotten.execute("begin")
    forgotten.execute("/* a secret */ insert into carts values (1)")
    source.execute("begin; insert into other values ('1'); prepare transaction 'it''s'")
    deployment = deploy_on(source, NOTES, user="follower", intervals=WATCHED)
    with monkeypatch.context() as patch, connect(replace(deployment.settings, user="postgres")) as conn:
        patch.setattr(health, "_OLD", "0 s")  # not later: a look before the slot is begun would name them, too
        before = [f for f in slot_findings(conn, SLOT, None) if f.code == "HW_2033"]
    assert [f.fatal for f in before] == [False, False]
    assert [each.what.partition(" waits for ")[0] for each in before] == ["a start without a replication slot"] * 2

    def waits_for(*told: str) -> Finding | None:
        found = [f for f in standing(deployment).findings if f.code == "HW_2033" and all(t in f.what for t in told)]
        return found[0] if found else None

    try:
        deployment.start(publish=False)
        wait_until(lambda: waits_for(f"pid {pid}") is not None, "the session to be named")
        assert any("making slot" in record.getMessage() for record in caplog.records)
        unseen = waits_for("the new replication slot waits", "database shop", "not shown to us: GRANT pg_read_all")
        assert unseen is not None
        assert unseen.fatal
        assert unseen.sql == (f"SELECT pg_terminate_backend({pid})",)
        deployment.stop()  # which does not wait for the transactions
        caplog.clear()
        deployment.start(publish=False)
        wait_until(lambda: f"pid {pid}" in caplog.text, "the session to be named again, before there are more rights")
        source.execute("grant pg_read_all_stats to follower")
        wait_until(lambda: waits_for("idle in transaction, last INSERT") is not None, "what it does to be named")
        seen = waits_for("idle in transaction, last INSERT")
        assert seen is not None
        assert seen.since is not None
        assert "secret" not in str(seen)
        assert re.search(r", \d+ s old; have it committed or rolled back", str(seen))
        forgotten.execute("select")
        wait_until(lambda: waits_for("idle in transaction, last SELECT") is not None, "its next statement to be named")
        assert "resolved" not in caplog.text, "it is the same transaction"
        source.execute(unseen.sql[0])
        wait_until(lambda: waits_for("the prepared transaction 'it''s'") is not None, "the prepared one to be named")
        prepared = waits_for("role postgres, database postgres")
        assert prepared is not None
        assert prepared.since is not None
        source.execute(prepared.sql[0])
        wait_until(lambda: flows(deployment) and waits_for() is None, "the first start to be over")
        with psycopg.connect(source.dsn) as writer:
            writer.execute("insert into other values ('2')")
            source.execute("alter table notes add column filled text default 'x'")
            wait_until(lambda: waits_for("the comparison with the source waits") is not None, "it to be named")
            waiting = waits_for(f"pid {writer.info.backend_pid}")
            assert waiting is not None
            assert not waiting.fatal
    finally:
        forgotten.close()


def test_no_slot_left_for_compare(source_with: Callable[..., SourceDb], deploy_on: Deploy) -> None:
    source = source_with(max_replication_slots="2", max_wal_senders="2")
    source.execute("create table notes (id text primary key, body text)")
    deployment = deploy_on(source, NOTES, intervals=WATCHED).start()
    source.execute("alter table notes add column a text default 'x'")
    wait_until(lambda: deployment.bulk_records()[-1].kind != "snapshot", "a comparison")
    wait_until(lambda: flows(deployment), "its end")
    assert standing(deployment).findings == ()
    source.execute("select pg_create_physical_replication_slot('of_somebody')")
    source.execute("alter table notes add column b text default 'x'")
    wait_until(lambda: "HW_2014" in {f.code for f in standing(deployment).findings}, "the lack to be named")
    for number in range(3):
        source.execute("insert into notes values (%s)", str(number))
        assert ("notes", str(number)) in deployment.rows("a")
        wait_until(lambda: standing(deployment).state is ReplicationState.RESYNCING, "the stream to be followed")
    assert standing(deployment).trouble is None
    source.execute("select pg_drop_replication_slot('of_somebody')")
    wait_until(lambda: flows(deployment) and standing(deployment).findings == (), "the comparison to end")


def test_lock_of_table_is_named(source_db: SourceDb) -> None:
    source_db.execute("create table notes (id int primary key)")
    source_db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", source_db.name)
    settings = source_db.settings()

    def named() -> list[str]:
        return [f.what for f in slot_findings(conn, source_db.name, None) if f.code == "HW_2033"]

    with psycopg.connect(source_db.dsn) as writer, connect(settings) as conn:
        writer.execute("lock table notes in access exclusive mode")
        pid = writer.info.backend_pid
        with connect(settings, application_name=READERS) as reading:
            reader = threading.Thread(target=lambda: reading.execute("table notes"))
            reader.start()
            wait_until(lambda: named() != [], "it to be named")
            (what,) = named()
            writer.rollback()
            reader.join()
    assert what.startswith(f"reading notes waits for the open transaction of pid {pid} (role postgres")


@pytest.mark.long
def test_store_unreachable_at_start(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when it is restarted, just when a replicator takes over."""
    failures = [StoreUnreachableError("the store's database cannot be reached")] * 2

    def reached_later(address: StoreAddress) -> Store:
        if failures:
            raise failures.pop()
        return open_store(address)

    monkeypatch.setattr(headwater.replication.monitor, "open_store", reached_later)
    deployment.start()
    wait_until(lambda: flows(deployment), "the first look")


def test_compared_tables_have_reasons(deployment: Deployment, source_db: SourceDb) -> None:
    source_db.execute("create table other (id text primary key)")
    deployment.start()
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("insert into other values ('open')")  # for which the comparison's snapshot waits
        source_db.execute("alter table notes add column filled text default 'x'")
        wait_until(lambda: standing(deployment).state is ReplicationState.RESYNCING, "the comparison")
        (compared,) = standing(deployment).compared
        assert (compared.table, compared.reason) == ("public.notes", "its definition changed")
        source_db.execute("insert into notes values ('2')")
        assert ("notes", "2") in deployment.rows("a")
    wait_until(lambda: standing(deployment).state is ReplicationState.STREAMING, "the comparison to end")
    assert standing(deployment).compared == ()


def test_error_is_kept_until_rows_flow(source_with: Callable[..., SourceDb], deploy_on: Deploy) -> None:
    source = source_with()
    server = source.server
    source.execute("create table notes (id text primary key)")
    deployment = deploy_on(source, NOTES, intervals=replace(WATCHED, health=0.2)).start()
    wait_until(lambda: flows(deployment), "the first look")
    source.connection.close()
    server.stop(StopMode.FAST)
    wait_until(lambda: attempts(deployment) > 1, "a second attempt")
    health = standing(deployment)
    assert health.state is ReplicationState.RETRYING
    assert health.slot is None
    assert health.cause is not None
    assert health.cause.code == "HW_2001"
    assert "the source database cannot be reached" in health.cause.what
    assert "check that Postgres runs there" in health.cause.fix
    server.start()
    wait_until(lambda: standing(deployment).state is ReplicationState.STREAMING, "rows to flow again")
    assert standing(deployment).cause is None
    assert standing(deployment).trouble is not None
    wait_until(lambda: standing(deployment).slot is not None, "the next look")


@pytest.mark.parametrize("whose", ["of another database", "of others in the same"])
def test_irrelevant_log_is_released(deployment: Deployment, source_db: SourceDb, whose: str) -> None:
    deployment.start()
    dsn = source_db.dsn if whose == "of others in the same" else source_db.server.dsn()
    with psycopg.connect(dsn, autocommit=True) as busy:
        for _ in range(3):
            busy.execute("select pg_logical_emit_message(false, 'x', repeat('x', 1000000)), pg_switch_wal()")
            end = parse_lsn(busy.execute("select pg_current_wal_lsn()::text").fetchall()[0][0])
            wait_until(partial(passed, source_db, end, "confirmed_flush_lsn"), "the slot to move on")
            busy.execute("checkpoint")  # which writes down what runs, as the server does by itself every 15 s
            wait_until(partial(passed, source_db, end, "restart_lsn"), "the log to be let go")


def passed(source: SourceDb, position: Lsn, column: str) -> bool:
    """Whether our slot has passed this position. The server keeps the log from `restart_lsn` on."""
    slot = f"select {column}::text from pg_replication_slots where database = current_database()"
    return parse_lsn(source.fetch(slot)[0][0]) >= position


def test_heartbeat_interval(deployment: Deployment, source_db: SourceDb) -> None:
    source_db.execute("create publication headwater for all tables")
    source_db.execute("select pg_create_logical_replication_slot('peek', 'pgoutput')")
    deployment.heartbeat_seconds = 1
    deployment.start()
    peek = (
        "select count(*) from pg_logical_slot_peek_binary_changes('peek', null, null, 'proto_version', '1',"
        " 'publication_names', 'headwater', 'messages', 'true') where position('headwater'::bytea in data) > 0"
    )
    wait_until(lambda: source_db.fetch(peek)[0][0] >= 3, "heartbeats")
    source_db.execute("select pg_drop_replication_slot('peek')")


def test_replicated_rows_are_counted(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute("insert into notes select n::text, 'x' from generate_series(1, 30) n")
    deployment = deploy(NOTES).start()
    wait_until(lambda: standing(deployment).totals.rows == 30, "the rows of the snapshot")
    before = standing(deployment).totals
    assert before.chunks > 0
    source_db.execute("insert into notes select n::text, 'y' from generate_series(31, 34) n")
    source_db.execute("update notes set body = 'z' where id = '1'")
    deployment.caught_up()
    wait_until(lambda: standing(deployment).totals.rows >= 35, "the changes")
    after = standing(deployment).totals
    assert after.rows == 35
    assert after.transactions - before.transactions >= 2
    assert after.bytes - before.bytes > 100
    assert after.chunks > before.chunks


def test_column_missing_in_wildcard_table(source_db: SourceDb) -> None:
    source_db.execute("create table log_1 (id int primary key, owner text); create table log_2 (id int primary key)")
    source_db.execute("create publication headwater for all tables")
    plan = plan_of(auto_streams(log='SELECT * FROM "log_%" AS log WHERE owner = auth.user_id()'))
    settings = source_db.settings()

    def lacking() -> list[tuple[str, bool]]:
        with connect(settings) as conn:
            found = source_findings(conn, settings, plan.tables(), plan.deciding())
        return [(f.what.partition(" ")[0], f.fatal) for f in found if f.code == "HW_R302"]

    assert lacking() == [("public.log_2", False)]
    source_db.execute("alter table log_1 drop column owner")
    assert lacking() == [("public.log_1", True), ("public.log_2", True)]
