"""Tables and types that are altered, made, dropped, moved and published otherwise: devices get what differs."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from tests.support.changed_source import OTHERS, Change, Device, Rows, play, published_rows, settled
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.turns import in_turn
from tests.support.waiting import wait_until

CONFIG = auto_streams(notes="SELECT * FROM notes WHERE owner = auth.user_id()", others="SELECT * FROM others")

SHOWN = {"public.notes": "owner = 'a'", "public.others": "true"}

ROWS = 60

AFTER = (
    "update notes set body = 'after' where id = '1'; insert into notes (id, owner, body) values ('z', 'a', 'last');"
    " delete from notes where id = '2'"
)


def prepare(source: SourceDb) -> None:
    source.execute("create table notes (id text primary key, owner text, body text, n int)")
    source.execute(f"insert into notes select i::text, 'a', 'x' || i, i from generate_series(1, {ROWS}) i")
    source.execute(OTHERS)


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
def test_table_change_costs_what_differs(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    change = CHANGES[name]
    source_db.needs(change.needs, name)
    prepare(source_db)
    source_db.execute(change.before)
    source_db.execute("create publication headwater for table notes, others")
    play(deploy(CONFIG), change, SHOWN, found=found, after=AFTER)


def test_changes_around_alter_arrive(deploy: Deploy, source_db: SourceDb) -> None:
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
    assert deployment.kinds().count("snapshot") == 1


KEPT_NAME = auto_streams(
    notes="SELECT id, ifnull(number, n) AS points FROM notes WHERE owner = auth.user_id()",
    others="SELECT * FROM others",
)


RENAMED, DROPPED = "alter table notes rename column n to number", "alter table notes drop column body"


@pytest.mark.parametrize(("sql", "identity"), list(product((RENAMED, DROPPED), ("", INDEXED, FULL))))
def test_unchanged_results_cost_nothing(deploy: Deploy, source_db: SourceDb, sql: str, identity: str) -> None:
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


def test_parameter_column_decides_who_gets_rows(deploy: Deploy, source_db: SourceDb) -> None:
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


def test_renamed_table_moves(deploy: Deploy, source_db: SourceDb) -> None:
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


SWAP = "alter table notes rename to tmp; alter table archive rename to notes; alter table tmp rename to archive"
OTHER_ROWS = "update archive set body = 'archived ' || n"
SWAPS = {
    "swapped": Change(SWAP, 2 * ROWS, OTHER_ROWS),
    "swapped one by one": Change(SWAP, 2 * ROWS, OTHER_ROWS, separately=True),
    "swapped, much alike": Change(SWAP, 2 * 3, "update archive set body = 'archived' where n in (3, 5, 7)"),
}


@pytest.mark.parametrize(("name", "found"), in_turn(SWAPS))
def test_swapped_tables(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    prepare(source_db)
    source_db.execute("create table archive (like notes including all); insert into archive select * from notes")
    source_db.execute(f"{SWAPS[name].before}; create publication headwater for all tables")
    shown = {**SHOWN, "public.archive": "owner = 'a'"}
    play(deploy(BOTH_NAMES), SWAPS[name], shown, found=found, after=AFTER)


@pytest.mark.parametrize("identity", ["default", "full"])
def test_table_altered_within_transaction(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
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
    assert deployment.kinds().count("snapshot") == 1


TYPES_CONFIG = auto_streams(notes="SELECT * FROM notes", others="SELECT * FROM others")

TYPES_SHOWN = {"public.notes": "true", "public.others": "true"}

TYPES_ROWS, HALF = 30, 15

TYPES_AFTER = (
    "update notes set n = 77 where id = '3'; insert into notes (id, n) values ('z', 3);"
    " delete from notes where id = '5'"
)

MOOD = "create type mood as enum ('ok', 'bad');"
SPOT = "create type spot as (x int, y text);"


def column(kind: str, value: str) -> str:
    """A column of that type, and an expression for its value in row `n`."""
    return f"alter table notes add column v {kind}; update notes set v = {value}"


OK_OR_BAD = "case n % 2 when 0 then 'bad'::mood else 'ok' end"
A_MOOD = MOOD + column("mood", OK_OR_BAD)
MOODS = MOOD + "create domain feeling as mood;" + column("feeling[]", f"array[{OK_OR_BAD}]::feeling[]")
MOODY_SPOT = MOOD + "create type spot as (x int, m mood);" + column("spot", f"row(n, {OK_OR_BAD})::spot")
A_SPOT = SPOT + column("spot", "row(n, 'y ' || n)::spot")
SPOTS = SPOT + "create type way as (spots spot[]);" + column("way", "row(array[row(n, 'y')::spot])::way")
WHOLE = "create table shape (x int, y text);" + column("shape", "row(n, 'y')::shape")

TYPES_CHANGES = {
    "enum value added": Change("alter type mood add value 'fine' before 'bad'", 0, A_MOOD),
    "enum value renamed": Change("alter type mood rename value 'ok' to 'good'", HALF, A_MOOD),
    "in a domain in an array": Change("alter type mood rename value 'ok' to 'good'", HALF, MOODS),
    "in a composite type": Change("alter type mood rename value 'ok' to 'good'", HALF, MOODY_SPOT),
    "enum renamed": Change("create schema app; alter type mood set schema app; alter type app.mood rename to feel", 0,
        A_MOOD),
    "attribute added": Change("alter type spot add attribute z int", TYPES_ROWS, A_SPOT),
    "attribute dropped": Change("alter type spot drop attribute y", TYPES_ROWS, A_SPOT),
    "attribute renamed": Change("alter type spot rename attribute y to why", TYPES_ROWS, A_SPOT),
    "attribute made again": Change("alter type spot drop attribute y; alter type spot add attribute y text", TYPES_ROWS,
        A_SPOT),
    "attribute within": Change("alter type spot rename attribute y to why", TYPES_ROWS, SPOTS),
    "column of a table as a type": Change("alter table shape add column z int", TYPES_ROWS, WHOLE),
    "domain constrained": Change("alter domain amount add constraint positive check (value > 0)", 0,
        "create domain amount as int;" + column("amount", "n")),
    "column of a domain": Change("alter table notes alter column n type amount", 0, "create domain amount as int"),
    "identity column": Change("alter table notes add column v int generated by default as identity", TYPES_ROWS),
    "volatile default": Change("alter table notes add column v text default clock_timestamp()::text", TYPES_ROWS),
    "larger number": Change("alter table notes alter column n type bigint", 0),
    "number to text": Change("alter table notes alter column n type text", TYPES_ROWS),
    "number with a point": Change("alter table notes alter column n type double precision", TYPES_ROWS),
    "text by an expression": Change("alter table notes alter column n type int using n % 20", TYPES_ROWS - 19),
    "longer text": Change("alter table notes alter column v type varchar(40)", 0, column("varchar(20)", "'x' || n")),
    "text to an array": Change("alter table notes alter column v type text[] using array[v]", TYPES_ROWS,
        column("text", "'x' || n")),
    "text to enum": Change("create type mood as enum ('ok'); alter table notes alter column v type mood using v::mood",
        0, column("text", "'ok'")),
    "not null": Change("alter table notes alter column n set not null", 0),
    "key of another type": Change("alter table notes alter column id type varchar(50)", 0),
}  # fmt: skip


@pytest.mark.parametrize(("name", "found"), in_turn(TYPES_CHANGES))
def test_type_change_costs_what_differs(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    change = TYPES_CHANGES[name]
    source_db.execute("create table notes (id text primary key, n int)")
    source_db.execute(f"insert into notes select i::text, i from generate_series(1, {TYPES_ROWS}) i")
    source_db.execute(OTHERS)
    source_db.execute(change.before)
    source_db.execute("create publication headwater for table notes, others")
    play(deploy(TYPES_CONFIG), change, TYPES_SHOWN, found=found, after=TYPES_AFTER)


MOVES_CONFIG = auto_streams(parts='SELECT * FROM "part_%"', others="SELECT * FROM others")

MOVES_SHOWN = {r"public.part\_%": "true", "public.others": "true"}

MOVES_ROWS = 20

MOVES_AFTER = (
    "update {0} set body = 'after' where n = 3; insert into {0} values ('z', 'new'); delete from {0} where n = 5"
)


def prepare_of_moves(source: SourceDb) -> None:
    source.execute("create schema archive")
    for table in ("part_1", "part_2", "loose"):
        source.execute(f"create table {table} (id text primary key, body text, n int)")
        source.execute(
            f"insert into {table} select i::text, '{table} ' || i, i from generate_series(1, {MOVES_ROWS}) i"
        )
    source.execute(OTHERS)
    source.execute("create publication headwater for all tables")


MOVES_CHANGES = {
    "made with rows": (Change("begin; create table part_3 (id text primary key, body text, n int);"
        " insert into part_3 select i::text, 'x', i from generate_series(1, 5) i; commit;"
        " update part_3 set body = 'y' where n = 1", 5), "part_3"),
    "dropped": (Change("drop table part_1", MOVES_ROWS), "part_2"),
    "dropped and made again": (Change("drop table part_1; create table part_1 (id text primary key, n int, body text);"
        " insert into part_1 values ('1', 1, 'new')", MOVES_ROWS), "part_2"),
    "renamed into reach": (Change("alter table loose rename to part_loose", MOVES_ROWS), "part_loose"),
    "renamed out of reach": (Change("alter table part_1 rename to tmp; update tmp set body = 'x'", MOVES_ROWS),
        "part_2"),
    "renamed within reach": (Change("alter table part_1 rename to part_9", 2 * MOVES_ROWS), "part_9"),
    "swapped": (Change("alter table part_1 rename to tmp; alter table part_2 rename to part_1;"
        " alter table tmp rename to part_2", 2 * MOVES_ROWS), "part_1"),
    "swapped with one out of reach": (Change("alter table part_1 rename to tmp; alter table loose rename to part_1;"
        " alter table tmp rename to loose", MOVES_ROWS), "part_1"),
    "moved to another schema": (Change("alter table part_1 set schema archive", MOVES_ROWS), "part_2"),
    "moved from another schema": (Change("alter table archive.part_5 set schema public", MOVES_ROWS,
        "alter table loose rename to part_5; alter table part_5 set schema archive"), "part_5"),
    "swapped one by one": (Change("alter table part_1 rename to tmp; alter table part_2 rename to part_1;"
        " alter table tmp rename to part_2", 2 * MOVES_ROWS, separately=True), "part_1"),
    "renamed out of reach and back one by one": (Change("alter table part_1 rename to tmp;"
        " update tmp set body = 'x' where n < 4; alter table tmp rename to part_1", 3, separately=True), "part_1"),
    "to another schema and back one by one": (Change("alter table part_1 set schema archive; update archive.part_1"
        " set body = 'x' where n < 4; alter table archive.part_1 set schema public", 3, separately=True), "part_1"),
    "given back": (Change("begin; drop table part_1; alter table part_2 rename to part_1; alter table part_1 add x int"
        " default 7; update part_1 set n = 0; rollback", 0), "part_1"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "found"), in_turn(MOVES_CHANGES))
def test_table_move_costs_its_rows(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    change, table = MOVES_CHANGES[name]
    prepare_of_moves(source_db)
    source_db.execute(change.before)
    play(deploy(MOVES_CONFIG), change, MOVES_SHOWN, found=found, after=MOVES_AFTER.format(table))


def test_rolled_back_change_compares_nothing(deploy: Deploy, source_db: SourceDb) -> None:
    prepare_of_moves(source_db)
    deployment = deploy(MOVES_CONFIG).start()
    source_db.execute(
        "begin; insert into part_1 values ('kept', 'x', 1); savepoint before; insert into part_1 values ('gone', 'x');"
        " alter table part_1 add x int default 7; update part_1 set x = 8; alter publication headwater rename to tmp;"
        " rollback to before; insert into part_2 values ('kept', 'x', 1); commit"
    )
    rows = deployment.rows("a")
    assert rows == published_rows(source_db, MOVES_SHOWN)
    assert deployment.kinds() == ["snapshot"]


@pytest.mark.parametrize("stopped", [False, True], ids=["followed", "stopped"])
def test_transactions_over_altered_tables_arrive(deploy: Deploy, source_db: SourceDb, stopped: bool) -> None:
    prepare_of_moves(source_db)
    deployment = deploy(MOVES_CONFIG).start()
    device = Device(deployment)
    assert device.rows() == published_rows(source_db, MOVES_SHOWN)
    if stopped:
        deployment.stop()
    source_db.execute(
        "begin; insert into part_1 values ('a', 'old form', 1); insert into part_2 values ('a', 'old form', 1);"
        " alter table part_1 add column x int default 7; update part_2 set body = 'with ' || id where n < 4;"
        " alter table part_2 drop column n; insert into part_1 values ('b', 'new form', 1, 8);"
        " insert into part_2 values ('b', 'new form'); create table part_3 (id text primary key, n int);"
        " insert into part_3 values ('1', 1), ('2', 2); alter table part_3 rename to part_4;"
        " truncate loose, part_2; insert into part_2 values ('c', 'after truncate');"
        " update part_4 set n = 3 where id = '1'; update others set text = 'in it'; commit"
    )
    source_db.execute("begin; update part_1 set x = x + 1; delete from part_4 where id = '2'; commit")
    if stopped:
        deployment.start()
    wait_until(
        lambda: device.rows() == published_rows(source_db, MOVES_SHOWN) and settled(deployment), "all of it to arrive"
    )
    source_db.execute("update part_1 set x = 0; update part_2 set body = 'last'; update part_4 set n = 0")
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, MOVES_SHOWN)


def test_many_changes_in_a_row(deploy: Deploy, source_db: SourceDb) -> None:
    prepare_of_moves(source_db)
    deployment = deploy(MOVES_CONFIG).start()
    device = Device(deployment)
    for number in range(12):
        source_db.execute(f"alter table part_1 add column c{number} int default {number}")
        source_db.execute(f"update part_1 set c{number} = -1, body = 'round {number}' where n = {number + 1}")
        source_db.execute(f"alter table part_2 rename to part_{number + 100}; insert into others values ('o{number}')")
        source_db.execute(f"alter table part_{number + 100} rename to part_2; delete from part_2 where n = {number}")
        if number % 3 == 2:
            source_db.execute(f"alter table part_1 drop column c{number - 1}")
    wait_until(lambda: device.rows() == published_rows(source_db, MOVES_SHOWN), "all of it to arrive")
    wait_until(lambda: settled(deployment), "the comparison to end")
    source_db.execute("update part_1 set c11 = 0; update part_2 set body = 'last'")
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, MOVES_SHOWN)
    assert deployment.kinds().count("snapshot") == 1
