"""Fingerprints of tables: which forms of ALTER TABLE change them, and what the store keeps of them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import PublishedTable, published_tables
from headwater.storage.contract.store import StoredTable
from tests.integration.table_forms import COMPARED, FORMS, HARMLESS, OTHER_JSON, Form
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment, plan_of
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import NOTES_AND_OTHERS, auto_streams
from tests.support.waiting import wait_until

PUBLICATION = "create publication headwater for all tables with (publish_via_partition_root)"


@pytest.fixture(scope="module")
def forms_db(postgres: EmbeddedPostgres) -> Iterator[SourceDb]:
    """One database for all forms, each of which has a table of its own."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("create database forms")
    database = SourceDb(postgres, "forms")
    database.execute(PUBLICATION)
    try:
        yield database
    finally:
        database.drop()


def look(source: SourceDb, table: str) -> PublishedTable:
    (found,) = [t for t in published_tables(source.connection, ["headwater"]) if t.relation.name == table]
    return found


def content(source: SourceDb, table: PublishedTable) -> list[object]:
    """The rows by the names of their columns, as text and as JSON, which has the names of what is within."""
    names = [column.name for column in table.relation.columns]
    texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)
    query = sql.SQL("select to_jsonb(t)::text, {} from (select {} from {} order by id) t").format(
        texts, sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier(table.relation.name)
    )
    return [names, table.relation.columns, *source.connection.execute(query).fetchall()]


def run(source: SourceDb, statements: str) -> None:
    """One after the other, since some can't be within a transaction."""
    for statement in statements.split(";"):
        source.execute(statement)


@pytest.mark.parametrize("name", FORMS)
def test_shape_changes_only_with_values(forms_db: SourceDb, name: str) -> None:
    table = f"note{list(FORMS).index(name)}"
    form = FORMS[name].of(table)
    forms_db.needs(form.needs, name)
    run(forms_db, f"{form.table}; {form.before}")
    before = look(forms_db, table)
    rows = content(forms_db, before)
    assert before.followed_on(before.shape)
    run(forms_db, form.sql)
    after = look(forms_db, table)
    assert after.followed_on(before.shape) is not form.compared
    if content(forms_db, after) != rows:
        assert not after.followed_on(before.shape)


def test_attribute_named_like_two_descriptions(forms_db: SourceDb) -> None:
    run(forms_db, "create type pair as (x text, y text); create table pairs (id int primary key, v pair)")
    run(forms_db, "insert into pairs values (1, row('a', 'b'))")
    before = look(forms_db, "pairs")
    rows = content(forms_db, before)
    ((oid,),) = forms_db.fetch("select 'pair'::regtype::oid")
    run(forms_db, f'alter type pair drop attribute y; alter type pair rename attribute x to "x 25 -1, {oid} 2 y"')
    after = look(forms_db, "pairs")
    assert content(forms_db, after) != rows
    assert not after.followed_on(before.shape)


CONFIG = auto_streams(notes='SELECT * FROM "note%"', others="SELECT * FROM others")

SHOWN = {"public.note%": "true", "public.others": "true"}

OTHERS = "create table others (id text primary key, body text); insert into others values ('1', 'x'), ('2', 'y')"


def prepare(source: SourceDb, forms: dict[str, Form]) -> dict[str, Form]:
    """A table for each of the forms that this server knows."""
    version = source.connection.info.server_version // 10_000
    found = {
        f"note_{number}": form.of(f"note_{number}")
        for number, form in enumerate(forms.values())
        if form.needs <= version
    }
    for form in found.values():
        run(source, f"{form.table}; {form.before}")
    run(source, f"{OTHERS}; {PUBLICATION}")
    return found


def test_harmless_alter_compares_nothing(deploy: Deploy, source_db: SourceDb) -> None:
    forms = prepare(source_db, HARMLESS)
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    for form in forms.values():
        run(source_db, form.sql)
    source_db.execute("alter table others add extra text default 'x'")
    wait_until(lambda: device.rows() == published_rows(source_db, SHOWN), "what was altered to be noticed")
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert [(record.kind, record.rows) for record in deployment.bulk_records()][1:] == [("re-sync", 2)]
    deployment.stop()
    for table in forms:
        source_db.execute(f"vacuum full {table}")
        source_db.execute(f"update only {table} set body = 'last'")
    deployment.start()
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, SHOWN)
    assert len(deployment.bulk_records()) == 2


@pytest.mark.parametrize("stopped", [True, pytest.param(False, marks=pytest.mark.long)], ids=["stopped", "followed"])
def test_alter_of_values_reaches_devices(deploy: Deploy, source_db: SourceDb, stopped: bool) -> None:
    forms = prepare(source_db, {name: form for name, form in COMPARED.items() if name not in OTHER_JSON})
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    assert device.rows() == published_rows(source_db, SHOWN)
    if stopped:
        deployment.stop()
    for form in forms.values():
        run(source_db, form.sql)
    if stopped:
        deployment.start()
    wait_until(lambda: device.rows() == published_rows(source_db, SHOWN), "what was altered to be seen")
    wait_until(lambda: settled(deployment), "the comparison to end")
    for table in forms:
        source_db.execute(f"update {table} set id = 'another' || id where id = '2'")
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, SHOWN)


KEPT_SHOWN = {"public.notes": "true", "public.others": "true"}

SOURCE = """
create table notes (id text primary key, n int);
create table others (id text primary key, n int);
insert into notes select i::text, i from generate_series(1, 20) i;
insert into others values ('1', 1)
"""


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute(SOURCE)
    return deploy(NOTES_AND_OTHERS).start()


def catalog(deployment: Deployment) -> dict[str, PublishedTable]:
    tables = wanted_tables(deployment.source.connection, deployment.settings, [plan_of(deployment.yaml)])
    return {table.relation.name: table for table in tables}


def kept(deployment: Deployment) -> dict[str, StoredTable]:
    with deployment.store() as store:
        return {table.relation.name: table for table in store.tables("default")}


def compared(deployment: Deployment) -> int:
    """How many comparisons there were."""
    return deployment.kinds().count("re-sync")


def looks(deployment: Deployment) -> None:
    """Wait until the catalog was looked at: a change that has to be compared was found."""
    before = compared(deployment)
    deployment.source.execute("alter table others alter n type int using n + 1")
    wait_until(lambda: compared(deployment) == before + 1 and settled(deployment), "the other table to be compared")


@pytest.mark.parametrize("restarted", [False, True], ids=["followed", "restarted"])
def test_rewrite_after_default_compares_nothing(deployment: Deployment, restarted: bool) -> None:
    source = deployment.source
    statements = ("vacuum full notes", "alter table notes alter n set default 7", "cluster notes using notes_pkey")
    for statement in statements:
        source.execute(statement)
        if restarted:
            deployment.stop()
            deployment.start()
        else:
            shape = catalog(deployment)["notes"].shape
            looks(deployment)
            assert kept(deployment)["notes"].fingerprint == shape
    assert compared(deployment) == (0 if restarted else len(statements))
    assert all(record.rows <= 1 for record in deployment.bulk_records()[1:])
    assert len(kept(deployment)["notes"].layouts) == 1
    source.execute("alter table notes alter n type int using -n")
    wait_until(lambda: deployment.rows("a") == published_rows(source, KEPT_SHOWN), "values to be found changed")


def test_kept_columns_outlive_replicator(deployment: Deployment) -> None:
    source = deployment.source
    source.execute("alter table notes alter n set default 7")
    shape = catalog(deployment)["notes"].shape
    wait_until(lambda: kept(deployment)["notes"].fingerprint == shape, "the store to know the columns")
    deployment.stop()
    source.execute("vacuum full notes")
    deployment.start()
    deployment.caught_up()
    assert compared(deployment) == 0
    deployment.stop()
    source.execute("alter table notes alter n type int using -n")
    deployment.start()
    wait_until(lambda: settled(deployment) and compared(deployment) == 1, "the comparison to end")
    assert deployment.rows("a") == published_rows(source, KEPT_SHOWN)


def test_default_keeps_fingerprint(deployment: Deployment) -> None:
    source = deployment.source
    before = catalog(deployment)["notes"]
    source.execute("alter table notes alter n set default 7, alter n set statistics 3")
    assert catalog(deployment)["notes"].fingerprint == before.fingerprint
    source.execute("vacuum full notes")
    assert catalog(deployment)["notes"].fingerprint != before.fingerprint
