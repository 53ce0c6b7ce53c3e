"""A table that somebody keeps locked, for a long migration or by VACUUM FULL, waits alone: the catalog is looked at,
other tables are read and compared, and sync configs are deployed, as if it were not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from headwater.replication.jobs.snapshot import InitialSnapshot
from headwater.source.catalog.publications import memberships
from headwater.source.catalog.published import PublishedTable, published_tables
from headwater.source.catalog.schema import read_schema
from headwater.source.readiness.checks import source_findings
from headwater.source.readiness.health import look
from headwater.source.triggers import install
from headwater.storage.contract.versions import VersionState
from headwater_rules.plan import TablePattern
from tests.support.changed_source import Device, compared, locked, published_rows, settled
from tests.support.fix_headwater import TRIGGERED, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

OTHERS = auto_streams(all=["SELECT * FROM others"])
CONFIG = auto_streams(all=["SELECT * FROM busy", "SELECT * FROM others"])

SHOWN = {"public.busy": "true", "public.others": "true"}
FORMS = {
    "plain": ("create table busy (id text primary key, n int)", "for table busy, others"),
    "generated": (
        "create table busy (id text primary key, n int, twice int generated always as (n * 2) stored)",
        "for table busy, others",
    ),
    "filtered": ("create table busy (id text primary key, n int)", "for table busy where (id <> 'no'), others"),
    "partitioned": (
        """create table busy (id text primary key, n int) partition by hash (id);
           create table busy_0 partition of busy for values with (modulus 2, remainder 0);
           create table busy_1 partition of busy for values with (modulus 2, remainder 1)""",
        "for table busy, others with (publish_via_partition_root)",
    ),
}


ALL_FORMS = ["generated", *(pytest.param(name, marks=pytest.mark.long) for name in FORMS if name != "generated")]
"""A generated column is what most looks would have to wait for."""


@pytest.fixture(params=ALL_FORMS)
def form(request: pytest.FixtureRequest, source_db: SourceDb) -> str:
    name = str(request.param)
    if name == "filtered":
        source_db.needs(15, "row filters of publications")
    table, publication = FORMS[name]
    source_db.execute(table)
    source_db.execute("create table others (id text primary key, n int)")
    source_db.execute(f"create publication headwater {publication}")
    source_db.execute("insert into busy select i::text, i from generate_series(1, 20) i")
    source_db.execute("insert into others select i::text, i from generate_series(1, 20) i")
    return name


def shows_the_truth(deployment: Deployment, source: SourceDb) -> bool:
    return settled(deployment) and deployment.rows("a") == published_rows(source, SHOWN)


def without_busy(source: SourceDb) -> dict[tuple[str, str], dict[str, object]]:
    return {("others", str(i)): {"id": str(i), "n": n} for i, n in source.fetch("select id, n from others")}


@contextmanager
def impatient(source: SourceDb) -> Iterator[psycopg.Connection]:
    """A connection that fails where it has to wait long."""
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute("set statement_timeout = '5s'")
        yield conn


def described(conn: psycopg.Connection) -> dict[str, PublishedTable]:
    return {table.relation.name: table for table in published_tables(conn, ["headwater"])}


def test_looks_do_not_wait_for_lock(source_db: SourceDb, form: str, deploy: Deploy) -> None:
    deployment = deploy(CONFIG)
    patterns = [TablePattern("default", "public", name) for name in ("busy", "others")]
    with impatient(source_db) as conn:
        before = described(conn)
        with locked(source_db):
            during = described(conn)
            assert during["others"] == before["others"]
            assert during["busy"].locked is (form in {"generated", "filtered"})
            assert during["busy"].fingerprint == before["busy"].fingerprint
            assert source_findings(conn, deployment.settings, patterns) == []
            assert look(conn, deployment.settings, "none", set(), patterns).findings == ()
            schema = read_schema(deployment.settings)
            assert {table.name for table in schema.tables} >= {"busy", "others"}
        assert described(conn) == before


def taken_up(deployment: Deployment, column: str, table: str = "others") -> bool:
    """The store knows that a table has a column. Its other rows come with a comparison, for which Postgres waits until
    all transactions have ended that have locked anything."""
    deployment.raise_failure()
    with deployment.store() as store:
        relations = [stored.relation for stored in store.tables("default") if stored.relation.name == table]
    return any(each.name == column for relation in relations for each in relation.columns)


@pytest.mark.parametrize("how", ["by a look", "by event triggers"])
def test_other_tables_change_while_one_is_locked(deploy: Deploy, source_db: SourceDb, form: str, how: str) -> None:
    deployment = deploy(CONFIG)
    if how == "by event triggers":
        assert install(deployment.settings).done
        deployment.intervals = TRIGGERED
    deployment.start()
    device = Device(deployment)
    with locked(source_db) as somebody:
        source_db.execute("alter table others add extra int default 7")
        wait_until(lambda: taken_up(deployment, "extra"), "the other table's column")
        source_db.execute("update others set n = -n where id = '5'")
        deployment.caught_up()
        assert device.rows()["others", "5"] == {"id": "5", "n": -5, "extra": 7}
        assert ("busy", "5") in device.rows()
        somebody.execute("update busy set n = -n")
        somebody.execute("alter table busy add extra int default 8")
        somebody.commit()
    wait_until(lambda: shows_the_truth(deployment, source_db), "the locked table's own change")


def test_first_snapshot_without_locked_table(
    deploy: Deploy, source_db: SourceDb, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table that is locked when it is to be read. One that is locked before keeps Postgres from making a slot."""
    begin = InitialSnapshot._job
    with ExitStack() as lock:

        def begin_late(*arguments: Any) -> Any:
            lock.enter_context(locked(source_db))
            return begin(*arguments)

        monkeypatch.setattr(InitialSnapshot, "_job", begin_late)
        deployment = deploy(CONFIG).start()
        assert deployment.rows("a") == without_busy(source_db)
    wait_until(lambda: shows_the_truth(deployment, source_db), "the locked table's rows")


def test_start_with_locked_table(deploy: Deploy, source_db: SourceDb, form: str) -> None:
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    deployment.stop()
    source_db.execute("update busy set n = n + 1")
    source_db.execute("alter table others add extra int default 7")
    source_db.execute("update others set n = -n where id = '5'")
    with locked(source_db):
        deployment.start()
        deployment.caught_up()
        assert device.rows()["others", "5"] == {"id": "5", "n": -5, "extra": 7}
        assert ("busy", "5") in device.rows()
    wait_until(lambda: shows_the_truth(deployment, source_db), "the truth")


def test_deploy_with_locked_table(deploy: Deploy, source_db: SourceDb, form: str) -> None:
    deployment = deploy(OTHERS).start()
    with locked(source_db):
        assert deployment.redeploy(CONFIG).state is VersionState.ACTIVE
        assert deployment.rows("a") == without_busy(source_db)
    wait_until(lambda: shows_the_truth(deployment, source_db), "the locked table's rows")


def test_locked_table_waits_for_compare(deploy: Deploy, source_db: SourceDb, form: str) -> None:
    deployment = deploy(CONFIG).start()
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # comparisons wait for it to end
        source_db.execute("alter table busy add extra int default 7")
        wait_until(lambda: compared(deployment), "the change to be seen")
        deployment.stop()
    with locked(source_db):
        deployment.start()
        assert deployment.redeploy(f"{CONFIG}  more: {{query: SELECT id FROM others}}\n").state is VersionState.ACTIVE
    wait_until(lambda: shows_the_truth(deployment, source_db), "the truth")


def test_publications_match_postgres(source_db: SourceDb) -> None:
    """Postgres' own function waits for locks."""
    source_db.needs(15, "schemas in publications")
    source_db.execute(MANY_WAYS)
    names = [name for (name,) in source_db.fetch("select pubname from pg_publication order by 1")]
    assert len(names) == 9
    for name in names:
        told = source_db.fetch(
            "select relid::int8 from pg_get_publication_tables(%s) order by 1",
            name,
        )
        oids = [oid for (oid,) in told]
        found = memberships(source_db.connection, [name])
        above = dict(source_db.fetch(ABOVE, list(found)))
        assert sorted(oid for oid in found if not found.keys() & set(above.get(oid, ()))) == oids, name


ABOVE = """
select t::int8, array(select relid::oid::int8 from pg_partition_ancestors(t) where relid <> t) from unnest(%s::oid[]) t
"""

MANY_WAYS = """
create schema aside; create schema apart;
create table plain (id int primary key); create table aside.plain (id int primary key);
create unlogged table fleeting (id int primary key); create view shown as select * from plain;
create table parent (id int primary key); create table child () inherits (parent);
create table tree (id int, n int, primary key (id, n)) partition by range (id);
create table tree_a partition of tree for values from (0) to (10);
create table aside.tree_b partition of tree for values from (10) to (20) partition by list (n);
create table apart.tree_b_1 partition of aside.tree_b for values in (1);
create table tree_b_2 partition of aside.tree_b for values in (2);
create publication a for all tables;
create publication b for all tables with (publish_via_partition_root);
create publication c for tables in schema aside;
create publication d for tables in schema aside with (publish_via_partition_root);
create publication e for table tree, tables in schema apart;
create publication f for table tree, tables in schema aside with (publish_via_partition_root);
create publication g for table aside.tree_b, parent;
create publication h for table tree_a, plain where (id > 3), tree_b_2;
create publication i for table plain (id), tree with (publish_via_partition_root)
"""
