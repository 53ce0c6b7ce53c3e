"""New versions of the sync config: what they cost devices, and what they leave behind."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.bulk.contract import BulkProgress, ReprocessJob
from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.parts import BulkOutcome
from headwater.storage.contract.store import StoreUnreachableError
from headwater.storage.contract.versions import Origin, VersionState
from tests.support.fix_headwater import HASTY, Deploy, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


LISTS = """
  lists:
    auto_subscribe: true
    query: SELECT id, name FROM lists WHERE owner = auth.user_id()
"""
TODOS = """
  todos:
    auto_subscribe: true
    query: SELECT id, body FROM todos WHERE list IN (SELECT id FROM lists WHERE owner = auth.user_id())
"""
HEAD = "config: {edition: 3}\nstreams:\n"


def config(*streams: str) -> str:
    return HEAD + "".join(streams)


@pytest.fixture
def world(source_db: SourceDb) -> SourceDb:
    source_db.execute("create table lists (id text primary key, owner text, name text)")
    source_db.execute("create table todos (id text primary key, list text, body text, done bool default false)")
    source_db.execute("insert into lists select 'l' || i, 'u' || i % 3, 'list ' || i from generate_series(1, 30) i")
    source_db.execute(
        "insert into todos select 't' || i, 'l' || i % 30 + 1, 'todo ' || i from generate_series(1, 900) i"
    )
    return source_db


def test_a_redeploy_costs_no_op_where_row_sides_stay(deploy: Deploy, world: SourceDb) -> None:
    deployment = deploy(config(LISTS)).start()
    before = deployment.buckets("u1")
    ops = deployment.op_count()
    same = deployment.redeploy(config(LISTS))
    assert same.id == 1  # the same text is no new version
    commented = deployment.redeploy("# a comment\n" + config(LISTS))
    request_side = deployment.redeploy(
        config(LISTS.replace("auth.user_id()", "auth.user_id() AND auth.user_id() != 'x'"))
    )
    assert (commented.state, request_side.state) == (VersionState.ACTIVE, VersionState.ACTIVE)
    assert deployment.op_count() == ops
    assert {name: model.position for name, model in deployment.buckets("u1").items()}.keys() == before.keys()


def test_an_added_stream_is_built_from_stored_rows_and_leaves_others_alone(deploy: Deploy, world: SourceDb) -> None:
    deployment = deploy(config(LISTS, TODOS.replace("todos:", "other:"))).start()
    lists = deployment.buckets("u1")
    # What the store has is what counts, not the source
    assert deployment.redeploy(config(LISTS, TODOS.replace("id, body", "id, list"))).state is VersionState.ACTIVE
    rows = deployment.rows("u1")
    todos = {key: row for key, row in rows.items() if key[0] == "todos"}
    assert len(todos) == 300
    assert set(todos["todos", "t3"]) == {"id", "list"}
    kinds = [record.kind for record in deployment.bulk_records()]
    assert kinds == ["snapshot", "reprocess"]
    after = deployment.buckets("u1")
    unchanged = next(name for name in lists if name.startswith("lists."))
    assert after[unchanged].checksum == lists[unchanged].checksum
    deployment.close()
    assert deployment.problems() == []


def test_a_table_that_only_the_new_version_reads_is_read_from_the_source(deploy: Deploy, world: SourceDb) -> None:
    deployment = deploy(config(LISTS)).start()
    assert deployment.redeploy(config(LISTS, TODOS)).state is VersionState.ACTIVE
    assert sum(kind == "todos" for kind, _ in deployment.rows("u2")) == 300
    world.execute("update todos set body = 'new' where id = 't3'")
    world.execute("delete from todos where id = 't6'")
    rows = deployment.rows("u1")
    rows |= deployment.rows("u2") | deployment.rows("u0")
    assert rows["todos", "t3"]["body"] == "new"
    assert ("todos", "t6") not in rows
    deployment.close()
    assert deployment.problems() == []


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
def test_writes_during_a_deploy_are_in_both_versions(deploy: Deploy, world: SourceDb, on_postgres: bool) -> None:
    deployment = deploy(config(LISTS, TODOS), on_postgres=on_postgres).start()
    stop = threading.Event()

    def write() -> None:
        number = 0
        with psycopg.connect(world.dsn, autocommit=True) as conn:
            while not stop.is_set():
                number += 1
                conn.execute("update todos set body = %s where id = %s", [f"w{number}", f"t{number % 900 + 1}"])
                conn.execute("delete from todos where id = %s", [f"t{number * 7 % 900 + 1}"])
                conn.execute(
                    "insert into todos values (%s, 'l5', 'fresh') on conflict do nothing", [f"t{number * 7 % 900 + 1}"]
                )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        version = deployment.redeploy(config(LISTS, TODOS.replace("id, body", "id, body, list")))
    finally:
        stop.set()
        writer.join()
    assert version.state is VersionState.ACTIVE
    truth = world.fetch("select t.id, t.body, t.list from todos t join lists l on l.id = t.list where l.owner = 'u1'")
    rows = deployment.rows("u1")
    assert {key[1]: (row["body"], row["list"]) for key, row in rows.items() if key[0] == "todos"} == {
        row[0]: (row[1], row[2]) for row in truth
    }
    deployment.close()
    assert deployment.problems() == []


def test_rolling_back_soon_costs_nothing_and_obsolete_row_sides_are_forgotten_later(
    deploy: Deploy, world: SourceDb
) -> None:
    first, second = config(LISTS, TODOS), config(LISTS, TODOS.replace("id, body", "id"))
    deployment = deploy(first).start()
    before = deployment.buckets("u1")
    deployment.redeploy(second)
    world.execute("update todos set body = 'while away' where id = 't3'")
    ops = deployment.op_count()
    deployment.redeploy(first)
    assert deployment.op_count() == ops
    assert deployment.buckets("u1").keys() == before.keys()
    rows = deployment.rows("u0") | deployment.rows("u1") | deployment.rows("u2")
    assert rows["todos", "t3"]["body"] == "while away"
    deployment.stop()
    deployment.keep_stopped = 0.0
    deployment.start()

    def forgotten() -> bool:
        with deployment.store() as store:
            return len(store.complete_definitions()) == 3  # two definitions and a lookup

    wait_until(forgotten, "the row sides of the second version to go")
    assert deployment.op_count_now() < ops
    assert deployment.buckets("u1").keys() == before.keys()
    deployment.redeploy(second)
    assert sum(kind == "todos" for kind, _ in deployment.rows("u2")) == 300
    deployment.close()
    assert deployment.problems() == []


def test_a_store_that_is_away_for_long_does_not_fail_a_version(
    deploy: Deploy, world: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(config(LISTS))
    monkeypatch.setattr("headwater.replication.recovery._LONGEST_DELAY", 0.05)
    deployment.intervals = replace(HASTY, retry=0.05)
    deployment.start()
    reprocess, failed = BulkJobs.reprocess, itertools.count(1)

    def away(
        bulk: BulkJobs, job: ReprocessJob, progress: Callable[[BulkProgress], None], stop: threading.Event
    ) -> BulkOutcome:
        if next(failed) <= 7:
            raise StoreUnreachableError("the store's database cannot be reached", "storage")
        return reprocess(bulk, job, progress, stop)

    monkeypatch.setattr(BulkJobs, "reprocess", away)
    assert deployment.redeploy(config(LISTS, TODOS)).state is VersionState.ACTIVE


def test_a_version_that_does_not_compile_fails_and_the_one_before_is_served(deploy: Deploy, world: SourceDb) -> None:
    deployment = deploy(config(LISTS)).start()
    good = deployment.yaml
    failed = deployment.redeploy("config: {edition: 3}\nstreams: {a: {query: SELECT nonsense FROM}}")
    assert failed.state is VersionState.FAILED
    assert failed.note
    deployment.yaml = good
    assert len(deployment.rows("u1")) == 10


def test_the_config_file_does_not_undo_what_a_command_deployed(deploy: Deploy, world: SourceDb) -> None:
    deployment = deploy(config(LISTS)).start()
    deployment.redeploy(config(LISTS, TODOS))
    deployment.stop()
    deployment.yaml = config(LISTS)  # the file, as it was
    deployment.start()
    with deployment.store() as store:
        active = next(v for v in store.versions() if v.state is VersionState.ACTIVE)
    assert (active.id, active.origin) == (2, Origin.COMMAND)
