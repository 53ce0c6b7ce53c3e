"""Tables that come, go and change their names under a rule with a wildcard, and changes that come to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.changed_source import Change, Device, play, published_rows, settled
from tests.support.fix_headwater import Deploy, wait_until
from tests.support.turns import in_turn

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  parts:
    auto_subscribe: true
    query: SELECT * FROM "part_%"
  others:
    auto_subscribe: true
    query: SELECT * FROM others
"""

SHOWN = {r"public.part\_%": "true", "public.others": "true"}

ROWS = 20

AFTER = "update {0} set body = 'after' where n = 3; insert into {0} values ('z', 'new'); delete from {0} where n = 5"


def prepare(source: SourceDb) -> None:
    source.execute("create schema archive")
    for table in ("part_1", "part_2", "loose"):
        source.execute(f"create table {table} (id text primary key, body text, n int)")
        source.execute(f"insert into {table} select i::text, '{table} ' || i, i from generate_series(1, {ROWS}) i")
    source.execute("create table others (id text primary key, text text); insert into others values ('1', 'one')")
    source.execute("create publication headwater for all tables")


CHANGES = {
    "made with rows": (Change("begin; create table part_3 (id text primary key, body text, n int);"
        " insert into part_3 select i::text, 'x', i from generate_series(1, 5) i; commit;"
        " update part_3 set body = 'y' where n = 1", 5), "part_3"),
    "dropped": (Change("drop table part_1", ROWS), "part_2"),
    "dropped and made again": (Change("drop table part_1; create table part_1 (id text primary key, n int, body text);"
        " insert into part_1 values ('1', 1, 'new')", ROWS), "part_2"),
    "renamed into reach": (Change("alter table loose rename to part_loose", ROWS), "part_loose"),
    "renamed out of reach": (Change("alter table part_1 rename to tmp; update tmp set body = 'x'", ROWS), "part_2"),
    "renamed within reach": (Change("alter table part_1 rename to part_9", 2 * ROWS), "part_9"),
    "swapped": (Change("alter table part_1 rename to tmp; alter table part_2 rename to part_1;"
        " alter table tmp rename to part_2", 2 * ROWS), "part_1"),
    "swapped with one out of reach": (Change("alter table part_1 rename to tmp; alter table loose rename to part_1;"
        " alter table tmp rename to loose", ROWS), "part_1"),
    "moved to another schema": (Change("alter table part_1 set schema archive", ROWS), "part_2"),
    "moved from another schema": (Change("alter table archive.part_5 set schema public", ROWS,
        "alter table loose rename to part_5; alter table part_5 set schema archive"), "part_5"),
    "swapped one by one": (Change("alter table part_1 rename to tmp; alter table part_2 rename to part_1;"
        " alter table tmp rename to part_2", 2 * ROWS, separately=True), "part_1"),
    "renamed out of reach and back one by one": (Change("alter table part_1 rename to tmp;"
        " update tmp set body = 'x' where n < 4; alter table tmp rename to part_1", 3, separately=True), "part_1"),
    "to another schema and back one by one": (Change("alter table part_1 set schema archive; update archive.part_1"
        " set body = 'x' where n < 4; alter table archive.part_1 set schema public", 3, separately=True), "part_1"),
    "given back": (Change("begin; drop table part_1; alter table part_2 rename to part_1; alter table part_1 add x int"
        " default 7; update part_1 set n = 0; rollback", 0), "part_1"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "found"), in_turn(CHANGES))
def test_a_move_of_a_table_costs_its_rows(deploy: Deploy, source_db: SourceDb, name: str, found: str) -> None:
    change, table = CHANGES[name]
    prepare(source_db)
    source_db.execute(change.before)
    play(deploy(CONFIG), change, SHOWN, found=found, after=AFTER.format(table))


def test_a_change_that_is_rolled_back_has_nothing_compared(deploy: Deploy, source_db: SourceDb) -> None:
    prepare(source_db)
    deployment = deploy(CONFIG).start()
    source_db.execute(
        "begin; insert into part_1 values ('kept', 'x', 1); savepoint before; insert into part_1 values ('gone', 'x');"
        " alter table part_1 add x int default 7; update part_1 set x = 8; alter publication headwater rename to tmp;"
        " rollback to before; insert into part_2 values ('kept', 'x', 1); commit"
    )
    rows = deployment.rows("a")
    assert rows == published_rows(source_db, SHOWN)
    assert [record.kind for record in deployment.bulk_records()] == ["snapshot"]


@pytest.mark.parametrize("stopped", [False, True], ids=["followed", "stopped"])
def test_transactions_over_several_tables_and_their_changes_arrive(
    deploy: Deploy, source_db: SourceDb, stopped: bool
) -> None:
    prepare(source_db)
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    assert device.rows() == published_rows(source_db, SHOWN)
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
    wait_until(lambda: device.rows() == published_rows(source_db, SHOWN) and settled(deployment), "all of it to arrive")
    source_db.execute("update part_1 set x = 0; update part_2 set body = 'last'; update part_4 set n = 0")
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, SHOWN)
    deployment.close()
    assert deployment.problems() == []


def test_many_changes_in_a_row_are_followed_to_the_last(deploy: Deploy, source_db: SourceDb) -> None:
    prepare(source_db)
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    for number in range(12):
        source_db.execute(f"alter table part_1 add column c{number} int default {number}")
        source_db.execute(f"update part_1 set c{number} = -1, body = 'round {number}' where n = {number + 1}")
        source_db.execute(f"alter table part_2 rename to part_{number + 100}; insert into others values ('o{number}')")
        source_db.execute(f"alter table part_{number + 100} rename to part_2; delete from part_2 where n = {number}")
        if number % 3 == 2:
            source_db.execute(f"alter table part_1 drop column c{number - 1}")
    wait_until(lambda: device.rows() == published_rows(source_db, SHOWN), "all of it to arrive")
    wait_until(lambda: settled(deployment), "the comparison to end")
    source_db.execute("update part_1 set c11 = 0; update part_2 set body = 'last'")
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, SHOWN)
    assert [record.kind for record in deployment.bulk_records()].count("snapshot") == 1
    deployment.close()
    assert deployment.problems() == []
