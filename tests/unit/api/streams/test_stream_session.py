"""A stream's reads of a store that moves on between any two of its steps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.api.streams.cache import ChunkCache
from headwater.api.streams.encoding import IDENTITY, Batch, WireForm
from headwater.api.streams.session import ConfigReplacedError, LeftOutMemory, SyncSession
from headwater.api.streams.threads import SnapshotCache, open_snapshot
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import StoredConfig
from headwater.sync.formats import Ndjson
from headwater.sync.interest import Interests, News, anything
from headwater_rules.results import LookupReader, Resolution, ResolvedBucket, SyncRequest
from tests.support.examples import examples
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient


class Memberships:
    """Gives the buckets that stand under the lookup key `member`."""

    def __init__(self, reason: int = 0) -> None:
        self._reasons = ({"sub": reason},)

    def resolve(
        self, config: StoredConfig, request: SyncRequest, read: LookupReader, left_out: frozenset[str]
    ) -> Resolution:
        names = read(["member"]).get("member", ())
        return Resolution(tuple(ResolvedBucket(name, 0, 3, self._reasons) for name in names), (), frozenset({"member"}))


class LateHub:
    """A store, a hub that is told late, and a client that may lose its connection."""

    def __init__(self) -> None:
        self.store = MemoryStore(chunk_ops=2)
        self.store.put("a", "1")
        self.store.set_lookup("member", ["a"])
        self.seen = self.store.commit().op_id
        self.reader = ChunkCache(self.store, 1 << 20)
        self.client = ModelClient()
        self.connect()

    def connect(self) -> None:
        positions = {name: OpId(position) for name, position in self.client.connect().items()}
        form = WireForm(Ndjson(raw=True), IDENTITY)
        self.session = SyncSession(positions, SyncRequest({}), "u", Memberships().resolve, LeftOutMemory(), form)
        self.interests: Interests[str] = Interests()
        self.news: News | None = None
        with open_snapshot(self.reader) as reading:
            self._take(batch := self.session.open(reading))
            if not batch.done:
                self._take(self.session.more(reading))

    def write(self, bucket: str, row: str, value: int | None) -> None:
        if value is None:
            self.store.remove(bucket, row)
        else:
            self.store.put(bucket, row, json.dumps({"value": value}))
        self.store.commit()

    def join(self, buckets: list[str]) -> None:
        self.store.set_lookup("member", buckets)
        self.store.commit()

    def hub_looks(self) -> None:
        state = self.store.newest()
        assert state is not None
        op_id = state.checkpoint.op_id
        for news in self.interests.concerned(self.store.touched(self.seen, op_id), op_id).values():
            self._tell(news)
        self.seen = op_id

    def client_turns(self) -> None:
        if self.news is None or not self.session.interruptible:
            return
        news, self.news = self.news, None
        if news.upto <= self.session.op_id:
            return
        with open_snapshot(self.reader) as reading:
            batch = self.session.turn(reading, news) or self.session.turn(reading, replace(news, lookups=True))
            assert batch is not None
            self._take(batch)

    def settle(self) -> None:
        for _ in range(3):
            self.hub_looks()
            self.client_turns()

    def _tell(self, news: News) -> None:
        self.news = news if self.news is None else self.news.also(news)

    def _take(self, batch: Batch) -> None:
        self.client.receive(b"".join(piece.content for piece in batch.pieces))
        self.interests.put("client", self.session.interest)
        if self.session.op_id < self.seen:
            self._tell(anything(self.seen))


buckets = st.sampled_from(["a", "b", "c"])
steps = st.one_of(
    st.tuples(st.just("write"), buckets, st.sampled_from(["1", "2"]), st.none() | st.integers(0, 9)),
    st.tuples(st.just("join"), st.lists(buckets, unique=True)),
    st.tuples(st.just("hub_looks")),
    st.tuples(st.just("client_turns")),
    st.tuples(st.just("connect")),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=40))
def test_no_order_of_steps_loses_a_change(script: list[tuple[object, ...]]) -> None:
    late = LateHub()
    for name, *arguments in script:
        getattr(late, str(name))(*arguments)
    late.settle()
    held = list(late.store.outputs("member", OpId(10**9)))
    assert late.client.rows == late.store.rows(held)


def test_line_covers_everything_up_to_its_op_id() -> None:
    late = LateHub()
    late.join(["a", "b"])
    late.hub_looks()
    late.client_turns()
    late.write("a", "1", 1)
    late.hub_looks()
    late.write("b", "1", 2)  # between the wake-up and the client's turn
    late.client_turns()
    assert late.client.rows == late.store.rows(["a", "b"])


def test_turn_reads_totals_of_touched_buckets() -> None:
    late = LateHub()
    late.join(["a", "b", "c"])
    late.hub_looks()
    late.client_turns()
    late.write("b", "1", 2)
    late.hub_looks()
    late.store.reads.clear()
    late.client_turns()
    assert [read for read in late.store.reads if read.startswith("total")] == ["total b"]


def test_write_checkpoint_at_the_start() -> None:
    late = LateHub()
    late.store.create_write_checkpoint(["u"], {"default": Lsn(1)})
    late.connect()
    assert late.client.write_checkpoint == 1
    assert late.session.awaited is None
    late.store.create_write_checkpoint(["u"], {"default": Lsn(2)})
    late.connect()
    assert late.client.kinds()[-1] == "checkpoint_complete"
    assert "write_checkpoint" not in str(late.client.lines[-2])
    assert late.session.awaited == late.store.write_checkpoint("u")


def test_config_replaced() -> None:
    late = LateHub()
    late.store.replace_config("streams: {}")
    with open_snapshot(late.reader) as reading, pytest.raises(ConfigReplacedError):
        late.session.turn(reading, anything(OpId(0)))


def test_turn_without_lookups() -> None:
    late = LateHub()
    told = late.store.commit().op_id
    late.join(["a", "b"])
    news = News(told, frozenset({"a"}))
    before = late.session.op_id
    with open_snapshot(late.reader) as reading:
        assert late.session.turn(reading, news) is None
        assert late.session.op_id == before
        assert late.session.turn(reading, replace(news, lookups=True)) is not None
    assert late.session.interest.buckets == {"a", "b"}


def test_streams_share_lines_only_where_equal() -> None:
    store = MemoryStore()
    store.put("a", "1")
    store.set_lookup("member", ["a"])
    store.commit()
    reader, form = ChunkCache(store, 1 << 20), WireForm(Ndjson(raw=True), IDENTITY)

    def connected(reason: int = 0) -> tuple[SyncSession, ModelClient]:
        session = SyncSession({}, SyncRequest({}), "u", Memberships(reason).resolve, LeftOutMemory(), form)
        client = ModelClient()
        client.connect()
        with open_snapshot(reader) as reading:
            receive(client, session.open(reading))
            receive(client, session.more(reading))
        return session, client

    def receive(client: ModelClient, batch: Batch) -> Batch:
        client.receive(b"".join(piece.content for piece in batch.pieces))
        return batch

    def turned(session: SyncSession, reading: SnapshotCache, news: News) -> Batch:
        batch = session.turn(reading, news)
        assert batch is not None
        return batch

    batches: list[Batch] = []
    first, second, other, late = connected(), connected(), connected(reason=7), connected()
    for row, concerned in (("2", [first, second]), ("3", [first, second, other, late])):
        store.put("a", row)
        news = News(store.commit().op_id, frozenset({"a"}))
        with open_snapshot(reader) as reading:
            batches = [receive(client, turned(session, reading, news)) for session, client in concerned]
        assert batches[0] is batches[1]
    assert all(client.rows == store.rows(["a"]) for _, client in (first, second, other, late))
    assert b'"subscriptions":[{"sub":7}]' in batches[2].pieces[0].content
    assert [batch.ops for batch in batches] == [1, 1, 2, 2]
