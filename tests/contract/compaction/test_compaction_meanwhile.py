"""What is written, cleared or compacted by others while a bucket is compacted, asked of every store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest

from headwater.compaction.bucket import Forgetter, classify
from headwater.compaction.compactor import CompactionPass
from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import HistoryChangedError
from headwater.storage.contract.store import LeaseHeldError, LeaseLostError
from headwater.storage.open import open_store
from headwater.storage.shared import compaction, segments
from headwater.storage.shared.compaction import Cut
from headwater.storage.sql.compaction import CompactionStore
from tests.contract.compaction.compaction_setup import FREE, LAVISH, A, CompactionSetup
from tests.support.model_device import ModelBucket, parse_ops


@pytest.mark.usefixtures("form")
def test_a_row_that_changes_meanwhile_is_not_put_again(setup: CompactionSetup) -> None:
    setup.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    for n in range(30):
        setup.hand.write({"busy": (A, str(n))})
    upto = setup.compaction.checkpoint()
    bucket = setup.state(A)
    setup.hand.write({"goes": (A, "newer")})
    with CompactionPass(setup.compaction, "here:1", lambda _: False) as work:
        result = work.bucket(bucket, upto, LAVISH)
    assert result is not None
    assert result.reput >= 1
    setup.assert_whole({})


@pytest.mark.usefixtures("form")
def test_of_rows_to_be_put_again_those_with_a_newer_op_are_left_out(setup: CompactionSetup) -> None:
    setup.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    bucket, seen = setup.state(A), setup.compaction.checkpoint()
    run = setup.compaction.read(bucket.key, setup.compaction.pieces(bucket.key, seen)[-1])
    history = compaction.scan([2], lambda _: run)
    (rows,) = compaction.live_before(Cut(1, 0, 0, 2, 0), history, lambda _: run)
    setup.hand.write({"goes": None})
    lease = setup.compaction.acquire("here:1", 30.0)
    put, newest = setup.compaction.reput(lease, bucket, seen, rows)
    setup.compaction.release(lease)
    assert (put, newest) == (1, setup.compaction.checkpoint())
    setup.assert_whole({})


def test_a_flush_between_two_statements_of_a_look_is_seen_by_the_next(
    setup: CompactionSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "RUN_OPS", 2)
    setup.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    bucket, seen = setup.state(A), setup.compaction.checkpoint()
    first_run = setup.compaction.read(bucket.key, setup.compaction.pieces(bucket.key, seen)[-1])
    goes = next(compaction.op_head(line).row for line in first_run.split(b"\n") if b'"goes"' in line)
    setup.hand.write({"a": (A, "x")})
    op_head, written = compaction.op_head, False

    def write_first(line: bytes) -> compaction.OpHead:
        nonlocal written
        if not written:
            written = True
            setup.hand.write({"goes": None})
            setup.hand.write({"b1": (A, "x"), "b2": (A, "x")})
        return op_head(line)

    monkeypatch.setattr(compaction, "op_head", write_first)
    early, seen = setup.compaction.rows_after(bucket.key, seen)
    late, _ = setup.compaction.rows_after(bucket.key, seen)
    assert goes in early | late or not written


def test_a_bucket_that_is_cleared_meanwhile_is_left_as_it_is(setup: CompactionSetup) -> None:
    setup.hand.publish({str(n): (A, "x") for n in range(50)})
    bucket = setup.state(A)
    pieces = setup.compaction.pieces(bucket.key, setup.compaction.checkpoint())
    setup.hand.truncate()
    lease = setup.compaction.acquire("here:1", 30.0)
    with pytest.raises(HistoryChangedError):
        setup.compaction.replace(lease, bucket, pieces, [], OpId(0))
    with pytest.raises(HistoryChangedError):
        setup.compaction.reput(lease, bucket, pieces[-1].last, [])
    setup.compaction.release(lease)
    setup.assert_whole({})


class _Meddled:
    """An compaction store beside which something happens before each of the next so many calls of a method."""

    def __init__(self, setup: CompactionSetup, method: str, meddle: Callable[[], None], times: int) -> None:
        self._world = setup
        self._method = method
        self._meddle = meddle
        self._times = times

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._times > 0:
            self._times -= 1
            self._meddle()
        return getattr(self._world.compaction, name)

    def as_store(self) -> CompactionStore:
        return cast("CompactionStore", self)


def busy(setup: CompactionSetup) -> set[int]:
    """A bucket with ops that later ones overrule; which these are."""
    setup.hand.publish({str(n): (A, "x") for n in range(50)})
    setup.hand.write({str(n): (A, "y") for n in range(50)})
    return {int(str(op["op_id"])) for op in setup.ops(A)}


def cleared(setup: CompactionSetup) -> None:
    setup.hand.truncate()
    setup.hand.write({str(n): (A, "x") for n in range(50)})


def test_a_bucket_that_is_cleared_while_it_is_compacted_is_skipped_and_whole(setup: CompactionSetup) -> None:
    busy(setup)
    bucket, meddled = setup.state(A), _Meddled(setup, "replace", lambda: cleared(setup), 1)
    with CompactionPass(meddled.as_store(), "here:1", lambda _: False) as work:
        assert work.bucket(bucket, setup.compaction.checkpoint(), FREE) is None
        work.seal(bucket, setup.compaction.checkpoint())  # as it was before
    setup.assert_whole({})


@pytest.mark.parametrize("times", [1, 1_000])
def test_a_bucket_from_which_ops_are_to_go_is_begun_anew_when_it_changes(setup: CompactionSetup, times: int) -> None:
    busy(setup)
    lease = setup.compaction.acquire("here:1", 600.0)
    store = _Meddled(setup, "replace", lambda: cleared(setup), times).as_store()
    with nullcontext() if times == 1 else pytest.raises(HistoryChangedError):
        Forgetter(store, lease, lambda _: None).rewrite(setup.key(A), clear=True)
    setup.compaction.release(lease)
    setup.assert_whole({})


@pytest.mark.parametrize("times", [1, 1_000])
def test_ops_are_looked_at_again_when_their_history_is_compacted(setup: CompactionSetup, times: int) -> None:
    ops = busy(setup)
    setup.compact()

    texts = itertools.count()

    def compact() -> None:
        setup.hand.write({str(n): (A, f"z{next(texts)}") for n in range(50)})
        setup.compact()

    store = _Meddled(setup, "read", compact, times).as_store()
    with nullcontext() if times == 1 else pytest.raises(HistoryChangedError):
        found = classify(store, setup.key(A), ops)
        assert found is not None
        assert (found.standing, found.rows) == (0, 50)
    setup.assert_whole({})


def test_of_a_bucket_that_is_gone_nothing_is_left_to_forget(setup: CompactionSetup) -> None:
    setup.hand.publish({"1": (A, "x")})
    lease = setup.compaction.acquire("here:1", 600.0)
    assert classify(setup.compaction, setup.key("gone[]"), {1}) is None
    Forgetter(setup.compaction, lease, lambda _: None).rewrite(setup.key("gone[]"), clear=True)
    setup.compaction.release(lease)
    setup.assert_whole({})


def test_only_one_at_a_time_compacts(setup: CompactionSetup) -> None:
    other = open_store(setup.address).open_compaction()
    lease = setup.compaction.acquire("here:1", 30.0)
    with pytest.raises(LeaseHeldError):
        other.acquire("there:2", 30.0)
    setup.compaction.acquire("here:1", 30.0)
    with pytest.raises(LeaseLostError):
        setup.compaction.renew(lease)
    other.close()


def test_a_download_during_compaction_converges(setup: CompactionSetup) -> None:
    """A reader and a writer at work while the same bucket is compacted over and over."""
    setup.hand.publish({str(n): (A, "first") for n in range(1_200)})
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                follow(setup)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(5):
            setup.hand.write({str(i): (A, f"round {n}") for i in range(n * 40, n * 40 + 200)})
            setup.compact(LAVISH if n % 3 == 2 else FREE)
    finally:
        stop.set()
        reader.join()
    assert failures == []
    setup.assert_whole({})


def follow(setup: CompactionSetup) -> None:
    """One device: chunk by chunk to the newest checkpoint; on to a newer one whenever a chunk is overtaken."""
    model = ModelBucket()
    while True:
        upto, checksum, _ = setup.total(A)
        overtaken, after = False, OpId(model.position)
        while True:
            chunk = setup.reader.chunk(A, after, upto)
            overtaken = overtaken or chunk.overtaken
            for op in parse_ops(chunk.ops):
                model.apply(op)
            after = chunk.next_after
            if not chunk.more:
                break
        model.position = max(model.position, after)
        if not overtaken:
            assert model.checksum == checksum
            return
