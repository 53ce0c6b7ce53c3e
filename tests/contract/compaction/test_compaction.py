"""What `storage.contract.compaction` promises, and what compaction makes of it, asked of every store."""

from __future__ import annotations

import pytest

from headwater.compaction.compactor import CompactionPass
from headwater.oplog.op import OpId
from headwater.storage.shared.compaction import CompactionPolicy
from tests.contract.compaction.compaction_setup import LAVISH, A, B, CompactionSetup, kinds
from tests.support.model_device import ModelBucket


def test_moves_and_clear(compacted: CompactionSetup) -> None:
    compacted.hand.publish({str(n): (A, "first") for n in range(4)})
    compacted.hand.write({"0": (A, "second"), "1": (A, "second")})
    compacted.hand.write({"3": (A, "second"), "9": (A, "new")})
    compacted.hand.write({"9": None})
    old = compacted.device(A)
    before = compacted.total(A)
    compacted.compact()
    ops = compacted.ops(A)
    assert kinds(ops) == ["CLEAR", "PUT", "MOVE", "PUT", "PUT", "PUT", "MOVE", "REMOVE"]
    assert compacted.total(A)[:2] == before[:2]
    assert compacted.total(A)[2] == 8
    compacted.assert_whole({}, {A: old})


def test_segments_are_chunks(compacted: CompactionSetup) -> None:
    compacted.hand.publish({str(n): (A, "first") for n in range(3_000)})
    for n in range(3_000, 4_000, 250):
        compacted.hand.write({str(n + i): (A, "later") for i in range(250)})
    compacted.compact()
    pieces = compacted.compaction.pieces(compacted.key(A), compacted.compaction.checkpoint())
    assert all(piece.sealed for piece in pieces)
    assert [piece.size for piece in pieces] == [999, 999, 999, 999, 5]
    assert [chunk.size for chunk in compacted.chunks(A)] == [piece.size for piece in pieces]
    for piece, chunk in zip(pieces, compacted.chunks(A), strict=True):
        assert compacted.compaction.read(compacted.key(A), piece).replace(b"\n", b",") == chunk.ops
    compacted.assert_whole({})


def test_middle_of_a_segment(compacted: CompactionSetup) -> None:
    compacted.hand.publish({str(n): (A, "first") for n in range(2_500)})
    compacted.hand.write({str(n): (A, "second") for n in range(500, 700)})
    ops = compacted.ops(A)
    compacted.compact()
    devices: list[dict[str, ModelBucket]] = []
    for had in (1, 2, 998, 999, 1_000, 1_500, 2_600):
        model = ModelBucket()
        for op in ops[:had]:
            model.apply(op)
        devices.append({A: model})
    compacted.assert_whole(*devices)


@pytest.mark.usefixtures("form")
def test_row_behind_dead_ops(compacted: CompactionSetup) -> None:
    compacted.hand.publish({"lives": (A, "x")})
    for n in range(0, 2_000, 500):
        compacted.hand.write({str(n + i): (A, "short-lived") for i in range(500)})
        compacted.hand.write({str(n + i): None for i in range(500)})
    old = compacted.device(A)
    assert compacted.total(A)[2] > 4_000
    compacted.compact(CompactionPolicy())
    assert kinds(compacted.ops(A)) == ["CLEAR", "PUT"]
    compacted.assert_whole({}, {A: old})


def test_rows_put_again_are_touched(compacted: CompactionSetup) -> None:
    compacted.hand.publish({"lives": (A, "x"), "other": (B, "x")})
    for n in range(20):
        compacted.hand.write({"busy": (A, str(n))})
    before = compacted.hand.write({"busy": None})
    compacted.compact(CompactionPolicy())
    now = compacted.compaction.checkpoint()
    assert now > before.op_id
    assert compacted.reader.touched(before.op_id, now).buckets == frozenset({A})
    compacted.assert_whole({})


def test_overtaken_checkpoint(compacted: CompactionSetup) -> None:
    compacted.hand.publish({"1": (A, "x"), "2": (A, "x"), "3": (B, "x")})
    early = compacted.hand.write({"9": (A, "y")}).op_id
    late = compacted.hand.write({"2": (A, "z")}).op_id
    assert not compacted.reader.chunk(A, OpId(0), early).overtaken
    compacted.compact()
    assert compacted.reader.chunk(A, OpId(0), early).overtaken
    assert not compacted.reader.chunk(A, OpId(0), late).overtaken
    assert not compacted.reader.chunk(B, OpId(0), early).overtaken


@pytest.mark.usefixtures("form")
def test_left_by_a_truncate(compacted: CompactionSetup) -> None:
    compacted.hand.publish({str(n): (A, "x") for n in range(3_000)})
    compacted.hand.write({str(n): (A, "y") for n in range(5_000, 7_100)})
    before = compacted.reader.newest()
    compacted.hand.truncate()
    assert compacted.compaction.has_remains(compacted.key(A))
    compacted.compact()
    assert not compacted.compaction.has_remains(compacted.key(A))
    assert before is not None
    assert compacted.reader.chunk(A, OpId(0), before.checkpoint.op_id).overtaken
    compacted.hand.write({"1": (A, "again")})
    compacted.assert_whole({})


def test_unsettled_history(compacted: CompactionSetup) -> None:
    compacted.hand.publish({"1": (A, "x"), "2": (A, "x")})
    upto = compacted.hand.write({"1": (A, "y")}).op_id
    compacted.hand.write({"1": (A, "z")})
    with CompactionPass(compacted.compaction, "here:1", lambda _: False) as work:
        work.bucket(compacted.state(A), upto, LAVISH)
    assert kinds(compacted.ops(A)) == ["CLEAR", "PUT", "PUT", "PUT"], "the last two are of the same row"
    assert compacted.state(A).compacted_op == upto
    compacted.assert_whole({})


def test_compaction_is_no_replicator(compacted: CompactionSetup) -> None:
    compacted.hand.store.release(compacted.hand.lease)
    compacted.compaction.acquire("here:1", 30.0)
    assert not compacted.reader.replicator_alive()


def test_old_flushes(compacted: CompactionSetup) -> None:
    first = compacted.hand.publish({"1": (A, "x")})
    for n in range(30):
        compacted.hand.write({"1": (A, str(n))})
    lease = compacted.compaction.acquire("here:1", 30.0)
    assert compacted.compaction.prune(lease, 10) == 21
    assert compacted.compaction.prune(lease, 10) == 0
    now = compacted.compaction.checkpoint()
    assert compacted.reader.touched(first.op_id, now).buckets is None
    assert compacted.reader.touched(OpId(now - 1), now).buckets == frozenset({A})
