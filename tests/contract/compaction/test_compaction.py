"""What `storage.contract.compaction` promises, and what compaction makes of it, asked of every store."""

from __future__ import annotations

import pytest

from headwater.compaction.compactor import CompactionPass
from headwater.oplog.op import OpId
from headwater.storage.shared.compaction import CompactionPolicy
from tests.contract.compaction.compaction_setup import LAVISH, A, B, CompactionSetup, kinds
from tests.support.model_device import ModelBucket


def test_superseded_ops_become_moves_and_a_dead_beginning_one_clear(setup: CompactionSetup) -> None:
    setup.hand.publish({str(n): (A, "first") for n in range(4)})
    setup.hand.write({"0": (A, "second"), "1": (A, "second")})
    setup.hand.write({"3": (A, "second"), "9": (A, "new")})
    setup.hand.write({"9": None})
    old = setup.device(A)
    before = setup.total(A)
    setup.compact()
    ops = setup.ops(A)
    assert kinds(ops) == ["CLEAR", "PUT", "MOVE", "PUT", "PUT", "PUT", "MOVE", "REMOVE"]
    assert setup.total(A)[:2] == before[:2]
    assert setup.total(A)[2] == 8
    setup.assert_whole({}, {A: old})


def test_what_was_compacted_is_in_segments_that_are_chunks(setup: CompactionSetup) -> None:
    setup.hand.publish({str(n): (A, "first") for n in range(3_000)})
    for n in range(3_000, 4_000, 250):
        setup.hand.write({str(n + i): (A, "later") for i in range(250)})
    setup.compact()
    pieces = setup.compaction.pieces(setup.key(A), setup.compaction.checkpoint())
    assert all(piece.sealed for piece in pieces)
    assert [piece.size for piece in pieces] == [999, 999, 999, 999, 5]
    assert [chunk.size for chunk in setup.chunks(A)] == [piece.size for piece in pieces]
    for piece, chunk in zip(pieces, setup.chunks(A), strict=True):
        assert setup.compaction.read(setup.key(A), piece).replace(b"\n", b",") == chunk.ops
    setup.assert_whole({})


def test_a_device_in_the_middle_of_a_segment_gets_the_rest_of_it(setup: CompactionSetup) -> None:
    setup.hand.publish({str(n): (A, "first") for n in range(2_500)})
    setup.hand.write({str(n): (A, "second") for n in range(500, 700)})
    ops = setup.ops(A)
    setup.compact()
    devices: list[dict[str, ModelBucket]] = []
    for had in (1, 2, 998, 999, 1_000, 1_500, 2_600):
        model = ModelBucket()
        for op in ops[:had]:
            model.apply(op)
        devices.append({A: model})
    setup.assert_whole(*devices)


@pytest.mark.usefixtures("form")
def test_one_row_behind_many_dead_ops_ends_as_two(setup: CompactionSetup) -> None:
    setup.hand.publish({"lives": (A, "x")})
    for n in range(0, 2_000, 500):
        setup.hand.write({str(n + i): (A, "short-lived") for i in range(500)})
        setup.hand.write({str(n + i): None for i in range(500)})
    old = setup.device(A)
    assert setup.total(A)[2] > 4_000
    setup.compact(CompactionPolicy())
    assert kinds(setup.ops(A)) == ["CLEAR", "PUT"]
    setup.assert_whole({}, {A: old})


def test_rows_put_again_are_news_to_those_who_follow_the_bucket(setup: CompactionSetup) -> None:
    setup.hand.publish({"lives": (A, "x"), "other": (B, "x")})
    for n in range(20):
        setup.hand.write({"busy": (A, str(n))})
    before = setup.hand.write({"busy": None})
    setup.compact(CompactionPolicy())
    now = setup.compaction.checkpoint()
    assert now > before.op_id
    assert setup.reader.touched(before.op_id, now).buckets == frozenset({A})
    setup.assert_whole({})


def test_a_checkpoint_that_compaction_went_past_is_overtaken(setup: CompactionSetup) -> None:
    setup.hand.publish({"1": (A, "x"), "2": (A, "x"), "3": (B, "x")})
    early = setup.hand.write({"9": (A, "y")}).op_id
    late = setup.hand.write({"2": (A, "z")}).op_id
    assert not setup.reader.chunk(A, OpId(0), early).overtaken
    setup.compact()
    assert setup.reader.chunk(A, OpId(0), early).overtaken
    assert not setup.reader.chunk(A, OpId(0), late).overtaken
    assert not setup.reader.chunk(B, OpId(0), early).overtaken


@pytest.mark.usefixtures("form")
def test_what_a_truncate_left_behind_goes(setup: CompactionSetup) -> None:
    setup.hand.publish({str(n): (A, "x") for n in range(3_000)})
    setup.hand.write({str(n): (A, "y") for n in range(5_000, 7_100)})
    before = setup.reader.newest()
    setup.hand.truncate()
    assert setup.compaction.has_remains(setup.key(A))
    setup.compact()
    assert not setup.compaction.has_remains(setup.key(A))
    assert before is not None
    assert setup.reader.chunk(A, OpId(0), before.checkpoint.op_id).overtaken
    setup.hand.write({"1": (A, "again")})
    setup.assert_whole({})


def test_history_beyond_what_is_settled_is_left_alone(setup: CompactionSetup) -> None:
    setup.hand.publish({"1": (A, "x"), "2": (A, "x")})
    upto = setup.hand.write({"1": (A, "y")}).op_id
    setup.hand.write({"1": (A, "z")})
    with CompactionPass(setup.compaction, "here:1", lambda _: False) as work:
        work.bucket(setup.state(A), upto, LAVISH)
    assert kinds(setup.ops(A)) == ["CLEAR", "PUT", "PUT", "PUT"], "the last two are of the same row"
    assert setup.state(A).compacted_op == upto
    setup.assert_whole({})


def test_compaction_is_no_replicator(setup: CompactionSetup) -> None:
    setup.hand.store.release(setup.hand.lease)
    setup.compaction.acquire("here:1", 30.0)
    assert not setup.reader.replicator_alive()


def test_old_records_of_flushes_are_forgotten(setup: CompactionSetup) -> None:
    first = setup.hand.publish({"1": (A, "x")})
    for n in range(30):
        setup.hand.write({"1": (A, str(n))})
    lease = setup.compaction.acquire("here:1", 30.0)
    assert setup.compaction.prune(lease, 10) == 21
    assert setup.compaction.prune(lease, 10) == 0
    now = setup.compaction.checkpoint()
    assert setup.reader.touched(first.op_id, now).buckets is None
    assert setup.reader.touched(OpId(now - 1), now).buckets == frozenset({A})
