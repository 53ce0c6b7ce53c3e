"""What `storage.contract` promises, asked of every store."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import RowKeys, row_ops
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import LeaseHeldError, LeaseLostError, ReplicationProgress
from headwater.storage.open import open_store
from headwater.storage.shared import segments
from headwater_rules.results import LookupEntry
from tests.contract.source_writer import SOURCE, A, B, SourceWriter, assert_in_step, lookups, named, put, totals
from tests.support.examples import examples
from tests.support.fix_headwater import read_bucket as read
from tests.support.model_device import ModelBucket, contents, parse_ops


def test_nothing_before_publication(writer: SourceWriter, reader: StoreReader) -> None:
    with reader.snapshot() as snapshot:
        assert snapshot is None
    assert reader.newest() is None


def test_published_rows(writer: SourceWriter, reader: StoreReader) -> None:
    rows = {str(i): (A if i % 3 else B, f"text {i}") for i in range(5000)}
    writer.bootstrap(rows, parts=3)
    a, b = assert_in_step(reader, A), assert_in_step(reader, B)
    assert contents([a, b]) == {("todos", row_id): {"text": text} for row_id, (_, text) in rows.items()}


def test_new_bucket_begins_with_a_clear(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    checkpoint = writer.write({"2": (B, "y")})
    for bucket in (A, B):
        first = parse_ops(reader.chunk(bucket, OpId(0), checkpoint.op_id).ops)[0]
        assert first["op"] == "CLEAR"


def test_unknown_bucket(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    assert totals(reader, "nobody[]")[1:] == (0, 0)
    assert reader.chunk("nobody[]", OpId(0), OpId(2**53)).size == 0


def test_reader_stops_at_its_checkpoint(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    early = writer.write({"2": (A, "y")}).op_id
    writer.write({"2": (A, "z"), "3": (A, "w")})
    model = read(reader, A, early)
    assert contents([model]) == {("todos", "1"): {"text": "x"}, ("todos", "2"): {"text": "y"}}


def test_rollback(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    before = totals(reader, A)
    with writer.rolled_back() as flush:
        flush.append(
            row_ops((), [put(A, "9", "lost")], RowKeys(writer.table, "9", writer.keys))[0], {A: named(writer.keys, A)}
        )
    assert totals(reader, A) == before
    writer.write({"2": (A, "y")})
    assert_in_step(reader, A)


def test_rollback_forgets_buckets(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    with writer.rolled_back() as flush:
        flush.append(
            row_ops((), [put(B, "9", "lost")], RowKeys(writer.table, "9", writer.keys))[0], {B: named(writer.keys, B)}
        )
    writer.write({"9": (B, "kept")})
    assert contents([assert_in_step(reader, B)]) == {("todos", "9"): {"text": "kept"}}


def test_truncate(writer: SourceWriter, reader: StoreReader) -> None:
    before = writer.bootstrap({str(i): (A if i % 2 else B, "x") for i in range(2000)})
    after = writer.truncate()
    for bucket in (A, B):
        assert reader.chunk(bucket, OpId(0), after.op_id).size == 1
        assert assert_in_step(reader, bucket).rows == {}
        assert len(read(reader, bucket, before.op_id).rows) == 1000
        halfway = ModelBucket()
        for op in parse_ops(reader.chunk(bucket, OpId(0), before.op_id).ops)[:300]:
            halfway.apply(op)
        assert assert_in_step(reader, bucket, halfway).rows == {}
    writer.write({"1": (A, "again")})
    assert len(assert_in_step(reader, A).rows) == 1


def test_publish_again(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x"), "2": (A, "y")})
    device = assert_in_step(reader, A)
    writer.write({"3": (A, "z")})
    writer.bootstrap({"2": (A, "y")})
    assert contents([assert_in_step(reader, A, device)]) == {("todos", "2"): {"text": "y"}}


def test_rebuilt_store(writer: SourceWriter, new_writer: Callable[[], SourceWriter]) -> None:
    last = writer.bootstrap({str(i): (A, "x") for i in range(3000)}).op_id
    rebuilt = new_writer()
    checkpoint = rebuilt.bootstrap({"1": (A, "x")})
    first = open_store(rebuilt.address).open_reader()
    assert min(int(str(op["op_id"])) for op in parse_ops(first.chunk(A, OpId(0), checkpoint.op_id).ops)) > last
    first.close()


def test_touched(writer: SourceWriter, reader: StoreReader) -> None:
    first = writer.bootstrap({"1": (A, "x"), "2": (B, "y")})
    flush = writer.store.begin(writer.lease)
    flush.replace_lookups(writer.table, "1", [LookupEntry('l["u"]', "[1]")])
    middle = flush.commit(SOURCE, ReplicationProgress(Lsn(500)))
    last = writer.write({"2": (B, "changed")}, lsn=510)
    assert reader.touched(first.op_id, middle.op_id).lookups == frozenset({'l["u"]'})
    assert reader.touched(middle.op_id, last.op_id).buckets == frozenset({B})
    assert reader.touched(first.op_id, last.op_id).buckets == frozenset({B})
    assert reader.touched(OpId(0), last.op_id).buckets is None


def test_lookups_follow_their_rows(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    for entries, expected in (
        ([LookupEntry("k", "[1]"), LookupEntry("k", "[2]")], ["[1]", "[2]"]),
        ([LookupEntry("k", "[2]"), LookupEntry("other", "[9]")], ["[2]"]),
        ([], []),
    ):
        with writer.flush() as flush:
            flush.replace_lookups(writer.table, "1", entries)
        assert lookups(reader, ["k"])["k"] == expected


def test_source_position(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.write({"1": (A, "y")}, lsn=777)
    state = writer.store.source_state(SOURCE)
    assert state is not None
    assert state.lsn == 777
    checkpoint = reader.newest()
    assert checkpoint is not None
    assert checkpoint.checkpoint.lsns == {SOURCE: 777}


def test_second_holder(writer: SourceWriter) -> None:
    other = open_store(writer.address).open_writer()
    with pytest.raises(LeaseHeldError):
        other.acquire(SOURCE, "there:2", 30.0)
    writer.store.acquire(SOURCE, "here:1", 0.0)  # expires at once
    newer = other.acquire(SOURCE, "there:2", 30.0)
    with pytest.raises(LeaseLostError):
        writer.store.begin(writer.lease).lock()
    with pytest.raises(LeaseLostError):
        writer.store.renew(writer.lease)
    other.begin(newer).rollback()
    other.close()


def test_listener(writer: SourceWriter, reader: StoreReader) -> None:
    listener = reader.listen()
    assert not select.select([listener], [], [], 0)[0]
    writer.bootstrap({"1": (A, "x")})
    assert select.select([listener], [], [], 10)[0]
    listener.drain()
    assert not select.select([listener], [], [], 0)[0]
    writer.write({"1": (A, "y")})
    assert select.select([listener], [], [], 10)[0]
    listener.close()


def test_lost_position(writer: SourceWriter, reader: StoreReader) -> None:
    reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(50), "other": Lsn(50)})
    reader.create_write_checkpoint(["u/2"], {SOURCE: Lsn(30)})
    seen = max(write.seq for write in reader.write_checkpoints(0))
    writer.store.rewind_write_checkpoints(SOURCE, Lsn(40))
    (capped,) = reader.write_checkpoints(seen)
    assert (capped.key, capped.id, capped.lsns) == ("u/1", 1, {SOURCE: Lsn(40), "other": Lsn(50)})
    second = reader.write_checkpoint("u/2")
    assert second is not None
    assert second.lsns == {SOURCE: Lsn(30)}


def test_position_of_a_source_that_is_not_asked_is_kept(reader: StoreReader) -> None:
    reader.create_write_checkpoint(["u/1"], {"one": Lsn(50), "two": Lsn(5)})
    reader.create_write_checkpoint(["u/1"], {"two": Lsn(7)})
    reader.request_write_checkpoint({"u/1": 3}, {"three": Lsn(1)})
    write = reader.write_checkpoint("u/1")
    assert write is not None
    assert (write.id, write.lsns) == (3, {"one": Lsn(50), "two": Lsn(7), "three": Lsn(1)})


def test_chosen_number(reader: StoreReader) -> None:
    assert reader.request_write_checkpoint({"u/1": 5, "u/2": 2**63 - 1}, {SOURCE: Lsn(5)}) == {
        "u/1": 5,
        "u/2": 2**63 - 1,
    }
    seen = max(write.seq for write in reader.write_checkpoints(0))
    assert reader.request_write_checkpoint({"u/1": 5}, {SOURCE: Lsn(7)}) == {"u/1": 5}
    assert reader.request_write_checkpoint({"u/1": 3}, {SOURCE: Lsn(8)}) == {"u/1": 5}
    assert reader.write_checkpoints(seen) == [], "nothing is news"
    assert reader.request_write_checkpoint({"u/1": 9}, {SOURCE: Lsn(6)}) == {"u/1": 9}
    (write,) = reader.write_checkpoints(seen)
    assert (write.key, write.id, write.lsns) == ("u/1", 9, {SOURCE: Lsn(6)})
    assert reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(9)}) == {"u/1": 10}
    assert reader.create_write_checkpoint(["u/2"], {SOURCE: Lsn(9)}) == {"u/2": 2**63 - 1}, "there is no higher one"


def test_chosen_numbers_are_forgotten(reader: StoreReader) -> None:
    reader.request_write_checkpoint({"old": 5, "taken over": 5}, {SOURCE: Lsn(5)})
    reader.create_write_checkpoint(["given", "taken over"], {SOURCE: Lsn(5)})
    assert reader.forget_write_requests(3600) == 0
    assert reader.forget_write_requests(-1) == 1
    assert reader.write_checkpoint("old") is None
    assert reader.write_checkpoint("given") is not None
    assert reader.write_checkpoint("taken over") is not None
    seen = max(write.seq for write in reader.write_checkpoints(0))
    reader.request_write_checkpoint({"old": 6}, {SOURCE: Lsn(5)})
    assert [write.key for write in reader.write_checkpoints(seen)] == ["old"], "whoever follows misses nothing"
    reader.forget_write_requests(-1)
    reader.request_write_checkpoint({"new": 1}, {SOURCE: Lsn(5)})
    assert [write.key for write in reader.write_checkpoints(seen + 1)] == ["new"]


def test_asked_number_is_kept(reader: StoreReader) -> None:
    assert forgotten_when_asked_again(reader, 0.05) <= 1
    assert reader.write_checkpoint("u") is not None


def forgotten_when_asked_again(reader: StoreReader, pause: float) -> int:
    """How many numbers of two are forgotten of which one was asked for again, after a pause by the store's clock. Once
    more with a longer one where the machine was so busy that both are old by then."""
    reader.request_write_checkpoint({"u": 5, "other": 1}, {})
    time.sleep(pause)
    again = time.monotonic()
    reader.request_write_checkpoint({"u": 5}, {})
    forgotten = reader.forget_write_requests(0.8 * pause)
    late = time.monotonic() - again >= 0.8 * pause
    return forgotten_when_asked_again(reader, 5 * pause) if late else forgotten


def test_write_checkpoints_grow_per_key(reader: StoreReader) -> None:
    assert reader.newest_write() == 0
    assert reader.create_write_checkpoint(["u/1", "u/2", "u/1"], {SOURCE: Lsn(5)}) == {"u/1": 1, "u/2": 1}
    assert reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(9)}) == {"u/1": 2}
    newest = reader.write_checkpoint("u/1")
    assert newest is not None
    assert (newest.id, newest.lsns) == (2, {SOURCE: 9})
    assert [w.key for w in reader.write_checkpoints(0)] == ["u/2", "u/1"]
    assert reader.newest_write() == newest.seq
    assert [w.key for w in reader.write_checkpoints(2)] == ["u/1"]


def test_chunks_of_large_rows(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"0": (A, "x")})
    checkpoint = writer.write({**{str(i): (A, "y" * 400_000) for i in range(1, 8)}, "9": (A, "z" * 3_000_000)})
    after, sizes = OpId(0), []
    while True:
        chunk = reader.chunk(A, after, checkpoint.op_id)
        sizes.append(len(chunk.ops))
        after = chunk.next_after
        if not chunk.more:
            break
        assert chunk.size == 1 or len(chunk.ops) <= 1 << 20
    assert len(sizes) >= 4


_ROWS = st.sampled_from([str(i) for i in range(12)])
_TARGET = st.one_of(st.none(), st.tuples(st.sampled_from([A, B]), st.sampled_from(["x", "y", "z"])))
_STEP = st.one_of(
    st.dictionaries(_ROWS, _TARGET, min_size=1, max_size=6),
    st.just("truncate"),
    st.just("publish"),
)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.dictionaries(_ROWS, _TARGET.filter(bool), max_size=8),
    steps=st.lists(_STEP, max_size=8),
    least_run=st.sampled_from([1, 2, segments.RUN_OPS]),
)
def test_devices_converge(
    new_writer: Callable[[], SourceWriter],
    first: dict[str, tuple[str, str]],
    steps: list[dict[str, tuple[str, str] | None] | str],
    least_run: int,
) -> None:
    with patch.object(segments, "RUN_OPS", least_run):
        _live(new_writer(), first, steps)


def _live(
    writer: SourceWriter, first: dict[str, tuple[str, str]], steps: list[dict[str, tuple[str, str] | None] | str]
) -> None:
    reader = open_store(writer.address).open_reader()
    truth = dict(first)
    writer.bootstrap(truth, parts=2)
    devices = [{A: assert_in_step(reader, A), B: assert_in_step(reader, B)}]
    for step in steps:
        if step == "truncate":
            truth.clear()
            writer.truncate()
        elif step == "publish":
            writer.bootstrap(truth, parts=2)
        else:
            assert isinstance(step, dict)
            for row_id, target in step.items():
                truth.pop(row_id, None)
                if target is not None:
                    truth[row_id] = target
            writer.write(step)
        devices.append({A: assert_in_step(reader, A), B: assert_in_step(reader, B)})
    expected = {("todos", row_id): {"text": text} for row_id, (_, text) in truth.items()}
    for device in devices:
        for bucket, model in device.items():
            assert_in_step(reader, bucket, model)
        assert contents(device.values()) == expected
    reader.close()
    writer.store.close()
