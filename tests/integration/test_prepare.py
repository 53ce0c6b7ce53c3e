"""`source prepare` makes a source ready, may be repeated, and says what it cannot do and who can."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.connect import SourceRefusedError, SourceSettings, SourceUnreachableError, connect
from headwater.source.readiness.checks import SourceNotReadyError, raise_if_fatal, source_findings
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.prepare import MissingRightsError, PublishRefusedError, missing_sql, prepare, sql_block
from headwater.source.rows.query import ResultReader
from headwater.source.slot import slot_name
from headwater_rules.plan import ComputedTable, Refresh, TablePattern
from tests.support.fix_postgres import SourceDb


def tables(*names: str) -> list[TablePattern]:
    return [TablePattern("default", "public", name) for name in names]


def checked(settings: SourceSettings, patterns: list[TablePattern] | None = None) -> list[Finding]:
    """The warnings; raises the rest."""
    with connect(settings) as conn:
        return raise_if_fatal(source_findings(conn, settings, patterns), settings)


def published(db: SourceDb) -> list[str]:
    return [name for (name,) in db.fetch("select tablename::text from pg_publication_tables order by 1")]


@pytest.fixture
def weak_role(source_db: SourceDb) -> Iterator[str]:
    """A role that may log in and nothing else. Roles belong to the server, so it goes with the test."""
    role = f"{source_db.name}_reader"
    source_db.execute(f"create role {role} login")
    yield role
    source_db.execute(f"drop owned by {role}; drop role {role}")


def test_named_tables_are_published(source_db: SourceDb) -> None:
    source_db.execute(
        "create table a (id int primary key); create table b (id int primary key); create table c (id int primary key)"
    )
    report = prepare(source_db.settings(), tables("a", "b"))
    assert published(source_db) == ["a", "b"]
    assert report.tables == ("public.a", "public.b")
    (statement,) = report.done
    assert statement.startswith('CREATE PUBLICATION "headwater" FOR TABLE ONLY "public"."a", ONLY "public"."b" WITH')


def test_prepare_is_idempotent(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key); create table b (id int primary key)")
    settings = source_db.settings()
    prepare(settings, tables("a"))
    assert prepare(settings, tables("a")).done == ()
    assert prepare(settings, tables("a", "b")).done == ('ALTER PUBLICATION "headwater" ADD TABLE ONLY "public"."b"',)
    assert prepare(settings, tables("b")).done == ()
    assert published(source_db) == ["a", "b"]


def test_names_are_quoted(source_db: SourceDb) -> None:
    source_db.execute('create table "Odd ""one" (id int primary key)')
    report = prepare(source_db.settings(publications=("My Pub",)), tables('Odd "one'))
    assert report.tables == ('public.Odd "one',)


def test_wildcard_tables_are_published(source_db: SourceDb) -> None:
    source_db.execute("create table log_a (id int primary key); create table log_b (id int primary key)")
    source_db.execute("create table logs (id int primary key); create view log_v as select 1 as id")
    prepare(source_db.settings(), tables("log_%"))
    assert published(source_db) == ["log_a", "log_b"]


def test_partitioned_table_is_published_once(source_db: SourceDb) -> None:
    source_db.execute(
        "create table event (id int primary key) partition by range (id);"
        "create table event_1 partition of event for values from (1) to (10)"
    )
    prepare(source_db.settings(), tables("event", "event_%"))
    assert published(source_db) == ["event"]
    assert prepare(source_db.settings(), tables("event", "event_%")).done == ()


def test_superuser_publishes_all_tables(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    prepare(source_db.settings(), None)
    source_db.execute("create table later (id int primary key)")
    assert published(source_db) == ["a", "later"]
    assert prepare(source_db.settings(), tables("later")).done == ()


def test_existing_publication_is_used(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key); create publication powersync for all tables")
    assert prepare(source_db.settings(publications=("powersync",)), tables("a")).done == ()


def test_missing_table_is_a_warning(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    (warning,) = prepare(source_db.settings(), tables("a", "missing")).warnings
    assert "no table matches public.missing" in str(warning)


def test_view_is_not_published(source_db: SourceDb) -> None:
    source_db.execute("create view v as select 1 as id")
    with pytest.raises(PublishRefusedError, match=r"public\.v is a view, which Postgres cannot publish"):
        prepare(source_db.settings(), tables("v"))


def test_table_without_key_is_not_published(source_db: SourceDb) -> None:
    source_db.execute("create table loose (id int); insert into loose values (1)")
    with pytest.raises(
        PublishRefusedError, match=r'ALTER TABLE "public"\."loose" REPLICA IDENTITY FULL.*--append-only'
    ):
        prepare(source_db.settings(), tables("loose"))
    source_db.execute("delete from loose")
    (warning,) = prepare(source_db.settings(), tables("loose"), append_only=True).warnings
    assert "has no primary key, so Postgres refuses its updates and deletes" in str(warning)


def test_publication_without_deletes_is_a_warning(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key); create table b (id int primary key)")
    source_db.execute("create publication headwater for table a, b with (publish = 'insert')")
    (warning,) = prepare(source_db.settings(), tables("a", "b")).warnings
    assert "update, delete, truncate of public.a, public.b is not published" in warning.what
    assert warning.code == "PSYNC_S1142"
    source_db.execute(warning.fix.removeprefix("run "))
    assert prepare(source_db.settings(), tables("a", "b")).warnings == ()


def test_publications_complement_each_other(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    source_db.execute("create publication headwater for table a with (publish = 'insert')")
    source_db.execute("create publication more for table a with (publish = 'update, delete, truncate')")
    assert prepare(source_db.settings(publications=("headwater", "more")), tables("a")).warnings == ()


def test_missing_publish_right_names_statement(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(f"create table a (id int primary key); alter role {weak_role} replication")
    with pytest.raises(MissingRightsError, match=r"may not run all that is needed.*or pass --admin-uri") as caught:
        prepare(source_db.settings(user=weak_role), tables("a"))
    assert 'CREATE PUBLICATION "headwater" FOR TABLE ONLY "public"."a"' in str(caught.value)


def test_missing_statements_are_one_block(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(
        "create schema s; create table s.a (id int primary key); create table b (id int primary key);"
        "create table event (id int primary key) partition by range (id);"
        "create table event_1 partition of event for values from (1) to (10);"
        "alter table s.a enable row level security; alter table b enable row level security"
    )
    settings = source_db.settings(user=weak_role)
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


def test_own_rights_are_used_first(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(f"create table a (id int primary key); alter role {weak_role} replication")
    source_db.execute(f"create publication headwater; alter publication headwater owner to {weak_role}")
    settings = source_db.settings(user=weak_role)
    source_db.execute(f"create table own (id int primary key); alter table own owner to {weak_role}")
    assert len(prepare(settings, tables("own")).done) == 1
    with pytest.raises(MissingRightsError) as caught:
        prepare(settings, tables("a", "own"))
    assert [line.split(" TABLE ")[-1] for line in str(caught.value).splitlines()[2:]] == [
        'ONLY "public"."a";',
        f'GRANT SELECT ON "public"."a" TO "{weak_role}";',
    ]


def test_only_config_tables_are_granted(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute("create table a (id int primary key); create table secret (id int primary key)")
    source_db.execute(f"create publication headwater for all tables; alter role {weak_role} replication")
    prepare(source_db.settings(user=weak_role), tables("a"), admin=source_db.settings())
    assert source_db.fetch("select has_table_privilege(%s, 'secret', 'select')", weak_role) == [(False,)]


def test_admin_publishes_and_grants(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(f"create schema s; create table s.a (id int primary key); alter role {weak_role} replication")
    settings = source_db.settings(user=weak_role)
    pattern = [TablePattern("default", "s", "a")]
    report = prepare(settings, pattern, admin=source_db.settings())
    assert report.done[1:] == (
        f'GRANT USAGE ON SCHEMA "s" TO "{weak_role}"',
        f'GRANT SELECT ON "s"."a" TO "{weak_role}"',
    )
    assert checked(settings) == []


def test_missing_rights_are_named_at_once(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute("create table a (id int primary key); create publication headwater for table a")
    settings = source_db.settings(user=weak_role)
    with pytest.raises(SourceNotReadyError) as caught:
        checked(settings)
    text = str(caught.value)
    assert f'ALTER ROLE "{weak_role}" REPLICATION' in text
    assert f'GRANT SELECT ON "public"."a" TO "{weak_role}"' in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_only_config_tables_must_be_readable(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute("create table a (id int primary key); create table secret (id int primary key)")
    source_db.execute(f"create publication headwater for all tables; grant select on a to {weak_role}")
    source_db.execute(f"alter role {weak_role} replication")
    settings = source_db.settings(user=weak_role)
    assert checked(settings, tables("a")) == []
    with pytest.raises(SourceNotReadyError, match=r"may not read public\.secret"):
        checked(settings)


def test_row_level_security_is_refused(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(
        "create table a (id int primary key); alter table a enable row level security;"
        "create publication headwater for table a;"
        f"grant select on a to {weak_role}; alter role {weak_role} replication"
    )
    settings = source_db.settings(user=weak_role)
    with pytest.raises(SourceNotReadyError, match=rf'ALTER ROLE "{weak_role}" BYPASSRLS'):
        checked(settings)
    source_db.execute(f"alter role {weak_role} bypassrls")
    assert checked(settings) == []


def test_server_settings_are_checked(source_with: Callable[..., SourceDb]) -> None:
    source = source_with(wal_level="replica", max_replication_slots="1", max_wal_senders="1")
    with pytest.raises(SourceNotReadyError) as caught:
        prepare(source.settings(), tables("a"))
    text = str(caught.value)
    assert "wal_level is replica" in text
    assert "ALTER SYSTEM SET wal_level = logical" in text
    assert "1 of 1 replication slots are free, and 2 are needed" in text
    assert "ALTER SYSTEM SET max_replication_slots = 2" in text
    assert "ALTER SYSTEM SET max_wal_senders = 2" in text


def test_read_only_database_is_not_a_standby(source_db: SourceDb) -> None:
    source_db.execute("create table a (id int primary key)")
    source_db.execute(f"alter database {source_db.name} set default_transaction_read_only = on")
    with pytest.raises(
        SourceUnreachableError, match=r"though it is no standby.*SET default_transaction_read_only = off"
    ):
        prepare(source_db.settings(), tables("a"))


def test_own_slot_counts_as_free(source_with: Callable[..., SourceDb]) -> None:
    source = source_with(max_replication_slots="2")
    settings = source.settings()
    source.execute("create table a (id int primary key)")
    source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", slot_name(settings))
    assert prepare(settings, tables("a")).tables == ("public.a",)
    source.execute("select pg_create_logical_replication_slot('other', 'pgoutput')")
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
def test_connection_error_says_why(
    source_db: SourceDb, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        connect(source_db.settings(**changes))


def test_wrong_password_is_not_missing_password(postgres: EmbeddedPostgres, source_db: SourceDb) -> None:
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
            connect(source_db.settings(**settings, password="wrong"))
        connect(source_db.settings(**settings, password="right")).close()
    finally:
        hba.write_text(before)
        source_db.execute("select pg_reload_conf()")
        source_db.connection.execute(sql.SQL("drop role {}").format(role))


def _until_asked(db: SourceDb, changes: dict[str, str]) -> None:
    """A reload takes effect a moment later: connect until the server asks for the password."""
    for _ in range(1000):
        connect(db.settings(**changes)).close()


def test_what_computed_tables_read_is_published_and_granted(source_db: SourceDb, weak_role: str) -> None:
    source_db.execute(
        "create table orders (id int primary key) partition by hash (id);"
        "create table orders_0 partition of orders for values with (modulus 1, remainder 0);"
        "create table lines (id int primary key);"
        'create schema hidden; create view hidden."Seen" as select l.id from lines l join orders o on o.id = l.id;'
        f"alter role {weak_role} replication"
    )
    query = 'WITH w AS (SELECT id FROM hidden."Seen") SELECT count(*) AS n FROM w'
    computed = [ComputedTable("default", "counts", query, ("n",), Refresh(after_read=True))]
    settings = replace(source_db.settings(), user=weak_role)
    report = prepare(settings, [computed[0].pattern], computed=computed, admin=source_db.settings())
    assert published(source_db) == ["lines", "orders"]
    assert f'GRANT SELECT ON "hidden"."Seen" TO "{weak_role}"' in report.done
    with closing(ResultReader(settings, computed[0], threading.Event())) as reader:
        assert reader.open().reads == {("public", "orders"), ("public", "orders_0"), ("public", "lines")}
    assert prepare(settings, (), computed=computed, admin=source_db.settings()).done == ()
