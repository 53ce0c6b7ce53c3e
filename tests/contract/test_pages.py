"""What every store promises of bulk work: parts that tasks leave, and pages of additions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.parts import BulkRecord, CurrentRow, StagedTable
from headwater.storage.contract.reader import Newest, StoreReader
from headwater.storage.contract.store import LeaseLostError, PartLostError, SourceProgress
from headwater.storage.contract.versions import Origin
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
    write_batch,
)
from tests.support.model_device import contents, parse_ops


def test_additions_come_page_by_page_into_rows_and_buckets(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({str(i): (A, "x") for i in range(10)})
    device = assert_in_step(reader, A)
    part = world.additions({str(i): (B, f"t{i}") for i in range(10)}, rows_a_page=3, lookups=True)
    assert (part.pages, part.rows, part.ops) == (4, 10, 10)
    for page in range(4):
        checkpoint = world.store.take_page(world.lease, part, page, ())
        assert reader.newest() == Newest(checkpoint, world.store.versions()[0].id, 0)
        model = assert_in_step(reader, B)
        assert len(model.rows) == min(10, 3 * page + 3)
    assert lookups(reader, ['owners["t7"]'])['owners["t7"]'] == ["[1]"]
    assert assert_in_step(reader, A, device).rows == device.rows
    for row in world.rows().values():
        assert row.members.count('"todos"') == 2
        assert row.line, "the row itself stays as it was"
    world.write({"4": None})
    assert ("todos", "4") not in contents([assert_in_step(reader, B)])
    assert ("todos", "4") not in contents([assert_in_step(reader, A)])


def test_a_taken_page_says_what_it_touched(world: SourceWriter, reader: StoreReader) -> None:
    before = world.bootstrap({str(i): (A, "x") for i in range(4)})
    part = world.additions({"1": (B, "y"), "2": (B, "z")})
    after = world.store.take_page(world.lease, part, 0, ())
    assert reader.touched(before.op_id, after.op_id).buckets == frozenset({B})


def test_rows_that_changed_or_went_since_are_not_taken(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({str(i): (A, "x") for i in range(6)})
    part = world.additions({str(i): (B, f"t{i}") for i in range(6)}, rows_a_page=6, lookups=True)
    world.write({"1": None, "2": (A, "changed")})
    world.store.take_page(world.lease, part, 0, ["2", "5", "nobody"])
    assert contents([assert_in_step(reader, B)]) == {("todos", str(i)): {"text": f"t{i}"} for i in (0, 3, 4)}
    keys = [f'owners["t{i}"]' for i in range(6)]
    assert [key for key, found in lookups(reader, keys).items() if found] == [keys[0], keys[3], keys[4]]
    counts = {row_id: row.members.count('"todos"') for row_id, row in world.rows().items()}
    assert counts == {"0": 2, "2": 1, "3": 2, "4": 2, "5": 1}


def test_a_page_of_which_nothing_is_left_makes_no_bucket(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    part = world.additions({"1": (B, "y")})
    checkpoint = world.store.take_page(world.lease, part, 0, ["1"])
    assert totals(reader, B)[1:] == (0, 0)
    assert reader.chunk(B, OpId(0), checkpoint.op_id).size == 0
    assert_in_step(reader, A)


def test_a_row_that_stands_nowhere_gets_its_first_member(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"0": (A, "x")})
    flush = world.store.begin(world.lease)
    flush.put_rows(world.table, [CurrentRow("1", 0, "1\ty", "", None)])
    flush.commit(SOURCE, SourceProgress(Lsn(world.lsn)))
    world.store.take_page(world.lease, world.additions({"1": (B, "y")}), 0, ())
    assert contents([assert_in_step(reader, B)]) == {("todos", "1"): {"text": "y"}}
    flush = world.store.begin(world.lease)
    assert flush.current(world.table, ["1"])["1"].members.count('"todos"') == 1
    flush.rollback()


def test_a_page_is_for_the_holder_of_the_lease(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    part = world.additions({"1": (B, "y")})
    other = open_store(world.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    with pytest.raises(LeaseLostError):
        world.store.take_page(world.lease, part, 0, ())
    assert totals(reader, B)[1:] == (0, 0)
    other.close()


def test_a_part_that_was_discarded_is_missed(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    additions = world.additions({"1": (B, "y")})
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(RELATION, "print")])
    snapshot = world.part(staged.id, {"2": (A, "z")}, 0, 1)
    world.store.discard_staged(world.lease)
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(RELATION, "print")], indexed=True)
    for attempt in (
        lambda: world.store.take_page(world.lease, additions, 0, ()),
        lambda: world.store.stage(world.lease, [replace(snapshot, table=staged.id)]),
        lambda: world.store.stage_page(world.lease, replace(snapshot, table=staged.id), 0),
    ):
        with pytest.raises(PartLostError):
            attempt()
    world.write({"3": (A, "as if it had never been")})


def test_a_task_leaves_nothing_without_its_end_and_one_attempt_counts(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(RELATION, "print")])
    with open_store(world.address).open_part(staged.id, 0, "1") as part:
        write_batch(part, staged.id, [("2", (A, "lost"))], world.keys)
    parts = []
    for attempt in ("2", "3"):  # both end well, as with speculative execution; the job names one of them
        with open_store(world.address).open_part(staged.id, 0, attempt) as part:
            write_batch(part, staged.id, [("3", (A, f"attempt {attempt}"))], world.keys)
            parts.append(part.finish())
    world.store.stage(world.lease, parts[1:])
    publish(world, staged)
    assert contents([assert_in_step(reader, A)]) == {("todos", "3"): {"text": "attempt 3"}}
    assert set(world.rows()) == {"3"}


def test_nothing_staged_is_seen_before_it_is_published(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    before = totals(reader, A)
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(RELATION, "print")])
    with open_store(world.address).open_part(staged.id, 0, "1") as part:
        write_batch(part, staged.id, [("2", (B, "new"))], world.keys, lookups=True)
        finished = part.finish()
    world.store.stage(world.lease, [finished])
    assert (totals(reader, A), totals(reader, B)[1:]) == (before, (0, 0))
    assert lookups(reader, ['owners["new"]']) == {'owners["new"]': []}
    assert [table.id for table in world.store.tables(SOURCE)] == [world.table]
    publish(world, staged)
    assert contents([assert_in_step(reader, A), assert_in_step(reader, B)]) == {("todos", "2"): {"text": "new"}}
    assert lookups(reader, ['owners["new"]']) == {'owners["new"]': ["[1]"]}
    assert [table.id for table in world.store.tables(SOURCE)] == [staged.id]


def test_a_job_that_was_staged_and_discarded_is_as_if_it_never_was(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(RELATION, "print")])
    world.store.stage(world.lease, [world.part(staged.id, {"2": (B, "lost")}, 0, 1)])
    world.store.discard_staged(world.lease)
    world.bootstrap({"3": (A, "kept")})
    assert contents([assert_in_step(reader, A)]) == {("todos", "3"): {"text": "kept"}}
    assert totals(reader, B)[1:] == (0, 0)


def test_many_segments_of_one_bucket_keep_the_order_of_their_rows(world: SourceWriter, reader: StoreReader) -> None:
    rows = {str(i): (A, f"text {i}") for i in range(4500)}
    checkpoint = world.bootstrap(rows, parts=3)
    after, ids = OpId(0), list[int]()
    while True:
        chunk = reader.chunk(A, after, checkpoint.op_id)
        assert chunk.size <= 1000
        ids += [int(str(op["op_id"])) for op in parse_ops(chunk.ops)]
        after = chunk.next_after
        if not chunk.more:
            break
    assert ids == sorted(set(ids))
    assert len(ids) == 4501
    middle = OpId(ids[2222])
    first = parse_ops(reader.chunk(A, middle, checkpoint.op_id).ops)[0]
    assert int(str(first["op_id"])) == ids[2223]
    last = parse_ops(reader.chunk(A, OpId(ids[2222 - 10]), middle).ops)
    assert [int(str(op["op_id"])) for op in last] == ids[2213:2223]


def test_ops_after_pages_and_between_them_are_read_in_order(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({str(i): (A, "x") for i in range(30)})
    part = world.additions({str(i): (B, f"t{i}") for i in range(30)}, rows_a_page=1)
    device = assert_in_step(reader, B)
    for page in range(30):
        world.store.take_page(world.lease, part, page, ())
        world.write({f"new {page}": (B, "live")})
        if page % 7 == 0:
            device = assert_in_step(reader, B, device)
    fresh = assert_in_step(reader, B)
    assert len(fresh.rows) == 60
    assert contents([assert_in_step(reader, B, device)]) == contents([fresh])


def test_a_job_is_on_record(world: SourceWriter) -> None:
    record = BulkRecord("audit", SOURCE, "app-7", 3, 100, 0, 5.0, 9.5)
    world.store.note_job(record)
    assert world.store.bulk_records() == [record]


def publish(world: SourceWriter, staged: StagedTable) -> None:
    version = world.store.deploy(YAML, Origin.FILE)
    world.table = staged.id
    record = BulkRecord("snapshot", SOURCE, "app", 1, 1, 1, 0.0, 1.0)
    world.store.publish(world.lease, world.state(), [staged], version.id, SIDES, record)
