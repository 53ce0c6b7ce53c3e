"""Generated columns: devices see them always, whether Postgres streams them or not, and as Postgres has them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.pipeline.jobs import BulkJobs
from headwater.source.catalog.published import published_tables
from headwater.source.catalog.schema import read_schema
from headwater.source.readiness.checks import table_findings
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import FAST, SourceDb
from tests.support.postgres_versions import postgres_of
from tests.support.row_truth import device_rows, truth
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

SHOWN = "body, loud, n, size, feels, odd, tags, first"
ANONYMOUS = NOTES.replace("*", SHOWN)  # rows with equal ids would be one on a device

TABLE = """
create function shout(value text) returns text immutable language sql as $$select upper(value) || '!'$$;
create type mood as enum ('glad', 'sad');
create table notes (
    id text {key},
    body text,
    loud text generated always as (shout(body)) stored,
    n int,
    size int generated always as (length(body) + coalesce(n, 0)) stored,
    gone int,
    feels mood generated always as (case when n > 5 then 'glad'::mood else 'sad'::mood end) stored,
    odd bool generated always as (n % 2 = 1) stored,
    tags text[],
    first text generated always as (tags[1]) stored
);
alter table notes drop column gone;
alter table notes alter column body set storage external;
"""

BIG = "repeat('toast', 4000)"


def create(source: SourceDb, identity: str = "default") -> None:
    source.execute(TABLE.format(key="" if identity in {"full", "nothing"} else "primary key"))
    source.execute(f"alter table notes replica identity {identity}")
    source.execute("insert into notes values ('0', 'before', default, 1, default, default, default, '{a,b}')")
    source.execute(f"insert into notes (id, body, n) values ('1', {BIG}, 7), ('2', null, null)")
    if identity == "full" and source.connection.info.server_version >= 18_00_00:
        # Postgres refuses updates where a column that is part of the identity is not streamed
        source.execute("create publication headwater for all tables with (publish_generated_columns = stored)")


def insert(source: SourceDb, row_id: str, body: str, n: int | None, tags: str | None = None) -> None:
    source.execute("insert into notes (id, body, n, tags) values (%s, %s, %s, %s)", row_id, body, n, tags)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_generated_in_snapshot_and_stream(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    create(source_db, identity)
    deployment = deploy(NOTES).start()
    assert device_rows(deployment) == truth(source_db, "notes")
    for number, body in enumerate(["", 'a "quoted", {text}\\', "tab\tand\nline", "naïve ☃", "(,)"]):
        insert(source_db, f"new {number}", body, number, r'{"x\"\\y",NULL}' if number % 2 else None)
    insert(source_db, "null", None, None)  # type: ignore[arg-type]  # a null body
    source_db.execute("update notes set n = 9 where id = '1'")  # the large body is not streamed, but for the old row
    assert device_rows(deployment) == truth(source_db, "notes")
    source_db.execute("begin; update notes set n = n + 1; update notes set body = 'x' || body where n < 4; commit")
    assert device_rows(deployment) == truth(source_db, "notes")
    source_db.execute("update notes set id = 'moved', n = 5 where id = '1'")
    source_db.execute("delete from notes where id in ('0', 'new 2', 'null')")
    assert device_rows(deployment) == truth(source_db, "notes")
    deployment.stop()
    source_db.execute("update notes set n = 100")
    deployment.start()
    assert device_rows(deployment) == truth(source_db, "notes")
    audit = deployment.ask("audit")
    assert (audit["state"], audit["differences"]) == ("done", {})


def test_generated_in_duplicate_rows(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db, "full")
    deployment = deploy(ANONYMOUS).start()
    for _ in range(3):
        insert(source_db, "same", "copy", 4)
    source_db.execute("delete from notes where ctid = (select min(ctid) from notes where id = 'same')")
    source_db.execute("update notes set n = 5 where ctid = (select max(ctid) from notes where id = 'same')")
    assert device_rows(deployment) == truth(source_db, "notes", SHOWN)


def test_generated_without_identity(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db, "nothing")
    deployment = deploy(ANONYMOUS).start()
    insert(source_db, "3", "later", 3)
    insert(source_db, "3", "later", 3)
    assert device_rows(deployment) == truth(source_db, "notes", SHOWN)


@pytest.mark.parametrize(
    ("stopped", "identity"),
    [
        (False, "default"),
        (True, "full"),
        pytest.param(False, "full", marks=pytest.mark.long),
        pytest.param(True, "default", marks=pytest.mark.long),
    ],
    ids=["followed-default", "stopped-full", "followed-full", "stopped-default"],
)
def test_generated_column_added_changed_dropped(
    deploy: Deploy, source_db: SourceDb, identity: str, stopped: bool
) -> None:
    create(source_db, identity)
    deployment = deploy(NOTES).start()
    assert device_rows(deployment) == truth(source_db, "notes")
    changes = [
        "alter table notes add column twice int generated always as (n * 2) stored",
        "alter table notes drop column twice, add column twice int generated always as (n * 3) stored",
        "alter table notes drop column twice",
    ]
    if source_db.connection.info.server_version >= 17_00_00:
        changes.insert(2, "alter table notes alter column twice set expression as (n * 4)")
    for number, change in enumerate(changes):
        if stopped:
            deployment.stop()
        source_db.execute(f"update notes set n = {number} where id = '0'")
        source_db.execute(change)
        source_db.execute(f"update notes set n = {number} + 7 where id = '2'")
        source_db.execute(f"insert into notes (id) values ('{number}x')")
        if stopped:
            deployment.start()
        wait_until(lambda: device_rows(deployment) == truth(source_db, "notes"), f"the truth after: {change}")
    assert deployment.kinds().count("snapshot") == 1


@pytest.mark.parametrize("identity", ["default", "full"])
def test_generated_during_compare(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    """Changes between the comparison's snapshot and its merge, over rows that the store has wrong."""
    create(source_db, identity)
    source_db.execute(f"insert into notes (id, body, n) select i::text, {BIG}, i from generate_series(10, 60) i")
    deployment = deploy(NOTES).start()
    deployment.stop()
    source_db.execute("alter table notes add column twice int generated always as (n * 2) stored")
    deployment.start()
    for number in range(20):
        source_db.execute(f"update notes set n = {number} where id > '4'; delete from notes where id = '{number + 10}'")
        insert(source_db, f"new {number}", "x", number)
    wait_until(lambda: device_rows(deployment) == truth(source_db, "notes"), "the truth")
    audit = deployment.ask("audit")
    assert (audit["state"], audit["differences"]) == ("done", {})


def test_generated_read_where_postgres_refuses(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    source_db.execute(
        "create domain filled as text not null;"
        " alter table notes add column must filled generated always as (coalesce(body, 'none')) stored"
    )  # a row of the table can't be given without a value for such a column
    deployment = deploy(NOTES).start()
    insert(source_db, "new", "there", 1)
    insert(source_db, "short", "gone soon", 1)
    source_db.execute("delete from notes where id = 'short'; update notes set n = 8 where id = '1'")
    source_db.execute("update notes set id = 'moved' where id = '2'")
    assert device_rows(deployment) == truth(source_db, "notes")


def test_generated_key_is_refused(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute(
        "create table notes (id text, part text generated always as (left(id, 1)) stored, primary key (id, part))"
    )
    source_db.execute("create publication headwater for all tables")
    (table,) = published_tables(source_db.connection, ["headwater"])
    (finding,) = table_findings(source_db.connection, [table])
    assert (finding.code, finding.fatal) == ("HW_2026", True)
    with pytest.raises(HeadwaterError, match=r"HW_2026.*part.*public\.notes.*REPLICA IDENTITY FULL"):
        deploy(NOTES).start()
    source_db.execute("create unique index plain on notes (id)")
    source_db.execute("alter table notes alter id set not null, replica identity using index plain")
    source_db.execute("insert into notes values ('a')")
    deployment = deploy(NOTES).start()
    source_db.execute("insert into notes values ('b'); update notes set id = 'c' where id = 'a'")
    assert device_rows(deployment) == truth(source_db, "notes")


def test_generated_with_partial_column_list(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.needs(15, "column lists")
    create(source_db)
    source_db.execute("create publication headwater for table notes (id, n)")
    deployment = deploy(NOTES).start()
    insert(source_db, "new", "there", 3)
    (table,) = published_tables(source_db.connection, ["headwater"])
    assert [column.name for column in table.relation.columns] == ["id", "n", "feels", "odd"]
    (finding,) = table_findings(source_db.connection, [table])
    assert (finding.code, finding.fatal) == ("HW_2027", False)
    assert "loud, size, first" in finding.what
    assert device_rows(deployment) == truth(source_db, "notes", "id, n, feels, odd")


@pytest.mark.parametrize("changed", ["none to stored", "stored to none"])
def test_publish_generated_columns_toggled(newest: SourceDb, newest_deploy: Deploy, changed: str) -> None:
    before, _, after = changed.split()
    create(newest)
    newest.execute(f"create publication headwater for all tables with (publish_generated_columns = {before})")
    deployment = newest_deploy(NOTES).start()
    for number, setting in enumerate([before, after]):
        newest.execute(f"alter publication headwater set (publish_generated_columns = {setting})")
        insert(newest, f"new {number}", "there", number)
        newest.execute("update notes set n = n + 1; update notes set body = 'y' || body where id = '0'")
        wait_until(lambda: device_rows(deployment) == truth(newest, "notes"), f"the truth with {setting}")
    newest.execute("alter publication headwater set (publish_generated_columns = stored)")
    newest.execute("alter table notes replica identity full; update notes set n = n + 1")
    newest.execute("delete from notes where id = '2'")
    newest.execute("alter table notes add column later int generated always as (n * 2) virtual")
    wait_until(lambda: device_rows(deployment) == truth(newest, "notes"), "the truth with the virtual column")
    (table,) = published_tables(newest.connection, ["headwater"])
    (finding,) = table_findings(newest.connection, [table])
    assert (finding.code, "make later STORED" in finding.fix) == ("HW_2028", True)
    deployment.close()
    assert deployment.problems() == []


def test_virtual_generated_columns(newest: SourceDb, newest_deploy: Deploy) -> None:
    newest.execute(
        "create table notes (id text primary key, body text, n int, twice int generated always as (n * 2),"
        " loud text generated always as (upper(body) || '!') virtual)"
    )
    newest.execute("insert into notes (id, body, n) values ('1', 'one', 1), ('2', null, null)")
    newest.execute("alter table notes alter body set storage external; create publication headwater for table notes")
    deployment = newest_deploy(NOTES).start()
    assert device_rows(deployment) == truth(newest, "notes")
    for change in (
        f"insert into notes (id, body, n) values ('3', {BIG}, 3)",
        "update notes set n = n + 1",  # the large body is not streamed
        "update notes set id = 'moved', body = 'x' where id = '1'; delete from notes where id = '2'",
    ):
        newest.execute(change)
        assert device_rows(deployment) == truth(newest, "notes")
    newest.execute("update notes set n = 5 where id = '3'; alter table notes drop twice")
    newest.execute("alter table notes add later int generated always as (n + 1)")
    wait_until(lambda: device_rows(deployment) == truth(newest, "notes"), "the truth with other columns")
    schema = read_schema(newest.settings())
    assert [column.name for column in schema.tables[0].columns] == ["id", "body", "n", "loud", "later"]
    deployment.close()
    assert deployment.problems() == []


@pytest.fixture(scope="module")
def newest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Postgres 18, the first that can stream them."""
    with EmbeddedPostgres(tmp_path_factory.mktemp("postgres-18") / "data", postgres_of(18), FAST) as server:
        yield server


@pytest.fixture
def newest(newest_server: EmbeddedPostgres) -> Iterator[SourceDb]:
    with psycopg.connect(newest_server.dsn(), autocommit=True) as admin:
        admin.execute("create database newest")
    database = SourceDb(newest_server, "newest")
    try:
        yield database
    finally:
        database.drop()


@pytest.fixture
def newest_deploy(newest: SourceDb, bulk: BulkJobs, tmp_path: Path) -> Iterator[Deploy]:
    deployment = Deployment(newest, tmp_path / "store", NOTES, bulk)
    try:
        yield lambda _: deployment
    finally:
        deployment.close()
