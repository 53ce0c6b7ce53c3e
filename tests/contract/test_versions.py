"""What every store promises of versions of the sync config, of row sides, and of requests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest

from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reader import Newest, StoreReader
from headwater.storage.contract.store import LeaseLostError, RequestState
from headwater.storage.contract.versions import Origin, OwnConfig, VersionState
from headwater.storage.open import open_store
from tests.contract.source_writer import (
    RELATION,
    SIDES,
    SOURCE,
    YAML,
    A,
    B,
    SourceWriter,
    assert_in_step,
    lookups,
    totals,
)
from tests.support.model_device import contents

STATES = VersionState


def states(writer: SourceWriter) -> list[tuple[str, VersionState]]:
    return [(version.yaml, version.state) for version in writer.store.versions()]


def test_published_version(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    assert states(writer) == [(YAML, STATES.ACTIVE)]
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        assert (snapshot.config.id, snapshot.config.yaml) == (writer.store.versions()[0].id, YAML)
    assert writer.store.complete_definitions(SOURCE) == SIDES


def test_same_text(writer: SourceWriter) -> None:
    first = writer.store.deploy("one", Origin.FILE)
    assert writer.store.deploy("one", Origin.COMMAND) == first
    writer.bootstrap({"1": (A, "x")}, yaml="one")
    assert writer.store.deploy("one", Origin.FILE).id == first.id
    assert states(writer) == [("one", STATES.ACTIVE)]


def test_newer_deploy(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.store.deploy("two", Origin.COMMAND)
    three = writer.store.deploy("three", Origin.COMMAND)
    assert states(writer) == [(YAML, STATES.ACTIVE), ("two", STATES.STOPPED), ("three", STATES.PROCESSING)]
    assert (three.origin, three.note) == (Origin.COMMAND, "")
    back = writer.store.deploy(YAML, Origin.FILE)
    assert back.id > three.id, "while another is in processing, the active text is a change again"


def test_switch(writer: SourceWriter, reader: StoreReader) -> None:
    before = writer.bootstrap({"1": (A, "x")})
    version = writer.store.deploy("two", Origin.FILE)
    assert writer.store.activate(writer.lease, version.id, {SOURCE: {"lists.2": "d2"}}) == []
    newest = reader.newest()
    assert newest is not None
    after = newest.checkpoint
    assert after.op_id > before.op_id
    assert newest == Newest(after, version.id, 0)
    touched = reader.touched(before.op_id, after.op_id)
    assert (touched.buckets, touched.lookups) == (frozenset(), frozenset())
    assert states(writer) == [(YAML, STATES.STOPPED), ("two", STATES.ACTIVE)]
    assert writer.store.complete_definitions(SOURCE) == {**SIDES, "lists.2": "d2"}
    assert assert_in_step(reader, A).rows
    (first, second) = writer.store.versions()
    assert first.stopped >= first.activated > 0
    assert second.activated >= second.created > 0
    assert second.stopped == 0


def served(reader: StoreReader) -> str:
    """The config that an endpoint serves."""
    checkpoint = reader.newest()
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        assert checkpoint is not None
        assert checkpoint.config_id == snapshot.config.id
        return snapshot.config.yaml


def test_rollout_of_files(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    with (
        closing(open_store(writer.address).open_reader(OwnConfig(YAML, SIDES))) as old,
        closing(open_store(writer.address).open_reader(OwnConfig(YAML, SIDES, keep_seconds=0.0))) as late,
        closing(open_store(writer.address).open_reader(OwnConfig(YAML, {**SIDES, "more": "d"}))) as incomplete,
        closing(open_store(writer.address).open_reader(OwnConfig("two", {"lists.2": "d2"}))) as new,
    ):
        version = writer.store.deploy("two", Origin.FILE)
        assert [served(each) for each in (old, late, incomplete, new, reader)] == [YAML] * 5
        writer.store.activate(writer.lease, version.id, {SOURCE: {"lists.2": "d2"}})
        assert [served(each) for each in (old, late, incomplete, new, reader)] == [YAML, "two", "two", "two", "two"]
        assert assert_in_step(old, A).rows
        writer.store.retire(writer.lease, list(SIDES), 1)
        assert served(old) == "two"


def test_deploy_by_command(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    with closing(open_store(writer.address).open_reader(OwnConfig(YAML, SIDES))) as old:
        writer.store.activate(writer.lease, writer.store.deploy("two", Origin.COMMAND).id, {SOURCE: {"lists.2": "d2"}})
        assert served(old) == "two"


def test_mark_versions(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    version = writer.store.deploy("two", Origin.FILE)
    writer.store.mark_version(writer.lease, version.id, STATES.PROCESSING, "half way")
    assert (writer.store.versions()[-1].note, writer.store.versions()[-1].stopped) == ("half way", 0)
    writer.store.mark_version(writer.lease, version.id, STATES.FAILED, "no such table")
    marked = writer.store.versions()[-1]
    assert (marked.state, marked.note) == (STATES.FAILED, "no such table")
    assert marked.stopped > 0
    served = writer.store.versions()[0]
    writer.store.mark_version(writer.lease, served.id, STATES.STOPPED, "no")
    assert writer.store.versions()[0].state is STATES.ACTIVE


@pytest.mark.parametrize("state", [STATES.PROCESSING, STATES.FAILED])
def test_replaced_version_stays_stopped(writer: SourceWriter, reader: StoreReader, state: VersionState) -> None:
    before = writer.bootstrap({"1": (A, "x")})
    two = writer.store.deploy("two", Origin.COMMAND).id
    writer.store.deploy("three", Origin.COMMAND)
    writer.store.mark_version(writer.lease, two, state, "by a job that has not looked since")
    assert writer.store.activate(writer.lease, two, {SOURCE: {"lists.2": "d2"}}) is None
    assert states(writer) == [(YAML, STATES.ACTIVE), ("two", STATES.STOPPED), ("three", STATES.PROCESSING)]
    assert writer.store.versions()[1].note == "another version was deployed"
    assert writer.store.complete_definitions(SOURCE) == SIDES
    newest = reader.newest()
    assert newest is not None
    assert newest.checkpoint == before


def test_switch_needs_the_lease(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    version = writer.store.deploy("two", Origin.FILE)
    other = open_store(writer.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    with pytest.raises(LeaseLostError):
        writer.store.activate(writer.lease, version.id, {SOURCE: {}})
    with pytest.raises(LeaseLostError):
        writer.store.mark_version(writer.lease, version.id, STATES.FAILED, "")
    assert states(writer) == [(YAML, STATES.ACTIVE), ("two", STATES.PROCESSING)]
    other.close()


def test_simultaneous_deploys(writer: SourceWriter) -> None:
    def deploy(number: int) -> None:
        store = open_store(writer.address).open_writer()
        store.deploy(f"text {number}", Origin.COMMAND)
        store.close()

    threads = [threading.Thread(target=deploy, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [version.state for version in writer.store.versions()]
    assert found == [STATES.STOPPED] * 3 + [STATES.PROCESSING]


def test_inbox(writer: SourceWriter) -> None:
    start = writer.store.change_counter()
    other = open_store(writer.address).open_writer()
    other.deploy("two", Origin.COMMAND)
    deployed = writer.store.change_counter()
    other.submit("resync", SOURCE, "{}")
    assert start < deployed < writer.store.change_counter()
    other.close()


def test_requests(writer: SourceWriter) -> None:
    asking = open_store(writer.address).open_writer()
    number = asking.submit("resync", SOURCE, '{"tables":[]}')
    asking.submit("resync", "another source", "{}")
    (found,) = writer.store.open_requests(SOURCE)
    assert (found.id, found.kind, found.source, found.payload) == (number, "resync", SOURCE, '{"tables":[]}')
    assert (found.state, found.progress, found.result) == (RequestState.WAITING, "", "")
    writer.store.update_request(writer.lease, number, RequestState.RUNNING, progress="1 of 2")
    running = asking.request(number)
    assert running is not None
    assert (running.state, running.progress) == (RequestState.RUNNING, "1 of 2")
    writer.store.update_request(writer.lease, number, RequestState.DONE, result='{"rows":3}')
    done = asking.request(number)
    assert done is not None
    assert (done.state, done.result) == (RequestState.DONE, '{"rows":3}')
    assert writer.store.open_requests(SOURCE) == []
    assert asking.request(number + 100) is None
    asking.close()


def test_left_by_a_dead_replicator(writer: SourceWriter) -> None:
    number = writer.store.submit("resync", SOURCE, "{}")
    writer.store.update_request(writer.lease, number, RequestState.RUNNING)
    other = open_store(writer.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    assert [request.id for request in other.open_requests(SOURCE)] == [number]
    with pytest.raises(LeaseLostError):
        writer.store.update_request(writer.lease, number, RequestState.DONE)
    other.close()


def test_retire(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({str(i): (A if i % 2 else 'lists.2["z"]', "x") for i in range(40)})
    part = writer.additions({str(i): (B if i < 30 else 'lists.2["y"]', f"t{i}") for i in range(40)}, lookups=True)
    for page in range(part.pages):
        writer.store.take_page(writer.lease, part, page, ())
    version = writer.store.deploy("two", Origin.FILE)
    sides = {"lists.2": "d2", "owners": "d3"}
    writer.store.activate(writer.lease, version.id, {SOURCE: sides})
    kept = assert_in_step(reader, A), assert_in_step(reader, B)
    steps = 1
    while writer.store.retire(writer.lease, ["lists.2", "owners"], 7):
        steps += 1
        assert writer.store.complete_definitions(SOURCE) == SIDES
    assert steps > 5, "each step is a small one"
    assert not writer.store.retire(writer.lease, [], 7)
    for name in ('lists.2["y"]', 'lists.2["z"]'):
        assert totals(reader, name)[1:] == (0, 0)
    assert lookups(reader, ['owners["t3"]', 'owners["t33"]']) == {'owners["t3"]': [], 'owners["t33"]': []}
    assert contents([assert_in_step(reader, A)]) == contents([kept[0]])
    for row in writer.rows().values():
        assert row.members.count('"todos"') == (int(row.row_id) % 2) + (int(row.row_id) < 30)
    writer.write({"1": None, "2": (B, "moved")})
    assert ("todos", "1") not in contents([assert_in_step(reader, A, kept[0])])
    assert contents([assert_in_step(reader, B, kept[1])])["todos", "2"] == {"text": "moved"}


def test_ops_for_retired_buckets(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": ('lists.2["z"]', "x"), "2": (A, "y")})
    writer.write({"3": ('lists.2["z"]', "x")})
    writer.store.activate(writer.lease, writer.store.deploy("two", Origin.FILE).id, {SOURCE: {"lists.2": "d2"}})
    more = writer.store.retire(writer.lease, ["lists.2"], 1)
    assert more, "the bucket is gone with the first step, and the rows still say that they stand in it"
    writer.write({"1": None, "3": (A, "moved")})
    assert totals(reader, 'lists.2["z"]')[1:] == (0, 0)
    assert contents([assert_in_step(reader, A)]) == {
        ("todos", "2"): {"text": "y"}, ("todos", "3"): {"text": "moved"},
    }  # fmt: skip
    while writer.store.retire(writer.lease, ["lists.2"], 10):
        pass
    writer.write({"4": ('lists.2["z"]', "defined again")})
    assert contents([assert_in_step(reader, 'lists.2["z"]')]) == {("todos", "4"): {"text": "defined again"}}


def test_a_version_waits_for_sources_that_were_followed(new_writer: Callable[..., SourceWriter]) -> None:
    first = new_writer()
    first.bootstrap({"1": (A, "x")})
    second = new_writer(beside=first, source="other")
    second.bootstrap({"2": (B, "x")})
    version = first.store.deploy("two", Origin.FILE)
    needed = {SOURCE: {"lists.2": "d2"}, "other": {"lists.3": "d3"}, "never followed": {"lists.4": "d4"}}
    assert first.store.versions()[-1].state is STATES.PROCESSING, "the first source is not ready"
    assert first.store.activate(first.lease, version.id, needed) == ["other"]
    assert first.store.waiting_for(needed) == ["other"]
    assert first.store.complete_definitions(SOURCE) == {**SIDES, "lists.2": "d2"}
    assert second.store.activate(second.lease, version.id, needed) == []
    assert first.store.versions()[-1].state is STATES.ACTIVE
    assert second.store.complete_definitions("other") == {**SIDES, "lists.3": "d3"}


def test_what_a_source_has_staged_is_its_own(new_writer: Callable[..., SourceWriter]) -> None:
    first = new_writer()
    first.bootstrap({"1": (A, "x")})
    second = new_writer(beside=first, source="other/west")
    (staged,) = first.store.stage_tables(first.lease, SOURCE, [(RELATION, "print")])
    first.store.stage(first.lease, [first.part(staged.id, {"2": (A, "new")}, 0, 1)])
    part = first.part(staged.id, {"3": (B, "new")}, 0, 1)
    second.bootstrap({"4": (B, "y")})
    second.store.discard_staged(second.lease)
    first.store.stage(first.lease, [part])
    record = BulkRecord("snapshot", SOURCE, "app", 1, 2, 2, 0.0, 1.0)
    first.store.publish(first.lease, first.state(), [staged], first.store.versions()[0].id, SIDES, record)
    with closing(open_store(first.address).open_reader()) as reader:
        assert {row[1] for row in assert_in_step(reader, B).rows} == {"3", "4"}
