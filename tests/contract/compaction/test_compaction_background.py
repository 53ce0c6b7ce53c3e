"""What compaction in the background does by itself, and when a bucket is taken up, asked of every store."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headwater.compaction.background import Rhythm, Upkeep
from headwater.compaction.work import Need, UpkeepWork, need
from headwater.oplog.op import OpId, bucket_key
from headwater.storage.contract.compaction import BucketState, Piece, UpkeepStore
from headwater.storage.shared.compaction import Thrift
from tests.contract.compaction.world import A, B, World, kinds


def test_in_the_background_what_is_settled_is_compacted_by_itself(world: World) -> None:
    now = [0.0]
    upkeep = Upkeep(world.address, "here:1", rhythm=Rhythm(settled=60.0), clock=lambda: now[0])
    world.hand.publish({"lives": (A, "x")} | {f"b{n}": (B, "x") for n in range(10)})
    for n in range(0, 1_500, 500):
        world.hand.write({str(n + i): (A, "short-lived") for i in range(500)})
        world.hand.write({str(n + i): None for i in range(500)})
    old = world.device(A)
    assert upkeep.look(world.upkeep).buckets == 0, "nothing is settled yet"
    for _ in range(3):
        now[0] += 61.0
        upkeep.look(world.upkeep)
    assert kinds(world.ops(A)) == ["CLEAR", "PUT"]
    assert world.state(B).compacted_count == 0, "a small bucket is not worth it"
    now[0] += 61.0
    assert upkeep.look(world.upkeep).buckets == 0, "what is done is not done again"
    world.assert_whole({}, {A: old})


def test_in_the_background_a_row_is_put_again_once_though_the_bucket_stays_busy(world: World) -> None:
    now = [0.0]
    upkeep = Upkeep(world.address, "here:1", rhythm=Rhythm(settled=60.0), clock=lambda: now[0])
    world.hand.publish({"lives": (A, "x")})
    again = []
    for n in range(0, 1_500, 150):
        world.hand.write({str(n + i): (A, "short-lived") for i in range(150)})
        world.hand.write({str(n + i): None for i in range(150)})
        again.append(upkeep.look(world.upkeep).again)
        now[0] += 30.0
    first = next(place for place, count in enumerate(again) if count)
    assert again[first + 1 : first + 3] == [0, 0], "what was put again has to settle first"
    world.assert_whole({})


@pytest.mark.usefixtures("form")
def test_what_is_not_sealed_is_sealed_without_a_look_at_the_rest(world: World) -> None:
    world.hand.publish({str(n): (A, "x") for n in range(1_500)})
    world.compact()
    sealed = world.upkeep.pieces(bucket_key(A), world.upkeep.checkpoint())
    for n in range(5_000, 6_200, 400):
        world.hand.write({str(n + i): (A, "x") for i in range(400)})
    world.hand.write({"5000": (A, "y"), "0": (A, "y")})
    read: list[int] = []
    assert world.upkeep.unsealed_ops(bucket_key(A), world.upkeep.checkpoint(), 5_000) == 1_202
    with UpkeepWork(_Watched(world.upkeep, read), "here:1", lambda _: False) as work:
        work.seal(world.state(A), world.upkeep.checkpoint())
    assert world.upkeep.unsealed_ops(bucket_key(A), world.upkeep.checkpoint(), 10) == 0
    assert sealed[0].blob not in read
    assert kinds(world.ops(A)).count("MOVE") == 1, "the row whose other op is in the sealed part has both"
    world.assert_whole({})


class _Watched:
    """An upkeep store that notes which segments are read."""

    def __init__(self, store: UpkeepStore, read: list[int]) -> None:
        self._store = store
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, bucket: int, piece: Piece) -> bytes:
        self._read.append(piece.blob)
        return self._store.read(bucket, piece)


@pytest.mark.parametrize(
    ("bucket", "expected"),
    [
        (BucketState(1, "b", "d", 63, OpId(1), OpId(90), OpId(0), 0, 0), Need.NOTHING),
        (BucketState(1, "b", "d", 64, OpId(1), OpId(90), OpId(0), 0, 0), Need.COMPACT),
        (BucketState(1, "b", "d", 1_199, OpId(1), OpId(90), OpId(5), 1_000, 900), Need.NOTHING),
        (BucketState(1, "b", "d", 1_200, OpId(1), OpId(90), OpId(5), 1_000, 900), Need.COMPACT),
        (BucketState(1, "b", "d", 1, OpId(80), OpId(90), OpId(5), 1_000, 900), Need.COMPACT),
        (BucketState(1, "b", "d", 1_005_100, OpId(1), OpId(90), OpId(5), 1_000_000, 900), Need.SEAL),
    ],
)
def test_a_bucket_is_taken_up_when_it_has_grown_by_a_fifth(bucket: BucketState, expected: Need) -> None:
    class Store:
        def has_remains(self, key: int) -> bool:
            return bucket.clear_op == 80

        def unsealed_ops(self, key: int, upto: OpId, limit: int) -> int:
            return limit

    assert need(bucket, cast("UpkeepStore", Store()), OpId(100), Thrift()) is expected
