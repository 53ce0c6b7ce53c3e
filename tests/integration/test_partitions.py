"""Partitions that come, go and are emptied, published through their root or each as a table of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.changed_source import Change, play
from tests.support.turns import BY_LOOKING, in_turn

if TYPE_CHECKING:
    from tests.support.fix_headwater import Deployment
    from tests.support.fix_postgres import SourceDb

Deploy = Callable[..., "Deployment"]

CONFIG = """
config: {edition: 3}
streams:
  events:
    auto_subscribe: true
    query: SELECT * FROM events
  parts:
    auto_subscribe: true
    query: SELECT * FROM "events_%"
  others:
    auto_subscribe: true
    query: SELECT * FROM others
"""

SHOWN = {"public.events": "true", r"public.events\_%": "true", "public.others": "true"}

ROWS, LEAF = 40, 10
CLEAR = 1  # what a bucket that had no rows before begins with

AFTER = (
    "update events set body = 'after' where day in (3, 13, 42); delete from events where day in (4, 14);"
    "insert into events values ('z', 11, 'new'), ('y', 17, 'new'); update events set day = 12 where day = 18"
)


def prepare(source: SourceDb) -> None:
    source.execute(
        "create table events (id text, day int, body text, primary key (id, day)) partition by range (day);"
        "create table events_1 partition of events for values from (0) to (10);"
        "create table events_2 partition of events for values from (10) to (30) partition by range (day);"
        "create table events_2a partition of events_2 for values from (10) to (15);"
        "create table events_2b (body text, gone int, id text not null, day int not null);"
        "alter table events_2b drop gone;"
        "alter table events_2 attach partition events_2b for values from (15) to (30);"
        "create table events_rest partition of events default;"
        "create table loose (day int not null, id text not null, body text);"
        "create table others (id text primary key, text text); insert into others values ('1', 'one')"
    )
    days = "case when i < 10 then i when i < 20 then 10 + i % 5 when i < 30 then 15 + i % 5 else 10 + i end"
    source.execute(f"insert into events select i::text, {days}, 'x' || i from generate_series(0, {ROWS - 1}) i")
    source.execute("insert into loose select 30 + i, 'loose ' || i, 'x' from generate_series(0, 4) i")


OUT_AND_IN = (
    "alter table events detach partition events_1; update events_1 set body = 'unseen' where day < 3;"
    " alter table events attach partition events_1 for values from (0) to (10)"
)

# What each costs published through the root, and as tables of their own, whose buckets also hold rows of others
CHANGES = {
    "attached": (Change("alter table loose rename to events_3; alter table events attach partition events_3"
        " for values from (30) to (35)", 5), 5),
    "attached, followed by itself before": (Change(
        "alter table events attach partition events_3 for values from (30) to (35)", 5 + 5,
        "alter table loose rename to events_3; alter publication headwater add table events_3"), 0),
    "attached with partitions of its own": (Change("alter table events attach partition more"
        " for values from (30) to (35)", 5, "create table more (like events) partition by range (day);"
        "create table events_3a partition of more for values from (30) to (32);"
        "create table events_3b partition of more for values from (32) to (35); insert into more select * from"
        " (select id, day, body from loose) rows"), 5),
    "detached": (Change("alter table events detach partition events_1", LEAF), LEAF),
    "detached, changed and attached": (Change(OUT_AND_IN, 3), 3),
    "detached, changed and attached one by one": (Change(OUT_AND_IN, 3, separately=True), 3),
    "made with rows": (Change("create table events_3 partition of events for values from (30) to (35);"
        " insert into events select 'n' || i, 30 + i, 'n' from generate_series(0, 2) i", 3), 3),
    "made in another schema": (Change("create schema app; create table app.events_3 partition of events"
        " for values from (30) to (35); insert into events select 'n' || i, 30 + i, 'n' from generate_series(0, 2) i",
        3), 0),
    "moved to another schema": (Change("create schema app; alter table events_1 set schema app", 0), LEAF),
    "dropped": (Change("drop table events_1", LEAF), LEAF),
    "several dropped": (Change("drop table events_2", 2 * LEAF), 2 * LEAF),
    "emptied": (Change("truncate events_1", LEAF), LEAF),
    "several emptied": (Change("truncate events_2", 2 * LEAF), 2 * LEAF),
    "all emptied": (Change("truncate events", 1), ROWS),
    "rewritten": (Change("vacuum full events_1", 0), 0),
    "row moved": (Change("update events set day = 41, body = 'moved' where id = '1'", 2), 2),
    "column added": (Change("alter table events add column n int default 7", ROWS), ROWS),
    "column of another type": (Change("alter table events alter column body type text using body || '!'", ROWS), ROWS),
}  # fmt: skip

SILENT = ("emptied", "several emptied", "all emptied", "rewritten", "row moved")


@pytest.mark.parametrize("via_root", [True, False], ids=["by root", "by leaf"])
@pytest.mark.parametrize(("name", "found"), in_turn(CHANGES, SILENT))
def test_a_change_of_partitions_costs_what_differs(
    deploy: Deploy, source_db: SourceDb, name: str, via_root: bool, found: str
) -> None:
    change, by_leaf = CHANGES[name]
    prepare(source_db)
    source_db.execute(
        f"create publication headwater for table events, others with (publish_via_partition_root = {via_root})"
    )
    source_db.execute(change.before)
    change = change if via_root else replace(change, ops=by_leaf)
    play(deploy(CONFIG), change, SHOWN, found=found, after=AFTER)


SWITCHES = {
    "to leaves": Change("alter publication headwater set (publish_via_partition_root = false)", 1 + ROWS + CLEAR,
        "create publication headwater for table events, others with (publish_via_partition_root)"),
    "to the root": Change("alter publication headwater set (publish_via_partition_root)", ROWS + ROWS + CLEAR,
        "create publication headwater for table events, others"),
    "to leaves and back": Change("alter publication headwater set (publish_via_partition_root = false);"
        " update events set body = 'unseen' where day < 3;"
        " alter publication headwater set (publish_via_partition_root)", 3,
        "create publication headwater for table events, others with (publish_via_partition_root)"),
    "detached to stand alone": Change("alter table events detach partition events_1", LEAF + LEAF + CLEAR,
        "create publication headwater for all tables with (publish_via_partition_root)"),
    "another publication has the root": Change("alter publication more add table events",  ROWS + ROWS + CLEAR,
        "create publication headwater for table events, others;"
        " create publication more with (publish_via_partition_root)", publications=("headwater", "more")),
}  # fmt: skip


@pytest.mark.parametrize(("name", "found"), in_turn(SWITCHES))
def test_partitions_move_under_their_root_and_out_again(
    deploy: Deploy, source_db: SourceDb, name: str, found: str
) -> None:
    change = SWITCHES[name]
    prepare(source_db)
    source_db.execute(change.before)
    deployment = deploy(CONFIG)
    deployment.publications = change.publications
    play(deployment, change, SHOWN, found=found, after=AFTER)


@pytest.mark.parametrize("via_root", [True, False], ids=["by root", "by leaf"])
def test_a_partition_is_detached_while_others_write(deploy: Deploy, source_db: SourceDb, via_root: bool) -> None:
    prepare(source_db)
    source_db.execute("drop table events_rest")  # beside which Postgres detaches none so
    source_db.execute(
        f"create publication headwater for table events, others with (publish_via_partition_root = {via_root})"
    )
    change = Change("alter table events detach partition events_1 concurrently", LEAF)
    after = "update events set body = 'after' where day = 13"
    play(deploy(CONFIG), change, SHOWN, found=BY_LOOKING, after=after)
