"""What compaction in the background does by itself, and when a bucket is taken up, asked of every store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import pytest

from headwater.compaction import compactor
from headwater.compaction.compactor import (
    CompactionNeed,
    CompactionPass,
    Compactor,
    Schedule,
    Share,
    ShareTask,
    Summary,
    need,
)
from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.compaction import BucketState, Piece
from headwater.storage.contract.store import StoreBusyError
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.compaction import CompactionStore
from headwater.storage.store import Store
from tests.contract.compaction.compaction_setup import A, B, CompactionSetup, kinds
from tests.support.waiting import wait_until


def test_background_compaction(compacted: CompactionSetup) -> None:
    now = [0.0]
    compaction = Compactor(compacted.address, "here:1", schedule=Schedule(min_age=60.0), clock=lambda: now[0])
    compacted.hand.publish({"lives": (A, "x")} | {f"b{n}": (B, "x") for n in range(10)})
    for n in range(0, 1_500, 500):
        compacted.hand.write({str(n + i): (A, "short-lived") for i in range(500)})
        compacted.hand.write({str(n + i): None for i in range(500)})
    old = compacted.device(A)
    assert compaction.run_once(compacted.compaction).buckets == 0, "nothing is settled yet"
    for _ in range(3):
        now[0] += 61.0
        compaction.run_once(compacted.compaction)
    assert kinds(compacted.ops(A)) == ["CLEAR", "PUT"]
    assert compacted.state(B).compacted_count == 0, "a small bucket is not worth it"
    now[0] += 61.0
    assert compaction.run_once(compacted.compaction).buckets == 0, "what is done is not done again"
    compacted.assert_whole({}, {A: old})


def test_busy_bucket(compacted: CompactionSetup) -> None:
    now = [0.0]
    compaction = Compactor(compacted.address, "here:1", schedule=Schedule(min_age=60.0), clock=lambda: now[0])
    compacted.hand.publish({"lives": (A, "x")})
    again = []
    for n in range(0, 1_500, 150):
        compacted.hand.write({str(n + i): (A, "short-lived") for i in range(150)})
        compacted.hand.write({str(n + i): None for i in range(150)})
        again.append(compaction.run_once(compacted.compaction).reput)
        now[0] += 30.0
    first = next(place for place, count in enumerate(again) if count)
    assert again[first + 1 : first + 3] == [0, 0], "what was put again has to settle first"
    compacted.assert_whole({})


@pytest.mark.usefixtures("form")
def test_seal_alone(compacted: CompactionSetup) -> None:
    compacted.hand.publish({str(n): (A, "x") for n in range(1_500)})
    compacted.compact()
    sealed = compacted.compaction.pieces(compacted.key(A), compacted.compaction.checkpoint())
    for n in range(5_000, 6_200, 400):
        compacted.hand.write({str(n + i): (A, "x") for i in range(400)})
    compacted.hand.write({"5000": (A, "y"), "0": (A, "y")})
    read: list[int] = []
    assert compacted.compaction.unsealed_ops(compacted.key(A), compacted.compaction.checkpoint(), 5_000) == 1_202
    with CompactionPass(
        cast("CompactionStore", _Watched(compacted.compaction, read)), "here:1", lambda _: False
    ) as at_work:
        at_work.seal(compacted.state(A), compacted.compaction.checkpoint())
    assert compacted.compaction.unsealed_ops(compacted.key(A), compacted.compaction.checkpoint(), 10) == 0
    assert sealed[0].blob not in read
    assert kinds(compacted.ops(A)).count("MOVE") == 1, "the row whose other op is in the sealed part has both"
    compacted.assert_whole({})


class _Watched:
    """An compaction store that notes which segments are read."""

    def __init__(self, store: CompactionStore, read: list[int]) -> None:
        self._store = store
        self._read = read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, bucket: int, piece: Piece) -> bytes:
        self._read.append(piece.blob)
        return self._store.read(bucket, piece)


@pytest.mark.usefixtures("form")
def test_shares(compacted: CompactionSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "LARGE_OPS", 100)
    monkeypatch.setattr(compactor, "_OPS_A_SHARE", 150)
    compacted.hand.publish({f"a{n}": (A, "x") for n in range(200)} | {f"b{n}": (B, "x") for n in range(100)})
    compacted.hand.write({f"a{n}": None for n in range(199)} | {f"b{n}": None for n in range(99)})
    now: list[float] = [0.0]
    shares: list[Share] = []

    def elsewhere(given: Sequence[Share]) -> list[Summary]:
        shares.extend(given)
        return [ShareTask(share).run(None, 0, "") for share in given]

    compaction = Compactor(
        compacted.address, "here:1", schedule=Schedule(min_age=60.0), run_shares=elsewhere, clock=lambda: now[0]
    )
    compaction.run_once(compacted.compaction)
    now[0] += 61.0
    summary = compaction.run_once(compacted.compaction)
    assert [len(share.keys) for share in shares] == [1, 1]
    assert (summary.buckets, summary.before, summary.live, summary.skipped) == (2, 600, 2, 0)
    for _ in range(3):
        now[0] += 61.0
        compaction.run_once(compacted.compaction)
    assert [kinds(compacted.ops(bucket)) for bucket in (A, B)] == [["CLEAR", "PUT"]] * 2
    compacted.assert_whole({})


def test_thread_goes_on(
    compacted: CompactionSetup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.compaction.compactor")
    compacted.hand.publish({"lives": (A, "x")})
    compacted.hand.write({str(n): (A, "short-lived") for n in range(100)})
    compacted.hand.write({str(n): None for n in range(100)})
    errors: list[Exception] = [StoreBusyError("the store is busy", "there", "it is tried again"), ValueError("odd")]

    def open_with_luck(address: StoreAddress) -> Store:
        if errors:
            raise errors.pop(0)
        return open_store(address)

    monkeypatch.setattr(compactor, "open_store", open_with_luck)
    command = compacted.compaction.acquire("a command", 600.0)
    compaction = Compactor(compacted.address, "here:1", schedule=Schedule(interval=0.01, min_age=0.0))
    compaction.start()
    try:
        wait_until(lambda: "compaction failed; it is tried again" in caplog.text, "both errors")
        assert "histories are not compacted for now: " in caplog.text
        assert compacted.state(A).compacted_count == 0
        compacted.compaction.release(command)
        wait_until(lambda: kinds(compacted.ops(A)) == ["CLEAR", "PUT"], "the compaction")
    finally:
        compaction.stop()
    compacted.assert_whole({})


def test_thread_stops(compacted: CompactionSetup) -> None:
    compaction = Compactor(compacted.address, "here:1", schedule=Schedule(interval=0.001, min_age=0.0))
    compacted.hand.publish({str(n): (A, "x") for n in range(2_000)})
    compacted.hand.write({str(n): (A, "y") for n in range(2_000)})
    compaction.start()
    compaction.stop()
    compaction.stop()
    compacted.compact()
    compacted.assert_whole({})


@pytest.mark.parametrize(
    ("bucket", "expected"),
    [
        (BucketState(1, "b", "d", 63, OpId(1), OpId(90), OpId(0), 0, 0), CompactionNeed.NOTHING),
        (BucketState(1, "b", "d", 64, OpId(1), OpId(90), OpId(0), 0, 0), CompactionNeed.COMPACT),
        (BucketState(1, "b", "d", 1_199, OpId(1), OpId(90), OpId(5), 1_000, 900), CompactionNeed.NOTHING),
        (BucketState(1, "b", "d", 1_200, OpId(1), OpId(90), OpId(5), 1_000, 900), CompactionNeed.COMPACT),
        (BucketState(1, "b", "d", 1, OpId(80), OpId(90), OpId(5), 1_000, 900), CompactionNeed.COMPACT),
        (BucketState(1, "b", "d", 1_005_100, OpId(1), OpId(90), OpId(5), 1_000_000, 900), CompactionNeed.SEAL),
    ],
)
def test_growth_of_a_bucket(bucket: BucketState, expected: CompactionNeed) -> None:
    class Remains:
        def has_remains(self, key: int) -> bool:
            return bucket.clear_op == 80

        def unsealed_ops(self, key: int, upto: OpId, limit: int) -> int:
            return limit

    assert need(bucket, cast("CompactionStore", Remains()), OpId(100), CompactionPolicy()) is expected
