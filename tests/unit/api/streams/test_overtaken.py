"""Compaction goes past a checkpoint while a client downloads it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.api.streams import session as sessions
from headwater.api.streams.cache import ChunkCache
from headwater.api.streams.encoding import IDENTITY, Batch, WireForm
from headwater.api.streams.session import LeftOutMemory, SyncSession
from headwater.api.streams.threads import open_snapshot
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import BucketTotal, Chunk, StoredConfig
from headwater.sync.client_state import BucketDownload, ClientState, View
from headwater.sync.formats import Ndjson
from headwater.sync.interest import News
from headwater_rules.results import LookupReader, Resolution, ResolvedBucket, SyncRequest
from tests.support.examples import examples
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient

BUCKETS = ("urgent", "late", "last")
RESOLUTION = Resolution(tuple(ResolvedBucket(name, 0, n, ()) for n, name in enumerate(BUCKETS)), ())


class Everything:
    """Gives all buckets to everybody, each with a priority of its own."""

    def resolve(
        self, config: StoredConfig, request: SyncRequest, read: LookupReader, left_out: frozenset[str]
    ) -> Resolution:
        return RESOLUTION


class SlowClient:
    """A client that takes one batch at a time, while the store moves on."""

    def __init__(self) -> None:
        self.store = MemoryStore(chunk_ops=2)
        for bucket in BUCKETS:
            self.store.clear(bucket)
            for row in "12345":
                self.store.put(bucket, bucket + row)
        self.states: dict[OpId, object] = {}
        self._commit()
        self.client = ModelClient()
        self.reader = ChunkCache(self.store, 1 << 20)
        form = WireForm(Ndjson(raw=True), IDENTITY)
        self.session = SyncSession({}, SyncRequest({}), "u", Everything().resolve, LeftOutMemory(), form)
        with open_snapshot(self.reader) as reading:
            self._take(self.session.open(reading))

    def step(self) -> None:
        """What a stream does next: finish the checkpoint, or look for a newer one."""
        with open_snapshot(self.reader) as reading:
            if self.done or self.session.overtaken:
                batch = self.session.turn(reading, News(self.session.op_id, lookups=True))
                assert batch is not None
                self._take(batch)
            else:
                self._take(self.session.more(reading))

    def write(self, bucket: str, row: str, value: int | None) -> None:
        if value is None:
            self.store.remove(bucket, bucket + row)
        else:
            self.store.put(bucket, bucket + row, json.dumps({"value": value}))
        self._commit()

    def _commit(self) -> None:
        op_id = self.store.commit().op_id
        self.states[op_id] = self.store.rows(BUCKETS)

    def _take(self, batch: Batch) -> None:
        self.done = batch.done
        before = self.client.completed
        self.client.receive(b"".join(piece.content for piece in batch.pieces))
        if self.client.completed > before:
            assert self.client.rows == self.states[self.session.op_id], "what is complete is a state of the store"


_STEPS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(BUCKETS), st.sampled_from("1234567"), st.none() | st.integers(0, 9)),
    st.tuples(st.just("compact"), st.sampled_from(BUCKETS)),
    st.tuples(st.just("step")),
)


@pytest.fixture
def _one_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "BATCH_BYTES", 1)


@pytest.mark.usefixtures("_one_chunk_at_a_time")
@settings(max_examples=examples(300), deadline=None)
@given(st.lists(_STEPS, max_size=40))
def test_client_shows_only_states_of_the_store(
    script: list[tuple[object, ...]],
) -> None:
    world = SlowClient()
    for name, *arguments in script:
        if name == "write":
            world.write(*arguments)  # type: ignore[arg-type]  # as drawn
        elif name == "compact":
            world.store.compact(str(arguments[0]))
        else:
            world.step()
    for _ in range(100):
        world.step()
    assert world.client.rows == world.store.rows(BUCKETS)
    assert world.client.completed


@pytest.mark.usefixtures("_one_chunk_at_a_time")
def test_overtaken_checkpoint_is_followed_by_the_newest() -> None:
    world = SlowClient()
    for row in "12345":
        world.write("late", row, 7)
    world.store.compact("late")
    while world.client.completed == 0:
        world.step()
    kinds = world.client.kinds()
    assert kinds.count("checkpoint_diff") == 1
    assert kinds.index("partial_checkpoint_complete") < kinds.index("checkpoint_diff"), "the urgent bucket was whole"
    assert world.client.rows == world.store.rows(BUCKETS)


def session_with_a_download() -> tuple[ClientState, BucketDownload]:
    session = ClientState({})
    session.advance(View(OpId(10), RESOLUTION, dict.fromkeys(BUCKETS, BucketTotal(1, 1)), None))
    download = session.next()
    assert isinstance(download, BucketDownload)
    return session, download


def test_overtaken_chunk_completes_nothing() -> None:
    session, download = session_with_a_download()
    session.receive(download, Chunk(b"{}", 1, OpId(4), more=False, overtaken=True))
    assert session.overtaken
    assert session.interruptible
    diff = session.advance(View(OpId(12), None, {}, None))
    assert diff is not None, "the client is told of the newer checkpoint though nothing it was told has changed"
    assert diff["checkpoint_diff"] == {"last_op_id": "12", "updated_buckets": [], "removed_buckets": []}
    assert session.next() == BucketDownload("urgent", OpId(4), OpId(12))


def test_newer_view_completes_what_was_overtaken() -> None:
    session, download = session_with_a_download()
    session.receive(download, Chunk(b"", 0, OpId(0), more=False, overtaken=True))
    session.advance(View(OpId(12), None, {"late": BucketTotal(5, 2)}, None))
    asked, said = [], []
    while (step := session.next()) is not None:
        if isinstance(step, BucketDownload):
            asked.append(step.bucket)
            session.receive(step, Chunk(b"{}", 1, step.upto, more=False))
        else:
            said.append(next(iter(step)))
    assert sorted(asked) == sorted(BUCKETS)
    assert said == ["partial_checkpoint_complete", "partial_checkpoint_complete", "checkpoint_complete"]
