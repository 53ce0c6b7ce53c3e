"""What every store promises of versions of the sync config, of row sides, and of requests."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from headwater.storage.contract.reader import Newest, StoreReader
from headwater.storage.contract.store import LeaseLostError, RequestState
from headwater.storage.contract.versions import Origin, OwnConfig, VersionState
from headwater.storage.open import open_store
from tests.contract.source_writer import SIDES, SOURCE, YAML, A, B, SourceWriter, assert_in_step, lookups, totals
from tests.support.model_device import contents

STATES = VersionState


def states(world: SourceWriter) -> list[tuple[str, VersionState]]:
    return [(version.yaml, version.state) for version in world.store.versions()]


def test_a_published_version_is_active_and_served(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    assert states(world) == [(YAML, STATES.ACTIVE)]
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        assert (snapshot.config.id, snapshot.config.yaml) == (world.store.versions()[0].id, YAML)
    assert world.store.complete_definitions() == SIDES


def test_the_same_text_is_no_new_version(world: SourceWriter) -> None:
    first = world.store.deploy("one", Origin.FILE)
    assert world.store.deploy("one", Origin.COMMAND) == first
    world.bootstrap({"1": (A, "x")}, yaml="one")
    assert world.store.deploy("one", Origin.FILE).id == first.id
    assert states(world) == [("one", STATES.ACTIVE)]


def test_a_newer_deploy_stops_the_one_in_processing(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    world.store.deploy("two", Origin.COMMAND)
    three = world.store.deploy("three", Origin.COMMAND)
    assert states(world) == [(YAML, STATES.ACTIVE), ("two", STATES.STOPPED), ("three", STATES.PROCESSING)]
    assert (three.origin, three.note) == (Origin.COMMAND, "")
    back = world.store.deploy(YAML, Origin.FILE)
    assert back.id > three.id, "while another is in processing, the active text is a change again"


def test_a_switch_moves_the_checkpoint_and_touches_nothing(world: SourceWriter, reader: StoreReader) -> None:
    before = world.bootstrap({"1": (A, "x")})
    version = world.store.deploy("two", Origin.FILE)
    after = world.store.activate(world.lease, version.id, {"lists.2": "d2"})
    assert after.op_id > before.op_id
    assert reader.newest() == Newest(after, version.id, 0)
    touched = reader.touched(before.op_id, after.op_id)
    assert (touched.buckets, touched.lookups) == (frozenset(), frozenset())
    assert states(world) == [(YAML, STATES.STOPPED), ("two", STATES.ACTIVE)]
    assert world.store.complete_definitions() == {**SIDES, "lists.2": "d2"}
    assert assert_in_step(reader, A).rows
    (first, second) = world.store.versions()
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


def test_while_files_are_rolled_out_each_endpoint_serves_its_own(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    with (
        closing(open_store(world.address).open_reader(OwnConfig(YAML, SIDES))) as old,
        closing(open_store(world.address).open_reader(OwnConfig(YAML, SIDES, keep_seconds=0.0))) as late,
        closing(open_store(world.address).open_reader(OwnConfig(YAML, {**SIDES, "more": "d"}))) as incomplete,
        closing(open_store(world.address).open_reader(OwnConfig("two", {"lists.2": "d2"}))) as new,
    ):
        version = world.store.deploy("two", Origin.FILE)
        assert [served(each) for each in (old, late, incomplete, new, reader)] == [YAML] * 5
        world.store.activate(world.lease, version.id, {"lists.2": "d2"})
        assert [served(each) for each in (old, late, incomplete, new, reader)] == [YAML, "two", "two", "two", "two"]
        assert assert_in_step(old, A).rows
        world.store.retire(world.lease, list(SIDES), 1)
        assert served(old) == "two"


def test_what_a_command_deploys_is_served_by_all_endpoints(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    with closing(open_store(world.address).open_reader(OwnConfig(YAML, SIDES))) as old:
        world.store.activate(world.lease, world.store.deploy("two", Origin.COMMAND).id, {"lists.2": "d2"})
        assert served(old) == "two"


def test_versions_that_are_not_served_are_marked(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    version = world.store.deploy("two", Origin.FILE)
    world.store.mark_version(world.lease, version.id, STATES.PROCESSING, "half way")
    assert (world.store.versions()[-1].note, world.store.versions()[-1].stopped) == ("half way", 0)
    world.store.mark_version(world.lease, version.id, STATES.FAILED, "no such table")
    marked = world.store.versions()[-1]
    assert (marked.state, marked.note) == (STATES.FAILED, "no such table")
    assert marked.stopped > 0
    served = world.store.versions()[0]
    world.store.mark_version(world.lease, served.id, STATES.STOPPED, "no")
    assert world.store.versions()[0].state is STATES.ACTIVE


def test_only_the_holder_of_the_lease_switches(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    version = world.store.deploy("two", Origin.FILE)
    other = open_store(world.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    with pytest.raises(LeaseLostError):
        world.store.activate(world.lease, version.id, {})
    with pytest.raises(LeaseLostError):
        world.store.mark_version(world.lease, version.id, STATES.FAILED, "")
    assert states(world) == [(YAML, STATES.ACTIVE), ("two", STATES.PROCESSING)]
    other.close()


def test_of_deploys_at_once_one_is_left_in_processing(world: SourceWriter) -> None:
    def deploy(number: int) -> None:
        store = open_store(world.address).open_writer()
        store.deploy(f"text {number}", Origin.COMMAND)
        store.close()

    threads = [threading.Thread(target=deploy, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [version.state for version in world.store.versions()]
    assert found == [STATES.STOPPED] * 3 + [STATES.PROCESSING]


def test_the_inbox_grows_with_what_is_handed_in(world: SourceWriter) -> None:
    start = world.store.change_counter()
    other = open_store(world.address).open_writer()
    other.deploy("two", Origin.COMMAND)
    deployed = world.store.change_counter()
    other.submit("resync", SOURCE, "{}")
    assert start < deployed < world.store.change_counter()
    other.close()


def test_a_request_is_taken_up_and_answered(world: SourceWriter) -> None:
    asking = open_store(world.address).open_writer()
    number = asking.submit("resync", SOURCE, '{"tables":[]}')
    asking.submit("resync", "another source", "{}")
    (found,) = world.store.open_requests(SOURCE)
    assert (found.id, found.kind, found.source, found.payload) == (number, "resync", SOURCE, '{"tables":[]}')
    assert (found.state, found.progress, found.result) == (RequestState.WAITING, "", "")
    world.store.update_request(world.lease, number, RequestState.RUNNING, progress="1 of 2")
    running = asking.request(number)
    assert running is not None
    assert (running.state, running.progress) == (RequestState.RUNNING, "1 of 2")
    world.store.update_request(world.lease, number, RequestState.DONE, result='{"rows":3}')
    done = asking.request(number)
    assert done is not None
    assert (done.state, done.result) == (RequestState.DONE, '{"rows":3}')
    assert world.store.open_requests(SOURCE) == []
    assert asking.request(number + 100) is None
    asking.close()


def test_what_a_dead_replicator_left_is_found_by_the_next(world: SourceWriter) -> None:
    number = world.store.submit("resync", SOURCE, "{}")
    world.store.update_request(world.lease, number, RequestState.RUNNING)
    other = open_store(world.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    assert [request.id for request in other.open_requests(SOURCE)] == [number]
    with pytest.raises(LeaseLostError):
        world.store.update_request(world.lease, number, RequestState.DONE)
    other.close()


def test_a_retired_row_side_is_forgotten_in_steps(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({str(i): (A if i % 2 else 'lists.2["z"]', "x") for i in range(40)})
    part = world.additions({str(i): (B if i < 30 else 'lists.2["y"]', f"t{i}") for i in range(40)}, lookups=True)
    for page in range(part.pages):
        world.store.take_page(world.lease, part, page, ())
    version = world.store.deploy("two", Origin.FILE)
    sides = {"lists.2": "d2", "owners": "d3"}
    world.store.activate(world.lease, version.id, sides)
    kept = assert_in_step(reader, A), assert_in_step(reader, B)
    steps = 1
    while world.store.retire(world.lease, ["lists.2", "owners"], 7):
        steps += 1
        assert world.store.complete_definitions() == SIDES
    assert steps > 5, "each step is a small one"
    assert not world.store.retire(world.lease, [], 7)
    for name in ('lists.2["y"]', 'lists.2["z"]'):
        assert totals(reader, name)[1:] == (0, 0)
    assert lookups(reader, ['owners["t3"]', 'owners["t33"]']) == {'owners["t3"]': [], 'owners["t33"]': []}
    assert contents([assert_in_step(reader, A)]) == contents([kept[0]])
    for row in world.rows().values():
        assert row.members.count('"todos"') == (int(row.row_id) % 2) + (int(row.row_id) < 30)
    world.write({"1": None, "2": (B, "moved")})
    assert ("todos", "1") not in contents([assert_in_step(reader, A, kept[0])])
    assert contents([assert_in_step(reader, B, kept[1])])["todos", "2"] == {"text": "moved"}


def test_ops_for_a_retired_bucket_are_left_out(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": ('lists.2["z"]', "x"), "2": (A, "y")})
    world.write({"3": ('lists.2["z"]', "x")})
    world.store.activate(world.lease, world.store.deploy("two", Origin.FILE).id, {"lists.2": "d2"})
    more = world.store.retire(world.lease, ["lists.2"], 1)
    assert more, "the bucket is gone with the first step, and the rows still say that they stand in it"
    world.write({"1": None, "3": (A, "moved")})
    assert totals(reader, 'lists.2["z"]')[1:] == (0, 0)
    assert contents([assert_in_step(reader, A)]) == {
        ("todos", "2"): {"text": "y"}, ("todos", "3"): {"text": "moved"},
    }  # fmt: skip
    while world.store.retire(world.lease, ["lists.2"], 10):
        pass
    world.write({"4": ('lists.2["z"]', "defined again")})
    assert contents([assert_in_step(reader, 'lists.2["z"]')]) == {("todos", "4"): {"text": "defined again"}}
