"""The shared cache over real stores: what rewrites history is seen through it at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from headwater.api.streams.cache import ChunkCache
from headwater.api.streams.encoding import EncodedPiece
from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.reader import Chunk, StoreReader
from headwater.storage.open import open_store
from tests.support.model_device import ModelBucket, parse_ops
from tests.support.written_store import WrittenStore, compact, shown

A, B = 'todos.1["a"]', 'todos.1["b"]'


@dataclass(frozen=True)
class Ops:
    """A form: ops as they are."""

    def write(self, bucket: str, after: OpId, chunk: Chunk) -> bytes:
        return chunk.ops


@pytest.fixture
def hand(new_address: Callable[[], StoreAddress]) -> Iterator[WrittenStore]:
    """A store with two buckets of some chunks."""
    made = WrittenStore(new_address())
    made.publish({str(n): (A if n % 2 else B, f"text {n}") for n in range(3_000)})
    yield made
    made.close()


@pytest.fixture
def reader(hand: WrittenStore) -> Iterator[StoreReader]:
    with closing(open_store(hand.address).open_reader()) as made:
        yield made


def catch_up(cached: ChunkCache, device: dict[str, ModelBucket]) -> None:
    """Bring a device to the newest checkpoint, checksums verified."""
    with cached.reader.snapshot() as snapshot:
        assert snapshot is not None
        totals, upto = snapshot.totals(list(device)), snapshot.checkpoint.op_id
        marks = cached.reader.marks(list(device))
        for name, model in device.items():
            after, more = OpId(model.position), True
            while more:
                written = cached.written(Ops(), name, after, upto, marks.get(name))
                assert not isinstance(written.content, EncodedPiece)
                for op in parse_ops(written.content or b""):
                    model.apply(op)
                after, more = written.chunk.next_after, written.chunk.more
            model.position = max(model.position, upto)
            assert model.checksum == totals[name].checksum


def new_device() -> dict[str, ModelBucket]:
    return {A: ModelBucket(), B: ModelBucket()}


@pytest.mark.parametrize("capacity", [0, 300_000, 64 << 20])
def test_devices_show_the_newest_rows(hand: WrittenStore, reader: StoreReader, capacity: int) -> None:
    cached = ChunkCache(reader, capacity)
    chance = random.Random(capacity)
    devices = [new_device() for _ in range(3)]
    for _ in range(24):
        match chance.randrange(8):
            case 0:
                compact(hand.address, A, B)
            case 1 if chance.random() < 0.3:
                hand.truncate()
            case 2:
                some = chance.sample(range(3_000), 700)
                hand.write({str(n): (A if n % 2 else B, f"text {chance.random()}") for n in some})
            case 3:
                hand.write(dict.fromkeys(map(str, chance.sample(range(3_000), 50))))
            case 4:
                devices[chance.randrange(3)] = new_device()
            case number:
                catch_up(cached, devices[number % 3])
                assert shown(devices[number % 3]) == hand.standing()
        assert cached.kept_bytes <= capacity
    for device in [*devices, new_device()]:
        catch_up(cached, device)
        assert shown(device) == hand.standing()


def test_marks(hand: WrittenStore, reader: StoreReader) -> None:
    first = reader.marks([A, B, "nobody's"])
    assert set(first) == {A, B}
    written = hand.write({"1": (A, "changed")})
    second = reader.marks([A, B])
    assert second[B] == first[B]
    assert second[A].last_op == written.op_id > first[A].last_op
    assert second[A].clear_op == first[A].clear_op
    compact(hand.address, A)
    third = reader.marks([A, B])
    assert third[B] == first[B]
    assert third[A].compacted_op > second[A].compacted_op
    cleared = hand.truncate()
    assert max(mark.clear_op for mark in reader.marks([A, B]).values()) == cleared.op_id


def test_snapshot_is_one_moment(hand: WrittenStore, reader: StoreReader) -> None:
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        upto = snapshot.checkpoint.op_id
        before = reader.marks([A]), reader.chunk(A, OpId(0), upto), snapshot.totals([A])
        hand.write({"1": (A, "changed")})
        compact(hand.address, A)
        hand.truncate()
        assert (reader.marks([A]), reader.chunk(A, OpId(0), upto), snapshot.totals([A])) == before
    assert reader.marks([A]) != before[0]
