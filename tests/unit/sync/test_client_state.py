"""What a session says, line by line, for views of the store that a test makes up."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import BucketTotal, Chunk
from headwater.sync.client_state import INTERRUPTIBLE_AFTER, BucketDownload, ClientState, View
from headwater.sync.formats import Ndjson
from headwater.sync.lines import Line
from headwater_rules.results import Resolution, ResolvedBucket, StreamStatus
from tests.support.examples import examples
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient

TEXT = Ndjson(raw=True)


def resolution(**priorities: int) -> Resolution:
    """Buckets by name, each with its priority."""
    buckets = tuple(ResolvedBucket(name, 0, priority, ({"default": 0},)) for name, priority in priorities.items())
    return Resolution(buckets, (StreamStatus("todos", True),))


def view(
    op_id: int, totals: Mapping[str, int], resolved: Resolution | None = None, write_checkpoint: int | None = None
) -> View:
    """A view in which each bucket has a checksum, and one op for each unit of it."""
    sums = {name: BucketTotal(checksum, checksum) for name, checksum in totals.items()}
    return View(OpId(op_id), resolved, sums, write_checkpoint)


def chunk(size: int, next_after: int, *, more: bool = False) -> Chunk:
    return Chunk(b'{"op_id":"1"}', size, OpId(next_after), more)


def listed(bucket: str, total: int) -> dict[str, object]:
    """A bucket in a checkpoint line."""
    sums = {"checksum": total, "count": total, "priority": 3}
    return {"bucket": bucket, **sums, "subscriptions": [{"default": 0}]}


def downloading(**priorities: int) -> tuple[ClientState, BucketDownload]:
    """A session at op 9 in which each bucket sums to 1, and its first download."""
    session = ClientState({})
    session.advance(view(9, dict.fromkeys(priorities, 1), resolution(**priorities)))
    step = session.next()
    assert isinstance(step, BucketDownload)
    return session, step


def parsed(line: Line | None) -> dict[str, object]:
    assert line is not None
    written = TEXT.line(line)
    assert written.endswith(b"\n")
    fields: dict[str, object] = json.loads(written)
    return fields


def finish(session: ClientState) -> list[dict[str, object]]:
    """Answer every download with one op; returns the lines."""
    said = []
    while (step := session.next()) is not None:
        if isinstance(step, BucketDownload):
            answer = chunk(1, step.upto)
            session.receive(step, answer)
            said.append(json.loads(TEXT.data(step.bucket, step.after, answer)))
        else:
            said.append(parsed(step))
    return said


def started(session: ClientState, **priorities: int) -> ClientState:
    """A session that has sent a first checkpoint, at op 10, in which each bucket sums to 1."""
    session.advance(view(10, dict.fromkeys(priorities, 1), resolution(**priorities)))
    finish(session)
    return session


def test_checkpoint() -> None:
    session = ClientState({})
    line = session.advance(view(9, {"mine": 7}, resolution(mine=3), write_checkpoint=2))
    assert parsed(line) == {
        "checkpoint": {
            "last_op_id": "9",
            "write_checkpoint": "2",
            "buckets": [listed("mine", 7)],
            "streams": [{"name": "todos", "is_default": True, "errors": []}],
        }
    }


def test_download_from_the_position_of_the_client() -> None:
    session = ClientState({'b["1"]': OpId(4)})
    session.advance(view(9, {'b["1"]': 7}, resolution(**{'b["1"]': 3})))
    assert session.next() == BucketDownload('b["1"]', OpId(4), OpId(9))


def test_data_line() -> None:
    ops = b'{"op_id":"5","op":"PUT","data":"{\\"a\\":1.50}"},{"op_id":"6","op":"REMOVE","data":null}'
    assert TEXT.data('b["1"]', OpId(4), Chunk(ops, 2, OpId(6), more=True)) == (
        b'{"data":{"bucket":"b[\\"1\\"]","data":[' + ops + b'],"has_more":true,"after":"4","next_after":"6"}}\n'
    )


def test_data_line_without_raw_data() -> None:
    ops = b'{"op_id":"5","op":"PUT","data":"{\\"a\\":1.50}"},{"op_id":"6","op":"REMOVE","data":null}'
    line = Ndjson(raw=False).data("b", OpId(0), Chunk(ops, 2, OpId(6), more=False))
    assert b'"data":[{"op_id":"5","op":"PUT","data":{"a":1.50}},{"op_id":"6","op":"REMOVE","data":null}]' in line


def test_client_without_buckets() -> None:
    session = ClientState({})
    line = session.advance(view(9, {}, resolution()))
    assert parsed(line)["checkpoint"] == {
        "last_op_id": "9",
        "buckets": [],
        "streams": [{"name": "todos", "is_default": True, "errors": []}],
    }
    assert finish(session) == [{"checkpoint_complete": {"last_op_id": "9"}}]
    assert session.next() is None


def test_no_diff_without_changes() -> None:
    session = started(ClientState({}), a=3, b=3)
    assert session.advance(view(11, {})) is None
    assert session.advance(view(12, {"a": 1, "stranger": 5})) is None
    assert session.advance(view(13, {"a": 1, "b": 1}, resolution(a=3, b=3))) is None
    assert session.next() is None


def test_checkpoint_diff() -> None:
    session = started(ClientState({}), a=3, b=3)
    line = session.advance(view(11, {"a": 1, "b": 2}))
    diff = {"last_op_id": "11", "updated_buckets": [listed("b", 2)], "removed_buckets": []}
    assert parsed(line) == {"checkpoint_diff": diff}
    assert session.next() == BucketDownload("b", OpId(10), OpId(11))


def test_diff_of_a_write_checkpoint() -> None:
    session = started(ClientState({}), a=3)
    line = session.advance(view(10, {}, write_checkpoint=3))
    diff = {"last_op_id": "10", "write_checkpoint": "3", "updated_buckets": [], "removed_buckets": []}
    assert parsed(line) == {"checkpoint_diff": diff}
    assert finish(session) == [{"checkpoint_complete": {"last_op_id": "10"}}]


def test_later_diffs_keep_the_newest_write_checkpoint() -> None:
    session = started(ClientState({}), a=3)
    session.advance(view(10, {}, write_checkpoint=3))
    finish(session)
    assert session.advance(view(11, {}, write_checkpoint=2)) is None
    assert parsed(session.advance(view(11, {"a": 2})))["checkpoint_diff"] == {
        "last_op_id": "11",
        "write_checkpoint": "3",
        "updated_buckets": [listed("a", 2)],
        "removed_buckets": [],
    }


def test_priorities() -> None:
    session = ClientState({})
    priorities = {"slow": 3, "now": 0, "soon": 1, "also_now": 0}
    session.advance(view(9, dict.fromkeys(priorities, 1), resolution(**priorities)))
    said = [next(iter(line.items())) for line in finish(session)]
    summary = [(kind, value.get("bucket", value.get("priority"))) for kind, value in said]  # type: ignore[attr-defined]
    assert summary == [
        ("data", "now"),
        ("data", "also_now"),
        ("partial_checkpoint_complete", 0),
        ("data", "soon"),
        ("partial_checkpoint_complete", 1),
        ("data", "slow"),
        ("checkpoint_complete", None),
    ]


def test_removed_bucket_starts_over() -> None:
    session = started(ClientState({}), a=3, b=3)
    line = parsed(session.advance(view(11, {"a": 1}, resolution(a=3))))
    assert line["checkpoint_diff"] == {"last_op_id": "11", "updated_buckets": [], "removed_buckets": ["b"]}
    finish(session)
    session.advance(view(12, {"a": 1, "b": 1}, resolution(a=3, b=3)))
    assert session.next() == BucketDownload("b", OpId(0), OpId(12))


def test_changed_priority() -> None:
    session = started(ClientState({}), a=3)
    line = parsed(session.advance(view(11, {}, resolution(a=1))))
    assert '"priority": 1' in json.dumps(line["checkpoint_diff"])


def test_positions_of_removed_buckets() -> None:
    session = started(ClientState({"old": OpId(5), "a": OpId(7)}), a=3)
    session.advance(view(11, {"a": 1, "old": 1}, resolution(a=3, old=3)))
    assert session.next() == BucketDownload("old", OpId(0), OpId(11))


def test_client_ahead_of_a_bucket() -> None:
    session = ClientState({"a": OpId(50)})
    session.advance(view(9, {"a": 1}, resolution(a=3)))
    assert finish(session) == [{"checkpoint_complete": {"last_op_id": "9"}}]


def test_upcoming() -> None:
    session = ClientState({})
    session.advance(view(9, {"a": 1, "b": 1, "c": 1}, resolution(a=3, b=1, c=3)))
    assert session.upcoming(2) == ["b", "a"]
    step = session.next()
    assert isinstance(step, BucketDownload)
    session.receive(step, chunk(1, 9))
    assert session.upcoming(9) == ["a", "c"]


def test_empty_chunk() -> None:
    session, step = downloading(a=3)
    session.receive(step, Chunk(b"", 0, OpId(6), more=True))
    assert session.next() == BucketDownload("a", OpId(6), OpId(9))


@pytest.mark.parametrize(("sent", "interruptible"), [(INTERRUPTIBLE_AFTER - 1, False), (INTERRUPTIBLE_AFTER, True)])
def test_interruptible(sent: int, interruptible: bool) -> None:
    session, step = downloading(a=3)
    session.receive(step, chunk(sent, 5, more=True))
    assert session.interruptible is interruptible


def test_interrupted_checkpoint() -> None:
    session, first = downloading(a=3, b=3, c=3)
    session.receive(first, chunk(1, 9))
    second = session.next()
    assert isinstance(second, BucketDownload)
    session.receive(second, chunk(INTERRUPTIBLE_AFTER, 5, more=True))
    session.advance(view(12, {"d": 1}, resolution(a=3, b=3, d=3)))
    downloads = []
    while isinstance(step := session.next(), BucketDownload):
        downloads.append((step.bucket, step.after, step.upto))
        session.receive(step, chunk(1, step.upto))
    assert downloads == [("d", 0, 12), ("b", 5, 12)]


def test_view_without_news() -> None:
    session, step = downloading(a=3)
    session.receive(step, chunk(INTERRUPTIBLE_AFTER, 5, more=True))
    assert session.advance(view(12, {})) is None
    assert session.next() == BucketDownload("a", OpId(5), OpId(9))


BUCKETS = ["a", "b", "c"]
ROWS = ["1", "2"]

changes = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(BUCKETS), st.sampled_from(ROWS), st.integers(0, 9)),
    st.tuples(st.just("remove"), st.sampled_from(BUCKETS), st.sampled_from(ROWS)),
    st.tuples(st.just("clear"), st.sampled_from(BUCKETS)),
)
steps = st.one_of(
    st.tuples(st.just("write"), st.lists(changes, min_size=1, max_size=6)),
    st.tuples(st.just("give"), st.lists(st.tuples(st.sampled_from(BUCKETS), st.integers(0, 3)), max_size=3)),
    st.tuples(st.just("deliver"), st.integers(1, 8)),
    st.tuples(st.just("look")),
    st.tuples(st.just("reconnect")),
)


class Conversation:
    """A model client on a session over a store, driven step by step."""

    def __init__(self) -> None:
        self.store = MemoryStore(chunk_ops=2)
        self.store.put("a", "1")
        self.store.commit()
        self.client = ModelClient()
        self.given = {"a": 3}
        self.reconnect()

    def write(self, items: list[tuple[object, ...]]) -> None:
        for kind, bucket, *rest in items:
            match kind:
                case "put":
                    self.store.put(str(bucket), str(rest[0]), json.dumps({"value": rest[1]}))
                case "remove":
                    self.store.remove(str(bucket), str(rest[0]))
                case _:
                    self.store.clear(str(bucket))
        self.store.commit()

    def give(self, buckets: list[tuple[str, int]]) -> None:
        self.given = dict(buckets)

    def look(self) -> None:
        state = self.store.newest()
        assert state is not None
        op_id = state.checkpoint.op_id
        totals = {name: self.store.total(name, op_id) for name in self.given}
        line = self.session.advance(View(op_id, resolution(**self.given), totals, None))
        if line is not None:
            self.client.receive(TEXT.line(line))

    def deliver(self, count: int) -> None:
        for _ in range(count):
            step = self.session.next()
            if step is None:
                return
            if not isinstance(step, BucketDownload):
                self.client.receive(TEXT.line(step))
                continue
            answer = self.store.chunk(step.bucket, step.after, step.upto)
            self.session.receive(step, answer)
            if answer.size:
                self.client.receive(TEXT.data(step.bucket, step.after, answer))

    def reconnect(self) -> None:
        self.session = ClientState({name: OpId(position) for name, position in self.client.connect().items()})
        self.look()


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(steps, max_size=40))
def test_client_converges(script: list[tuple[object, ...]]) -> None:
    conversation = Conversation()
    for name, *arguments in script:
        getattr(conversation, str(name))(*arguments)
    conversation.look()
    conversation.deliver(10_000)
    assert conversation.client.rows == conversation.store.rows(list(conversation.given))
    assert conversation.client.buckets.keys() == conversation.given.keys()
