"""Comparisons with the source: devices get exactly what differs, and other tables flow meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import headwater.pipeline.compare
from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.versions import Origin
from tests.support.changed_source import settled, unheard
from tests.support.fix_headwater import Deploy, Deployment, read_bucket
from tests.support.fix_postgres import SourceDb
from tests.support.local_bulk import EVERYTHING_ON_SPARK, local_bulk, patches_tasks
from tests.support.store_file import store_file
from tests.support.sync_configs import OWN_ITEMS, auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(items="SELECT * FROM items WHERE owner = auth.user_id()", notes="SELECT * FROM notes")


@pytest.fixture
def bulk(bulk: BulkJobs) -> BulkJobs:
    """Comparisons take a while, in which rows change."""
    return bulk if EVERYTHING_ON_SPARK else local_bulk(seconds=0.5)


def tables(source: SourceDb, identity: str = "default", rows: int = 300) -> None:
    source.execute("create table items (id int primary key, owner text, body text, big text)")
    source.execute(f"alter table items replica identity {identity}")
    source.execute("alter table items alter column big set storage external")
    source.execute(
        "insert into items select i, 'u' || i % 2, 'body ' || i, repeat(md5(i::text), 80)"
        f" from generate_series(1, {rows}) i"
    )
    source.execute("create table notes (id int primary key, text text)")
    source.execute("create publication headwater for table items, notes")


def truth(source: SourceDb, owner: str) -> list[tuple[Any, ...]]:
    return sorted(source.fetch("select id, owner, body, big from items where owner = %s", owner))


def shown(deployment: Deployment, owner: str) -> list[tuple[Any, ...]]:
    rows = [row for key, row in deployment.rows(owner).items() if key[0] == "items"]
    return sorted((row["id"], row["owner"], row["body"], row["big"]) for row in rows)


def assert_true(deployment: Deployment, source: SourceDb) -> None:
    for owner in ("u0", "u1"):
        assert shown(deployment, owner) == truth(source, owner)


def test_resync_sends_what_differs(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table items (id int primary key, owner text, body text)")
    source_db.execute("insert into items select i, 'u' || i % 2, 'body ' || i from generate_series(1, 10000) i")
    source_db.execute("create table notes (id int primary key, text text)")
    source_db.execute("create publication headwater for table items, notes")
    deployment = deploy(CONFIG).start()
    ops = deployment.op_count()
    with unheard(deployment):
        source_db.execute("update items set body = 'changed' where id % 100 = 0")
    notes = next(name for name in deployment.buckets("u1") if "notes" in name)
    seen: list[int] = []
    done = threading.Event()

    def watch() -> None:
        number = 0
        while not done.is_set():
            number += 1
            source_db_2.execute("insert into notes values (%s, 'x')", [number])
            wait_until(lambda n=number: notes_there() >= n, "a note to arrive")  # type: ignore[misc]
            seen.append(number)

    def notes_there() -> int:
        checkpoint = deployment.reader.newest()
        assert checkpoint is not None
        return len(read_bucket(deployment.reader, notes, checkpoint.checkpoint.op_id).rows)

    with psycopg.connect(source_db.dsn, autocommit=True) as source_db_2:
        watcher = threading.Thread(target=watch)
        watcher.start()
        result = deployment.ask("resync", tables=["public.items"])
        done.set()
        watcher.join()
    assert result["state"] == "done"
    assert result["differences"] == {"public.items": 100}
    assert result["ops"] == 100
    assert len(seen) >= 2
    assert deployment.op_count() - ops <= 100 + 2 * (len(seen) + 1)
    changed = source_db.fetch("select id, body from items where owner = 'u0' order by id")
    rows = [row for key, row in deployment.rows("u0").items() if key[0] == "items"]
    assert sorted((row["id"], row["body"]) for row in rows) == changed


@pytest.mark.parametrize(
    ("identity", "on_postgres"),
    [("full", False), *(pytest.param("default", on_postgres, marks=pytest.mark.long) for on_postgres in (False, True))],
)
def test_lost_changed_and_extra_rows_are_repaired(
    deploy: Deploy, source_db: SourceDb, identity: str, on_postgres: bool
) -> None:
    tables(source_db, identity)
    deployment = deploy(CONFIG, on_postgres=on_postgres).start()
    with unheard(deployment):
        source_db.execute("delete from items where id % 10 = 1")
        source_db.execute("update items set body = 'other', owner = 'u0' where id % 10 = 2")
        source_db.execute("insert into items select i, 'u1', 'new', 'big' from generate_series(1000, 1020) i")
    named = deployment.ask("audit")
    assert named["differences"]["public.items"] >= 81
    problems_named = {row["problem"] for row in named["rows"]}
    assert {"missing in the store", "not in the source"} <= problems_named
    assert named["ops"] == 0
    assert deployment.ask("audit", repair=True)["differences"] == named["differences"]
    assert_true(deployment, source_db)
    assert deployment.ask("audit")["differences"] == {}


def test_rows_without_identity_are_counted(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table items (n int, owner text, body text)")
    source_db.execute("alter table items replica identity nothing")
    source_db.execute("insert into items select i % 50, 'u1', 'b' from generate_series(1, 200) i")
    source_db.execute("create table notes (id int primary key, text text)")
    source_db.execute("create publication headwater for table items, notes with (publish = 'insert, truncate')")
    deployment = deploy(CONFIG).start()
    with unheard(deployment):
        source_db.execute("insert into items select 7, 'u1', 'b' from generate_series(1, 5)")
        source_db.execute("insert into items values (99, 'u1', 'once')")
    source_db.execute("insert into items values (7, 'u1', 'b')")
    assert deployment.ask("resync")["differences"] == {"public.items": 6}
    numbers = [row["n"] for row in deployment.rows("u1").values() if "owner" in row]
    assert sorted(map(str, numbers)) == sorted(str(row[0]) for row in source_db.fetch("select n from items"))
    assert deployment.ask("resync")["differences"] == {}


def test_audit_finds_flipped_byte(deploy: Deploy, source_db: SourceDb) -> None:
    tables(source_db)
    deployment = deploy(CONFIG, on_postgres=False).start()
    deployment.caught_up()
    with deployment.store() as store:
        table = next(t.id for t in store.tables("default") if t.relation.name == "items")
    deployment.stop()
    with store_file(deployment.directory) as db:
        db.execute(f"update rows_{table} set line = replace(line, 'body 7', 'bodx 7') where row_id = '7'")
        db.execute(f"update rows_{table} set members = '' where row_id = '8'")
    deployment.start()
    found = deployment.ask("audit", repair=True)
    assert {(row["row"], row["problem"]) for row in found["rows"]} == {
        ("7", "other values"),
        ("8", "not in the buckets that the rules give it"),
    }
    assert ["body"] in [row.get("columns") for row in found["rows"]]
    assert_true(deployment, source_db)
    assert deployment.ask("audit")["rows"] == []


def test_unknown_table_is_named(deploy: Deploy, source_db: SourceDb) -> None:
    tables(source_db)
    deployment = deploy(CONFIG).start()
    result = deployment.ask("resync", tables=["public.nosuch"])
    assert result["state"] == "failed"
    assert "public.nosuch" in result["error"]
    assert "public.items" in result["error"]


@pytest.mark.parametrize("identity", ["default", pytest.param("full", marks=pytest.mark.long)])
def test_random_changes_during_resync(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    tables(source_db, identity)
    deployment = deploy(CONFIG).start()
    dice = random.Random(f"{identity} 3")
    may_truncate: list[bool] = []

    def change(conn: psycopg.Connection) -> None:
        row, other = dice.randint(1, 320), dice.randint(1, 320)
        match dice.randint(0, 6):
            case 0:
                conn.execute("delete from items where id = %s", [row])
            case 1:
                conn.execute(
                    "insert into items values (%s, 'u0', 'ins', repeat('y', 3000)) on conflict do nothing", [row]
                )
            case 2:
                conn.execute("update items set id = %s where id = %s and not exists"
                             " (select from items where id = %s)", [other, row, other])  # fmt: skip
            case 3:
                conn.execute("update items set big = repeat(%s, 900) where id = %s", [f"{other} ", row])
            case 4 if may_truncate and dice.random() < 0.02:
                may_truncate.clear()
                conn.execute("truncate items")
                conn.execute("insert into items select i, 'u1', 'again', 'b' from generate_series(1, 100) i")
            case _:
                conn.execute("update items set body = %s, owner = %s where id = %s",
                             [f"b{other}", f"u{other % 2}", row])  # fmt: skip

    with psycopg.connect(source_db.dsn, autocommit=True) as conn:
        for number in range(3):
            with unheard(deployment):
                for _ in range(120):
                    change(conn)
            done = threading.Event()
            may_truncate[:] = [True] * (number == 1)

            def write(done: threading.Event = done) -> None:
                while not done.wait(0.001):  # so that the stream keeps up
                    change(conn)

            writer = threading.Thread(target=write)
            writer.start()
            try:
                assert deployment.ask("resync")["state"] == "done"
            finally:
                done.set()
                writer.join()
            assert_true(deployment, source_db)


def test_interrupted_compare_is_no_hindrance(deploy: Deploy, source_db: SourceDb) -> None:
    tables(source_db)
    deployment = deploy(CONFIG).start()

    def readers() -> set[int]:
        query = "select pid from pg_stat_activity where application_name = 'headwater snapshot' and datname = %s"
        return {pid for (pid,) in source_db.fetch(query, source_db.name)}

    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # for whose end a comparison's snapshot waits
        source_db.execute("alter table items add column extra text default 'x'")
        wait_until(lambda: len(readers()) == 1, "a comparison to begin")
        (first,) = readers()
        deployment.stop()
        deployment.start()
        wait_until(lambda: len(readers() - {first}) == 1 and first not in readers(), "the next one to take its place")
    wait_until(lambda: settled(deployment), "the comparison to end")
    wait_until(lambda: not readers(), "nothing to be left of it")
    assert_true(deployment, source_db)


@pytest.mark.skipif(EVERYTHING_ON_SPARK, reason="how long it takes is made up in this process")
@pytest.mark.parametrize(
    ("work", "change"),
    [
        ("comparison", "alter table items add column extra text"),
        ("re-key", "alter table items replica identity full"),
        ("reprocess", "another version"),
    ],
)
def test_bulk_work_ends_with_replicator(deploy: Deploy, source_db: SourceDb, work: str, change: str) -> None:
    tables(source_db)
    deployment = deploy(CONFIG)
    deployment.start().stop()
    deployment.bulk = local_bulk(seconds=600)
    deployment.start()

    def at_work() -> bool:
        return any(thread.name == work for thread in threading.enumerate())

    if change == "another version":
        with deployment.store() as store:
            store.deploy(
                CONFIG.replace("  notes:", "  bodies:").replace("FROM notes", "FROM items AS bodies"), Origin.COMMAND
            )
    else:
        source_db.execute(change)
    wait_until(at_work, "the work to begin")
    deployment.stop()
    wait_until(lambda: not at_work(), "the work to end")


def fill(source: SourceDb, rows: int, identity: str = "default") -> None:
    source.execute("create table items (id int primary key, owner text, body text, gone text)")
    source.execute(f"alter table items replica identity {identity}")
    source.execute(f"insert into items select i, 'a', 'body ' || i, 'gone ' || i from generate_series(1, {rows}) i")


def stale(deployment: Deployment) -> int:
    """How many rows of a device have what is not in the source any more."""
    return sum("gone" in row for row in deployment.rows("a").values())


@pytest.fixture
def with_stale_rows(deploy: Deploy, source_db: SourceDb) -> Callable[..., Deployment]:
    """A deployment whose comparison took none of the rows for wrong."""

    def make(rows: int) -> Deployment:
        fill(source_db, rows)
        deployment = deploy(OWN_ITEMS).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(headwater.pipeline.compare, "_in_right_buckets", lambda *_: True)
            source_db.execute("alter table items drop column gone")
            wait_until(lambda: settled(deployment), "the comparison to end")
        assert stale(deployment) == rows
        return deployment

    return make


@pytest.mark.parametrize(
    ("identity", "rows"),
    [
        ("default", 20_000),
        *(pytest.param(identity, 20_000, marks=pytest.mark.long) for identity in ("full", "nothing")),
        *(
            pytest.param(identity, 1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])
            for identity in ("default", "full", "nothing")
        ),
    ],
)
def test_dropped_column_leaves_all_rows(deploy: Deploy, source_db: SourceDb, identity: str, rows: int) -> None:
    fill(source_db, rows, identity)
    deployment = deploy(OWN_ITEMS, patience=600).start()
    assert stale(deployment) == rows
    source_db.execute("alter table items drop column gone")
    wait_until(lambda: settled(deployment), "the comparison to end", seconds=900)
    assert stale(deployment) == 0
    assert len(deployment.rows("a")) == rows


@patches_tasks
def test_resync_finds_rows_of_old_rules(
    with_stale_rows: Callable[..., Deployment],
) -> None:
    deployment = with_stale_rows(1000)
    assert deployment.ask("audit")["differences"] == {"public.items": 1000}
    assert deployment.ask("resync")["differences"] == {"public.items": 1000}
    assert stale(deployment) == 0
    assert deployment.ask("resync")["differences"] == {}
