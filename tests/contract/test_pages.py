"""What every store promises of bulk work: parts that tasks leave, and pages of additions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.oplog.op import OpId
from headwater.storage.contract.parts import BulkRecord, CurrentRow, StagedTable
from headwater.storage.contract.reader import Newest, StoreReader
from headwater.storage.contract.store import LeaseLostError, PartLostError
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


def test_take_pages(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({str(i): (A, "x") for i in range(10)})
    device = assert_in_step(reader, A)
    part = writer.additions({str(i): (B, f"t{i}") for i in range(10)}, rows_a_page=3, lookups=True)
    assert (part.pages, part.rows, part.ops) == (4, 10, 10)
    for page in range(4):
        checkpoint = writer.store.take_page(writer.lease, part, page, ())
        assert reader.newest() == Newest(checkpoint, writer.store.versions()[0].id, 0)
        model = assert_in_step(reader, B)
        assert len(model.rows) == min(10, 3 * page + 3)
    assert lookups(reader, ['owners["t7"]'])['owners["t7"]'] == ["[1]"]
    assert assert_in_step(reader, A, device).rows == device.rows
    for row in writer.rows().values():
        assert row.members.count('"todos"') == 2
        assert row.line, "the row itself stays as it was"
    writer.write({"4": None})
    assert ("todos", "4") not in contents([assert_in_step(reader, B)])
    assert ("todos", "4") not in contents([assert_in_step(reader, A)])


def test_page_touches(writer: SourceWriter, reader: StoreReader) -> None:
    before = writer.bootstrap({str(i): (A, "x") for i in range(4)})
    part = writer.additions({"1": (B, "y"), "2": (B, "z")})
    after = writer.store.take_page(writer.lease, part, 0, ())
    assert reader.touched(before.op_id, after.op_id).buckets == frozenset({B})


def test_changed_rows_are_not_taken(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({str(i): (A, "x") for i in range(6)})
    part = writer.additions({str(i): (B, f"t{i}") for i in range(6)}, rows_a_page=6, lookups=True)
    writer.write({"1": None, "2": (A, "changed")})
    writer.store.take_page(writer.lease, part, 0, ["2", "5", "nobody"])
    assert contents([assert_in_step(reader, B)]) == {("todos", str(i)): {"text": f"t{i}"} for i in (0, 3, 4)}
    keys = [f'owners["t{i}"]' for i in range(6)]
    assert [key for key, found in lookups(reader, keys).items() if found] == [keys[0], keys[3], keys[4]]
    counts = {row_id: row.members.count('"todos"') for row_id, row in writer.rows().items()}
    assert counts == {"0": 2, "2": 1, "3": 2, "4": 2, "5": 1}


def test_empty_page(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    part = writer.additions({"1": (B, "y")})
    checkpoint = writer.store.take_page(writer.lease, part, 0, ["1"])
    assert totals(reader, B)[1:] == (0, 0)
    assert reader.chunk(B, OpId(0), checkpoint.op_id).size == 0
    assert_in_step(reader, A)


def test_first_member(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"0": (A, "x")})
    with writer.flush() as flush:
        flush.put_rows(writer.table, [CurrentRow("1", 0, "1\ty", "", None)])
    writer.store.take_page(writer.lease, writer.additions({"1": (B, "y")}), 0, ())
    assert contents([assert_in_step(reader, B)]) == {("todos", "1"): {"text": "y"}}
    with writer.rolled_back() as flush:
        assert flush.current(writer.table, ["1"])["1"].members.count('"todos"') == 1


def test_page_needs_the_lease(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    part = writer.additions({"1": (B, "y")})
    other = open_store(writer.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    with pytest.raises(LeaseLostError):
        writer.store.take_page(writer.lease, part, 0, ())
    assert totals(reader, B)[1:] == (0, 0)
    other.close()


def test_discarded_part(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    additions = writer.additions({"1": (B, "y")})
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")])
    snapshot = writer.part(staged.id, {"2": (A, "z")}, 0, 1)
    writer.store.discard_staged(writer.lease)
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")], indexed=True)
    for attempt in (
        lambda: writer.store.take_page(writer.lease, additions, 0, ()),
        lambda: writer.store.stage(writer.lease, [replace(snapshot, table=staged.id)]),
        lambda: writer.store.stage_page(writer.lease, replace(snapshot, table=staged.id), 0),
    ):
        with pytest.raises(PartLostError):
            attempt()
    writer.write({"3": (A, "as if it had never been")})


def test_one_attempt_counts(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")])
    with open_store(writer.address).open_part(staged.id, 0, "1") as part:
        write_batch(part, staged.id, [("2", (A, "lost"))], writer.keys)
    parts = []
    for attempt in ("2", "3"):  # both end well, as with speculative execution; the job names one of them
        with open_store(writer.address).open_part(staged.id, 0, attempt) as part:
            write_batch(part, staged.id, [("3", (A, f"attempt {attempt}"))], writer.keys)
            parts.append(part.finish())
    writer.store.stage(writer.lease, parts[1:])
    publish(writer, staged)
    assert contents([assert_in_step(reader, A)]) == {("todos", "3"): {"text": "attempt 3"}}
    assert set(writer.rows()) == {"3"}


def test_staged_is_unseen(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    before = totals(reader, A)
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")])
    with open_store(writer.address).open_part(staged.id, 0, "1") as part:
        write_batch(part, staged.id, [("2", (B, "new"))], writer.keys, lookups=True)
        finished = part.finish()
    writer.store.stage(writer.lease, [finished])
    assert (totals(reader, A), totals(reader, B)[1:]) == (before, (0, 0))
    assert lookups(reader, ['owners["new"]']) == {'owners["new"]': []}
    assert [table.id for table in writer.store.tables(SOURCE)] == [writer.table]
    publish(writer, staged)
    assert contents([assert_in_step(reader, A), assert_in_step(reader, B)]) == {("todos", "2"): {"text": "new"}}
    assert lookups(reader, ['owners["new"]']) == {'owners["new"]': ["[1]"]}
    assert [table.id for table in writer.store.tables(SOURCE)] == [staged.id]


def test_discarded_job(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")])
    writer.store.stage(writer.lease, [writer.part(staged.id, {"2": (B, "lost")}, 0, 1)])
    writer.store.discard_staged(writer.lease)
    writer.bootstrap({"3": (A, "kept")})
    assert contents([assert_in_step(reader, A)]) == {("todos", "3"): {"text": "kept"}}
    assert totals(reader, B)[1:] == (0, 0)


def test_order_of_segments(writer: SourceWriter, reader: StoreReader) -> None:
    rows = {str(i): (A, f"text {i}") for i in range(4500)}
    checkpoint = writer.bootstrap(rows, parts=3)
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


def test_order_of_ops_and_pages(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({str(i): (A, "x") for i in range(30)})
    part = writer.additions({str(i): (B, f"t{i}") for i in range(30)}, rows_a_page=1)
    device = assert_in_step(reader, B)
    for page in range(30):
        writer.store.take_page(writer.lease, part, page, ())
        writer.write({f"new {page}": (B, "live")})
        if page % 7 == 0:
            device = assert_in_step(reader, B, device)
    fresh = assert_in_step(reader, B)
    assert len(fresh.rows) == 60
    assert contents([assert_in_step(reader, B, device)]) == contents([fresh])


def test_record_of_a_job(writer: SourceWriter) -> None:
    record = BulkRecord("audit", SOURCE, "app-7", 3, 100, 0, 5.0, 9.5)
    writer.store.note_job(record)
    assert writer.store.bulk_records() == [record]


def publish(writer: SourceWriter, staged: StagedTable) -> None:
    version = writer.store.deploy(YAML, Origin.FILE)
    writer.table = staged.id
    record = BulkRecord("snapshot", SOURCE, "app", 1, 1, 1, 0.0, 1.0)
    writer.store.publish(writer.lease, writer.state(), [staged], version.id, SIDES, record)
