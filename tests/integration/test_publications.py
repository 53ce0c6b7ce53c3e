"""Publications that are altered, dropped and made again: devices get what differs, and nobody has to help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.changed_source import OTHERS, Change, Device, play, published_rows, settled
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.turns import in_turn
from tests.support.waiting import wait_until

CONFIG = auto_streams(
    notes="SELECT * FROM notes WHERE owner = auth.user_id()",
    items="SELECT * FROM app.items",
    others="SELECT * FROM others",
)

SHOWN = {"public.notes": "owner = 'a'", "app.items": "true", "public.others": "true"}

ROWS, ITEMS = 60, 20
CLEAR = 1  # what a bucket of a table that was not there begins with

BOTH = "create publication headwater for table notes, others"
SCHEMA = "create publication headwater for table others, tables in schema app"
LOW, HIGH = 23, 37  # how many ids are up to '3' in the order of text, and how many beyond

AFTER = (
    "update notes set body = 'after' where id in ('1', '50'); insert into notes values ('z', 'a', 'new', 1);"
    "delete from notes where id = '4'; update app.items set n = -1 where id = '2'"
)


def prepare(source: SourceDb) -> None:
    source.execute("create table notes (id text primary key, owner text, body text, n int)")
    source.execute(f"insert into notes select i::text, 'a', 'x' || i, i from generate_series(1, {ROWS}) i")
    source.execute("create schema app; create table app.items (id text primary key, n int)")
    source.execute(f"insert into app.items select i::text, i from generate_series(1, {ITEMS}) i")
    source.execute(OTHERS)


def low(publication: str) -> str:
    return f"create publication {publication} for table notes where (id <= '3')"


CHANGES = {
    "table added": Change(
        "alter publication headwater add table notes", ROWS + CLEAR, "create publication headwater for table others"
    ),
    "table dropped": Change("alter publication headwater drop table notes", 1, BOTH),
    "tables set": Change("alter publication headwater set table app.items, others", ITEMS + CLEAR + 1, BOTH),
    "table dropped and added again": Change("alter publication headwater drop table notes;"
        " update notes set body = 'unseen' where n < 6; alter publication headwater add table notes", 5, BOTH),
    "row filter added": Change(
        "alter publication headwater set table notes where (id > '3'), others", LOW, BOTH, needs=15),
    "row filter changed": Change("alter publication headwater set table notes where (id <= '5'), others", 11,
        "create publication headwater for table notes where (id <= '4'), others", needs=15),
    "row filter changed for a moment": Change("alter publication headwater set table notes where (id > '9'), others;"
        " update notes set body = 'unseen' where n < 6; delete from notes where n = 6;"
        " alter publication headwater set table notes where (id <= '4'), others", 4,
        "create publication headwater for table notes where (id <= '4'), others", needs=15),
    "row filter removed": Change("alter publication headwater set table notes, others", HIGH,
        "create publication headwater for table notes where (id <= '3'), others", needs=15),
    "column list added": Change(
        "alter publication headwater set table notes (id, owner, body), others", ROWS, BOTH, needs=15),
    "column list changed": Change("alter publication headwater set table notes (id, owner, n), others", ROWS,
        "create publication headwater for table notes (id, owner, body), others", needs=15),
    "same list once more": Change("alter publication headwater set table notes (id, owner, body), others", 0,
        "create publication headwater for table notes (id, owner, body), others", needs=15),
    "another publication adds the table": Change(
        "alter publication more add table notes where (id > '3')", HIGH,
        f"{low('headwater')}; alter publication headwater add table others; create publication more",
        needs=15, publications=("headwater", "more")),
    "one of two publications drops the table": Change(
        "alter publication more drop table notes", LOW, "create publication headwater for table notes where (id > '3'),"
        f" others; {low('more')}", needs=15, publications=("headwater", "more")),
    "one of two alike drops the table": Change("alter publication more drop table notes", 0,
        f"{BOTH}; create publication more for table notes", publications=("headwater", "more")),
    "schema added": Change("alter publication headwater add tables in schema app", ITEMS + CLEAR, BOTH, needs=15),
    "schema dropped": Change("alter publication headwater drop tables in schema app", 1, SCHEMA, needs=15),
    "table moved into the schema": Change("alter table app_items rename to items; alter table items set schema app",
        ITEMS + CLEAR, f"{SCHEMA}; alter table app.items set schema public; alter table items rename to app_items",
        needs=15),
    "table moved out of the schema": Change("alter table app.items set schema public; create table app.items"
        " (id text primary key, n int); insert into app.items values ('1', 1), ('2', 20)", ITEMS - 1, SCHEMA, needs=15),
    "table out of the schema and back": Change("alter table app.items set schema public; update items set n = 0"
        " where n < 4; alter table items set schema app", 3, SCHEMA, needs=15),
    "all tables, one more": Change("drop table notes; create table notes (id text primary key, owner text, body text,"
        " n int); insert into notes values ('1', 'a', 'other', 1), ('2', 'a', 'other', 2)", ROWS,
        "create publication headwater for all tables"),
    "made again": Change("drop publication headwater; create publication headwater for table notes, others", 0, BOTH),
    "made again, rows written between": Change("drop publication headwater; update notes set body = 'unseen'"
        " where n < 6; delete from notes where n = 6; create publication headwater for table notes, others", 6, BOTH,
        new_slot=True),
    "renamed and back": Change("alter publication headwater rename to x; update notes set body = 'unseen' where n < 6;"
        " alter publication x rename to headwater", 5, BOTH, new_slot=True),
    "made again for all tables": Change("drop publication headwater; create publication headwater for all tables",
        ITEMS + CLEAR, BOTH),
    "made again for a schema": Change(f"drop publication headwater; {SCHEMA}", ITEMS + CLEAR + 1, BOTH, needs=15),
    "made again one by one": Change("drop publication headwater; update notes set body = 'unseen' where n < 6;"
        " create publication headwater for all tables", 5 + ITEMS + CLEAR, BOTH, separately=True, new_slot=True),
    "table dropped and added again one by one": Change("alter publication headwater drop table notes;"
        " update notes set body = 'unseen' where n < 6; alter publication headwater add table notes", 5, BOTH,
        separately=True),
    "table in the schema made": Change("create table app.items (id text primary key, n int); insert into app.items"
        " select i::text, i from generate_series(1, 5) i", 5 + CLEAR, f"{SCHEMA}; drop table app.items", needs=15),
    "another schema set": Change("alter publication headwater set table others, tables in schema other", 1,
        f"{SCHEMA}; create schema other", needs=15),
    "the schema set": Change("alter publication headwater set table others, tables in schema app", ITEMS + CLEAR,
        "create schema other; create publication headwater for table others, tables in schema other", needs=15),
    "schema renamed": Change("alter schema app rename to gone", 1, SCHEMA, needs=15, after=""),
    "schema renamed, another in its place": Change("alter schema app rename to gone; create schema app; create table"
        " app.items (id text primary key, n int); insert into app.items values ('1', 1), ('2', 20)", ITEMS - 1,
        "create publication headwater for all tables"),
    "schema renamed and back": Change("alter schema app rename to x; update x.items set n = 0 where n < 4;"
        " alter schema x rename to app", 3, SCHEMA, needs=15),
    "schema renamed and back one by one": Change("alter schema app rename to x; update x.items set n = 0 where n < 4;"
        " alter schema x rename to app", 3, SCHEMA, needs=15, separately=True),
    "table out of the schema and back one by one": Change("alter table app.items set schema public; update items"
        " set n = 0 where n < 4; alter table items set schema app", 3, SCHEMA, needs=15, separately=True),
}  # fmt: skip


@pytest.mark.parametrize(("name", "found"), in_turn(CHANGES))
def test_publication_change_costs_what_differs(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    change = CHANGES[name]
    source_db.needs(change.needs, name)
    prepare(source_db)
    source_db.execute(change.before)
    deployment = deploy(CONFIG, publications=change.publications)
    play(deployment, change, SHOWN, found=found, after=AFTER)


@pytest.mark.parametrize("stopped", [False, True], ids=["followed", "stopped"])
def test_missing_publication_is_waited_for(
    deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture, stopped: bool
) -> None:
    prepare(source_db)
    source_db.execute(BOTH)
    deployment = deploy(CONFIG).start()
    before = deployment.op_count()
    if stopped:
        deployment.stop()
    source_db.execute("drop publication headwater")
    source_db.execute("update notes set body = 'unseen' where n < 6")
    source_db.execute("delete from notes where n = 6")
    if stopped:
        deployment.start(publish=False)
    wait_until(lambda: "[PSYNC_S1141]" in caplog.text, "it to be told what is missing")
    assert 'publication "headwater" does not exist' in caplog.text
    deployment.raise_failure()
    source_db.execute("insert into notes values ('z', 'a', 'unseen', 1)")
    source_db.execute(BOTH)
    source_db.execute("insert into others values ('2', 'two')")
    wait_until(lambda: settled(deployment), "all tables to be compared")
    assert deployment.rows("a") == Device(deployment).rows() == published_rows(source_db, SHOWN)
    assert deployment.op_count() - before == 5 + 1 + 1 + 1
    assert deployment.kinds().count("snapshot") == 1
    source_db.execute("update notes set body = 'after' where id = '1'")
    assert deployment.rows("a") == published_rows(source_db, SHOWN)


def test_contradicting_publications_recover(
    deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture
) -> None:
    source_db.needs(15, "column lists")
    prepare(source_db)
    source_db.execute(f"{BOTH}; create publication more")
    deployment = deploy(CONFIG, publications=("headwater", "more")).start()
    before = deployment.op_count()
    source_db.execute("alter publication more add table notes (id, owner)")
    source_db.execute("update notes set body = 'unseen' where n < 6")
    wait_until(lambda: "publish different columns of one table" in caplog.text, "it to be told what is wrong")
    assert "give it the same column list in each" in caplog.text
    source_db.execute("alter publication more drop table notes")
    wait_until(lambda: deployment.rows("a") == published_rows(source_db, SHOWN), "all tables to be compared")
    assert deployment.op_count() - before == 5


WRITTEN = {
    "insert": "insert into notes values ('z', 'a', 'unseen', 1)",
    "update": "update notes set body = 'unseen' where n < 6",
    "delete": "delete from notes where n < 6",
    "truncate": "truncate notes",
}


@pytest.mark.parametrize("operation", WRITTEN)
def test_unpublished_operation_is_named_and_recovered(
    deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    prepare(source_db)
    source_db.execute(BOTH)
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    some = ", ".join(kind for kind in WRITTEN if kind != operation)
    source_db.execute(f"alter publication headwater set (publish = '{some}')")
    told = f"{operation} of public.notes, public.others is not published"
    wait_until(lambda: told in caplog.text and settled(deployment), "it to be told what is not seen")
    assert "run ALTER PUBLICATION \"headwater\" SET (publish = 'insert, update, delete, truncate')" in caplog.text
    before = device.rows()
    source_db.execute(WRITTEN[operation])
    if operation == "truncate":  # which shows in the catalog
        wait_until(lambda: device.rows() == published_rows(source_db, SHOWN), "the rows to go")
    else:
        deployment.caught_up()
        assert device.rows() == before
    source_db.execute(f"alter publication headwater set (publish = '{', '.join(WRITTEN)}')")
    source_db.execute("insert into others values ('2', 'two')")
    wait_until(lambda: settled(deployment), "the tables to be compared")
    assert device.rows() == published_rows(source_db, SHOWN)


@pytest.mark.long
def test_unpublished_operations_come_late(deploy: Deploy, source_db: SourceDb) -> None:
    prepare(source_db)
    source_db.execute(BOTH + " with (publish = 'insert')")
    deployment = deploy(CONFIG)
    deployment.intervals = replace(deployment.intervals, audit=0.5)
    device = Device(deployment.start())
    for number in range(2):
        source_db.execute(f"update notes set body = 'unseen {number}' where n < 6; delete from notes where n = 6")
        wait_until(lambda: device.rows() == published_rows(source_db, SHOWN), "a comparison to find it")


MOVES = {
    "from one filter to the other": ("kind = 'also'", 3, 2),  # where the kind is part of what tells rows apart
    "out of both": ("kind = 'out'", 6, 1),
    "into the one": ("kind = 'in'", 2, 1),
    "into the other": ("kind = 'also'", 5, 1),
    "outside of both": ("kind = 'away'", 8, 0),
    "within the one": ("n = 0", 9, 1),
    "within the other": ("n = 0", 4, 1),
}


@pytest.mark.parametrize("identity", ["full", "using index notes_id_kind"])
def test_row_moves_through_two_filters(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    source_db.needs(15, "row filters")
    prepare(source_db)
    source_db.execute(
        "alter table notes add column kind text not null default 'in';"
        "create unique index notes_id_kind on notes (id, kind);"
        "update notes set kind = case n % 3 when 0 then 'in' when 1 then 'also' else 'out' end;"
        f"alter table notes replica identity {identity};"
        "create publication headwater for table others, notes where (kind = 'in');"
        "create publication more for table notes where (kind = 'also')"
    )
    deployment = deploy(CONFIG, publications=("headwater", "more"))
    device = Device(deployment.start())
    assert device.rows() == published_rows(source_db, SHOWN, deployment.publications)
    for name, (set_to, number, ops) in MOVES.items():
        before = deployment.op_count()
        source_db.execute(f"update notes set {set_to} where id = '{number}'")
        deployment.caught_up()
        assert device.rows() == published_rows(source_db, SHOWN, deployment.publications), name
        another = 1 if identity == "full" and name.startswith("within") else 0  # content is another row
        assert deployment.op_count() - before == ops + another, name


BIG = "(select string_agg(md5(i::text), '') from generate_series(1, 400) i)"  # too large to stand in the row


@pytest.mark.parametrize("identity", ["full", "using index notes_id_kind"])
def test_row_filter_keeps_large_values(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    source_db.needs(15, "row filters")
    prepare(source_db)
    source_db.execute(
        "alter table notes add column kind text not null default 'in', add column big text;"
        "create unique index notes_id_kind on notes (id, kind);"
        f"alter table notes replica identity {identity}; update notes set kind = 'out' where n % 2 = 0;"
        f"update notes set big = {BIG};"
        "create publication headwater for table others, notes where (kind = 'in')"
    )
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    assert device.rows() == published_rows(source_db, SHOWN)
    before = deployment.op_count()
    for moved in (
        "update notes set kind = case kind when 'in' then 'out' else 'in' end where n <= 20",
        "update notes set body = 'stays in or out' where n between 20 and 30",
        (
            "begin; update notes set kind = 'out' where n = 40; update notes set kind = 'in' where n = 40;"
            " update notes set kind = 'in', body = 'in' where n = 42; update notes set kind = 'out' where n = 42;"
            " update notes set kind = 'in', id = 'moved' where n = 44; commit"
        ),
    ):
        source_db.execute(moved)
        deployment.caught_up()
        assert device.rows() == published_rows(source_db, SHOWN)
    assert device.rows()["notes", "moved"]["big"] == source_db.fetch(f"select {BIG}")[0][0]
    stayed = 6 * (2 if identity == "full" else 1)  # without a key, another content is another row
    assert deployment.op_count() - before == 20 + stayed + 2


def test_rules_reach_published_tables_only(source_db: SourceDb, deploy: Deploy) -> None:
    prepare(source_db)
    source_db.execute(BOTH)
    rules = auto_streams(
        all=[
            "SELECT id FROM others",
            "SELECT id FROM app.items",
            "SELECT rolname AS id FROM pg_catalog.pg_authid",
            "SELECT table_name AS id FROM information_schema.tables",
            'SELECT id FROM "%"."%" AS everything',
        ],
        by_others="SELECT id FROM others AS granted WHERE auth.user_id() IN (SELECT rolname FROM pg_catalog.pg_roles)",
    )
    deployment = deploy(rules).start()
    source_db.execute("update app.items set n = 0; insert into others values ('2', 'two')")
    deployment.caught_up()

    held: dict[str, set[str]] = {}
    for table, row_id in deployment.rows("postgres"):
        held.setdefault(table, set()).add(row_id)

    assert held == {"others": {"1", "2"}, "everything": {str(number) for number in range(1, ROWS + 1)}}
