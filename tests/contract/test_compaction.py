"""What `storage.contract.compaction` promises, and what compaction makes of it, asked of every store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.compaction.background import Rhythm, Upkeep
from headwater.compaction.work import Need, UpkeepStoppedError, UpkeepWork, need
from headwater.oplog.op import OpId, bucket_key
from headwater.storage.address import StoreAddress
from headwater.storage.contract.compaction import BucketState, HistoryChangedError, Piece, UpkeepStore
from headwater.storage.contract.reader import Chunk, StoreReader
from headwater.storage.contract.store import LeaseHeldError, LeaseLostError
from headwater.storage.open import open_backend
from headwater.storage.shared import compaction
from headwater.storage.shared.compaction import Cut, Thrift
from tests.support import store_checker
from tests.support.fix_headwater import read_bucket
from tests.support.model_device import ModelBucket, contents, parse_ops
from tests.support.written_store import WrittenStore

A, B = 'todos.1["a"]', 'todos.1["b"]'
FREE = Thrift(budget=0)
LAVISH = Thrift(spare=0.0, budget=1 << 40, price=1e9, least=1)


class World:
    """A store with a hand that writes, an eye that reads as devices do, and the upkeep of it."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self.hand = WrittenStore(address)
        self.reader: StoreReader = open_backend(address).open_reader()
        self.upkeep: UpkeepStore = open_backend(address).open_compaction()

    def compact(self, thrift: Thrift = FREE, *, stopping: Callable[[float], bool] = lambda _: False) -> None:
        """By command: up to now, and at once."""
        with UpkeepWork(self.upkeep, "here:1", stopping) as work:
            for bucket in self.states():
                work.bucket(bucket, self.upkeep.checkpoint(), thrift, finish=True)

    def states(self) -> list[BucketState]:
        return list(self.upkeep.buckets(OpId(0)))

    def state(self, name: str) -> BucketState:
        return next(bucket for bucket in self.states() if bucket.name == name)

    def total(self, bucket: str) -> tuple[OpId, int, int]:
        with self.reader.snapshot() as snapshot:
            assert snapshot is not None
            total = snapshot.totals([bucket])[bucket]
            return snapshot.checkpoint.op_id, total.checksum, total.count

    def device(self, bucket: str, model: ModelBucket | None = None) -> ModelBucket:
        """Brings a device to the newest checkpoint, with the checksum it was told."""
        fresh = model is None
        upto, checksum, count = self.total(bucket)
        ops = self.ops(bucket) if fresh else []
        model = read_bucket(self.reader, bucket, upto, model)
        assert model.checksum == checksum
        assert not fresh or len(ops) == count, "a new device gets as many ops as it is told"
        return model

    def ops(self, bucket: str) -> list[dict[str, object]]:
        """All that a new device is sent."""
        return [op for chunk in self.chunks(bucket) for op in parse_ops(chunk.ops)]

    def chunks(self, bucket: str) -> list[Chunk]:
        upto, after, chunks = self.total(bucket)[0], OpId(0), []
        while True:
            chunk = self.reader.chunk(bucket, after, upto)
            if chunk.size:
                chunks.append(chunk)
            after = chunk.next_after
            if not chunk.more:
                return chunks

    def assert_whole(self, *devices: dict[str, ModelBucket]) -> None:
        """Every device ends with the rows that there are, and nothing in the store contradicts itself."""
        expected = {("todos", row_id): {"text": text} for row_id, (_, text) in self.hand.rows.items()}
        for device in devices:
            for bucket in (A, B):
                device[bucket] = self.device(bucket, device.get(bucket))
            assert contents(device.values()) == expected
        assert store_checker.problems(self.address) == []

    def close(self) -> None:
        self.upkeep.close()
        self.reader.close()
        self.hand.close()


@pytest.fixture
def world(new_address: Callable[[], StoreAddress]) -> Iterator[World]:
    made = World(new_address())
    yield made
    made.close()


def kinds(ops: list[dict[str, object]]) -> list[str]:
    return [str(op["op"]) for op in ops]


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
    pieces = world.upkeep.pieces(bucket_key(A), world.upkeep.checkpoint())
    assert all(piece.sealed for piece in pieces)
    assert [piece.size for piece in pieces] == [999, 999, 999, 999, 5]
    assert [chunk.size for chunk in world.chunks(A)] == [piece.size for piece in pieces]
    for piece, chunk in zip(pieces, world.chunks(A), strict=True):
        assert world.upkeep.read(bucket_key(A), piece).replace(b"\n", b",") == chunk.ops
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


def test_one_row_behind_many_dead_ops_ends_as_two(world: World) -> None:
    world.hand.publish({"lives": (A, "x")})
    for n in range(0, 2_000, 500):
        world.hand.write({str(n + i): (A, "short-lived") for i in range(500)})
        world.hand.write({str(n + i): None for i in range(500)})
    old = world.device(A)
    assert world.total(A)[2] > 4_000
    world.compact(Thrift())
    assert kinds(world.ops(A)) == ["CLEAR", "PUT"]
    world.assert_whole({}, {A: old})


def test_rows_put_again_are_news_to_those_who_follow_the_bucket(world: World) -> None:
    world.hand.publish({"lives": (A, "x"), "other": (B, "x")})
    for n in range(20):
        world.hand.write({"busy": (A, str(n))})
    before = world.hand.write({"busy": None})
    world.compact(Thrift())
    now = world.upkeep.checkpoint()
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


def test_what_a_truncate_left_behind_goes(world: World) -> None:
    world.hand.publish({str(n): (A, "x") for n in range(3_000)})
    world.hand.write({str(n): (A, "y") for n in range(5_000, 7_100)})
    before = world.reader.newest()
    world.hand.truncate()
    assert world.upkeep.has_remains(bucket_key(A))
    world.compact()
    assert not world.upkeep.has_remains(bucket_key(A))
    assert before is not None
    assert world.reader.chunk(A, OpId(0), before.checkpoint.op_id).overtaken
    world.hand.write({"1": (A, "again")})
    world.assert_whole({})


def test_history_beyond_what_is_settled_is_left_alone(world: World) -> None:
    world.hand.publish({"1": (A, "x"), "2": (A, "x")})
    upto = world.hand.write({"1": (A, "y")}).op_id
    world.hand.write({"1": (A, "z")})
    with UpkeepWork(world.upkeep, "here:1", lambda _: False) as work:
        work.bucket(world.state(A), upto, LAVISH)
    assert kinds(world.ops(A)) == ["CLEAR", "PUT", "PUT", "PUT"], "the last two are of the same row"
    assert world.state(A).compacted_op == upto
    world.assert_whole({})


def test_a_row_that_changes_meanwhile_is_not_put_again(world: World) -> None:
    world.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    for n in range(30):
        world.hand.write({"busy": (A, str(n))})
    upto = world.upkeep.checkpoint()
    bucket = world.state(A)
    world.hand.write({"goes": (A, "newer")})
    with UpkeepWork(world.upkeep, "here:1", lambda _: False) as work:
        result = work.bucket(bucket, upto, LAVISH)
    assert result is not None
    assert result.again >= 1
    world.assert_whole({})


def test_of_rows_to_be_put_again_those_with_a_newer_op_are_left_out(world: World) -> None:
    world.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    bucket, seen = world.state(A), world.upkeep.checkpoint()
    run = world.upkeep.read(bucket.key, world.upkeep.pieces(bucket.key, seen)[-1])
    history = compaction.survey([2], lambda _: run)
    (rows,) = compaction.standing_before(Cut(1, 0, 0, 2, 0), history, lambda _: run)
    world.hand.write({"goes": None})
    lease = world.upkeep.acquire("here:1", 30.0)
    put, newest = world.upkeep.put_again(lease, bucket, seen, rows)
    world.upkeep.release(lease)
    assert (put, newest) == (1, world.upkeep.checkpoint())
    world.assert_whole({})


def test_a_bucket_that_is_cleared_meanwhile_is_left_as_it_is(world: World) -> None:
    world.hand.publish({str(n): (A, "x") for n in range(50)})
    bucket = world.state(A)
    pieces = world.upkeep.pieces(bucket.key, world.upkeep.checkpoint())
    world.hand.truncate()
    lease = world.upkeep.acquire("here:1", 30.0)
    with pytest.raises(HistoryChangedError):
        world.upkeep.replace(lease, bucket, pieces, [], OpId(0))
    with pytest.raises(HistoryChangedError):
        world.upkeep.put_again(lease, bucket, pieces[-1].last, [])
    world.upkeep.release(lease)
    world.assert_whole({})


def test_only_one_at_a_time_compacts(world: World) -> None:
    other = open_backend(world.address).open_compaction()
    lease = world.upkeep.acquire("here:1", 30.0)
    with pytest.raises(LeaseHeldError):
        other.acquire("there:2", 30.0)
    world.upkeep.acquire("here:1", 30.0)
    with pytest.raises(LeaseLostError):
        world.upkeep.renew(lease)
    other.close()


def test_upkeep_is_no_replicator(world: World) -> None:
    world.hand.store.release(world.hand.lease)
    world.upkeep.acquire("here:1", 30.0)
    assert not world.reader.replicator_alive()


def test_old_records_of_flushes_are_forgotten(world: World) -> None:
    first = world.hand.publish({"1": (A, "x")})
    for n in range(30):
        world.hand.write({"1": (A, str(n))})
    lease = world.upkeep.acquire("here:1", 30.0)
    assert world.upkeep.prune(lease, 10) == 21
    assert world.upkeep.prune(lease, 10) == 0
    now = world.upkeep.checkpoint()
    assert world.reader.touched(first.op_id, now).buckets is None
    assert world.reader.touched(OpId(now - 1), now).buckets == frozenset({A})


_ROWS = st.sampled_from([str(n) for n in range(10)])
_TARGET = st.one_of(st.none(), st.tuples(st.sampled_from([A, B]), st.sampled_from(["x", "y", "z"])))
_STEP = st.one_of(
    st.dictionaries(_ROWS, _TARGET, min_size=1, max_size=5),
    st.sampled_from(["truncate", "publish", "compact", "compact", "lavish", "lavish", "halfway"]),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.dictionaries(_ROWS, _TARGET.filter(bool), max_size=8), steps=st.lists(_STEP, max_size=12))
def test_every_device_converges_whenever_compaction_ran(
    new_address: Callable[[], StoreAddress],
    first: dict[str, tuple[str, str]],
    steps: list[dict[str, tuple[str, str] | None] | str],
) -> None:
    world = World(new_address())
    try:
        _live(world, first, steps)
    finally:
        world.close()


def _live(
    world: World, first: dict[str, tuple[str, str]], steps: list[dict[str, tuple[str, str] | None] | str]
) -> None:
    world.hand.publish(first)
    devices: list[dict[str, ModelBucket]] = [{A: world.device(A), B: world.device(B)}]
    for step in steps:
        match step:
            case "truncate":
                world.hand.truncate()
            case "publish":
                world.hand.publish(dict(world.hand.rows))
            case "compact":
                world.compact()
            case "lavish":
                world.compact(LAVISH)
            case str():
                interrupted(world)
            case _:
                world.hand.write(step)
        devices.append({A: world.device(A), B: world.device(B)})
        partial(world, devices)
    world.assert_whole({}, *devices)


def interrupted(world: World) -> None:
    """Compaction that is ended after its second transaction."""
    left = iter([False, False, True])
    try:
        world.compact(LAVISH, stopping=lambda _: next(left, True))
    except UpkeepStoppedError:
        pass


def partial(world: World, devices: list[dict[str, ModelBucket]]) -> None:
    """Devices that were cut off after so many ops, wherever that is."""
    for bucket in (A, B):
        ops = world.ops(bucket)
        for had in {len(ops) // 3, len(ops) - 1}:
            model = ModelBucket()
            for op in ops[: max(0, had)]:
                model.apply(op)
            devices.append({bucket: model})


def test_a_download_during_compaction_converges(world: World) -> None:
    """A reader and a writer at work while the same bucket is compacted over and over."""
    world.hand.publish({str(n): (A, "first") for n in range(1_200)})
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                follow(world)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(5):
            world.hand.write({str(i): (A, f"round {n}") for i in range(n * 40, n * 40 + 200)})
            world.compact(LAVISH if n % 3 == 2 else FREE)
    finally:
        stop.set()
        reader.join()
    assert failures == []
    world.assert_whole({})


def follow(world: World) -> None:
    """One device: chunk by chunk to the newest checkpoint; on to a newer one whenever a chunk is overtaken."""
    model = ModelBucket()
    while True:
        upto, checksum, _ = world.total(A)
        overtaken, after = False, OpId(model.position)
        while True:
            chunk = world.reader.chunk(A, after, upto)
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


def test_a_hot_tail_is_sealed_without_a_look_at_the_rest(world: World) -> None:
    world.hand.publish({str(n): (A, "x") for n in range(1_500)})
    world.compact()
    sealed = world.upkeep.pieces(bucket_key(A), world.upkeep.checkpoint())
    for n in range(5_000, 6_200, 400):
        world.hand.write({str(n + i): (A, "x") for i in range(400)})
    world.hand.write({"5000": (A, "y"), "0": (A, "y")})
    read: list[int] = []
    with UpkeepWork(_Watched(world.upkeep, read), "here:1", lambda _: False) as work:
        work.seal(world.state(A), world.upkeep.checkpoint())
    assert world.upkeep.hot_ops(bucket_key(A), world.upkeep.checkpoint(), 10) == 0
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

        def hot_ops(self, key: int, upto: OpId, limit: int) -> int:
            return limit

    assert need(bucket, cast("UpkeepStore", Store()), OpId(100), Thrift()) is expected
