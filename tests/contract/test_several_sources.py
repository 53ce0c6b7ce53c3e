"""Several sources in one store, each with a writer of its own. Where they share bucket definitions, as shards do, none
loses a row through what another one does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from headwater.insight.forget import Forgetting, search_target
from headwater.oplog.lsn import Lsn
from headwater.replication.computed import RefreshState, note_states, refresh_states
from headwater.replication.removal import remove_source
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import ReplicationProgress, RequestState
from headwater.storage.contract.versions import Origin, OwnConfig, VersionState
from headwater.storage.open import open_store
from headwater.storage.postgres import migrate as postgres_migrate
from headwater.storage.sqlite import connection
from headwater.storage.sqlite import migrate as sqlite_migrate
from tests.contract.source_writer import SIDES, SOURCE, YAML, A, B, Rows, SourceWriter, assert_in_step
from tests.contract.source_writer import lookups as looked_up
from tests.contract.test_bucket_names import until_done
from tests.contract.test_formats import write
from tests.support.store_checker import problems

WEST, EAST = "shop/west", "shop/east"
LISTS = {"lists.2": "d2"}
C = 'lists.2["c"]'

NewWriter = Callable[..., SourceWriter]


@pytest.fixture
def west(new_writer: NewWriter) -> SourceWriter:
    made = new_writer(source=WEST)
    made.bootstrap({"1": (A, "west"), "2": (B, "west")})
    return made


@pytest.fixture
def east(new_writer: NewWriter, west: SourceWriter) -> SourceWriter:
    made = new_writer(beside=west, source=EAST)
    made.bootstrap({"1": (A, "east"), "3": (B, "east")})
    return made


@pytest.fixture
def reader(open_reading: Callable[[SourceWriter], StoreReader], west: SourceWriter) -> StoreReader:
    return open_reading(west)


def texts(reader: StoreReader, bucket: str) -> list[str]:
    """What a new device is sent of a bucket, rows as `id text`."""
    model = assert_in_step(reader, bucket)
    return sorted(f"{row[1]} {json.loads(data[1])['text']}" for row, data in model.rows.items())


def retire(writer: SourceWriter, *names: str, limit: int = 1) -> int:
    """Remove definitions in steps, and count them."""
    steps = 1
    while writer.store.retire(writer.lease, names, limit):
        steps += 1
        assert steps < 200
    return steps


def deploy(*writers: SourceWriter, definitions: dict[str, str], lookups: bool = False, rows: Rows) -> None:
    """Build definitions from rows of these sources, one after the other, as a deploy does."""
    version = writers[0].store.deploy(f"{definitions}", Origin.COMMAND)
    waiting: list[str] | None = None
    needed = {each.source: definitions for each in writers}
    for each in writers:
        each.store.begin_definitions(each.lease, definitions)
        part = each.additions(rows, lookups=lookups)
        for page in range(part.pages):
            each.store.take_page(each.lease, part, page, ())
        waiting = each.store.activate(each.lease, version.id, needed)
    assert waiting == []


def again(writer: SourceWriter, rows: Rows, *, yaml: str = YAML) -> None:
    """A snapshot of a source whose slot was lost."""
    writer.bootstrap(rows, yaml=yaml)


def at_once(*work: Callable[[], object]) -> list[object]:
    """The results of what is done by threads that begin together."""
    together = threading.Barrier(len(work))

    def begin(do: Callable[[], object]) -> object:
        together.wait(30)
        return do()

    with ThreadPoolExecutor(len(work)) as pool:
        return [each.result() for each in [pool.submit(begin, do) for do in work]]


# snapshots


def test_snapshot_leaves_rows_of_others(west: SourceWriter, east: SourceWriter, reader: StoreReader) -> None:
    device = assert_in_step(reader, A)
    again(west, {"1": (A, "west again"), "9": (B, "west again")})
    assert texts(reader, A) == ["1 east", "1 west again"]
    assert texts(reader, B) == ["3 east", "9 west again"], "what the source does not have any more is gone"
    assert assert_in_step(reader, A, device).rows == assert_in_step(reader, A).rows
    assert problems(west.address) == []


def test_snapshot_of_many_rows_that_share_buckets(west: SourceWriter, east: SourceWriter, reader: StoreReader) -> None:
    again(west, {str(n): (A if n % 3 else B, "many") for n in range(2_500)})
    again(west, {str(n): (A if n % 3 else B, "fewer") for n in range(0, 2_500, 7)})
    assert len(texts(reader, A)) + len(texts(reader, B)) == 2 + len(range(0, 2_500, 7))
    assert problems(west.address) == []


def test_snapshot_clears_what_is_its_own(west: SourceWriter, new_writer: NewWriter, reader: StoreReader) -> None:
    other = new_writer(beside=west, source="lists")
    other.store.begin_definitions(other.lease, LISTS)
    other.store.move_source(other.lease, other.state())
    again(west, {"5": (A, "new")})
    assert texts(reader, A) == ["5 new"]
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        assert snapshot.totals([A])[A].count == 2, "one CLEAR and the row, no REMOVE"


def test_snapshot_serves_a_version_that_others_are_done_with(
    west: SourceWriter, east: SourceWriter, reader: StoreReader
) -> None:
    """In one step, so that no device sees the former version without the rows."""
    needed = {EAST: LISTS, "never followed": LISTS}
    version = west.store.deploy("two", Origin.COMMAND)
    record = BulkRecord("snapshot", WEST, "app", 0, 0, 0, 0.0, 1.0)

    def state_after(others: Mapping[str, Mapping[str, str]]) -> VersionState:
        west.store.publish(west.lease, west.state(), [], version.id, SIDES, record, others)
        return west.store.versions()[-1].state

    assert state_after(needed) is VersionState.PROCESSING, "it waits for the other one"
    assert east.store.activate(east.lease, version.id, needed | {WEST: LISTS}) == [WEST]
    assert state_after(needed) is VersionState.ACTIVE
    newest = reader.newest()
    assert newest is not None
    assert newest.config_id == version.id


def test_snapshot_by_a_version_that_was_replaced_meanwhile(
    west: SourceWriter, east: SourceWriter, reader: StoreReader
) -> None:
    """It must not give back what the newer version took."""
    former = west.store.versions()[-1]
    newer = west.store.deploy("tighter", Origin.COMMAND)
    needed = {WEST: SIDES, EAST: SIDES}
    assert west.store.activate(west.lease, newer.id, needed) == []
    record = BulkRecord("snapshot", EAST, "app", 0, 0, 0, 0.0, 1.0)
    east.store.publish(east.lease, east.state(), [], former.id, SIDES, record, needed)
    newest = reader.newest()
    assert newest is not None
    assert newest.config_id == newer.id


def test_snapshot_of_one_source_serves_the_newest_version(west: SourceWriter, reader: StoreReader) -> None:
    version = west.store.deploy("two", Origin.COMMAND)
    again(west, {"1": (A, "two")}, yaml="two")
    newest = reader.newest()
    assert newest is not None
    assert newest.config_id == version.id
    assert texts(reader, A) == ["1 two"]


# definitions that leave


def test_definition_leaves_one_source_first(west: SourceWriter, east: SourceWriter, reader: StoreReader) -> None:
    device = assert_in_step(reader, A)
    retire(west, *SIDES)
    assert texts(reader, A) == ["1 east"]
    assert texts(reader, B) == ["3 east"]
    assert west.store.unfinished_definitions(WEST) == []
    assert east.store.complete_definitions(EAST) == SIDES
    east.write({"4": (A, "east"), "3": None})
    assert texts(reader, A) == ["1 east", "4 east"]
    assert texts(reader, B) == []
    assert assert_in_step(reader, A, device).rows == assert_in_step(reader, A).rows
    assert {row.members for row in west.rows().values()} <= {""}
    retire(east, *SIDES)
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        assert [total.count for total in snapshot.totals([A, B]).values()] == [0, 0]
    assert problems(west.address) == []


def test_definition_comes_back_before_the_other_source_lost_it(
    west: SourceWriter, east: SourceWriter, reader: StoreReader
) -> None:
    retire(west, *SIDES)
    west.store.begin_definitions(west.lease, SIDES)
    west.write({"1": (A, "back")})
    assert texts(reader, A) == ["1 back", "1 east"]
    retire(east, *SIDES)
    assert texts(reader, A) == ["1 back"], "the other one takes nothing but its own"
    assert west.store.unfinished_definitions(WEST) == list(SIDES)
    assert problems(west.address) == []


def test_definition_leaves_both_at_once(west: SourceWriter, east: SourceWriter, reader: StoreReader) -> None:
    more = [True, True]
    while any(more):
        more = [each.store.retire(each.lease, list(SIDES), 1) for each in (west, east)]
    assert west.store.known_definitions() == {}
    for each in (west, east):
        assert {row.members for row in each.rows().values()} <= {""}
        each.store.begin_definitions(each.lease, SIDES)
        each.write({"1": (A, each.source)})
    assert texts(reader, A) == [f"1 {EAST}", f"1 {WEST}"]
    assert problems(west.address) == []


def test_definition_comes_back_while_the_other_source_still_removes_it(
    west: SourceWriter, east: SourceWriter, reader: StoreReader
) -> None:
    east.store.retire(east.lease, list(SIDES), 1)
    retire(west, *SIDES)
    west.store.begin_definitions(west.lease, SIDES)
    until_done(lambda: west.write({"1": (A, "back")}))  # the bucket needs another key meanwhile
    retire(east)
    assert texts(reader, A) == ["1 back"]
    assert {row.members for row in east.rows().values()} <= {""}
    west.write({"2": (A, "more")})
    assert texts(reader, A) == ["1 back", "2 more"]
    assert problems(west.address) == []


def test_second_definition_leaves_while_the_first_one_does(
    west: SourceWriter, east: SourceWriter, reader: StoreReader
) -> None:
    """A source that is in the midst of its rows has to begin with them again."""
    deploy(west, east, definitions={**SIDES, **LISTS}, rows={"1": (C, "c")})
    west.store.retire(west.lease, list(SIDES), 1)
    for _ in range(4):
        east.store.retire(east.lease, list(SIDES), 1)
    retire(west, *LISTS)
    retire(east, *LISTS)
    assert west.store.known_definitions() == {}
    for each in (west, east):
        assert {row.members for row in each.rows().values()} <= {""}
    assert problems(west.address) == []


def test_lookups_of_a_definition_that_leaves(west: SourceWriter, east: SourceWriter, reader: StoreReader) -> None:
    owners = {"owners": "d3"}
    deploy(west, east, definitions={**SIDES, **LISTS, **owners}, lookups=True, rows={"1": (C, "ann")})
    assert looked_up(reader, ['owners["ann"]']) == {'owners["ann"]': ["[1]", "[1]"]}
    retire(west, "owners")
    assert looked_up(reader, ['owners["ann"]']) == {'owners["ann"]': ["[1]"]}, "the other one still has it"
    west.store.begin_definitions(west.lease, owners)
    retire(east, "owners")
    assert looked_up(reader, ['owners["ann"]']) == {'owners["ann"]': []}, "it must not come back with the definition"


def test_old_config_is_not_served_by_half(west: SourceWriter, east: SourceWriter) -> None:
    """An endpoint with a former file serves it for a while, but never without the rows of a source."""
    with closing(open_store(west.address).open_reader(OwnConfig(YAML, SIDES))) as old:
        version = west.store.deploy("two", Origin.FILE)
        needed: dict[str, dict[str, str]] = {WEST: {}, EAST: {}}
        west.store.activate(west.lease, version.id, needed)
        with old.snapshot() as snapshot:
            assert snapshot is not None
            assert snapshot.config.yaml == YAML
        retire(west, *SIDES)
        with old.snapshot() as snapshot:
            assert snapshot is not None
            assert snapshot.config.yaml == "two"


# versions


def test_last_of_two_that_finish_at_once_serves_the_version(west: SourceWriter, east: SourceWriter) -> None:
    for number in range(8):
        version = west.store.deploy(f"version {number}", Origin.COMMAND)
        needed = {WEST: {f"w{number}": "d"}, EAST: {f"e{number}": "d"}}
        found = at_once(
            *(partial(each.store.activate, each.lease, version.id, needed) for each in (west, east)),
        )
        assert [] in found
        assert west.store.versions()[-1].state is VersionState.ACTIVE


# writers beside each other


def test_long_transaction_of_another_source(
    west: SourceWriter, east: SourceWriter, reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source waits for it, however long that takes, and does not begin anew."""
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.0)
    flush = west.store.begin(west.lease)
    with ThreadPoolExecutor(1) as pool:
        assert flush.truncate(west.table, ()) != west.table  # has the store's lock
        waiting = pool.submit(east.write, {"4": (A, "east")})
        while not flush.waited_for:
            assert not waiting.done()
        flush.commit(WEST, ReplicationProgress(Lsn(west.lsn)))
        waiting.result()
    assert "4 east" in texts(reader, A)


def test_sources_write_at_once(west: SourceWriter, east: SourceWriter, reader: StoreReader) -> None:
    """Flushes, a definition that leaves and comes, and snapshots: every row is there, and no id twice."""

    def run(each: SourceWriter) -> None:
        for n in range(40):
            each.write({f"{n}": (A if n % 2 else B, f"{n} of {each.source}")})
            if n % 13 == 12:
                again(each, {f"{m}": (A if m % 2 else B, f"{m} of {each.source}") for m in range(n + 1)})

    at_once(partial(run, west), partial(run, east))
    expected = sorted(f"{n} {n} of {source}" for source in (WEST, EAST) for n in range(40))
    assert sorted(texts(reader, A) + texts(reader, B)) == expected
    assert problems(west.address) == []


def test_sources_retire_at_once(west: SourceWriter, east: SourceWriter) -> None:
    for each in (west, east):
        each.write({f"{n}": (A, "x") for n in range(300)})
    at_once(*(partial(retire, each, *SIDES, limit=20) for each in (west, east)))
    assert west.store.known_definitions() == {}
    assert problems(west.address) == []


# what bulk jobs leave


def test_parts_that_come_while_another_source_discards(west: SourceWriter, east: SourceWriter) -> None:
    """Whatever a source discards, no part of another one is among it."""
    stop = threading.Event()

    def discard() -> None:
        while not stop.is_set():
            west.store.discard_staged(west.lease)

    def read() -> None:
        try:
            for n in range(25):
                again(east, {"1": (A, f"{n}")})
        finally:
            stop.set()

    at_once(discard, read)


# a source that is removed


def test_forgotten_source(west: SourceWriter, east: SourceWriter, reader: StoreReader) -> None:
    store = east.store
    store.set_meta(east.lease, f"slot {EAST}", "noted")
    store.set_meta(east.lease, f"slot north/{EAST}", "of another one")
    note_states(store, east.lease, {"sums": RefreshState("sums")})
    open_request = store.submit("resync", EAST, "{}")
    other_request = store.submit("resync", WEST, "{}")
    reader.create_write_checkpoint(["u/1"], {WEST: Lsn(1), EAST: Lsn(10**9)})
    device = assert_in_step(reader, A)
    east.write({"1": None, "3": None})
    store.drop_table(east.lease, east.table)
    store.move_tick(east.lease, EAST, 1 << 60)
    store.move_tick(west.lease, WEST, 7)
    counter = west.store.change_counter()
    store.forget_source(east.lease)
    assert (store.tick(EAST), store.tick(WEST)) == (0, 7)
    assert store.sources() == [f"north/{EAST}", WEST]
    assert store.source_state(EAST) is None
    assert store.tables(EAST) == []
    assert store.complete_definitions(EAST) == {}
    assert (store.get_meta(f"slot {EAST}"), store.get_meta(f"slot north/{EAST}")) == ("", "of another one")
    assert refresh_states(store, EAST) == {}
    assert (store.request(open_request), store.open_requests(EAST)) == (None, [])
    request = store.request(other_request)
    assert request is not None
    assert request.state is RequestState.WAITING
    newest = reader.newest()
    assert newest is not None
    assert newest.checkpoint.lsns.keys() == {WEST}
    (write,) = reader.write_checkpoints(0)
    assert write.lsns == {WEST: Lsn(1)}, "it waits for nothing that never comes"
    assert west.store.change_counter() > counter, "others look whether a version waited for it"
    assert west.store.complete_definitions(WEST) == SIDES
    west.write({"7": (A, "after")})
    assert texts(reader, A) == ["1 west", "7 after"]
    assert assert_in_step(reader, A, device).rows == assert_in_step(reader, A).rows
    assert problems(west.address) == []


def test_version_waits_no_more_for_a_forgotten_source(west: SourceWriter, east: SourceWriter) -> None:
    version = west.store.deploy("two", Origin.COMMAND)
    needed = {WEST: LISTS, EAST: LISTS}
    assert west.store.activate(west.lease, version.id, needed) == [EAST]
    for table in east.store.tables(EAST):
        east.store.drop_table(east.lease, table.id)
    east.store.forget_source(east.lease)
    assert west.store.activate(west.lease, version.id, needed) == []


def test_forgotten_source_takes_its_own_buckets_along(west: SourceWriter, new_writer: NewWriter) -> None:
    other = new_writer(beside=west, source="lists")
    other.bootstrap({"1": (A, "x")})
    deploy(other, definitions=LISTS, rows={"1": (C, "c")})
    other.write({"1": None})
    other.store.drop_table(other.lease, other.table)
    other.store.forget_source(other.lease)
    assert other.store.known_definitions() == SIDES
    assert problems(west.address) == []
    anew = new_writer(beside=west, source="lists")
    anew.bootstrap({"1": (A, "again")})
    assert anew.store.sources() == ["lists", WEST]


# a row that is forgotten


def test_row_of_another_source_with_the_same_id_is_not_forgotten(west: SourceWriter, east: SourceWriter) -> None:
    west.write({"1": None})
    east.write({"1": (A, "east again")})
    target = search_target(west.store, west.store.tables(WEST), "1", None, id_too=False)
    store = open_store(west.address)
    with closing(store.open_forget()) as finder, closing(store.open_compaction()) as compaction:
        plan = Forgetting(west.address, finder, compaction, target, west.table).plan(lambda: None)
    assert [(each.overruled, each.standing) for each in plan.buckets.values()] == [(1, 0)]


# stores of before


def test_store_of_one_source_is_upgraded(new_writer: NewWriter) -> None:
    writer = new_writer()
    writer.bootstrap({"1": (A, "x")})
    writer.store.begin_definitions(writer.lease, LISTS)
    writer.store.release(writer.lease)
    writer.store.close()
    as_before(writer)
    store = open_store(writer.address)
    assert store.older_format() == 1
    with closing(store.open_writer()) as upgraded:
        assert upgraded.complete_definitions(SOURCE) == SIDES
        assert upgraded.unfinished_definitions(SOURCE) == list(LISTS)
        assert upgraded.get_meta("retire") == ""
    assert store.older_format() is None
    anew = new_writer(beside=writer)
    anew.table = anew.store.tables(SOURCE)[0].id
    anew.lsn = writer.lsn
    anew.write({"2": (A, "y")})
    retire(anew, *LISTS)
    with closing(store.open_reader()) as reader:
        assert texts(reader, A) == ["1 x", "2 y"]
    assert problems(writer.address) == []


def test_store_in_which_a_tag_was_changed_is_upgraded(west: SourceWriter, east: SourceWriter) -> None:
    """Whichever of both the config names, its rows stay."""
    for each in (west, east):
        each.store.release(each.lease)
        each.store.close()
    as_before(west)
    store = open_store(west.address)
    with closing(store.open_writer()) as upgraded:
        assert remove_source(upgraded, EAST, "host:1")
    with closing(store.open_reader()) as reader:
        assert texts(reader, A) == ["1 west"]
    assert problems(west.address) == []


def as_before(writer: SourceWriter) -> None:
    """Turn a closed store into one of format 1, in which definitions had no source."""
    embedded = isinstance(writer.address, SqliteAddress)
    folder = (sqlite_migrate if embedded else postgres_migrate)._SCRIPTS
    first = folder.joinpath("001.sql").read_text(encoding="utf-8")
    begin = first.index("create table definitions")
    former = first[begin : first.index(";", begin)]
    write(
        writer.address,
        "create table kept as select distinct name, digest, state from definitions",
        "drop table definitions",
        former,
        "insert into definitions select * from kept",
        "drop table kept",
        "drop table flips",
        "drop table ticks",
        "drop table changes",
        "drop table cases",
        "alter table versions drop column author",
        "alter table versions drop column message",
        *_BEFORE[embedded],
        f"update meta set value = {1 if embedded else repr('1')} where key = 'store_format'",
    )


_BEFORE: dict[bool, list[str]] = {
    True: [
        "drop table staged_segments",
        "create table staged_segments (blob integer primary key, bucket integer, size integer, checksum integer)",
        "drop table staged_buckets",
        "create table staged_buckets (id integer, name text, definition text, primary key (id, name))",
        "insert into meta values ('retire', '[1, 0]')",
        "insert into segment_blobs (bucket, size, checksum, bodies) values (1, 1, 1, x'00')",
        "insert into staged_segments select max(id), 1, 1, 1 from segment_blobs",
        "insert into staged_buckets values (1, 'one', 'one')",
    ],
    False: ["insert into meta values ('retire', '[1, 0]')"],
}


# audit


def test_sources_take_turns_at_checking_what_they_share(west: SourceWriter, east: SourceWriter) -> None:
    def checking(turn: int) -> list[str]:
        own = {each.source: verify.definitions(each.source, turn=turn).own for each in (west, east)}
        return [source for source, definitions in own.items() if shared in definitions]

    with open_store(west.address).open_verify() as verify:
        shared = min(verify.definitions(WEST).own & verify.definitions(EAST).own)
        turns = [checking(turn) for turn in range(4)]
        assert turns[:2] == turns[2:]
        assert sorted(turns[:2]) == sorted([[WEST], [EAST]])
        verify.release()
        east.store.release(east.lease)
        verify.renew()
        assert all(WEST in checking(turn) for turn in range(2)), "only those that are followed have turns"
