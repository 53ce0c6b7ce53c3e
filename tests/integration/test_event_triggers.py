"""Event triggers tell of changed tables at once, and can neither break the change nor be used against us."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.decode.pgoutput import Decoder
from headwater.oplog.change import Insert, LogicalMessage, Message
from headwater.oplog.lsn import ZERO
from headwater.source.connect import connect
from headwater.source.triggers import Installed, install, is_hint, remove, told_names, triggers_on
from tests.support.doc_blocks import ROOT, blocks_of
from tests.support.fix_headwater import TRIGGERED, Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until


@pytest.fixture
def plain_role(source_db: SourceDb) -> Iterator[str]:
    """A role that may make tables, and nothing else. Roles belong to the server, so it goes with the test."""
    role = f"{source_db.name}_plain"
    source_db.execute(f"create role {role} login; grant create on schema public to {role}")
    source_db.execute(f"grant create on database {source_db.name} to {role}")
    yield role
    source_db.execute(f"reset role; drop owned by {role} cascade; drop role {role}")


def on(source: SourceDb) -> bool:
    with connect(source.settings()) as conn:
        return triggers_on(conn)


def test_install_once_and_remove(source_db: SourceDb) -> None:
    settings = source_db.settings()
    assert not on(source_db)
    assert "CREATE EVENT TRIGGER headwater_ddl ON ddl_command_end" in " ".join(install(settings).done)
    assert on(source_db)
    assert install(settings) == Installed()
    assert remove(settings).done
    assert not on(source_db)
    assert source_db.fetch("select evtname from pg_event_trigger") == []
    assert source_db.fetch("select 1 from pg_namespace where nspname = 'headwater_source'") == []
    assert remove(settings) == Installed()
    assert install(settings).done
    assert on(source_db)


@pytest.mark.parametrize(
    "change",
    [
        "alter event trigger headwater_ddl disable",
        "alter event trigger headwater_drop enable replica",
        "drop event trigger headwater_drop",
        "create or replace function headwater_source.note_ddl() returns event_trigger language plpgsql as 'begin end'",
        "alter function headwater_source.note_ddl() reset search_path",
        "alter function headwater_source.note_ddl() security definer",
        "drop function headwater_source.note_ddl() cascade",
    ],
)
def test_changed_trigger_is_repaired(source_db: SourceDb, change: str) -> None:
    install(source_db.settings())
    source_db.execute(change)
    assert not on(source_db)
    assert install(source_db.settings()).done
    assert on(source_db)


def test_function_of_other_owner_is_not_used(source_db: SourceDb, plain_role: str) -> None:
    source_db.execute(f"set role {plain_role}; create schema headwater_source")
    source_db.execute(
        "create function headwater_source.note_ddl() returns event_trigger language plpgsql as 'begin end'; reset role"
    )
    install(source_db.settings())
    owner = "select pg_get_userbyid(proowner) from pg_proc where proname = 'note_ddl'"
    assert source_db.fetch(owner) == [("postgres",)]
    source_db.execute(f"alter function headwater_source.note_ddl() owner to {plain_role}")
    assert not on(source_db)
    install(source_db.settings())
    assert source_db.fetch(owner) == [("postgres",)]


def test_role_without_right_goes_without(source_db: SourceDb, plain_role: str) -> None:
    outcome = install(source_db.settings(user=plain_role))
    assert outcome.done == ()
    (note,) = outcome.warnings
    assert not note.fatal
    assert "changes of tables are found by reading the catalog" in note.what
    assert source_db.fetch("select 1 from pg_namespace where nspname = 'headwater_source'") == []
    assert install(source_db.settings(user=plain_role), source_db.settings()).done
    with connect(source_db.settings(user=plain_role)) as conn:
        assert triggers_on(conn)
    assert remove(source_db.settings(user=plain_role)).warnings
    assert on(source_db)


def streamed(source: SourceDb, *statements: str) -> list[str]:
    """What a stream brings of these: rows by their first value, and hints."""
    found = []
    for message in messages(source, *statements):
        if isinstance(message, Insert):
            found.append(str(message.new[0]))
        if isinstance(message, LogicalMessage) and is_hint(message):
            found.append("hint")
    return found


def messages(source: SourceDb, *statements: str) -> list[Message]:
    source.execute("select pg_create_logical_replication_slot('peek', 'pgoutput')")
    source.execute("set synchronous_commit = on")  # else the slot does not see the commit yet
    for statement in statements:
        source.execute(statement)
    payloads = source.fetch(
        "select data from pg_logical_slot_get_binary_changes('peek', null, null,"
        " 'proto_version', '1', 'publication_names', 'headwater', 'messages', 'true')"
    )
    return list(Decoder().decode([bytes(row[0]) for row in payloads]))


CHANGES = (
    "alter table t add column x int",
    "alter table t rename to u",
    "alter table t drop column b",
    "alter table t alter column b type bigint",
    "alter table t replica identity full",
    "alter table t set schema s2",
    "alter table t attach partition u for values in (1)",
    "alter table t detach partition part",
    "alter publication headwater add table other",
    "alter publication headwater drop table t",
    "alter publication headwater set table other",
    "alter publication headwater set (publish = 'insert')",
    "alter type mood add value 'glad'",
    "alter domain d add check (value > 0)",
    "alter schema s rename to s3",
    "drop table t",
    "drop index other_v",
    "drop schema s cascade",
    "drop publication headwater; create publication headwater for table other",
    "create table t3 (id int)",
    "create table t3 as select 1 as id",
    "select 1 as id into t3",
    "do $$ begin execute 'alter table t add column x int'; end $$",
)


@pytest.mark.parametrize("sql", CHANGES)
def test_ddl_writes_message(source_db: SourceDb, sql: str) -> None:
    partitions = " partition by list (id)" if "partition" in sql else ""
    source_db.execute("create type mood as enum ('sad'); create domain d as int")
    source_db.execute("create schema s; create schema s2; create table s.t (id int primary key)")
    source_db.execute(f"create table t (id int primary key, b int){partitions}")
    if partitions:
        source_db.execute("create table part partition of t for values in (7); create table u (like t including all)")
    source_db.execute("create table other (id int primary key, v int); create index other_v on other (v)")
    source_db.execute("create publication headwater for table t")
    install(source_db.settings())
    assert "hint" in streamed(source_db, sql)


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ('alter table t rename to "Größe"', ("public", "Größe")),
        ("alter table t set schema s", ("s", "t")),
        ("alter schema public rename to hidden", ("hidden", "t")),
        ("do $$ begin execute 'alter table t rename to u'; end $$", ("public", "u")),
        ("alter table t add column x int", ("public", "t")),
    ],
)
def test_message_names_partitioned_table(source_db: SourceDb, sql: str, name: tuple[str, str]) -> None:
    source_db.execute("create schema s; create table plain (id int)")
    source_db.execute("create table t (id int primary key, b int) partition by list (id)")
    source_db.execute("create publication headwater for table t")
    install(source_db.settings())
    ((oid,),) = source_db.fetch("select 't'::regclass::oid::int8")
    told = messages(source_db, "alter table plain add column x int", sql)
    assert [told_names(m) for m in told if isinstance(m, LogicalMessage)] == [{}, {oid: name}]


@pytest.mark.parametrize("content", ["ddl", "ddl 7b", "ddl zz", "ddl 5b5d", "ddl 7b2278223a317d", "ping", "ddl ä"])
def test_foreign_message_names_nothing(content: str) -> None:
    assert told_names(LogicalMessage(True, ZERO, "headwater", content.encode("latin-1"))) == {}


@pytest.fixture
def prepared(source_db: SourceDb) -> SourceDb:
    source_db.execute("create table t (id int primary key); create publication headwater for table t")
    install(source_db.settings())
    return source_db


def test_message_is_transactional(prepared: SourceDb) -> None:
    told = streamed(
        prepared,
        "begin; insert into t values (1); alter table t add column x int; insert into t values (2); commit",
        "insert into t values (3)",
    )
    assert sorted(told[:3]) == ["1", "2", "hint"]
    assert told[3:] == ["3"]


def test_rollback_writes_no_message(prepared: SourceDb) -> None:
    assert streamed(prepared, "begin; alter table t add column x int; rollback", "insert into t values (1)") == ["1"]


def test_temporary_tables_write_no_message(prepared: SourceDb) -> None:
    told = streamed(
        prepared,
        "create temp table u (id serial primary key); alter table u add column v int; drop table u",
        "create table if not exists t (id int)",
        "insert into t values (1)",
    )
    assert told == ["1"]


def test_ddl_of_other_replication_writes_message(prepared: SourceDb) -> None:
    told = streamed(
        prepared,
        "set session_replication_role = replica",
        "alter table t add column x int",
        "create table u (id int)",
        "drop table u",
    )
    assert told == ["hint"] * 3


@pytest.mark.parametrize("function", ["pg_logical_emit_message", "pg_event_trigger_ddl_commands"])
def test_ddl_succeeds_when_message_fails(prepared: SourceDb, plain_role: str, function: str) -> None:
    forms = prepared.fetch("select oid::regprocedure::text from pg_proc where proname = %s", function)
    assert forms
    prepared.execute(f"revoke execute on function {', '.join(form for (form,) in forms)} from public")
    prepared.execute(f"set role {plain_role}")
    prepared.execute("begin; create table theirs (id int); alter table theirs add column x int; commit")
    prepared.execute("drop table theirs")
    prepared.execute("reset role; insert into t values (1)")
    with psycopg.connect(prepared.dsn, user=plain_role, autocommit=True) as conn:
        conn.execute("set search_path = pg_temp, public")
        conn.execute("create function pg_temp.exists(x int) returns bool language sql as 'select 1 / 0 = 1'")
        conn.execute("create table public.theirs (id int)")


def test_ddl_succeeds_in_database_copy(prepared: SourceDb) -> None:
    copy = f"{prepared.name}_copy"
    prepared.connection.close()
    with psycopg.connect(prepared.server.dsn(), autocommit=True) as admin:
        admin.execute(f"create database {copy} template {prepared.name}".encode())
        with psycopg.connect(prepared.server.dsn(copy), autocommit=True) as conn:
            conn.execute("drop publication headwater; alter table t add column x int; drop table t")
        admin.execute(f"drop database {copy} with (force)".encode())


def test_forged_messages_do_nothing(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    deployment = deploy(NOTES, intervals=TRIGGERED).start()
    ops = deployment.op_count()
    for transactional in ("true", "false"):
        for content in ("ddl", "ddl 7b2231223a5b2261222c2262225d7d", "drop table notes", "", "ping", "x" * 100_000):
            source_db.execute(
                f"select pg_logical_emit_message({transactional}, 'headwater', %s) from generate_series(1, 200)",
                content,
            )
    source_db.execute("select pg_logical_emit_message(true, 'headwater', '\\x00ff'::bytea)")
    source_db.execute("insert into notes values ('2')")
    assert deployment.rows("a").keys() == {("notes", "1"), ("notes", "2")}
    assert deployment.op_count() == ops + 1
    assert deployment.kinds() == ["snapshot"]


def test_quiet_table_is_found_by_message(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    install(source_db.settings())
    deployment = deploy(NOTES, intervals=TRIGGERED).start()
    assert deployment.rows("a").keys() == {("notes", "1")}
    source_db.execute("alter table notes rename to archive")
    wait_until(lambda: deployment.rows("a") == {}, "the rows to go")
    source_db.execute("alter table archive rename to notes")
    wait_until(lambda: deployment.rows("a").keys() == {("notes", "1")}, "the rows to come back")


def test_dump_restores_as_documented(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table todos (id int primary key); insert into todos values (1)")
    assert install(source_db.settings()).warnings == ()
    source_db.execute("create publication headwater for table todos")
    (block,) = (each for each in blocks_of(ROOT / "docs" / "backup.md") if "pg_dump" in each.code)
    dumped, *restored = block.code.replace(" app\n", f" {source_db.name}\n").splitlines()
    plain = f"{source_db.name}_plain"
    info = source_db.connection.info
    binaries = source_db.server.binaries.bin_dir
    place = {"PATH": f"{binaries}:/usr/bin:/bin", "PGHOST": info.host, "PGPORT": str(info.port), "PGSSLMODE": "disable"}

    def run(line: str, user: str) -> subprocess.CompletedProcess[str]:
        shell = ["bash", "-c", line.replace("-d staging", f"-d {plain}")]
        env = {**place, "PGUSER": user}
        return subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)

    found = re.search(r"\d+", run("pg_dump --version", plain).stdout)
    if found is None or int(found[0]) < source_db.server.binaries.major:
        pytest.skip("needs a pg_dump that is not older than the server")
    source_db.execute(f"create role {plain} login createdb")
    try:
        with psycopg.connect(source_db.dsn, user=plain, autocommit=True) as conn:
            conn.execute(f"create database {plain}")
        assert run(dumped, info.user).returncode == 0
        whole = restored[-1].replace("-L app.list", "--single-transaction")
        assert "permission denied to create event trigger" in run(whole, plain).stderr
        for line in restored:
            done = run(line, plain)
            assert done.returncode == 0, done.stderr
        with psycopg.connect(source_db.server.dsn(plain), user=plain) as conn:
            assert conn.execute("select id from todos").fetchall() == [(1,)]
    finally:
        source_db.execute(f"drop database if exists {plain}")
        source_db.execute(f"drop role {plain}")
