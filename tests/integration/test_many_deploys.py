"""Sync configs deployed in quick succession while rows are written: devices are right in the end, and what versions
in between left behind goes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.stats import StoreStats
from headwater_rules.versions import sides
from tests.support.changed_source import Device
from tests.support.fix_headwater import Deploy, Deployment, plan_of, wait_until
from tests.support.fix_postgres import SourceDb
from tests.support.store_checker import problems

HEAD = "config: {edition: 3}\nstreams:\n"
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
    wait_until(lambda: complete(deployment) == sides(plan_of(deployment.yaml)).keys(), "the last version's row sides")
    wait_until(lambda: newest(deployment).state is VersionState.ACTIVE, "the last version to be served")


def complete(deployment: Deployment) -> Collection[str]:
    deployment.raise_failure()
    with deployment.store() as store:
        return store.complete_definitions().keys()


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
    deployment = deploy(HEAD + NOTES.replace("PARITY", "0"), on_postgres=on_postgres)
    deployment.keep_stopped = 0.0
    deployment.start()
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


def test_a_stream_that_is_wanted_again_at_once_has_what_was_written_meanwhile(
    deploy: Deploy, source_db: SourceDb
) -> None:
    source_db.execute("create table notes (id text primary key, body text, n int)")
    source_db.execute("insert into notes select i::text, 'body', 0 from generate_series(1, 9) i")
    both, one = HEAD + NOTES.replace("PARITY", "0") + COPIES, HEAD + NOTES.replace("PARITY", "0")
    deployment = deploy(both)
    deployment.keep_stopped = 0.0
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
    deployment.close()
    assert deployment.problems() == []
