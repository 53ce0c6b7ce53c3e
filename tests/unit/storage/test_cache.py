"""The shared memory of chunks, over a store in memory whose history is rewritten under it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.api.streams.cache import ENTRY_BYTES, ChunkCache, Written
from headwater.api.streams.encoding import EncodedPiece
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.storage.contract.store import StoreBusyError
from tests.support.examples import examples
from tests.support.memory_store import MemoryStore

ROOM = 1 << 20


@pytest.fixture
def store() -> MemoryStore:
    """Bucket `b` with rows 1 to 5 at op ids 1 to 5, in chunks of two."""
    store = MemoryStore(chunk_ops=2)
    for row in range(1, 6):
        store.put("b", str(row))
    store.commit()
    return store


@dataclass(frozen=True)
class Named:
    """A form: the ops, with its name before them."""

    name: str = ""

    def write(self, bucket: str, after: OpId, chunk: Chunk) -> bytes:
        return self.name.encode() + chunk.ops


def read(store: MemoryStore | ChunkCache, upto: int, after: int = 0, form: str = "") -> Chunk:
    """What is there of bucket `b`, from memory if there is one."""
    if not isinstance(store, ChunkCache):
        return store.chunk("b", OpId(after), OpId(upto))
    with store.reader.snapshot():
        marks = store.reader.marks(["b"]).get("b")
        written = store.written(Named(form), "b", OpId(after), OpId(upto), marks)
    assert not isinstance(written.content, EncodedPiece)
    return replace(written.chunk, ops=written.content or b"")


def reads_of(store: MemoryStore) -> int:
    return sum(name.startswith("chunk") for name in store.reads)


def test_chunk_is_read_once(store: MemoryStore) -> None:
    cached = ChunkCache(store, ROOM)
    first = [read(cached, 5, after) for after in (0, 2, 4)]
    assert [read(cached, 5, after) for after in (0, 2, 4)] == first
    assert [(part.size, part.next_after, part.more) for part in first] == [(2, 2, True), (2, 4, True), (1, 5, False)]
    assert reads_of(store) == 3


def test_later_checkpoint_without_changes(store: MemoryStore) -> None:
    cached = ChunkCache(store, ROOM)
    before = [read(cached, 5, after) for after in (0, 4)]
    store.put("other", "1")
    store.commit()
    assert [read(cached, 6, after) for after in (0, 4)] == before
    assert reads_of(store) == 2


def test_full_chunk_of_a_grown_bucket(store: MemoryStore) -> None:
    cached = ChunkCache(store, ROOM)
    full = read(cached, 5)
    assert read(cached, 5, 4).size == 1
    store.put("b", "6")
    store.commit()
    store.reads.clear()
    assert read(cached, 6) == full
    assert reads_of(store) == 0
    assert read(cached, 6, 4) == read(store, 6, 4)


def test_chunk_read_before_a_compaction(store: MemoryStore) -> None:
    cached = ChunkCache(store, ROOM)
    store.put("b", "1", '{"changed":1}')
    store.commit()
    before, old = store.marks(["b"])["b"], read(store, 6)
    store.compact("b")
    honest = store.chunk
    store.chunk = lambda bucket, after, upto: old  # type: ignore[method-assign]  # as within a snapshot
    assert cached.written(Named(), "b", OpId(0), OpId(6), before).content == old.ops
    store.chunk = honest  # type: ignore[method-assign]
    assert read(cached, 6) == read(store, 6) != old


def test_client_that_has_all(store: MemoryStore) -> None:
    cached = ChunkCache(store, ROOM)
    store.put("other", "1")
    store.commit()
    assert read(cached, 6, 5) == Chunk(b"", 0, OpId(5), more=False)
    assert reads_of(store) == 0


def test_unknown_bucket(store: MemoryStore) -> None:
    written = ChunkCache(store, ROOM).written(Named(), "nobody's", OpId(0), OpId(5), None)
    assert written == Written(Chunk(b"", 0, OpId(0), more=False), None)


def test_least_recently_used_goes(store: MemoryStore) -> None:
    one = len(read(store, 5).ops) + ENTRY_BYTES
    cached = ChunkCache(store, 2 * one)
    read(cached, 5, 0)
    read(cached, 5, 2)
    read(cached, 5, 0)
    read(cached, 5, 1)  # puts out the one after 2
    assert cached.kept_bytes <= 2 * one
    store.reads.clear()
    read(cached, 5, 0)
    assert reads_of(store) == 0
    read(cached, 5, 2)
    assert reads_of(store) == 1


@pytest.mark.parametrize("capacity", [0, ENTRY_BYTES])
def test_without_room(store: MemoryStore, capacity: int) -> None:
    cached = ChunkCache(store, capacity)
    assert read(cached, 5) == read(cached, 5) == read(store, 5)
    assert reads_of(store) == 3
    assert cached.kept_bytes == 0


def test_forms(store: MemoryStore) -> None:
    cached = ChunkCache(store, ROOM)
    plain = read(store, 5)
    store.reads.clear()
    for name in ("one", "two", "one", "two"):
        assert read(cached, 5, form=name) == replace(plain, ops=name.encode() + plain.ops)
    assert reads_of(store) == 2


class HeldStore(MemoryStore):
    """The first reader of a chunk waits for a second one, for a while."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inside = threading.Semaphore(0)
        self.first = threading.Lock()
        self.failure: Exception | None = None

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        if self.first.acquire(blocking=False):
            self.inside.acquire(timeout=0.5)
            if self.failure is not None:
                raise self.failure
        else:
            self.inside.release()
        return super().chunk(bucket, after, upto)


def held() -> HeldStore:
    store = HeldStore(chunk_ops=2)
    store.put("b", "1")
    store.commit()
    return store


def ask_at_once(cached: ChunkCache, count: int) -> list[Chunk | Exception]:
    answers: list[Chunk | Exception] = []

    def ask() -> None:
        try:
            answers.append(read(cached, 1))
        except StoreBusyError as error:
            answers.append(error)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_concurrent_reads_are_one() -> None:
    store = held()
    answers = ask_at_once(ChunkCache(store, ROOM), 4)
    assert answers == [MemoryStore.chunk(store, "b", OpId(0), OpId(1))] * 4
    assert reads_of(store) == 2  # theirs, and the one in the line above


def test_failed_read_is_repeated() -> None:
    store = held()
    store.failure = StoreBusyError("the store is busy")
    answers = ask_at_once(ChunkCache(store, ROOM), 3)
    assert sorted(type(answer).__name__ for answer in answers) == ["Chunk", "Chunk", "StoreBusyError"]


class CachedStore:
    """A store, a cache over it, and every checkpoint there was."""

    def __init__(self, capacity: int) -> None:
        self.store = MemoryStore(chunk_ops=2)
        self.capacity = capacity
        self.cached = ChunkCache(self.store, capacity)
        self.checkpoints = [0]
        self.version = 0

    def put(self, row: int) -> None:
        self.version += 1
        self.store.put("b", str(row), f'{{"v":{self.version}}}')

    def remove(self, row: int) -> None:
        self.store.remove("b", str(row))

    def clear(self) -> None:
        self.store.clear("b")

    def commit(self) -> None:
        self.checkpoints.append(self.store.commit().op_id)

    def compact(self) -> None:
        self.store.compact("b")

    def read(self, after: int, age: int) -> None:
        upto = self.checkpoints[max(0, len(self.checkpoints) - 1 - age)]
        answer, truth = read(self.cached, upto, after), read(self.store, upto, after)
        # a full chunk may say "more" of a checkpoint that ends with it: the next one is then empty
        assert replace(answer, more=truth.more) == truth
        assert answer.more or not truth.more
        assert self.cached.kept_bytes <= self.capacity


rows = st.integers(1, 4)
steps = st.one_of(
    st.tuples(st.just("put"), rows),
    st.tuples(st.just("remove"), rows),
    st.tuples(st.just("clear")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("read"), st.integers(0, 12), st.integers(0, 3)),
)


ROWS: list[tuple[object, ...]] = [*(("put", row) for row in range(1, 5)), ("commit",), ("put", 1), ("commit",)]
BOTH: list[tuple[object, ...]] = [("commit",), ("read", 0, 0), ("read", 0, 1)]


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(steps, max_size=60), st.sampled_from([0, 1500, ROOM]))
@example([*ROWS, ("read", 0, 0), ("read", 0, 1), ("read", 0, 9)], ROOM).via("an earlier checkpoint, and none")
@example([*ROWS, ("read", 0, 0), ("clear",), *BOTH, ("read", 0, 0)], ROOM).via("a bucket that was cleared")
@example([*ROWS, ("read", 0, 0), ("put", 1), *BOTH, ("compact",), *BOTH, *BOTH], ROOM).via("a compaction in between")
@example([("clear",), ("put", 1), *[("put", 2)] * 3, ("commit",), ("read", 2, 0), ("compact",), ("read", 2, 0)], ROOM)
@example([("clear",), ("commit",), ("compact",), ("read", 1, 1)], ROOM).via("overtaken, with everything")
def test_cache_equals_the_store(script: list[tuple[object, ...]], capacity: int) -> None:
    world = CachedStore(capacity)
    for name, *arguments in script:
        getattr(world, str(name))(*arguments)
