"""Every form of ALTER TABLE and its like: those that may change values are found, the others compare nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.catalog.published import PublishedTable, published_tables
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import wait_until
from tests.support.fix_postgres import SourceDb
from tests.support.table_forms import COMPARED, FORMS, HARMLESS, OTHER_JSON, Form

if TYPE_CHECKING:
    from tests.support.fix_headwater import Deployment

Deploy = Callable[..., "Deployment"]

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
def test_a_shape_is_followed_on_unless_values_may_have_changed(forms_db: SourceDb, name: str) -> None:
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


def test_an_attribute_named_like_the_description_of_two_is_not_taken_for_them(forms_db: SourceDb) -> None:
    run(forms_db, "create type pair as (x text, y text); create table pairs (id int primary key, v pair)")
    run(forms_db, "insert into pairs values (1, row('a', 'b'))")
    before = look(forms_db, "pairs")
    rows = content(forms_db, before)
    ((oid,),) = forms_db.fetch("select 'pair'::regtype::oid")
    run(forms_db, f'alter type pair drop attribute y; alter type pair rename attribute x to "x 25 -1, {oid} 2 y"')
    after = look(forms_db, "pairs")
    assert content(forms_db, after) != rows
    assert not after.followed_on(before.shape)


CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM "note%"
  others:
    auto_subscribe: true
    query: SELECT * FROM others
"""

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


def test_what_changes_no_value_compares_nothing(deploy: Deploy, source_db: SourceDb) -> None:
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
    deployment.close()
    assert deployment.problems() == []


@pytest.mark.parametrize("stopped", [True, pytest.param(False, marks=pytest.mark.long)], ids=["stopped", "followed"])
def test_what_changes_values_reaches_devices(deploy: Deploy, source_db: SourceDb, stopped: bool) -> None:
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
    deployment.close()
    assert deployment.problems() == []
