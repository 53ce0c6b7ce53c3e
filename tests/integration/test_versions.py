"""Versions of the sync config: deployed, rolled back and followed by others, while rows are written."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headwater.bulk.contract import BulkProgress, ReprocessJob
from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.parts import BulkOutcome
from headwater.storage.contract.store import StoreUnreachableError
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.stats import StoreStats
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.versions import definitions_of
from tests.support.changed_source import Device
from tests.support.fix_headwater import HASTY, Deploy, Deployment, plan_of
from tests.support.fix_postgres import SourceDb
from tests.support.store_checker import problems
from tests.support.waiting import wait_until

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
def todos_source(source_db: SourceDb) -> SourceDb:
    source_db.execute("create table lists (id text primary key, owner text, name text)")
    source_db.execute("create table todos (id text primary key, list text, body text, done bool default false)")
    source_db.execute("insert into lists select 'l' || i, 'u' || i % 3, 'list ' || i from generate_series(1, 30) i")
    source_db.execute(
        "insert into todos select 't' || i, 'l' || i % 30 + 1, 'todo ' || i from generate_series(1, 900) i"
    )
    return source_db


def test_redeploy_without_changes_writes_no_op(deploy: Deploy, todos_source: SourceDb) -> None:
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


def test_added_stream_is_built_from_store(deploy: Deploy, todos_source: SourceDb) -> None:
    deployment = deploy(config(LISTS, TODOS.replace("todos:", "other:"))).start()
    lists = deployment.buckets("u1")
    # What the store has is what counts, not the source
    assert deployment.redeploy(config(LISTS, TODOS.replace("id, body", "id, list"))).state is VersionState.ACTIVE
    rows = deployment.rows("u1")
    todos = {key: row for key, row in rows.items() if key[0] == "todos"}
    assert len(todos) == 300
    assert set(todos["todos", "t3"]) == {"id", "list"}
    kinds = deployment.kinds()
    assert kinds == ["snapshot", "reprocess"]
    after = deployment.buckets("u1")
    unchanged = next(name for name in lists if name.startswith("lists."))
    assert after[unchanged].checksum == lists[unchanged].checksum


def test_added_table_is_read_from_source(deploy: Deploy, todos_source: SourceDb) -> None:
    deployment = deploy(config(LISTS)).start()
    assert deployment.redeploy(config(LISTS, TODOS)).state is VersionState.ACTIVE
    assert sum(kind == "todos" for kind, _ in deployment.rows("u2")) == 300
    todos_source.execute("update todos set body = 'new' where id = 't3'")
    todos_source.execute("delete from todos where id = 't6'")
    rows = deployment.rows("u1")
    rows |= deployment.rows("u2") | deployment.rows("u0")
    assert rows["todos", "t3"]["body"] == "new"
    assert ("todos", "t6") not in rows


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
def test_writes_during_deploy_are_in_both(deploy: Deploy, todos_source: SourceDb, on_postgres: bool) -> None:
    deployment = deploy(config(LISTS, TODOS), on_postgres=on_postgres).start()
    stop = threading.Event()

    def write() -> None:
        number = 0
        with psycopg.connect(todos_source.dsn, autocommit=True) as conn:
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
    truth = todos_source.fetch(
        "select t.id, t.body, t.list from todos t join lists l on l.id = t.list where l.owner = 'u1'"
    )
    rows = deployment.rows("u1")
    assert {key[1]: (row["body"], row["list"]) for key, row in rows.items() if key[0] == "todos"} == {
        row[0]: (row[1], row[2]) for row in truth
    }


def test_rollback_costs_nothing_and_obsolete_is_forgotten(deploy: Deploy, todos_source: SourceDb) -> None:
    first, second = config(LISTS, TODOS), config(LISTS, TODOS.replace("id, body", "id"))
    deployment = deploy(first).start()
    before = deployment.buckets("u1")
    deployment.redeploy(second)
    todos_source.execute("update todos set body = 'while away' where id = 't3'")
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
            return len(store.complete_definitions("default")) == 3  # two definitions and a lookup

    wait_until(forgotten, "the row sides of the second version to go")
    assert deployment.op_count_now() < ops
    assert deployment.buckets("u1").keys() == before.keys()
    deployment.redeploy(second)
    assert sum(kind == "todos" for kind, _ in deployment.rows("u2")) == 300


def test_unreachable_store_fails_no_version(
    deploy: Deploy, todos_source: SourceDb, monkeypatch: pytest.MonkeyPatch
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


@pytest.mark.parametrize("method", ["activate", "mark_version"])
def test_version_replaced_at_the_last_moment(
    deploy: Deploy, todos_source: SourceDb, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    deployment = deploy(config(LISTS)).start()
    last = config(LISTS, TODOS.replace("id, body", "id, list"))
    real = getattr(StoreWriter, method)

    def deploy_another_first(store: StoreWriter, *args: object) -> object:
        monkeypatch.setattr(StoreWriter, method, real)
        store.deploy(last, Origin.COMMAND)
        return real(store, *args)

    monkeypatch.setattr(StoreWriter, method, deploy_another_first)
    deployment.redeploy(config(LISTS, TODOS))
    deployment.yaml = last
    with deployment.store() as store:
        wait_until(lambda: not [v for v in store.versions() if v.state is VersionState.PROCESSING], "the deploys")
        _, replaced, served = store.versions()
    assert (replaced.state, replaced.activated) == (VersionState.STOPPED, 0)
    assert (served.state, served.yaml) == (VersionState.ACTIVE, last)
    todos = [row for (kind, _), row in deployment.rows("u1").items() if kind == "todos"]
    assert len(todos) == 300
    assert set(todos[0]) == {"id", "list"}


def test_failed_compile_keeps_version(deploy: Deploy, todos_source: SourceDb) -> None:
    deployment = deploy(config(LISTS)).start()
    good = deployment.yaml
    failed = deployment.redeploy("config: {edition: 3}\nstreams: {a: {query: SELECT nonsense FROM}}")
    assert failed.state is VersionState.FAILED
    assert failed.note
    deployment.yaml = good
    assert len(deployment.rows("u1")) == 10


def test_config_file_does_not_undo_deploy(deploy: Deploy, todos_source: SourceDb) -> None:
    deployment = deploy(config(LISTS)).start()
    deployment.redeploy(config(LISTS, TODOS))
    deployment.stop()
    deployment.yaml = config(LISTS)  # the file, as it was
    deployment.start()
    with deployment.store() as store:
        active = next(v for v in store.versions() if v.state is VersionState.ACTIVE)
    assert (active.id, active.origin) == (2, Origin.COMMAND)


NOTES = """
  notes:
    auto_subscribe: true
    query: SELECT id, body FROM notes WHERE n % 2 = PARITY
"""
MINE = """
  mine:
    auto_subscribe: true
    with:
      shared: SELECT team FROM members WHERE person = auth.user_id()
    query: SELECT id, body FROM notes AS mine WHERE team IN shared
"""
COPIES = """
  copies:
    auto_subscribe: true
    query: SELECT id, body FROM notes AS copies
"""
ROUNDS = 4
LAST = HEAD + NOTES.replace("PARITY", "1") + MINE


def configs() -> Iterator[str]:
    """Edits of a stream back and forth, new streams and removed ones, over and over; the last is LAST."""
    for number in range(ROUNDS):
        yield HEAD + NOTES.replace("PARITY", "0")
        yield HEAD + NOTES.replace("PARITY", "1") + COPIES
        yield HEAD + MINE.replace("id, body", f"id, body, {number} AS number") + COPIES
        yield HEAD + NOTES.replace("PARITY", "0").replace("id, body", f"id, body, {number} AS number") + MINE
        yield LAST


@contextmanager
def writing(source: SourceDb) -> Iterator[None]:
    """Somebody changes rows all the while."""
    over = threading.Event()

    def write() -> None:
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            for number in itertools.count():
                if over.wait(0.01):
                    return
                conn.execute("update notes set body = %s, n = n + 1 where id = %s", [f"b{number}", str(number % 200)])
                conn.execute("update members set team = (team + 1) % 5 where person = 'a'")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def settle(deployment: Deployment) -> None:
    """Wait until the newest version is served, and what no version needs is forgotten."""
    wait_until(
        lambda: complete(deployment) == definitions_of(plan_of(deployment.yaml)).keys(), "the last version's row sides"
    )
    wait_until(lambda: newest(deployment).state is VersionState.ACTIVE, "the last version to be served")


def complete(deployment: Deployment) -> Collection[str]:
    deployment.raise_failure()
    with deployment.store() as store:
        return store.complete_definitions("default").keys()


def newest(deployment: Deployment) -> ConfigVersion:
    with deployment.store() as store:
        return max(store.versions(), key=lambda version: version.id)


@pytest.mark.parametrize(
    "on_postgres", [False, pytest.param(True, marks=pytest.mark.long)], ids=["embedded", "postgres"]
)
def test_twenty_deploys_in_a_row(deploy: Deploy, source_db: SourceDb, tmp_path: Path, on_postgres: bool) -> None:
    source_db.execute("create table notes (id text primary key, body text, n int, team int)")
    source_db.execute("insert into notes select i::text, 'body', i, i % 5 from generate_series(1, 1000) i")
    source_db.execute("create table members (person text primary key, team int); insert into members values ('a', 1)")
    deployment = deploy(HEAD + NOTES.replace("PARITY", "0"), on_postgres=on_postgres, keep_stopped=0.0).start()
    device = Device(deployment)
    with writing(source_db):
        for number, yaml in enumerate(configs()):
            with deployment.store() as store:
                store.deploy(yaml, Origin.COMMAND)
            deployment.yaml = yaml
            if number % 3 == 0:  # the others are overtaken on their way, at different places
                wait_until(lambda: newest(deployment).state is VersionState.ACTIVE, "the version to be served")
                device.rows()
            elif number % 3 == 1:
                jobs = len(deployment.bulk_records())
                over = time.monotonic() + 0.1
                wait_until(lambda: len(deployment.bulk_records()) > jobs or time.monotonic() > over, "a job")  # noqa: B023
    settle(deployment)
    deployment.caught_up()
    fresh = deploy(LAST, tmp_path / "fresh", on_postgres=False)
    fresh.slot_prefix = "fresh_"
    fresh.start()
    right = Device(fresh).rows()
    assert Device(deployment).rows() == right
    assert device.rows() == right
    deployment.close()
    fresh.close()
    assert problems(deployment.address) == []
    left, needed = open_store(deployment.address).store_stats(), open_store(fresh.address).store_stats()
    assert [(b.name, b.rows) for b in left.buckets] == [(b.name, b.rows) for b in needed.buckets]
    assert [(t.name, t.rows) for t in left.tables] == [(t.name, t.rows) for t in needed.tables]
    assert left.lookups == needed.lookups
    assert ops(left) < 1.3 * ops(needed)
    if not on_postgres:  # which has a vacuum of its own
        assert left.disk.file - left.disk.free < 2 * needed.disk.file


def ops(stats: StoreStats) -> int:
    return stats.history.hot_ops + stats.history.sealed_ops


def test_stream_removed_and_added_again(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key, body text, n int)")
    source_db.execute("insert into notes select i::text, 'body', 0 from generate_series(1, 9) i")
    both, one = HEAD + NOTES.replace("PARITY", "0") + COPIES, HEAD + NOTES.replace("PARITY", "0")
    deployment = deploy(both, keep_stopped=0.0)
    deployment.intervals = replace(deployment.intervals, work=1.0)  # nothing is forgotten before
    deployment.start()
    device = Device(deployment)
    device.rows()
    deployment.redeploy(one)
    source_db.execute("update notes set body = 'meanwhile' where id in ('1', '2')")
    deployment.caught_up()
    deployment.redeploy(both)
    settle(deployment)
    shown = device.rows()
    assert {key for key, row in shown.items() if row["body"] == "meanwhile"} == {
        (table, key) for table in ("notes", "copies") for key in ("1", "2")
    }


@pytest.mark.parametrize(
    "change", ["update notes set body = 'new' where id = '1'", pytest.param("truncate notes", marks=pytest.mark.long)]
)
def test_stream_added_again_while_stopped(deploy: Deploy, source_db: SourceDb, change: str) -> None:
    """A row side that is wanted again after a long time has what was written meanwhile."""
    source_db.execute("create table notes (id text primary key, body text, n int)")
    source_db.execute("insert into notes select i::text, 'body', 0 from generate_series(1, 50) i")
    one = HEAD + NOTES.replace("PARITY", "0")
    deployment = deploy(one + COPIES).start()
    deployment.redeploy(one)
    deployment.stop()
    deployment.keep_stopped = 0.0  # as if that had been long ago
    source_db.execute(change)
    deployment.yaml = f"# again\n{one}{COPIES}"
    with deployment.store() as store:
        store.deploy(deployment.yaml, Origin.COMMAND)
    deployment.start()
    settle(deployment)
    copies = {key[1]: row["body"] for key, row in deployment.rows("a").items() if key[0] == "copies"}
    assert copies == dict(source_db.fetch("select id, body from notes"))
