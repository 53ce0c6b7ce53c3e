"""What `storage.contract.compaction` promises, and what compaction makes of it, asked of every store."""

from __future__ import annotations

import pytest

from headwater.compaction.compactor import CompactionPass
from headwater.oplog.op import OpId
from headwater.storage.shared.compaction import CompactionPolicy
from tests.contract.compaction.world import LAVISH, A, B, World, kinds
from tests.support.model_device import ModelBucket


def test_superseded_ops_become_moves_and_a_dead_beginning_one_clear(world: World) -> None:
    world.hand.publish({str(n): (A, "first") for n in range(4)})
    world.hand.write({"0": (A, "second"), "1": (A, "second")})
    world.hand.write({"3": (A, "second"), "9": (A, "new")})
    world.hand.write({"9": None})
    old = world.device(A)
    before = world.total(A)
    world.compact()
    ops = world.ops(A)
    assert kinds(ops) == ["CLEAR", "PUT", "MOVE", "PUT", "PUT", "PUT", "MOVE", "REMOVE"]
    assert world.total(A)[:2] == before[:2]
    assert world.total(A)[2] == 8
    world.assert_whole({}, {A: old})


def test_what_was_compacted_is_in_segments_that_are_chunks(world: World) -> None:
    world.hand.publish({str(n): (A, "first") for n in range(3_000)})
    for n in range(3_000, 4_000, 250):
        world.hand.write({str(n + i): (A, "later") for i in range(250)})
    world.compact()
    pieces = world.compaction.pieces(world.key(A), world.compaction.checkpoint())
    assert all(piece.sealed for piece in pieces)
    assert [piece.size for piece in pieces] == [999, 999, 999, 999, 5]
    assert [chunk.size for chunk in world.chunks(A)] == [piece.size for piece in pieces]
    for piece, chunk in zip(pieces, world.chunks(A), strict=True):
        assert world.compaction.read(world.key(A), piece).replace(b"\n", b",") == chunk.ops
    world.assert_whole({})


def test_a_device_in_the_middle_of_a_segment_gets_the_rest_of_it(world: World) -> None:
    world.hand.publish({str(n): (A, "first") for n in range(2_500)})
    world.hand.write({str(n): (A, "second") for n in range(500, 700)})
    ops = world.ops(A)
    world.compact()
    devices: list[dict[str, ModelBucket]] = []
    for had in (1, 2, 998, 999, 1_000, 1_500, 2_600):
        model = ModelBucket()
        for op in ops[:had]:
            model.apply(op)
        devices.append({A: model})
    world.assert_whole(*devices)


@pytest.mark.usefixtures("form")
def test_one_row_behind_many_dead_ops_ends_as_two(world: World) -> None:
    world.hand.publish({"lives": (A, "x")})
    for n in range(0, 2_000, 500):
        world.hand.write({str(n + i): (A, "short-lived") for i in range(500)})
        world.hand.write({str(n + i): None for i in range(500)})
    old = world.device(A)
    assert world.total(A)[2] > 4_000
    world.compact(CompactionPolicy())
    assert kinds(world.ops(A)) == ["CLEAR", "PUT"]
    world.assert_whole({}, {A: old})


def test_rows_put_again_are_news_to_those_who_follow_the_bucket(world: World) -> None:
    world.hand.publish({"lives": (A, "x"), "other": (B, "x")})
    for n in range(20):
        world.hand.write({"busy": (A, str(n))})
    before = world.hand.write({"busy": None})
    world.compact(CompactionPolicy())
    now = world.compaction.checkpoint()
    assert now > before.op_id
    assert world.reader.touched(before.op_id, now).buckets == frozenset({A})
    world.assert_whole({})


def test_a_checkpoint_that_compaction_went_past_is_overtaken(world: World) -> None:
    world.hand.publish({"1": (A, "x"), "2": (A, "x"), "3": (B, "x")})
    early = world.hand.write({"9": (A, "y")}).op_id
    late = world.hand.write({"2": (A, "z")}).op_id
    assert not world.reader.chunk(A, OpId(0), early).overtaken
    world.compact()
    assert world.reader.chunk(A, OpId(0), early).overtaken
    assert not world.reader.chunk(A, OpId(0), late).overtaken
    assert not world.reader.chunk(B, OpId(0), early).overtaken


@pytest.mark.usefixtures("form")
def test_what_a_truncate_left_behind_goes(world: World) -> None:
    world.hand.publish({str(n): (A, "x") for n in range(3_000)})
    world.hand.write({str(n): (A, "y") for n in range(5_000, 7_100)})
    before = world.reader.newest()
    world.hand.truncate()
    assert world.compaction.has_remains(world.key(A))
    world.compact()
    assert not world.compaction.has_remains(world.key(A))
    assert before is not None
    assert world.reader.chunk(A, OpId(0), before.checkpoint.op_id).overtaken
    world.hand.write({"1": (A, "again")})
    world.assert_whole({})


def test_history_beyond_what_is_settled_is_left_alone(world: World) -> None:
    world.hand.publish({"1": (A, "x"), "2": (A, "x")})
    upto = world.hand.write({"1": (A, "y")}).op_id
    world.hand.write({"1": (A, "z")})
    with CompactionPass(world.compaction, "here:1", lambda _: False) as work:
        work.bucket(world.state(A), upto, LAVISH)
    assert kinds(world.ops(A)) == ["CLEAR", "PUT", "PUT", "PUT"], "the last two are of the same row"
    assert world.state(A).compacted_op == upto
    world.assert_whole({})


def test_compaction_is_no_replicator(world: World) -> None:
    world.hand.store.release(world.hand.lease)
    world.compaction.acquire("here:1", 30.0)
    assert not world.reader.replicator_alive()


def test_old_records_of_flushes_are_forgotten(world: World) -> None:
    first = world.hand.publish({"1": (A, "x")})
    for n in range(30):
        world.hand.write({"1": (A, str(n))})
    lease = world.compaction.acquire("here:1", 30.0)
    assert world.compaction.prune(lease, 10) == 21
    assert world.compaction.prune(lease, 10) == 0
    now = world.compaction.checkpoint()
    assert world.reader.touched(first.op_id, now).buckets is None
    assert world.reader.touched(OpId(now - 1), now).buckets == frozenset({A})
