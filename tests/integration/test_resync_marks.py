"""Tables of which the store may have rows from before a change that nobody saw: they are distrusted as long as that is
so, and no longer, and that costs no other row anything."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.support.changed_source import Device, ask_beside, compared, locked, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.local_bulk import Waiting
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(all="SELECT * FROM live", others="SELECT * FROM others")
SHOWN = {"public.live": "true"}
UNSEEN = (
    "begin; alter table live rename to resting; update resting set body = repeat('unseen', 2000);"
    " alter table resting rename to live; commit"
)
"""A change that the stream tells of under a private name: a comparison has to bring what it left."""


def create(source: SourceDb) -> None:
    source.execute("create table live (id text primary key, n int, body text)")
    source.execute("alter table live alter body set storage external; create publication headwater for table live")
    source.execute("create table others (id text primary key); alter publication headwater add table others")


def audit_begun(deployment: Deployment) -> bool:
    with deployment.store() as store:
        return any(request.progress for request in store.open_requests("default"))


def test_audit_repair_clears_mark(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    source_db.execute("insert into live values ('1', 0, repeat('toast', 2000))")
    deployment = deploy(CONFIG)
    device = Device(deployment.start())
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # the audit's snapshot waits for it to end
        audit = ask_beside(deployment, "audit", repair=True)
        wait_until(lambda: audit_begun(deployment), "the audit to begin")
        source_db.execute(UNSEEN)
        wait_until(lambda: compared(deployment), "the table to be marked")
    audit.join(60)
    assert settled(deployment)
    kinds = deployment.kinds()
    assert kinds == ["snapshot", "re-sync", "verification"], "the audit is the comparison that the table waited for"
    source_db.execute("update live set n = 1")
    truth = published_rows(source_db, SHOWN)
    wait_until(lambda: device.rows() == truth, "the change that leaves the large value alone", 20)


def test_deploy_keeps_mark_of_locked_table(deploy: Deploy, source_db: SourceDb) -> None:
    """The lock is gone in the midst of the deploy. The rows have the values of the source, and stand on devices with
    one of a column that is gone: only who evaluates them finds that."""
    create(source_db)
    source_db.execute("insert into others values ('1')")
    source_db.execute("alter table live add gone text; insert into live values ('1', 0, 'small', 'gone')")
    bulk = Waiting("reprocess")
    deployment = deploy(CONFIG, bulk=bulk)
    device = Device(deployment.start())
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # comparisons wait for it to end
        source_db.execute("alter table live drop column gone")
        wait_until(lambda: compared(deployment), "the change to be seen")
        deployment.stop()
    with locked(source_db, "live"):
        deployment.start()
        redeployed = threading.Thread(
            target=deployment.redeploy, args=(f"{CONFIG}  more: {{query: SELECT id FROM others}}\n",), daemon=True
        )
        redeployed.start()
        wait_until(bulk.begun.is_set, "the deploy")
    bulk.go.set()
    redeployed.join(60)
    wait_until(lambda: settled(deployment), "the comparison to end")
    deployment.caught_up()
    assert device.rows()["live", "1"] == {"id": "1", "n": 0, "body": "small"}


def test_interrupted_load_keeps_rows(deploy: Deploy, source_db: SourceDb) -> None:
    """The second row fills what may be loaded at once, so that the place that it moves to is not: its change comes
    with the next load."""
    create(source_db)
    source_db.execute("insert into live values ('1', 0, 'small'), ('2', 0, repeat('toast', 2000))")
    bulk = Waiting()
    deployment = deploy(CONFIG, bulk=bulk, memory_bytes=4 * 5_000)
    device = Device(deployment.start())
    deployment.stop()
    source_db.lose_slots()
    deployment.start()
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("begin; update live set n = 1 where id = '1'; update live set id = '3' where id = '2'; commit")
    deployment.caught_up()
    assert device.rows()["live", "1"]["n"] == 1
    bulk.go.set()
    truth = published_rows(source_db, SHOWN)
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the comparison to end")


def test_lost_slot_is_remembered_during_compare(deploy: Deploy, source_db: SourceDb) -> None:
    """Until it is compared, no row of it is completed with a value from before: it would be a row that never was."""
    create(source_db)
    source_db.execute("insert into live values ('1', 0, repeat('a', 9000))")
    deployment = deploy(CONFIG)
    device = Device(deployment.start())
    before = device.rows()
    first, second = Waiting(), Waiting()
    deployment.stop()
    deployment.bulk = first
    deployment.start()
    source_db.execute("alter table live add another int default 1")
    wait_until(first.begun.is_set, "the comparison for the new column")
    deployment.stop()
    source_db.lose_slots()
    source_db.execute("update live set n = 1, body = repeat('b', 9000)")
    deployment.bulk = second
    deployment.start()
    wait_until(second.begun.is_set, "the comparison for the lost slot")
    source_db.execute("update live set another = 2")
    deployment.caught_up()
    assert device.rows() == before
    second.go.set()
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert device.rows() == published_rows(source_db, SHOWN)


CHANGES = {
    "not published for a while": "alter publication headwater drop table live;"
    " update live set n = 1, body = repeat('b', 9000); alter publication headwater add table live",
    "published anew": "drop publication headwater; update live set n = 1, body = repeat('b', 9000);"
    " create publication headwater for table live",
    "updates not published for a while": "alter publication headwater set (publish = 'insert, delete, truncate');"
    " update live set n = 1, body = repeat('b', 9000);"
    " alter publication headwater set (publish = 'insert, update, delete, truncate')",
    "filtered for a while": "alter publication headwater set table live where (id <> '1');"
    " update live set n = 1, body = repeat('b', 9000); alter publication headwater set table live",
    "a partition that was away for a while": "alter table live detach partition live_1;"
    " update live_1 set n = 1, body = repeat('b', 9000); alter table live attach partition live_1 for values in ('1')",
    "rewritten in place": "alter table live alter body type text using replace(body, 'a', 'b'),"
    " alter body set storage external",
    "of a schema that was not published": "create schema aside; alter table live set schema aside;"
    " update aside.live set n = 1, body = repeat('b', 9000); alter table aside.live set schema public",
}


@pytest.mark.parametrize("what", CHANGES)
def test_no_row_mixes_seen_and_unseen_changes(deploy: Deploy, source_db: SourceDb, what: str) -> None:
    """The stream leaves a value out that changed without a word since the store took it."""
    if "filtered" in what:
        source_db.needs(15, "row filters of publications")
    parted = " partition by list (id); create table live_1 partition of live for values in ('1')"
    source_db.execute(
        f"create table live (id text primary key, n int, body text){parted if 'partition' in what else ''};"
        f" alter table {'live_1' if 'partition' in what else 'live'} alter body set storage external;"
        " insert into live values ('1', 0, repeat('a', 9000))"
    )
    source_db.execute("create publication headwater for table live with (publish_via_partition_root)")
    deployment = deploy(CONFIG)
    device = Device(deployment.start())
    before = device.rows()
    deployment.stop()
    for statement in CHANGES[what].split(";"):
        source_db.execute(statement)
    deployment.bulk = bulk = Waiting()
    deployment.start()
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set n = 5")
    deployment.caught_up()
    assert device.rows() == before
    bulk.go.set()
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert device.rows() == published_rows(source_db, SHOWN)
