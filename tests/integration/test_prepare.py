"""`source prepare` makes a source ready, may be repeated, and says what it cannot do and who can."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.connect import SourceRefusedError, SourceSettings, SourceUnreachableError, connect
from headwater.source.readiness.checks import SourceNotReadyError, check_source
from headwater.source.readiness.prepare import MissingRightsError, PublishRefusedError, missing_sql, prepare, sql_block
from headwater.source.slot import slot_name
from headwater_rules.plan import TablePattern
from tests.integration.test_catalog import settings_for
from tests.support.fix_postgres import SourceDb


def tables(*names: str) -> list[TablePattern]:
    return [TablePattern("default", "public", name) for name in names]


def published(db: SourceDb) -> list[str]:
    return [name for (name,) in db.fetch("select tablename::text from pg_publication_tables order by 1")]


@pytest.fixture
def weak_role(source_db: SourceDb) -> Iterator[str]:
    """A role that may log in and nothing else. Roles belong to the server, so it goes with the test."""
    role = f"{source_db.name}_reader"
    source_db.execute(f"create role {role} login")
    yield role
    source_db.execute(f"drop owned by {role}; drop role {role}")


def test_the_named_tables_are_published(source_db: SourceDb) -> None:
    source_db.execute(
        "create table a (id int primary key); create table b (id int primary key); create table c (id int primary key)"
    )
    report = prepare(settings_for(source_db), tables("a", "b"))
    assert published(source_db) == ["a", "b"]
    assert report.tables == ("public.a", "public.b")
    (statement,) = report.done
    assert statement.startswith('CREATE PUBLICATION "headwater" FOR TABLE ONLY "public"."a", ONLY "public"."b" WITH')


def test_repeating_it_changes_nothing_and_new_tables_are_added(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key); create table b (id int primary key)")
    settings = settings_for(source_db)
    prepare(settings, tables("a"))
    assert prepare(settings, tables("a")).done == ()
    assert prepare(settings, tables("a", "b")).done == ('ALTER PUBLICATION "headwater" ADD TABLE ONLY "public"."b"',)
    assert prepare(settings, tables("b")).done == ()
    assert published(source_db) == ["a", "b"]


def test_names_that_need_quotes_are_quoted(source_db: SourceDb) -> None:
    source_db.execute('create table "Odd ""one" (id int primary key)')
    report = prepare(settings_for(source_db, publications=("My Pub",)), tables('Odd "one'))
    assert report.tables == ('public.Odd "one',)


def test_a_wildcard_takes_every_table_that_begins_so(source_db: SourceDb) -> None:
    source_db.execute("create table log_a (id int primary key); create table log_b (id int primary key)")
    source_db.execute("create table logs (id int primary key); create view log_v as select 1 as id")
    prepare(settings_for(source_db), tables("log_%"))
    assert published(source_db) == ["log_a", "log_b"]


def test_a_partitioned_table_is_published_as_one(source_db: SourceDb) -> None:
    source_db.execute(
        "create table event (id int primary key) partition by range (id);"
        "create table event_1 partition of event for values from (1) to (10)"
    )
    prepare(settings_for(source_db), tables("event", "event_%"))
    assert published(source_db) == ["event"]
    assert prepare(settings_for(source_db), tables("event", "event_%")).done == ()


def test_a_superuser_can_publish_everything(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    prepare(settings_for(source_db), None)
    source_db.execute("create table later (id int primary key)")
    assert published(source_db) == ["a", "later"]
    assert prepare(settings_for(source_db), tables("later")).done == ()


def test_an_existing_publication_of_another_name_is_used_as_it_is(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key); create publication powersync for all tables")
    assert prepare(settings_for(source_db, publications=("powersync",)), tables("a")).done == ()


def test_a_table_that_does_not_exist_is_a_warning(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    (warning,) = prepare(settings_for(source_db), tables("a", "missing")).warnings
    assert "no table matches public.missing" in str(warning)


def test_a_view_cannot_be_published(source_db: SourceDb) -> None:
    source_db.execute("create view v as select 1 as id")
    with pytest.raises(PublishRefusedError, match=r"public\.v is a view, which Postgres cannot publish"):
        prepare(settings_for(source_db), tables("v"))


def test_a_table_without_a_key_is_not_published_unasked_since_its_deletes_would_fail(source_db: SourceDb) -> None:
    source_db.execute("create table loose (id int); insert into loose values (1)")
    with pytest.raises(
        PublishRefusedError, match=r'ALTER TABLE "public"\."loose" REPLICA IDENTITY FULL.*--append-only'
    ):
        prepare(settings_for(source_db), tables("loose"))
    source_db.execute("delete from loose")
    (warning,) = prepare(settings_for(source_db), tables("loose"), append_only=True).warnings
    assert "has no primary key, so Postgres refuses its updates and deletes" in str(warning)


def test_a_publication_that_leaves_deletes_out_is_a_warning_with_its_remedy(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key); create table b (id int primary key)")
    source_db.execute("create publication headwater for table a, b with (publish = 'insert')")
    (warning,) = prepare(settings_for(source_db), tables("a", "b")).warnings
    assert "update, delete, truncate of public.a, public.b is not published" in warning.what
    assert warning.code == "PSYNC_S1142"
    source_db.execute(warning.fix.removeprefix("run "))
    assert prepare(settings_for(source_db), tables("a", "b")).warnings == ()


def test_what_one_publication_leaves_out_another_may_publish(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    source_db.execute("create publication headwater for table a with (publish = 'insert')")
    source_db.execute("create publication more for table a with (publish = 'update, delete, truncate')")
    assert prepare(settings_for(source_db, publications=("headwater", "more")), tables("a")).warnings == ()


def test_without_the_right_to_publish_the_statement_is_named(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(f"create table a (id int primary key); alter role {weak_role} replication")
    with pytest.raises(MissingRightsError, match=r"may not run all that is needed.*or pass --admin-uri") as caught:
        prepare(settings_for(source_db, user=weak_role), tables("a"))
    assert 'CREATE PUBLICATION "headwater" FOR TABLE ONLY "public"."a"' in str(caught.value)


def test_all_that_is_missing_is_one_block_that_somebody_else_can_run(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(
        "create schema s; create table s.a (id int primary key); create table b (id int primary key);"
        "create table event (id int primary key) partition by range (id);"
        "create table event_1 partition of event for values from (1) to (10);"
        "alter table s.a enable row level security; alter table b enable row level security"
    )
    settings = settings_for(source_db, user=weak_role)
    wanted = [TablePattern("default", "s", "a"), *tables("b", "event")]
    with pytest.raises(MissingRightsError) as caught:
        prepare(settings, wanted)
    block = str(caught.value).partition("\n\n")[2]
    assert block == sql_block(missing_sql(settings, wanted))
    assert len(set(block.splitlines())) == len(block.splitlines()) == 5
    assert published(source_db) == []
    source_db.execute(block)
    assert prepare(settings, wanted).done == ()
    assert missing_sql(settings, wanted) == ()


def test_what_a_role_may_do_itself_is_done_and_only_the_rest_is_left(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(f"create table a (id int primary key); alter role {weak_role} replication")
    source_db.execute(f"create publication headwater; alter publication headwater owner to {weak_role}")
    settings = settings_for(source_db, user=weak_role)
    source_db.execute(f"create table own (id int primary key); alter table own owner to {weak_role}")
    assert len(prepare(settings, tables("own")).done) == 1
    with pytest.raises(MissingRightsError) as caught:
        prepare(settings, tables("a", "own"))
    assert [line.split(" TABLE ")[-1] for line in str(caught.value).splitlines()[2:]] == [
        'ONLY "public"."a";',
        f'GRANT SELECT ON "public"."a" TO "{weak_role}";',
    ]


def test_only_tables_of_the_sync_config_are_granted(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute("create table a (id int primary key); create table secret (id int primary key)")
    source_db.execute(f"create publication headwater for all tables; alter role {weak_role} replication")
    prepare(settings_for(source_db, user=weak_role), tables("a"), admin=settings_for(source_db))
    assert source_db.fetch("select has_table_privilege(%s, 'secret', 'select')", weak_role) == [(False,)]


def test_an_administrator_publishes_and_grants_what_the_role_lacks(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(f"create schema s; create table s.a (id int primary key); alter role {weak_role} replication")
    settings = settings_for(source_db, user=weak_role)
    pattern = [TablePattern("default", "s", "a")]
    report = prepare(settings, pattern, admin=settings_for(source_db))
    assert report.done[1:] == (
        f'GRANT USAGE ON SCHEMA "s" TO "{weak_role}"',
        f'GRANT SELECT ON "s"."a" TO "{weak_role}"',
    )
    with connect(settings) as conn:
        assert check_source(conn, settings) == []


def test_everything_that_a_role_lacks_is_named_at_once(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute("create table a (id int primary key); create publication headwater for table a")
    settings = settings_for(source_db, user=weak_role)
    with connect(settings) as conn, pytest.raises(SourceNotReadyError) as caught:
        check_source(conn, settings)
    text = str(caught.value)
    assert f'ALTER ROLE "{weak_role}" REPLICATION' in text
    assert f'GRANT SELECT ON "public"."a" TO "{weak_role}"' in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_only_the_tables_of_the_sync_config_have_to_be_readable(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute("create table a (id int primary key); create table secret (id int primary key)")
    source_db.execute(f"create publication headwater for all tables; grant select on a to {weak_role}")
    source_db.execute(f"alter role {weak_role} replication")
    settings = settings_for(source_db, user=weak_role)
    with connect(settings) as conn:
        assert check_source(conn, settings, tables("a")) == []
        with pytest.raises(SourceNotReadyError, match=r"may not read public\.secret"):
            check_source(conn, settings)


def test_row_level_security_that_would_hide_rows_is_refused(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(
        "create table a (id int primary key); alter table a enable row level security;"
        "create publication headwater for table a;"
        f"grant select on a to {weak_role}; alter role {weak_role} replication"
    )
    settings = settings_for(source_db, user=weak_role)
    with connect(settings) as conn, pytest.raises(SourceNotReadyError, match=rf'ALTER ROLE "{weak_role}" BYPASSRLS'):
        check_source(conn, settings)
    source_db.execute(f"alter role {weak_role} bypassrls")
    with connect(settings) as conn:
        assert check_source(conn, settings) == []


def test_a_server_without_logical_decoding_or_free_slots_is_refused(
    postgres_with: Callable[..., EmbeddedPostgres],
) -> None:
    server = postgres_with(wal_level="replica", max_replication_slots="1", max_wal_senders="1")
    settings = SourceSettings("127.0.0.1", "postgres", "postgres", port=server.port, sslmode="disable")
    with pytest.raises(SourceNotReadyError) as caught:
        prepare(settings, tables("a"))
    text = str(caught.value)
    assert "wal_level is replica" in text
    assert "ALTER SYSTEM SET wal_level = logical" in text
    assert "1 of 1 replication slots are free, and 2 are needed" in text
    assert "ALTER SYSTEM SET max_replication_slots = 2" in text
    assert "ALTER SYSTEM SET max_wal_senders = 2" in text


def test_a_database_that_was_made_read_only_is_not_said_to_be_a_standby(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    source_db.execute(f"alter database {source_db.name} set default_transaction_read_only = on")
    with pytest.raises(
        SourceUnreachableError, match=r"though it is no standby.*SET default_transaction_read_only = off"
    ):
        prepare(settings_for(source_db), tables("a"))


def test_the_slot_that_is_ours_already_does_not_count_as_missing(
    postgres_with: Callable[..., EmbeddedPostgres],
) -> None:
    server = postgres_with(max_replication_slots="2")
    settings = SourceSettings("127.0.0.1", "postgres", "postgres", port=server.port, sslmode="disable")
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("create table a (id int primary key)")
        conn.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot_name(settings)])
        assert prepare(settings, tables("a")).tables == ("public.a",)
        conn.execute("select pg_create_logical_replication_slot('other', 'pgoutput')")
        with pytest.raises(SourceNotReadyError, match="0 of 2 replication slots are free, and 1 are needed"):
            prepare(settings, tables("a"))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"port": 1}, SourceUnreachableError, "cannot be reached: connection to server .* Connection refused"),
        ({"host": "no-such-host.invalid"}, SourceUnreachableError, "cannot be reached: failed to resolve host"),
        ({"database": "no_such_db"}, SourceRefusedError, "does not have the database .*set database"),
        ({"user": "no_such_role"}, SourceRefusedError, "has no such role .*CREATE ROLE no_such_role"),
        ({"sslmode": "verify-full"}, SourceRefusedError, "speaks no TLS.*sslmode: disable"),
    ],
)
def test_a_connection_that_fails_says_why(
    source_db: SourceDb, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        connect(settings_for(source_db, **changes))


def test_a_wrong_password_is_told_from_a_missing_one(postgres: EmbeddedPostgres, source_db: SourceDb) -> None:
    hba = postgres.data_dir / "pg_hba.conf"
    before = hba.read_text()
    role = sql.Identifier(f"{source_db.name}_locked")
    source_db.connection.execute(sql.SQL("create role {} login password 'right'").format(role))
    hba.write_text(f"host all {source_db.name}_locked 127.0.0.1/32 scram-sha-256\n{before}")
    source_db.execute("select pg_reload_conf()")
    settings = {"user": f"{source_db.name}_locked"}
    try:
        with pytest.raises(SourceRefusedError, match="asks for a password and none is configured"):
            _until_asked(source_db, settings)
        with pytest.raises(SourceRefusedError, match="rejects user name or password"):
            connect(settings_for(source_db, **settings, password="wrong"))
        connect(settings_for(source_db, **settings, password="right")).close()
    finally:
        hba.write_text(before)
        source_db.execute("select pg_reload_conf()")
        source_db.connection.execute(sql.SQL("drop role {}").format(role))


def _until_asked(db: SourceDb, changes: dict[str, str]) -> None:
    """A reload takes effect a moment later: connect until the server asks for the password."""
    for _ in range(1000):
        connect(settings_for(db, **changes)).close()
