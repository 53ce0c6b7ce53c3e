"""Several databases in one store: what each gives to devices, and what none does to another."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from headwater.bulk.contract import Report, ReprocessJob, Stop
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.removal import remove_source, remove_unnamed
from headwater.replication.status import ReplicationState
from headwater.replication.versions import waiting_note
from headwater.source.rows.copy import TableChangedError
from headwater.storage.contract.parts import BulkOutcome
from headwater.storage.contract.store import Lease, LeaseHeldError
from headwater.storage.contract.versions import Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.verify import ALL_KEYS
from tests.contract.source_writer import RELATION
from tests.support.changed_source import Device
from tests.support.fix_headwater import HASTY, STORES
from tests.support.fix_sources import NewSources, Sources
from tests.support.local_bulk import LocalEngine, Waiting
from tests.support.store_file import store_file
from tests.support.waiting import wait_until

NOTES = """
create table notes (id text primary key, body text);
insert into notes values ('n1', 'one'), ('n2', 'two');
"""
TODOS = """
create table todos (id text primary key, note text, body text);
insert into todos values ('t1', 'n1', 'first'), ('t2', 'n9', 'second');
create table tags (id text primary key, name text);
insert into tags values ('g1', 'green');
"""

HEAD = "config: {edition: 3}\nstreams:\n"
ALL_NOTES = """  notes: {auto_subscribe: true, query: 'SELECT id, body FROM "one.public".notes'}\n"""
ALL_TODOS = """  todos: {auto_subscribe: true, query: 'SELECT id, body FROM "two.public".todos'}\n"""
ALL_TAGS = """  tags: {auto_subscribe: true, query: 'SELECT id, name FROM "two.public".tags'}\n"""
BOTH = HEAD + ALL_NOTES + ALL_TODOS
LONGER = BOTH.replace("id, body", "id, body, upper(body) AS loud")

TABLES = {"one": NOTES, "two": TODOS}


@STORES
def test_two_databases_are_one_for_devices(new_sources: NewSources, on_postgres: bool) -> None:
    sources = new_sources(BOTH, TABLES, on_postgres=on_postgres).start()
    assert sources.rows("a").keys() == {("notes", "n1"), ("notes", "n2"), ("todos", "t1"), ("todos", "t2")}
    sources["one"].source.execute("update notes set body = 'changed' where id = 'n1'")
    sources["two"].source.execute("delete from todos where id = 't1'; insert into todos values ('t3', 'n1', 'third')")
    rows = sources.rows("a")
    assert rows["notes", "n1"]["body"] == "changed"
    assert rows.keys() == {("notes", "n1"), ("notes", "n2"), ("todos", "t2"), ("todos", "t3")}
    sources.restart()
    assert sources.rows("a") == rows
    assert [each.kinds() for each in sources] == [
        ["snapshot", "snapshot"]
    ] * 2  # one list for the store: both read once


@STORES
def test_a_version_is_served_when_all_are_done(new_sources: NewSources, on_postgres: bool) -> None:
    sources = new_sources(BOTH, TABLES, on_postgres=on_postgres).start()
    sources["two"].stop()
    number = sources.deploy(LONGER)
    sources.wait_for(lambda _: sources.note(number) == waiting_note(["two"]), "the version to say whom it waits for")
    jobs = len(sources.any.bulk_records())
    sources["one"].stop()
    sources["one"].start()  # which has nothing left to do
    sources["one"].source.execute("update notes set body = 'meanwhile' where id = 'n1'")
    sources["one"].caught_up()
    assert sources.state(number) is VersionState.PROCESSING
    assert len(sources.any.bulk_records()) == jobs
    sources["two"].start()
    sources.wait_for(lambda _: sources.state(number) is VersionState.ACTIVE, "the version to be served")
    rows = sources.rows("a")
    assert rows["notes", "n1"] == {"id": "n1", "body": "meanwhile", "loud": "MEANWHILE"}
    assert rows["todos", "t1"]["loud"] == "FIRST"


@STORES
def test_a_new_source_holds_nothing_up(new_sources: NewSources, on_postgres: bool) -> None:
    sources = new_sources(BOTH, {"one": NOTES}, on_postgres=on_postgres)
    sources.add("two", TODOS)
    sources["one"].start()
    assert sources["one"].rows("a").keys() == {("notes", "n1"), ("notes", "n2")}
    number = sources.deploy(LONGER)
    sources.wait_for(lambda _: sources.state(number) is VersionState.ACTIVE, "the version to be served")
    ops = sources["one"].op_count()
    sources.start()
    rows = sources.rows("a")
    assert rows["todos", "t2"]["loud"] == "SECOND"
    assert rows["notes", "n2"]["loud"] == "TWO"
    assert sources.any.op_count_now() == ops + 3  # a CLEAR, and two rows


@STORES
def test_a_source_that_the_configuration_does_not_name(
    new_sources: NewSources, on_postgres: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sources = new_sources(BOTH, TABLES, on_postgres=on_postgres).start()
    device = Device(sources.any)
    device.rows()
    gone = sources["two"]
    slot = gone.source.fetch("select slot_name from pg_replication_slots where database = %s", gone.source.name)[0][0]
    with sources.any.store() as store:
        assert not remove_source(store, "two", "somebody")
        assert "source two is not in the configuration, but can't be removed yet" in caplog.text
        sources.remove("two")
        sources.restart()
        assert remove_source(store, "two", "somebody")
        assert store.source_state("two") is None
        assert store.tables("two") == []
    assert f"pg_drop_replication_slot('{slot}')" in caplog.text
    assert device.rows().keys() == sources.rows("a").keys() == {("notes", "n1"), ("notes", "n2")}
    assert sources.any.problems() == []
    number = sources.redeploy(LONGER)  # nobody is waited for
    assert sources.rows("a")["notes", "n1"]["loud"] == "ONE"
    assert sources.state(number) is VersionState.ACTIVE


@STORES
def test_buckets_of_a_removed_source_go_with_the_version_that_has_them(
    new_sources: NewSources, on_postgres: bool
) -> None:
    a_bucket_each = ALL_TODOS.replace('two.public".todos', 'two.public".todos WHERE body = auth.user_id()')
    yaml = HEAD + ALL_NOTES + a_bucket_each
    sources = new_sources(yaml, TABLES, on_postgres=on_postgres, keep_stopped=0.0).start()

    def buckets() -> int:
        with sources.any.store() as store, open_store(store.address).open_verify() as reader:
            return len(list(reader.heads(*ALL_KEYS)))

    sources.remove("two")
    sources.restart()
    with sources.any.store() as store:
        assert remove_source(store, "two", "somebody")
    sources["one"].caught_up()
    assert buckets() == 3, "devices have yet to hear that two are empty"
    sources.redeploy(HEAD + ALL_NOTES)
    wait_until(lambda: buckets() == 1, "the buckets to go")
    sources.add("two", TODOS)
    sources.restart()
    sources.redeploy(yaml)
    assert sources.rows("first").keys() == {("notes", "n1"), ("notes", "n2"), ("todos", "t1")}


@STORES
def test_a_shard_that_the_configuration_does_not_name(new_sources: NewSources, on_postgres: bool) -> None:
    yaml = (
        BOTH.replace("two.public", "one.public")
        .replace("todos", "tags")
        .replace('id, body FROM "one.public".tags', 'id, name AS body FROM "one.public".tags')
    )
    tables = NOTES + "create table tags (id text primary key, name text); insert into tags values ('g', 'green')"
    sources = new_sources(yaml, {"one/a": tables, "one/b": tables}, on_postgres=on_postgres).start()
    sources["one/b"].source.execute("insert into notes values ('n3', 'three'); delete from tags")
    loses_shard(sources, 4)


def loses_shard(sources: Sources, before: int) -> None:
    """A device that has so many rows is left with those of `one/a` once `one/b` is removed."""
    device = Device(sources.any)
    sources.caught_up()
    assert len(device.rows()) == before
    sources.remove("one/b")
    with sources.any.store() as store:
        assert remove_source(store, "one/b", "somebody")
    assert device.rows().keys() == {("notes", "n1"), ("notes", "n2"), ("tags", "g")}
    assert device.rows() == sources.rows("a")


def test_a_version_that_waited_for_a_removed_source(new_sources: NewSources) -> None:
    sources = new_sources(BOTH, TABLES).start()
    sources["two"].stop()
    number = sources.deploy(LONGER)
    sources.wait_for(lambda _: sources.note(number) == waiting_note(["two"]), "the version to say whom it waits for")
    sources.remove("two")
    sources.restart()
    sources.wait_for(lambda _: sources.state(number) is VersionState.ACTIVE, "the version to be served")


def test_a_wrong_version_fails_once(new_sources: NewSources, caplog: pytest.LogCaptureFixture) -> None:
    sources = new_sources(BOTH, TABLES).start()
    number = sources.deploy("config: {edition: 3}\nstreams: {a: {query: SELECT nonsense FROM}}")
    sources.wait_for(lambda _: sources.state(number) is VersionState.FAILED, "the version to fail")
    said = sources.note(number)
    sources["one"].source.execute("update notes set body = 'after' where id = 'n1'")
    assert sources.note(number) == said
    with sources.any.store() as store:
        assert [version.state for version in store.versions()] == [VersionState.ACTIVE, VersionState.FAILED]
    for each in sources:
        each.yaml = BOTH
    assert sources.rows("a")["notes", "n1"]["body"] == "after"


def test_what_one_source_suffers_fails_no_version(new_sources: NewSources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.replication.jobs.scheduler._GIVEN_UP_SECONDS", 0.3)
    bulk, broken = BulkJobs(LocalEngine()), threading.Event()
    reprocess, failed = BulkJobs.reprocess, itertools.count(1)
    tries = []

    def failing(job: ReprocessJob, progress: Report, stop: Stop = None) -> BulkOutcome:
        if job.source_name == "two" and not broken.is_set():
            tries.append(next(failed))
            raise TableChangedError("the table changed", "two")
        return reprocess(bulk, job, progress, stop)

    monkeypatch.setattr(bulk, "reprocess", failing)
    sources = new_sources(BOTH, TABLES, bulk=bulk, intervals=replace(HASTY, retry=0.05, recheck=0.01)).start()
    number = sources.deploy(LONGER)
    sources.wait_for(lambda _: len(tries) > 10, "many attempts")
    assert sources.state(number) is VersionState.PROCESSING
    assert "source two: " in sources.note(number)
    assert sources["two"].ask("resync")["state"] == "done"  # which others may need
    sources["one"].source.execute("update notes set body = 'meanwhile' where id = 'n1'")
    sources["one"].caught_up()
    broken.set()
    sources.wait_for(lambda _: sources.state(number) is VersionState.ACTIVE, "the version to be served")
    assert sources.rows("a")["notes", "n1"]["loud"] == "MEANWHILE"


@STORES
def test_a_version_replaced_while_sources_are_read_first(new_sources: NewSources, on_postgres: bool) -> None:
    bulk = Waiting("snapshot")
    sources = new_sources(BOTH, TABLES, on_postgres=on_postgres, bulk=bulk)
    for each in sources:
        each.start(wait=False)
    assert bulk.begun.wait(60)
    number = sources.deploy(LONGER)
    bulk.go.set()
    for each in sources:
        each.wait_until_following()
    sources.wait_for(lambda _: sources.state(number) is VersionState.ACTIVE, "the version to be served")
    with sources.any.store() as store:
        replaced, served = store.versions()
    assert (replaced.state, replaced.activated) == (VersionState.STOPPED, 0)
    assert sources.rows("a")["todos", "t1"]["loud"] == "FIRST"
    assert served.id == number


@STORES
def test_rows_find_each_other_over_databases(new_sources: NewSources, on_postgres: bool) -> None:
    mine = """  mine:
    auto_subscribe: true
    query: >-
      SELECT id, body FROM "two.public".todos
      WHERE note IN (SELECT id FROM "one.public".notes WHERE body = auth.user_id())
"""
    sources = new_sources(HEAD + mine, TABLES, on_postgres=on_postgres).start()
    assert sources.rows("one").keys() == {("todos", "t1")}
    assert sources.rows("two").keys() == set()
    sources["one"].source.execute("update notes set body = 'two' where id = 'n1'")
    assert sources.rows("one").keys() == set()
    assert sources.rows("two").keys() == {("todos", "t1")}


def test_one_of_many_deploys_the_file(new_sources: NewSources) -> None:
    sources = new_sources(BOTH, TABLES).start()
    sources.restart()
    with sources.any.store() as store:
        assert [version.origin for version in store.versions()] == [Origin.FILE]
    sources.stop()
    for each in sources:
        each.yaml = LONGER
    sources.start()
    sources.wait_for(lambda store: store.versions()[-1].state is VersionState.ACTIVE, "the file to be served")
    sources.restart()
    with sources.any.store() as store:
        assert len(store.versions()) == 2


def test_a_process_that_still_has_the_former_file_does_not_bring_it_back(new_sources: NewSources) -> None:
    """Each source has a process of its own. They are restarted one after the other with a newer file."""
    sources = new_sources(BOTH, TABLES).start()

    def restart(name: str, file: str) -> None:
        sources[name].stop()
        sources[name].yaml = file
        sources[name].start()

    def served(file: str) -> bool:
        with sources.any.store() as store:
            return [each.yaml for each in store.versions() if each.state is VersionState.ACTIVE] == [file]

    restart("two", LONGER)
    wait_until(lambda: served(LONGER), "the newer file to be served")
    restart("one", BOTH)  # it crashed, say
    restart("one", LONGER)
    assert served(LONGER)
    with sources.any.store() as store:
        assert [each.yaml for each in store.versions()] == [BOTH, LONGER]
    restart("two", BOTH)
    wait_until(lambda: served(BOTH), "the former file to be served, which is wanted now")
    restart("one", LONGER)
    restart("one", BOTH)
    assert served(BOTH)


def test_all_that_the_configuration_does_not_name_goes(new_sources: NewSources) -> None:
    sources = new_sources(BOTH, TABLES).start()
    gone = sources["two"]
    with sources.any.store() as store:
        stop = threading.Event()
        removing = threading.Thread(target=remove_unnamed, args=(store, {"one": "one"}, "somebody", stop, 0.0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headwater.replication.removal._AGAIN_SECONDS", 0.05)
            removing.start()  # while it is followed
            assert gone.rows("a").keys() >= {("todos", "t1")}
            sources.remove("two")
            removing.join(60)
        assert store.sources() == ["one"]
        assert store.acquire("two", "somebody else", 1.0)
    assert sources.rows("a").keys() == {("notes", "n1"), ("notes", "n2")}


@STORES
def test_a_source_of_which_nothing_was_read_to_the_end(
    new_sources: NewSources, on_postgres: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.replication.removal._AGAIN_SECONDS", 0.05)
    sources = new_sources(BOTH, {"one": NOTES}, on_postgres=on_postgres).start()
    with sources.any.store() as store:
        lease = store.acquire("two", "somebody", 60.0)
        store.set_meta(lease, "slot two", '{"name":"headwater_two"}')
        store.stage_tables(lease, "two", [(RELATION, "print")])
        store.release(lease)
        assert store.sources() == ["one", "two"]
        remove_unnamed(store, {"one": "one"}, "somebody", threading.Event(), 0.0)
        assert store.sources() == ["one"]
    assert "pg_drop_replication_slot('headwater_two')" in caplog.text, "it keeps the log of its database"


@pytest.mark.parametrize(
    ("peers", "followed", "why"),
    [
        ({"one": "one"}, True, "another process follows the source two, which this configuration does not name"),
        ({"one": "one"}, False, "its rows leave devices 60 minutes from now"),
        ({"one": "one", "three": "three"}, False, "it stays until three was read"),
    ],
)
def test_a_source_that_stays_though_the_configuration_does_not_name_it(
    new_sources: NewSources,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    peers: dict[str, str],
    followed: bool,
    why: str,
) -> None:
    """It might be a mistake: a file that was cut short, a tag that was changed, a machine with an older file."""
    sources = new_sources(BOTH, TABLES).start()
    if not followed:
        sources["two"].stop()
    monkeypatch.setattr("headwater.replication.removal._AGAIN_SECONDS", 0.05)
    with sources.any.store() as store:
        stop = threading.Event()
        after = 0.0 if len(peers) > 1 or followed else 3600.0
        removing = threading.Thread(target=remove_unnamed, args=(store, peers, "somebody", stop, after))
        removing.start()
        wait_until(lambda: why in caplog.text, "the reason why it stays")
        stop.set()
        removing.join(60)
        assert store.sources() == ["one", "two"]


@STORES
def test_rows_of_a_removed_shard_leave_some_at_a_time(
    new_sources: NewSources, on_postgres: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.replication.removal._ROWS_AT_ONCE", 1)
    yaml = BOTH.replace("two.public", "one.public").replace("todos", "tags")
    tables = NOTES + "create table tags (id text primary key, body text); insert into tags values ('g', 'green')"
    sources = new_sources(yaml, {"one/a": tables, "one/b": tables}, on_postgres=on_postgres).start()
    sources["one/b"].source.execute("update notes set id = 'b' || id; update tags set id = 'b'")
    loses_shard(sources, 6)
    assert sources.any.problems() == []


def test_lease_of_one_source_is_lost(new_sources: NewSources, caplog: pytest.LogCaptureFixture) -> None:
    sources = new_sources(BOTH, TABLES).start()
    with sources.any.store() as store:

        def stolen() -> Lease:
            while True:
                with store_file(sources.any.directory) as db:
                    db.execute("update leases set expires_at = 0 where name = 'two'")
                with suppress(LeaseHeldError):  # it was renewed in between
                    return store.acquire("two", "somebody else", 600)

        lease = stolen()
        waits = "another replicator is running (somebody else) (source two)"
        wait_until(lambda: waits in caplog.text, "the former holder to wait for it")
        sources["two"].source.execute("insert into todos values ('t3', 'n1', 'third')")
        sources["one"].source.execute("insert into notes values ('n3', 'three')")
        assert sources["one"].rows("a").keys() >= {("notes", "n3")}, "the other goes on"
        assert sources["two"].health().state is ReplicationState.STARTING, "its new holder has not reported yet"
        assert sources["one"].health().state is ReplicationState.STREAMING
        assert ("todos", "t3") not in sources["one"].rows("a")
        store.release(lease)
    assert ("todos", "t3") in sources.rows("a")
