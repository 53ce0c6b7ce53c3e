"""Deploys that somebody cancels, replaces or takes back while a replicator is at work on them: devices keep what they
have, nothing of such a version stays, and the next one is whole."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest

from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.versions import ConfigVersion, NotProcessingError, Origin, VersionState
from headwater.storage.sql.writer import StoreWriter
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until

FIRST = """
config: {edition: 3}
streams:
  lists: {auto_subscribe: true, query: "SELECT id, name FROM lists WHERE owner = auth.user_id()"}
"""
SECOND = f"{FIRST}  others: {{auto_subscribe: true, query: \"SELECT id || '+' AS id, owner FROM lists\"}}\n"
THIRD = SECOND.replace("owner FROM lists", "owner, name FROM lists")
LISTS, OWN = 30, 10

both_stores = pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])


@pytest.fixture
def lists_source(source_db: SourceDb) -> SourceDb:
    source_db.execute("create table lists (id text primary key, owner text, name text)")
    source_db.execute("insert into lists select 'l' || i, 'u' || i % 3, 'list ' || i from generate_series(1, 30) i")
    return source_db


class Held:
    """Bulk work that goes on only when it is told to, or is stopped, and tells of no progress meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str = "reprocess") -> None:
        self.began, self.go, self.stopped = threading.Event(), threading.Event(), threading.Event()
        real = getattr(BulkJobs, method)

        def held(bulk: BulkJobs, job: object, progress: object, *stop: threading.Event) -> object:
            self.began.set()
            while not self.go.wait(0.02):
                if any(each.is_set() for each in stop):
                    self.stopped.set()
                    break
            return real(bulk, job, progress, *stop)

        monkeypatch.setattr(BulkJobs, method, held)

    def wait(self, event: threading.Event, what: str) -> None:
        wait_until(event.is_set, what)


def settled(deployment: Deployment) -> list[ConfigVersion]:
    """All versions, once none is being processed."""
    with deployment.store() as store:

        def over() -> bool:
            deployment.raise_failure()
            return not any(each.state is VersionState.PROCESSING for each in store.versions())

        wait_until(over, "the deploys to end")
        return store.versions()


def states(deployment: Deployment) -> list[str]:
    return [each.state.value for each in settled(deployment)]


def definitions(deployment: Deployment) -> tuple[set[str], set[str]]:
    """The definitions that are complete, and those that are not."""
    with deployment.store() as store:
        return {*store.complete_definitions("default")}, {*store.unfinished_definitions("default")}


def has_only(deployment: Deployment, complete: set[str]) -> None:
    wait_until(lambda: definitions(deployment) == (complete, set()), "what was built to be removed")


@both_stores
def test_cancelled_while_rows_are_evaluated(
    deploy: Deploy, lists_source: SourceDb, monkeypatch: pytest.MonkeyPatch, on_postgres: bool
) -> None:
    deployment = deploy(FIRST, on_postgres=on_postgres).start()
    (before, _), rows = definitions(deployment), deployment.rows("u1")
    with monkeypatch.context() as patch, deployment.store() as store:
        held = Held(patch)
        version = store.deploy(SECOND, Origin.COMMAND)
        held.wait(held.began, "the work to begin")
        wait_until(lambda: store.versions()[-1].note, "the version to say how far it is, as ever after")
        store.cancel(version.id, "cancelled by Ada")
        held.wait(held.stopped, "the work to be stopped, which tells of no progress")
        with pytest.raises(NotProcessingError):
            store.cancel(version.id, "cancelled again")
    has_only(deployment, before)
    assert deployment.rows("u1") == rows
    assert settled(deployment)[-1].note == "cancelled by Ada"
    lists_source.execute("update lists set owner = 'u2' where id = 'l1'")
    assert deployment.redeploy(SECOND).state is VersionState.ACTIVE
    told = deployment.rows("u1")
    assert (len(told), told["lists", "l1+"]["owner"]) == (OWN - 1 + LISTS, "u2")
    assert states(deployment) == ["stopped", "failed", "active"]


def test_next_version_does_not_wait_for_a_replaced_one(
    deploy: Deploy, lists_source: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(FIRST).start()
    with monkeypatch.context() as patch, deployment.store() as store:
        held = Held(patch)
        store.deploy(SECOND, Origin.COMMAND)
        held.wait(held.began, "the work to begin")
        store.deploy(FIRST, Origin.COMMAND)
        held.wait(held.stopped, "the work to be stopped")
    assert states(deployment) == ["stopped", "stopped", "active"]
    assert len(deployment.rows("u1")) == OWN


@pytest.mark.parametrize("step", ["begin_definitions", "take_page", "activate"])
def test_cancelled_between_two_steps(
    deploy: Deploy, lists_source: SourceDb, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    deployment = deploy(FIRST).start()
    (before, _), rows = definitions(deployment), deployment.rows("u1")
    real = getattr(StoreWriter, step)

    def cancel_first(store: StoreWriter, *args: object) -> object:
        monkeypatch.setattr(StoreWriter, step, real)
        store.cancel(2, "cancelled by Ada")
        return real(store, *args)

    monkeypatch.setattr(StoreWriter, step, cancel_first)
    with deployment.store() as store:
        store.deploy(SECOND, Origin.COMMAND)
    assert states(deployment) == ["active", "failed"]
    has_only(deployment, before)
    assert deployment.rows("u1") == rows
    assert deployment.redeploy(SECOND).state is VersionState.ACTIVE
    assert len(deployment.rows("u1")) == OWN + LISTS


def test_first_version_is_cancelled(deploy: Deploy, lists_source: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        held = Held(patch, "snapshot")
        deployment = deploy(FIRST).start(wait=False)
        held.wait(held.began, "the snapshot to begin")
        with deployment.store() as store:
            store.cancel(1, "cancelled by Ada")
        held.go.set()
        deployment.wait_until_following()
    assert states(deployment) == ["failed"]
    assert deployment.reader.newest() is None, "nobody is served what was cancelled"
    assert deployment.redeploy(SECOND).state is VersionState.ACTIVE
    assert len(deployment.rows("u1")) == OWN + LISTS


def test_replicator_is_away_while_its_work_is_cancelled(
    deploy: Deploy, lists_source: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deploy(FIRST).start()
    before, _ = definitions(deployment)
    with monkeypatch.context() as patch, deployment.store() as store:
        held = Held(patch)
        version = store.deploy(SECOND, Origin.COMMAND)
        held.wait(held.began, "the work to begin")
        deployment.stop()
        store.cancel(version.id, "cancelled by Ada")
    lists_source.execute("update lists set owner = 'u1' where id = 'l3'")
    deployment.start()
    has_only(deployment, before)
    assert len(deployment.rows("u1")) == OWN + 1
    assert deployment.redeploy(SECOND).state is VersionState.ACTIVE
    assert len(deployment.rows("u1")) == OWN + 1 + LISTS


def edit(deployment: Deployment, seed: int) -> None:
    """Deploy, cancel and take back as somebody does who looks at nothing."""
    chance = random.Random(seed)
    with deployment.store() as store:
        for _ in range(20):
            newest = store.versions()[-1]
            if newest.state is VersionState.PROCESSING and chance.random() < 0.4:
                try:
                    store.cancel(newest.id, f"cancelled by {seed}")
                except NotProcessingError:
                    pass  # it was served meanwhile, or cancelled by another one
            else:
                store.deploy(chance.choice([FIRST, SECOND, THIRD]), Origin.COMMAND)
            threading.Event().wait(chance.random() * 0.2)  # so that replicators come far, at times


def write(dsn: str, ended: threading.Event) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        number = 0
        while not ended.wait(0.005):
            number += 1
            conn.execute("update lists set name = %s where id = %s", [f"name {number}", f"l{number % LISTS + 1}"])
            conn.execute("update lists set owner = %s where id = %s", [f"u{number % 3}", f"l{number * 7 % LISTS + 1}"])


def shown(lists: list[tuple[str, str, str]], text: str, user: str) -> dict[str, dict[str, str]]:
    """The rows that a user has by one of the texts."""
    rows = {key: {"name": name} for key, owner, name in lists if owner == user}
    if text != FIRST:
        rows |= {f"{key}+": {"owner": owner} | ({"name": name} if text == THIRD else {}) for key, owner, name in lists}
    return {key: {"id": key, **row} for key, row in rows.items()}


@both_stores
@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3))])
def test_many_editors_and_restarts(deploy: Deploy, lists_source: SourceDb, seed: int, on_postgres: bool) -> None:
    deployment = deploy(FIRST, on_postgres=on_postgres).start()
    ended = threading.Event()
    writer = threading.Thread(target=write, args=(lists_source.dsn, ended))
    editors = [threading.Thread(target=edit, args=(deployment, 10 * seed + each)) for each in range(3)]
    for thread in (writer, *editors):
        thread.start()
    try:
        while any(editor.is_alive() for editor in editors):
            deployment.stop()
            deployment.start()
            for editor in editors:
                editor.join(0.5)
    finally:
        ended.set()
        writer.join()
    versions = settled(deployment)
    assert len(versions) > 20, "else the editors all failed"
    (active,) = [each.yaml for each in versions if each.state is VersionState.ACTIVE]
    lists = lists_source.fetch("select id, owner, name from lists")
    for text in (active, *{FIRST, SECOND, THIRD} - {active}):
        deployment.redeploy(text)
        for user in ("u0", "u1", "u2"):
            assert {key: row for (_, key), row in deployment.rows(user).items()} == shown(lists, text, user)
