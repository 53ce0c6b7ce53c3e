"""Services that share a Postgres cluster, or a database of it: none ends another's stream or drops its slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.pipeline.jobs import BulkJobs
from headwater.replication.own_slot import slot_note
from headwater.source.slot import SlotForeignError, SnapshotKeeper, claim_slot, slot_name
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.local_bulk import Waiting
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

Service = Callable[[SourceDb, str], Deployment]


@pytest.fixture
def other_db(source_db: SourceDb) -> Iterator[SourceDb]:
    """Another database of the same cluster."""
    name = f"{source_db.name}_other"
    source_db.execute(f"create database {name}")
    database = SourceDb(source_db.server, name)
    try:
        yield database
    finally:
        database.drop()


@pytest.fixture
def service(bulk: BulkJobs, tmp_path: Path) -> Iterator[Service]:
    """`service(source, "name")`: a service with a store of its own, as it is configured by default."""
    made: list[Deployment] = []

    def make(source: SourceDb, name: str) -> Deployment:
        source.execute("create table if not exists notes (id text primary key, body text)")
        source.execute("insert into notes values ('1', 'one') on conflict do nothing")
        made.append(Deployment(source, tmp_path / name, NOTES, bulk, slot_prefix="headwater_", patience=60.0))
        return made[-1]

    yield make
    for deployment in made:
        deployment.close()


def right(deployment: Deployment) -> bool:
    truth = deployment.source.fetch("select id, body from notes")
    return deployment.rows("a") == {("notes", key): {"id": key, "body": body} for key, body in truth}


def readers(source: SourceDb) -> list[tuple[str, int]]:
    """The slots of the database that are read for good, and by whom."""
    return [
        (name, pid)
        for name, pid in source.fetch(
            "select slot_name, active_pid from pg_replication_slots"
            " where database = current_database() and active and not temporary order by 1"
        )
    ]


def stop(deployment: Deployment) -> None:
    """Until the server has seen it, too."""
    deployment.stop()
    wait_until(lambda: not readers(deployment.source), "nobody to read the slot")


def cause(deployment: Deployment) -> str:
    """The code of what keeps rows from flowing."""
    found = deployment.health().cause
    return "" if found is None else found.code


def test_claim_is_renewed_after_session_ends(service: Service, source_db: SourceDb) -> None:
    ours = service(source_db, "ours").start()
    (before,) = readers(source_db)

    def claimed_by() -> list[tuple[int]]:
        held = "select pid from pg_locks where locktype = 'advisory' and classid = hashtext('headwater ' || %s)::oid"
        return source_db.fetch(held, before[0])

    ((claimer,),) = claimed_by()
    source_db.execute("select pg_terminate_backend(%s, 5000)", claimer)
    wait_until(lambda: bool(claimed_by()), "another claim")
    assert claimed_by() != [(claimer,)]
    assert right(ours)
    assert readers(source_db) == [before]


def failed_attempts(deployment: Deployment) -> int:
    found = deployment.health().cause
    return 0 if found is None else found.attempts


def waits_for_writers(source: SourceDb) -> bool:
    """Whether a comparison waits for the source's snapshot."""
    query = "select from pg_replication_slots where temporary and database = current_database() and active"
    return bool(source.fetch(query))


def test_two_databases_of_a_cluster(service: Service, source_db: SourceDb, other_db: SourceDb) -> None:
    both = [service(source_db, "store").start(), service(other_db, "other").start()]
    streams = [readers(deployment.source) for deployment in both]
    assert [len(read) for read in streams] == [1, 1]
    assert all(right(deployment) for deployment in both)
    answers: list[str] = []
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # for whose end both snapshots wait
        asking = [
            threading.Thread(target=lambda d=deployment: answers.append(d.ask("resync")["state"]), daemon=True)
            for deployment in both
        ]
        for thread in asking:
            thread.start()
        wait_until(lambda: all(waits_for_writers(d.source) for d in both), "both to compare at once", 20)
    for thread in asking:
        thread.join(60)
    assert answers == ["done", "done"]
    for deployment in both:
        deployment.source.execute("insert into notes values ('2', 'two')")
        assert right(deployment)
        assert deployment.kinds() == ["snapshot", "re-sync"]
    assert [readers(deployment.source) for deployment in both] == streams, "somebody was ended"


def test_second_store_is_refused(service: Service, source_db: SourceDb) -> None:
    first, second = service(source_db, "first").start(), service(source_db, "second")
    stream = readers(source_db)
    with pytest.raises(SlotForeignError, match=r"is used by another service .*--take-slot"):
        second.start()
    assert readers(source_db) == stream
    source_db.execute("insert into notes values ('2', 'two')")
    assert right(first)


def test_slot_is_in_use_during_first_snapshot(service: Service, source_db: SourceDb) -> None:
    first, second = service(source_db, "first"), service(source_db, "second")
    first.bulk = held = Waiting("snapshot")
    source_db.execute("create publication headwater for all tables")
    first.start(publish=False)
    assert held.begun.wait(60)
    assert readers(source_db) == []
    with pytest.raises(SlotForeignError, match="is used by another service"):
        second.start()
    held.go.set()
    wait_until(lambda: len(readers(source_db)) == 1, "the first to follow", 30)
    assert right(first)


def test_new_store_takes_unused_slot(service: Service, source_db: SourceDb, caplog: pytest.LogCaptureFixture) -> None:
    first, second = service(source_db, "first").start(), service(source_db, "second")
    first.stop()
    source_db.execute("insert into notes values ('2', 'two')")
    second.start()
    assert right(second)
    name = slot_name(second.settings)
    assert f'the slot "{name}" was there already and is taken over' in caplog.text
    stream = readers(source_db)
    with pytest.raises(SlotForeignError, match="is used by another service"):
        first.start()
    first.stop()
    assert readers(source_db) == stream
    second.stop()
    with pytest.raises(SlotForeignError, match="was taken over by another service"):
        first.start()
    first.stop()
    first.take_slot = True
    first.start()
    wait_until(lambda: first.kinds() == ["snapshot", "re-sync"], "what it missed to be found", 30)
    assert right(first)


def test_slot_in_use_can_be_taken(service: Service, source_db: SourceDb) -> None:
    first, second = service(source_db, "first").start(), service(source_db, "second")
    second.take_slot = True
    second.start()
    ((name, pid),) = readers(source_db)
    assert name == slot_name(first.settings)
    wait_until(lambda: cause(first) == "HW_2203", "the first to say what happened", 30)
    source_db.execute("insert into notes values ('2', 'two')")
    assert right(second)
    assert readers(source_db) == [(name, pid)]
    attempts = failed_attempts(first)
    second.stop()
    wait_until(lambda: failed_attempts(first) > attempts, "the first to try again", 60)
    assert readers(source_db) == [], "a slot that another service was given is that one's, also while it is stopped"
    first.raise_failure()
    second.start()
    assert second.kinds() == ["snapshot"], "it goes on by its slot"


@pytest.mark.parametrize("take", [False, True], ids=["by itself", "when told to take it"])
def test_slot_of_other_database_is_untouched(
    service: Service, source_db: SourceDb, other_db: SourceDb, take: bool
) -> None:
    deployment = service(source_db, "store")
    name = slot_name(deployment.settings)
    other_db.execute(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    deployment.take_slot = take
    with pytest.raises(SlotForeignError, match=f"belongs to database {other_db.name} .*slot_name_prefix"):
        deployment.start()
    assert other_db.fetch("select slot_name, database from pg_replication_slots") == [(name, other_db.name)]


# how the store knows


def test_slot_is_noted_before_it_is_made(
    service: Service, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = service(source_db, "store")
    made = SnapshotKeeper.__init__

    def made_and_killed(keeper: SnapshotKeeper, *arguments: object, **options: object) -> None:
        made(keeper, *arguments, **options)  # type: ignore[arg-type]
        keeper.close()
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(SnapshotKeeper, "__init__", made_and_killed)
        with pytest.raises(SystemExit):
            deployment.start()
    stop(deployment)
    with deployment.store() as store:
        assert slot_note(deployment.name, store).name == slot_name(deployment.settings)
    assert source_db.fetch("select slot_name from pg_replication_slots") == [(slot_name(deployment.settings),)]
    deployment.start()
    assert right(deployment)
    assert "taken over" not in caplog.text


def test_claim_without_right_fails(service: Service, source_db: SourceDb) -> None:
    """Anybody who may connect to the database can take any advisory lock."""
    ours = service(source_db, "ours").start()
    ours.caught_up()
    ours.stop()
    name = slot_name(ours.settings)
    source_db.execute("create role stranger login")
    try:
        with psycopg.connect(source_db.dsn, user="stranger", autocommit=True) as stranger:
            claim_slot(stranger, name, "a store of theirs")
            source_db.execute("insert into notes values ('2', 'two')")
            ours.start()
            wait_until(lambda: right(ours), "the stream to go on")
    finally:
        source_db.execute("drop role stranger")
    assert ours.kinds() == ["snapshot"]
