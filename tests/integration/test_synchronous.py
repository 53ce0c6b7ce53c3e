"""Headwater as a synchronous standby: a commit returns when the store has it, and nothing waits for itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import psycopg
import pytest

from headwater.source.connect import connect
from headwater.source.readiness.health import look
from headwater.source.slot import slot_name
from headwater.source.triggers import install
from headwater.storage.contract.versions import VersionState
from tests.support.fix_headwater import TRIGGERED, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.model_device import contents
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until


@pytest.fixture
def deployment(source_db: SourceDb, deploy: Callable[..., Deployment]) -> Iterator[Deployment]:
    """A source whose commits wait for Headwater, which has read it and stands still."""
    source = source_db
    source.execute("create table notes (id text primary key, body text); insert into notes values ('first')")
    source.execute("alter table notes alter column body set storage external")
    deployment = deploy(NOTES)
    name = slot_name(deployment.settings)
    try:
        deployment.start().stop()
        source.execute(f"alter system set synchronous_standby_names = '{name}'")
        source.execute("select pg_reload_conf()")
        wait_until(lambda: source.fetch("show synchronous_standby_names") == [(name,)], "the setting")
        yield deployment
    finally:
        let_go(source)
        deployment.close()


def let_go(source: SourceDb) -> None:
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute("alter system reset synchronous_standby_names")
        conn.execute("select pg_reload_conf()")


class Commit(threading.Thread):
    """A statement that somebody waits for."""

    def __init__(self, source: SourceDb, statement: str) -> None:
        super().__init__(daemon=True)
        self._dsn = source.dsn
        self._statement = statement
        self.start()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            conn.execute(self._statement)

    def ends(self) -> None:
        self.join(60)
        assert not self.is_alive()


def waiting(source: SourceDb) -> int:
    """How many commits wait for a standby."""
    return int(source.fetch("select count(*) from pg_stat_activity where wait_event = 'SyncRep'")[0][0])


def waiting_commit(source: SourceDb) -> Commit:
    """A commit of the row 'early' that waits. The setting counts once Postgres' checkpointer has read it, too."""
    while True:
        commit = Commit(source, "insert into notes values ('early') on conflict (id) do update set body = 'again'")
        while waiting(source) == 0 and commit.is_alive():
            commit.join(0.01)
        if commit.is_alive():
            return commit


def seen_now(deployment: Deployment) -> set[str]:
    """The ids of the notes that a device would be sent at this very moment."""
    return {row_id for _, row_id in contents(deployment.buckets("a").values())}


def test_commit_waits_for_store(deployment: Deployment) -> None:
    source = deployment.source
    commit = waiting_commit(source)
    with connect(deployment.settings) as conn:
        (finding,) = look(conn, deployment.settings, slot_name(deployment.settings), ()).findings
    assert finding.code == "HW_2025"
    assert "ALTER SYSTEM SET synchronous_standby_names = ''" in finding.fix
    deployment.start()
    commit.ends()
    assert "early" in seen_now(deployment)
    for number in range(30):
        source.execute("insert into notes values (%s)", f"n{number}")
        assert f"n{number}" in seen_now(deployment)
    assert source.fetch("select sync_state from pg_stat_replication where application_name like 'hw%%'") == [("sync",)]


def test_commits_resume_when_released(deployment: Deployment) -> None:
    commit = waiting_commit(deployment.source)
    let_go(deployment.source)
    commit.ends()


def test_own_statements_do_not_wait(deployment: Deployment) -> None:
    assert install(deployment.settings).done
    with connect(deployment.settings) as conn:
        conn.execute("select pg_logical_emit_message(true, 'headwater', 'ping')")
        conn.execute("select pg_current_xact_id()")


@pytest.mark.parametrize(
    "sql",
    [
        "alter table notes add column extra text default 'filled'",
        "alter table notes drop column body; alter table notes add column body text",
        "alter table notes rename to archive; alter table archive rename to notes",
        "truncate notes",
    ],
)
@pytest.mark.parametrize("triggers", [False, True], ids=["looking", "triggers"])
def test_compare_while_commits_wait(deployment: Deployment, sql: str, triggers: bool) -> None:
    source = deployment.source
    if triggers:
        install(deployment.settings)
        deployment.intervals = replace(TRIGGERED, recheck=1.0)  # commits are seen only once the store has them
    deployment.start()
    with written(source):
        source.execute(sql)
        assert deployment.ask("resync", tables=["public.notes"])["state"] == "done"
    wait_until(lambda: rows(deployment) == truth(source), "the truth")


@contextmanager
def written(source: SourceDb) -> Iterator[None]:
    """Notes are written meanwhile."""
    done = threading.Event()

    def write() -> None:
        with psycopg.connect(source.dsn, autocommit=True) as conn:
            for number in count():
                if done.is_set():
                    return
                conn.execute("insert into notes (id) values (%s)", [f"w{number:06}"])
                conn.execute("update notes set id = id || 'x' where id = %s", [f"w{number:06}"])

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    yield
    done.set()
    writer.join(60)
    assert not writer.is_alive()


def truth(source: SourceDb) -> dict[str, dict[str, object]]:
    """The notes by id, without what is null."""
    found = [row for (row,) in source.fetch("select json_strip_nulls(row_to_json(n)) from notes n")]
    return {row["id"]: row for row in found}


def rows(deployment: Deployment) -> dict[str, dict[str, object]]:
    """What a device shows, in the same form."""
    shown = deployment.rows("a").values()
    return {str(row["id"]): {name: value for name, value in row.items() if value is not None} for row in shown}


def test_deploy_while_commits_wait(deployment: Deployment) -> None:
    deployment.start()
    deployment.source.execute("create table more (id text primary key)")
    deployment.source.execute("insert into more values ('m')")
    with written(deployment.source):
        version = deployment.redeploy(NOTES + "  more:\n    auto_subscribe: true\n    query: SELECT * FROM more\n")
    assert version.state is VersionState.ACTIVE
    assert ("more", "m") in deployment.rows("a")


def compared_again(deployment: Deployment) -> bool:
    """Whether the table was compared with the source, and is no more."""
    deployment.raise_failure()
    with deployment.store() as store:
        marked = any(table.resync for table in store.tables("default"))
    return not marked and "re-sync" in deployment.kinds()


def test_source_only_row_is_not_lost(deployment: Deployment) -> None:
    source = deployment.source
    source.needs(15, "row filters")
    source.execute("set synchronous_commit = local; drop publication headwater")
    source.execute("create publication headwater for table notes where (id <> 'hidden')")
    deployment.start()
    wait_until(lambda: compared_again(deployment), "the publication to be noticed")
    source.execute("set synchronous_commit = on; insert into notes values ('hidden', repeat('x', 20000))")
    source.execute("update notes set id = 'shown' where id = 'hidden'")  # an INSERT that leaves the large value out
    wait_until(lambda: "shown" in seen_now(deployment), "the row to come")
    assert deployment.rows("a")["notes", "shown"] == {"id": "shown", "body": "x" * 20000}
    deployment.stop()
    assert deployment.problems() == []
