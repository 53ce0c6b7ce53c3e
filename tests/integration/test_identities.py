"""However a table tells its rows apart, devices end with what SQL says, large values that the stream leaves out too."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import pytest

from headwater.source.catalog.published import published_tables
from headwater.source.readiness.checks import table_findings
from tests.support.changed_source import settled
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.row_truth import Rows, device_rows, truth
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

ANONYMOUS = "part, owner, body, n"
CONFIG = auto_streams(
    notes="SELECT COLUMNS FROM notes", parents="SELECT * FROM parents", children="SELECT * FROM children"
)
BIG = "repeat('toast', 4000)"


@dataclass(frozen=True)
class Identity:
    """A table's keys, what identifies its rows, whether Postgres allows updates, and rows that are equal."""

    keys: str
    identity: str
    changes: bool = True
    equal_rows: bool = False

    @property
    def columns(self) -> str:
        """What the rules select: equal ids would be one row on a device."""
        return ANONYMOUS if self.equal_rows else "*"


PRIMARY = "alter table notes add primary key (id);"
UNIQUE = "create unique index notes_key on notes (part, id);"
IDENTITIES = {
    "default with a primary key": Identity(PRIMARY, "default"),
    "default with a key of two columns": Identity("alter table notes add primary key (part, id);", "default"),
    "default with a unique index only": Identity(UNIQUE, "default", changes=False),
    "default with nothing": Identity("", "default", changes=False, equal_rows=True),
    "index beside a primary key": Identity(PRIMARY + UNIQUE, "using index notes_key"),
    "index that is the primary key": Identity(PRIMARY, "using index notes_pkey"),
    "index only": Identity(UNIQUE, "using index notes_key"),
    "full with a primary key": Identity(PRIMARY, "full"),
    "full with a unique index": Identity(UNIQUE, "full"),
    "full with nothing": Identity("", "full", equal_rows=True),
    "nothing with a primary key": Identity(PRIMARY, "nothing", changes=False),
    "nothing with a unique index": Identity(UNIQUE, "nothing", changes=False),
    "nothing at all": Identity("", "nothing", changes=False, equal_rows=True),
}

INSERTS = f"""
insert into notes values ('new', 1, 'a', 'small', 1), ('large', 1, 'a', {BIG}, 1);
begin; insert into notes values ('same go', 1, 'a', {BIG}, 2); insert into notes values ('null', 1, null, null, null);
commit
"""
CHANGES = [
    "update notes set n = n + 1",
    "update notes set owner = 'b' where id in ('large', '1')",
    "update notes set id = 'moved ' || id where id in ('large', '2')",
    "update notes set id = 'moved again', n = 7 where id = 'moved large'; update notes set part = 2 where id = '3'",
    (
        f"begin; update notes set id = 'x' where id = '4'; insert into notes values ('4', 1, 'a', {BIG}, 44);"
        " update notes set n = 45 where id in ('4', 'x'); commit"
    ),
    (
        "begin; update notes set id = 'tmp' where id = 'x'; update notes set id = 'x' where id = '4';"
        " update notes set id = '4' where id = 'tmp'; commit"
    ),
    "update notes set body = body || 'longer', n = 0 where n = 45; update notes set n = 46 where n = 0",
    (
        f"begin; delete from notes where id = '5'; insert into notes values ('5', 1, 'c', {BIG}, 5);"
        " update notes set n = 55 where id = '5'; delete from notes where id = '6'; commit"
    ),
    "update notes set body = null where id = '1'; delete from notes where id in ('null', 'new')",
]
EQUAL_ROWS = f"insert into notes select 'same', 1, 'a', {BIG}, 1 from generate_series(1, 4)"
CHANGES_OF_EQUAL_ROWS = [
    "delete from notes where ctid = (select min(ctid) from notes where id = 'same')",
    "update notes set n = 2 where ctid = (select min(ctid) from notes where id = 'same')",
    "update notes set n = 1 where id = 'same'",
    "begin; update notes set n = 3 where id = 'same'; update notes set n = 1 where id = 'same'; commit",
]


def create(source: SourceDb, case: Identity) -> None:
    source.execute("create table notes (id text not null, part int not null, owner text, body text, n int)")
    source.execute(f"alter table notes alter column body set storage external; {case.keys}")
    source.execute(f"alter table notes replica identity {case.identity}")
    source.execute(f"insert into notes select i::text, 1, 'a', {BIG} || i, i from generate_series(1, 8) i")
    source.execute("create table parents (id serial primary key, name text)")
    source.execute("create table children (id serial primary key, parent int references parents)")
    source.execute("insert into parents (name) values ('one'), ('two'); insert into children (parent) values (1), (2)")


def whole_truth(source: SourceDb, columns: str = "*") -> Rows:
    return truth(source, "notes", columns) + truth(source, "parents") + truth(source, "children")


@pytest.mark.parametrize("name", IDENTITIES)
def test_changes_arrive_with_any_identity(deploy: Deploy, source_db: SourceDb, name: str) -> None:
    case = IDENTITIES[name]
    create(source_db, case)
    deployment = deploy(CONFIG.replace("COLUMNS", case.columns)).start()

    def check(after: str) -> None:
        assert device_rows(deployment) == whole_truth(source_db, case.columns), after

    check("the snapshot")
    source_db.execute(INSERTS)
    check(INSERTS)
    if case.equal_rows:
        source_db.execute(EQUAL_ROWS)
        check(EQUAL_ROWS)
    for change in [*CHANGES, *(CHANGES_OF_EQUAL_ROWS if case.equal_rows else [])]:
        if case.changes:
            source_db.execute(change)
            check(change)
        elif not change.startswith("begin"):
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
                source_db.execute(change)
    source_db.execute("truncate parents, notes restart identity cascade")
    assert device_rows(deployment) == {}
    source_db.execute(
        "begin; insert into parents (name) values ('anew'); truncate only children; insert into children (parent)"
        f" values (1); insert into notes values ('1', 1, 'a', {BIG}, 1); truncate notes;"
        f" insert into notes values ('1', 1, 'b', {BIG}, 2); commit"
    )
    check("a truncate amid a transaction")
    audit = deployment.ask("audit")
    assert (audit["state"], audit["differences"]) == ("done", {})


@pytest.mark.parametrize(
    "index",
    [
        "create index bad on notes (id)",
        "create unique index bad on notes (n)",
        "create unique index bad on notes (id) where n > 0",
        "create unique index bad on notes (lower(id))",
        "alter table notes add constraint bad unique (id) deferrable",
    ],
)
def test_postgres_refuses_unfit_index(source_db: SourceDb, index: str) -> None:
    create(source_db, IDENTITIES["default with a primary key"])
    source_db.execute(index)
    with pytest.raises((psycopg.errors.WrongObjectType, psycopg.errors.FeatureNotSupported)):
        source_db.execute("alter table notes replica identity using index bad")


REASONS = {
    "alter table notes drop constraint notes_pkey": (
        "HW_2017", "public.notes has no primary key", "REPLICA IDENTITY FULL"),
    "alter table notes drop constraint notes_pkey, add primary key (id) deferrable": (
        "HW_2017", "the primary key of public.notes is deferrable and can't identify rows", "NOT DEFERRABLE"),
    "create unique index key on notes (part, id); alter table notes replica identity using index key; drop index key": (
        "HW_2024", "the index that was to identify the rows of public.notes is gone",
        'ALTER TABLE "public"."notes" REPLICA IDENTITY DEFAULT'),
}  # fmt: skip


@pytest.mark.parametrize("sql", REASONS)
def test_missing_identity_has_a_reason(source_db: SourceDb, sql: str) -> None:
    create(source_db, IDENTITIES["default with a primary key"])
    source_db.execute("create publication headwater for table notes")
    source_db.execute(sql)
    tables = [t for t in published_tables(source_db.connection, ["headwater"]) if t.relation.name == "notes"]
    (finding,) = table_findings(source_db.connection, tables)
    code, what, fix = REASONS[sql]
    assert finding.code == code
    assert what in finding.what
    assert "Postgres refuses its updates and deletes" in finding.what
    assert fix in finding.fix
    source_db.execute("alter publication headwater set (publish = 'insert, truncate')")
    tables = [t for t in published_tables(source_db.connection, ["headwater"]) if t.relation.name == "notes"]
    assert [found.code for found in table_findings(source_db.connection, tables)] == ["PSYNC_S1142"]


RENAMED = auto_streams(notes="SELECT ifnull(ref, id) AS id, body FROM notes")


def test_renamed_key_column_costs_nothing(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db, IDENTITIES["default with a primary key"])
    deployment = deploy(RENAMED).start()
    rows = deployment.rows("a")
    before = deployment.op_count()
    source_db.execute("alter table notes rename id to ref")
    wait_until(lambda: settled(deployment), "the table to be compared")
    assert deployment.op_count() == before
    assert deployment.rows("a") == rows
    source_db.execute("update notes set body = 'after' where ref = '1'; delete from notes where ref = '2'")
    deployment.caught_up()
    assert deployment.op_count() == before + 2
    assert deployment.rows("a")["notes", "1"]["body"] == "after"


WITH_INDEX = IDENTITIES["index beside a primary key"]
WITH_KEY = IDENTITIES["default with a primary key"]


@dataclass(frozen=True)
class Live:
    """A change of what identifies the rows of a table that is followed, and whether Postgres allows updates then."""

    case: Identity
    sql: str
    changes: bool = True


LIVE = {
    "primary key through another index": Live(WITH_KEY, "create unique index fresh on notes (id);"
        " alter table notes drop constraint notes_pkey, add constraint fresh primary key using index fresh"),
    "primary key over more columns": Live(
        WITH_KEY, "alter table notes drop constraint notes_pkey, add primary key (id, part)"),
    "primary key over other columns": Live(
        WITH_KEY, "alter table notes add column nr int generated by default as identity;"
        " alter table notes drop constraint notes_pkey, add primary key (nr)"),
    "primary key dropped": Live(WITH_KEY, "alter table notes drop constraint notes_pkey", changes=False),
    "primary key dropped and made again": Live(
        WITH_KEY, "alter table notes drop constraint notes_pkey; alter table notes add primary key (id)"),
    "primary key made deferrable": Live(
        WITH_KEY, "alter table notes drop constraint notes_pkey, add primary key (id) deferrable", changes=False),
    "identity index replaced": Live(WITH_INDEX, "create unique index fresh on notes (id, part);"
        " alter table notes replica identity using index fresh; drop index notes_key"),
    "identity index replaced by one of other columns": Live(
        WITH_INDEX, "alter table notes add column nr int generated always as identity; create unique index fresh on"
        " notes (nr); alter table notes replica identity using index fresh; drop index notes_key"),
    "identity index dropped": Live(WITH_INDEX, "drop index notes_key", changes=False),
    "identity index dropped, and the primary key taken": Live(
        WITH_INDEX, "drop index notes_key; alter table notes replica identity default"),
    "default to full": Live(WITH_KEY, "alter table notes replica identity full"),
    "default to nothing": Live(WITH_KEY, "alter table notes replica identity nothing", changes=False),
    "full to default": Live(IDENTITIES["full with a primary key"], "alter table notes replica identity default"),
    "nothing to full": Live(IDENTITIES["nothing with a primary key"], "alter table notes replica identity full"),
    "all of them": Live(WITH_INDEX, "alter table notes replica identity full; update notes set n = n + 1;"
        " alter table notes replica identity using index notes_key; update notes set n = n + 1, id = 'z' || id;"
        " alter table notes replica identity nothing; insert into notes values ('n', 1, 'a', 'x', 1);"
        " alter table notes replica identity default; update notes set id = 'y' || id"),
}  # fmt: skip


@pytest.mark.parametrize(
    "stopped", [pytest.param(False, id="followed"), pytest.param(True, id="stopped", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", LIVE)
def test_identity_changes_live(deploy: Deploy, source_db: SourceDb, name: str, stopped: bool) -> None:
    live = LIVE[name]
    create(source_db, live.case)
    deployment = deploy(CONFIG.replace("COLUMNS", "*")).start()
    if stopped:
        deployment.stop()
    source_db.execute("insert into notes values ('before', 1, 'a', 'x', 1)")
    if live.case.changes:
        source_db.execute("update notes set n = 10 where id in ('1', 'before'); delete from notes where id = '2'")
    source_db.execute(live.sql)
    source_db.execute(f"insert into notes (id, part, owner, body, n) values ('after', 1, 'a', {BIG}, 1)")
    if live.changes:
        source_db.execute("update notes set n = 11 where n > 4; update notes set id = 'moved ' || id where n = 3")
        source_db.execute("delete from notes where n = 10 or id = '4'")
    if stopped:
        deployment.start()
    wait_until(lambda: device_rows(deployment) == whole_truth(source_db), f"the truth after: {live.sql}")
    source_db.execute(f"insert into notes (id, part, owner, body, n) values ('later', 1, 'a', {BIG}, 1)")
    if live.changes:
        source_db.execute("update notes set owner = 'c'; delete from notes where n = 11 and id < '7'")
    wait_until(lambda: device_rows(deployment) == whole_truth(source_db), f"the later truth after: {live.sql}")
    assert deployment.kinds().count("snapshot") == 1


@pytest.mark.parametrize("identity", ["default", "using index notes_key", "full"])
def test_row_enters_and_leaves_filter_untoasted(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    source_db.needs(15, "row filters of publications")
    create(source_db, Identity("alter table notes add primary key (id, part);" + UNIQUE, identity))
    source_db.execute("create publication headwater for table notes where (part > 1), parents, children")
    deployment = deploy(CONFIG.replace("COLUMNS", "*")).start()

    def check(after: str) -> None:
        expected = truth(source_db, "notes", condition="part > 1") + truth(source_db, "parents")
        assert device_rows(deployment) == expected + truth(source_db, "children"), after

    check("the snapshot")
    for change in (
        "update notes set part = 2 where id in ('1', '2')",
        "update notes set n = 10 where id in ('1', '3')",
        "update notes set part = 3 where id = '1'; update notes set part = 1 where id = '2'",
        "update notes set part = 2, id = 'moved' where id = '2'; update notes set part = 2 where id = '3'",
        (
            "begin; update notes set part = 5 where id = '4'; update notes set n = 4 where id = '4';"
            " update notes set id = 'x' where id = '4'; commit"
        ),
        (
            "begin; update notes set part = 5 where id = '5'; update notes set n = 4 where id = '5';"
            " delete from notes where id = '5'; update notes set part = 1 where id = 'x'; commit"
        ),
        "begin; update notes set part = 5 where id = '6'; update notes set part = 1 where id = '6'; commit",
        "begin; update notes set part = 6 where id = 'x'; update notes set part = 7 where id = 'x'; commit",
    ):
        source_db.execute(change)
        check(change)
