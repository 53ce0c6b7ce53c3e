"""The difference engine: what source and store do not have alike is found, named and mended while the stream flows."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.versions import Origin
from tests.support.changed_source import settled, unheard
from tests.support.fix_headwater import Deploy, Deployment, read_bucket, wait_until
from tests.support.local_bulk import EVERYTHING_ON_SPARK, local_bulk
from tests.support.store_file import store_file

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT * FROM items WHERE owner = auth.user_id()
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes
"""


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


def test_a_resync_sends_what_differs_and_other_tables_flow_meanwhile(deploy: Deploy, source_db: SourceDb) -> None:
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
    deployment.close()
    assert deployment.problems() == []


@pytest.mark.parametrize(
    ("identity", "on_postgres"),
    [("full", False), *(pytest.param("default", on_postgres, marks=pytest.mark.long) for on_postgres in (False, True))],
)
def test_rows_lost_changed_and_left_over_are_mended(
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
    deployment.close()
    assert deployment.problems() == []


def test_rows_without_identity_are_compared_by_how_many_there_are(deploy: Deploy, source_db: SourceDb) -> None:
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


def test_an_audit_finds_a_flipped_byte_of_a_stored_row(deploy: Deploy, source_db: SourceDb) -> None:
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


def test_an_unknown_table_is_named_with_those_there_are(deploy: Deploy, source_db: SourceDb) -> None:
    tables(source_db)
    deployment = deploy(CONFIG).start()
    result = deployment.ask("resync", tables=["public.nosuch"])
    assert result["state"] == "failed"
    assert "public.nosuch" in result["error"]
    assert "public.items" in result["error"]


@pytest.mark.parametrize("identity", ["default", pytest.param("full", marks=pytest.mark.long)])
def test_random_changes_during_a_resync_lead_to_what_the_source_has(
    deploy: Deploy, source_db: SourceDb, identity: str
) -> None:
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
    deployment.close()
    assert deployment.problems() == []


def test_a_comparison_that_was_cut_short_while_it_waited_is_no_hindrance(deploy: Deploy, source_db: SourceDb) -> None:
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
def test_bulk_work_ends_with_the_replicator_that_wanted_it(
    deploy: Deploy, source_db: SourceDb, work: str, change: str
) -> None:
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
