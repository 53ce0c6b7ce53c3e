"""Tables that are altered, made, dropped and published otherwise: devices get what differs, and nobody has to help."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

import pytest

from tests.support.changed_source import Change, Device, Rows, play, published_rows, settled
from tests.support.fix_headwater import Deploy, wait_until
from tests.support.turns import in_turn

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner = auth.user_id()
  others:
    auto_subscribe: true
    query: SELECT * FROM others
"""

SHOWN = {"public.notes": "owner = 'a'", "public.others": "true"}

ROWS = 60

AFTER = (
    "update notes set body = 'after' where id = '1'; insert into notes (id, owner, body) values ('z', 'a', 'last');"
    " delete from notes where id = '2'"
)


def prepare(source: SourceDb) -> None:
    source.execute("create table notes (id text primary key, owner text, body text, n int)")
    source.execute(f"insert into notes select i::text, 'a', 'x' || i, i from generate_series(1, {ROWS}) i")
    source.execute("create table others (id text primary key, text text)")
    source.execute("insert into others values ('1', 'one')")


def truth(source: SourceDb) -> Rows:
    return published_rows(source, SHOWN)


FULL = "alter table notes replica identity full"
INDEXED = (
    "alter table notes alter owner set not null; create unique index by_owner on notes (owner, id);"
    " alter table notes replica identity using index by_owner"
)
TWICE = "alter table notes add column v int generated always as (n * 2) stored"
AWAY = "alter table notes rename to tmp; update tmp set body = 'unseen' where n < 4; alter table tmp rename to notes"
NO_MORE = ""  # there is no table to write to

CHANGES = {
    "column added": Change("alter table notes add column extra text", 0),
    "column added with a constant": Change("alter table notes add column extra text default 'filled'", ROWS),
    "column added with what differs": Change("alter table notes add column extra text default random()::text", ROWS),
    "column dropped": Change("alter table notes drop column n", ROWS),
    "column dropped and made again": Change("alter table notes drop column n, add column n int", ROWS),
    "column renamed": Change("alter table notes rename column n to number", ROWS),
    "column with a larger type": Change("alter table notes alter column n type bigint", 0),
    "column with another type": Change("alter table notes alter column n type text using 'n' || n", ROWS),
    "column rewritten in place": Change("alter table notes alter column n type int using n % 50", 11),
    "default changed": Change("alter table notes alter column body set default 'y'", 0),
    "rewritten": Change("cluster notes using notes_pkey", 0),
    "identity full": Change(FULL, 0),
    "identity by an index": Change(INDEXED, 0),
    "identity by a column that is no id": Change(
        "alter table notes alter body set not null; create unique index by_body on notes (body);"
        " alter table notes replica identity using index by_body", 0,
    ),
    "key dropped and made again": Change(
        "alter table notes drop constraint notes_pkey; alter table notes add primary key (id)", 0,
    ),
    "another key": Change(
        "alter table notes drop constraint notes_pkey; alter table notes add primary key (owner, id)", 0,
    ),
    "a new column as key": Change(
        "alter table notes drop constraint notes_pkey; alter table notes add number serial primary key", ROWS + 1,
    ),
    "identity full and a column": Change(
        f"{FULL}; alter table notes add column extra text", 0,
    ),
    "dropped": Change("drop table notes", 1, after=NO_MORE),
    "dropped and made again": Change(
        "begin; drop table notes; create table notes (id text primary key, owner text, body text);"
        " insert into notes values ('1', 'a', 'x1'), ('new', 'a', 'y');"
        " alter publication headwater add table notes; commit", ROWS + 1,
    ),
    "dropped and made again as it was": Change(
        "begin; alter table notes rename to old; create table notes (like old including all);"
        " insert into notes select * from old; drop table old; alter publication headwater add table notes; commit", 0,
    ),
    "renamed out of reach": Change("alter table notes rename to archive", 1, after=NO_MORE),
    "swapped": Change(
        "begin; create table other (like notes including all); insert into other values ('1', 'a', 'x1', 1);"
        " alter table notes rename to old; alter table other rename to notes;"
        " alter publication headwater add table notes; commit", ROWS - 1,
    ),
    "renamed and back": Change("alter table notes rename to tmp; alter table tmp rename to notes", 0),
    "column list": Change("alter publication headwater set table notes (id, owner, body), others", ROWS, needs=15),
    "row filter": Change("alter publication headwater set table notes where (id > '3'), others", 23, needs=15),
    "not published": Change("alter publication headwater drop table notes", 1),
    "generated column added": Change(TWICE, ROWS),
    "generated column dropped": Change("alter table notes drop column v", ROWS, TWICE),
    "generated expression dropped": Change("alter table notes alter column v drop expression", 0, TWICE,
        after="update notes set v = -1 where id = '1'; update notes set n = -1 where id = '2'"),
    "another generated expression": Change("alter table notes alter column v set expression as (n * 2 + n % 2)",
        ROWS // 2, TWICE, needs=17),
    "column added under identity full": Change("alter table notes add column extra text", 0,
        FULL),
    "column added under an index": Change("alter table notes add column extra text", 0, INDEXED),
    "column with a constant under identity full": Change("alter table notes add column extra text default 'filled'",
        2 * ROWS, FULL),  # without a key, another content is another row
    "key rewritten": Change("alter table notes alter column id type varchar(9) using case when n > 5 then id"
        " else 'k' || id end", 5 + 5),
    "keys exchanged": Change("alter table notes alter column id type text using case n when 1 then '2' when 2 then '1'"
        " else id end", 2),
    "renamed and back, written between": Change(AWAY, 3),
    "renamed and back one by one": Change(AWAY, 3, separately=True),
    "dropped and made again one by one": Change("drop table notes; create table notes (id text primary key, owner text,"
        " body text); insert into notes values ('1', 'a', 'x1'), ('new', 'a', 'y');"
        " alter publication headwater add table notes", ROWS + 1, separately=True),
    "column dropped and made again one by one": Change(
        "alter table notes drop column n; alter table notes add column n int", ROWS, separately=True),
}  # fmt: skip


@pytest.mark.parametrize(("name", "found"), in_turn(CHANGES))
def test_a_change_of_a_table_costs_what_differs(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    change = CHANGES[name]
    source_db.needs(change.needs, name)
    prepare(source_db)
    source_db.execute(change.before)
    source_db.execute("create publication headwater for table notes, others")
    play(deploy(CONFIG), change, SHOWN, found=found, after=AFTER)


def test_changes_before_and_after_an_alter_arrive_in_one_go(deploy: Deploy, source_db: SourceDb) -> None:
    prepare(source_db)
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    assert device.rows() == truth(source_db)
    deployment.stop()
    source_db.execute("update notes set body = 'before' where n < 5; delete from notes where n = 6")
    source_db.execute("insert into notes values ('in the old form', 'a', 'x', 7)")
    source_db.execute("alter table notes drop column n; alter table notes add column m int default 3")
    source_db.execute("update notes set body = 'between', m = 4 where id in ('1', '2')")
    source_db.execute("alter table notes rename column m to k; alter table notes add column big text default 'z'")
    source_db.execute("update notes set k = 5 where id = '2'; delete from notes where id = '9'")
    deployment.start()
    wait_until(lambda: device.rows() == truth(source_db) and settled(deployment), "all of it to arrive")
    source_db.execute("update notes set big = 'last' where id = '3'")
    assert deployment.caught_up()
    assert device.rows() == truth(source_db)
    assert [record.kind for record in deployment.bulk_records()].count("snapshot") == 1
    deployment.close()
    assert deployment.problems() == []


KEPT_NAME = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT id, ifnull(number, n) AS points FROM notes WHERE owner = auth.user_id()
  others:
    auto_subscribe: true
    query: SELECT * FROM others
"""


RENAMED, DROPPED = "alter table notes rename column n to number", "alter table notes drop column body"


@pytest.mark.parametrize(("sql", "identity"), list(product((RENAMED, DROPPED), ("", INDEXED, FULL))))
def test_what_the_rules_make_of_rows_can_outlive_a_change(
    deploy: Deploy, source_db: SourceDb, sql: str, identity: str
) -> None:
    prepare(source_db)
    source_db.execute(identity)
    deployment = deploy(KEPT_NAME).start()
    before = deployment.op_count()
    rows = deployment.rows("a")
    assert rows["notes", "7"] == {"id": "7", "points": 7}
    source_db.execute(sql)
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert deployment.rows("a") == rows
    assert deployment.op_count() == before
    column = "number" if "rename" in sql else "n"
    source_db.execute(f"update notes set {column} = 70 where id = '7'")
    assert deployment.rows("a")["notes", "7"] == {"id": "7", "points": 70}
    another = 1 if identity == FULL else 0  # without a key, another content is another row
    assert deployment.op_count() == before + 1 + another


MEMBERS = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    with: {mine: SELECT team FROM members WHERE user_id = auth.user_id() AND active = 'yes'}
    query: SELECT id, body FROM notes WHERE team IN mine
"""


def test_who_gets_rows_follows_a_column_that_only_the_parameters_read(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key, body text, team text)")
    source_db.execute("create table members (id text primary key, user_id text, team text, active text)")
    source_db.execute("insert into notes values ('1', 'x', 't')")
    source_db.execute("insert into members values ('m', 'a', 't', 'yes'), ('n', 'b', 't', 'no')")
    deployment = deploy(MEMBERS).start()
    assert set(deployment.rows("a")) == {("notes", "1")}
    source_db.execute("alter table members drop column active")
    wait_until(lambda: not deployment.rows("a"), "who is a member no more to get nothing")
    source_db.execute("alter table members add column active text not null default 'yes'")
    wait_until(lambda: len(deployment.rows("a")) == len(deployment.rows("b")) == 1, "all members to get the row")


BOTH_NAMES = (
    CONFIG
    + """
  archive:
    auto_subscribe: true
    query: SELECT * FROM archive WHERE owner = auth.user_id()
"""
)


def test_a_table_that_is_renamed_within_reach_moves(deploy: Deploy, source_db: SourceDb) -> None:
    prepare(source_db)
    deployment = deploy(BOTH_NAMES).start()
    assert {table for table, _ in deployment.rows("a")} == {"notes", "others"}
    source_db.execute("alter table notes rename to archive")

    def moved() -> bool:
        tables = Counter(table for table, _ in deployment.rows("a"))
        return tables == {"archive": ROWS, "others": 1}

    wait_until(moved, "the rows to stand under the new name")
    source_db.execute("drop table archive")
    wait_until(lambda: {table for table, _ in deployment.rows("a")} == {"others"}, "the rows to go")
    deployment.close()
    assert deployment.problems() == []


SWAP = "alter table notes rename to tmp; alter table archive rename to notes; alter table tmp rename to archive"
OTHER_ROWS = "update archive set body = 'archived ' || n"
SWAPS = {
    "swapped": Change(SWAP, 2 * ROWS, OTHER_ROWS),
    "swapped one by one": Change(SWAP, 2 * ROWS, OTHER_ROWS, separately=True),
    "swapped, much alike": Change(SWAP, 2 * 3, "update archive set body = 'archived' where n in (3, 5, 7)"),
}


@pytest.mark.parametrize(("name", "found"), in_turn(SWAPS))
def test_tables_that_each_have_a_rule_are_swapped(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    prepare(source_db)
    source_db.execute("create table archive (like notes including all); insert into archive select * from notes")
    source_db.execute(f"{SWAPS[name].before}; create publication headwater for all tables")
    shown = {**SHOWN, "public.archive": "owner = 'a'"}
    play(deploy(BOTH_NAMES), SWAPS[name], shown, found=found, after=AFTER)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_table_that_is_another_for_the_length_of_a_transaction(
    deploy: Deploy, source_db: SourceDb, identity: str
) -> None:
    prepare(source_db)
    source_db.execute(f"alter table notes replica identity {identity}")
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    assert device.rows() == truth(source_db)
    source_db.execute(
        "begin; truncate notes; insert into notes values ('1', 'a', 'before', 1), ('2', 'a', 'before', 2);"
        " alter table notes add column tmp text; update notes set body = 'x', tmp = 'y' where id = '1';"
        " insert into notes values ('3', 'a', 'between', 3, 'tmp'); alter table notes drop column tmp;"
        " insert into notes values ('4', 'a', 'after', 4); delete from notes where id = '2'; commit"
    )
    wait_until(lambda: device.rows() == truth(source_db) and settled(deployment), "what is left to be shown")
    source_db.execute("update notes set body = 'last'")
    assert deployment.caught_up()
    assert device.rows() == truth(source_db)
    assert [record.kind for record in deployment.bulk_records()].count("snapshot") == 1
    deployment.close()
    assert deployment.problems() == []
