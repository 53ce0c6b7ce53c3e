"""What `storage.contract` promises, asked of every store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId, bucket_key
from headwater.oplog.transform import BucketName, RowKeys, decode_members, encode_members, row_ops
from headwater.storage.contract import (
    BulkRecord,
    Checkpoint,
    CurrentRow,
    Lease,
    LeaseHeldError,
    LeaseLostError,
    Progress,
    SourceState,
    StagedPart,
    StoreReader,
    StoreWriter,
)
from headwater.storage.sqlite import SqliteStore
from headwater.storage.sqlite.stage import StageFile
from headwater_rules.results import LookupEntry, Put
from tests.support.fix_headwater import read_bucket as read
from tests.support.model_device import ModelBucket, contents, parse_ops

SOURCE = "default"
RELATION = Relation(1, "public", "todos", ReplicaIdentity.DEFAULT, (Column("id", 25, -1, True),))


@dataclass
class World:
    """A store with one published table, and the hand that writes to it."""

    directory: Path
    store: StoreWriter
    lease: Lease
    table: int = 0
    lsn: int = 100
    names: dict[str, str] = field(default_factory=dict)

    def bootstrap(self, rows: dict[str, tuple[str, str]], *, parts: int = 1) -> Checkpoint:
        """Publish `rows` (id to bucket and text) as a bulk job would, in so many parts."""
        self.store.discard_staged(self.lease)
        (staged,) = self.store.stage_tables(self.lease, SOURCE, [(RELATION, "print")])
        folder = Path(self.store.staging_directory())
        files = [self._part(folder / f"part-{i}.db", staged.id, rows, i, parts) for i in range(parts)]
        self.store.stage(self.lease, files)
        state = SourceState(SOURCE, Lsn(self.lsn), "slot", "1", 1)
        record = BulkRecord("snapshot", SOURCE, "app", parts, len(rows), len(rows), 0.0, 1.0)
        self.table = staged.id
        return self.store.publish(self.lease, state, [staged], "streams: {}", record)

    def _part(self, path: Path, table: int, rows: dict[str, tuple[str, str]], part: int, parts: int) -> StagedPart:
        mine = {row_id: rows[row_id] for n, row_id in enumerate(rows) if n % parts == part}
        with StageFile(path) as file:
            for row_id, (bucket, text) in mine.items():
                ops, members = row_ops((), [put(bucket, row_id, text)], RowKeys(table, row_id, b"salt"))
                row = CurrentRow(row_id, 0, f"{row_id}\t{text}", encode_members(members, row_id), None)
                file.write([row], [], ops, {bucket_key(bucket): named(bucket)})
            file.finish()
            return StagedPart(str(path), table, len(mine), file.ops, "0")

    def write(self, changes: dict[str, tuple[str, str] | None], *, lsn: int | None = None) -> Checkpoint:
        """One flush: rows put into a bucket with a text, or deleted."""
        flush = self.store.begin(self.lease)
        current = flush.current(self.table, list(changes))
        for row_id, target in changes.items():
            before = current.get(row_id)
            previous = decode_members(before.members, row_id) if before is not None else []
            puts = [] if target is None else [put(*target[:1], row_id, target[1])]
            ops, members = row_ops(previous, puts, RowKeys(self.table, row_id, b"salt"))
            flush.append(ops, {bucket_key(p.bucket): named(p.bucket) for p in puts})
            if target is None:
                flush.delete_rows(self.table, [row_id])
            else:
                line = f"{row_id}\t{target[1]}"
                flush.put_rows(self.table, [CurrentRow(row_id, 0, line, encode_members(members, row_id), None)])
        self.lsn = lsn or self.lsn + 10
        return flush.commit(SOURCE, Progress(Lsn(self.lsn), 5))

    def truncate(self) -> Checkpoint:
        flush = self.store.begin(self.lease)
        self.table = flush.truncate(self.table, ["todos.1"])
        self.lsn += 10
        return flush.commit(SOURCE, Progress(Lsn(self.lsn)))


def put(bucket: str, row_id: str, text: str) -> Put:
    return Put(0, bucket, "todos", row_id, f'{{"text":"{text}"}}')


def named(bucket: str) -> BucketName:
    return BucketName(bucket, bucket.partition("[")[0])


A, B = 'todos.1["a"]', 'todos.1["b"]'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = SqliteStore(tmp_path / "store")
    yield World(tmp_path / "store", store, store.acquire(SOURCE, "here:1", 30.0))
    store.close()


@pytest.fixture
def reader(world: World) -> Iterator[StoreReader]:
    reader = SqliteStore.open_reader(world.directory)
    yield reader
    reader.close()


def totals(reader: StoreReader, bucket: str) -> tuple[int, int, int]:
    """Checkpoint, checksum and count that the store tells of a bucket."""
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        total = snapshot.totals([bucket])[bucket]
        return snapshot.checkpoint.op_id, total.checksum, total.count


def assert_in_step(reader: StoreReader, bucket: str, model: ModelBucket | None = None) -> ModelBucket:
    upto, checksum, count = totals(reader, bucket)
    fresh = model is None
    model = read(reader, bucket, upto, model)
    assert model.checksum == checksum
    if fresh:
        assert count >= len(model.rows)
    return model


def test_nothing_is_served_before_the_first_publication(world: World, reader: StoreReader) -> None:
    with reader.snapshot() as snapshot:
        assert snapshot is None
    assert reader.checkpoint() is None


def test_published_rows_are_read_back_with_the_told_checksum(world: World, reader: StoreReader) -> None:
    rows = {str(i): (A if i % 3 else B, f"text {i}") for i in range(5000)}
    world.bootstrap(rows, parts=3)
    a, b = assert_in_step(reader, A), assert_in_step(reader, B)
    assert contents([a, b]) == {("todos", row_id): {"text": text} for row_id, (_, text) in rows.items()}


def test_a_new_bucket_begins_with_a_clear(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    checkpoint = world.write({"2": (B, "y")})
    for bucket in (A, B):
        first = parse_ops(reader.chunk(bucket, OpId(0), checkpoint.op_id).ops)[0]
        assert first["op"] == "CLEAR"


def test_an_unknown_bucket_is_empty(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    assert totals(reader, "nobody[]")[1:] == (0, 0)
    assert reader.chunk("nobody[]", OpId(0), OpId(2**53)).size == 0


def test_a_reader_sees_only_ops_up_to_its_checkpoint(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    early = world.write({"2": (A, "y")}).op_id
    world.write({"2": (A, "z"), "3": (A, "w")})
    model = read(reader, A, early)
    assert contents([model]) == {("todos", "1"): {"text": "x"}, ("todos", "2"): {"text": "y"}}


def test_a_rolled_back_flush_leaves_nothing(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    before = totals(reader, A)
    flush = world.store.begin(world.lease)
    flush.append(row_ops((), [put(A, "9", "lost")], RowKeys(world.table, "9", b""))[0], {bucket_key(A): named(A)})
    flush.rollback()
    assert totals(reader, A) == before
    world.write({"2": (A, "y")})
    assert_in_step(reader, A)


def test_a_rolled_back_flush_forgets_the_buckets_it_made(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    flush = world.store.begin(world.lease)
    flush.append(row_ops((), [put(B, "9", "lost")], RowKeys(world.table, "9", b""))[0], {bucket_key(B): named(B)})
    flush.rollback()
    world.write({"9": (B, "kept")})
    assert contents([assert_in_step(reader, B)]) == {("todos", "9"): {"text": "kept"}}


def test_truncate_is_one_op_a_bucket_and_an_earlier_checkpoint_still_reads(world: World, reader: StoreReader) -> None:
    before = world.bootstrap({str(i): (A if i % 2 else B, "x") for i in range(2000)})
    after = world.truncate()
    for bucket in (A, B):
        assert reader.chunk(bucket, OpId(0), after.op_id).size == 1
        assert assert_in_step(reader, bucket).rows == {}
        assert len(read(reader, bucket, before.op_id).rows) == 1000
        halfway = ModelBucket()
        for op in parse_ops(reader.chunk(bucket, OpId(0), before.op_id).ops)[:300]:
            halfway.apply(op)
        assert assert_in_step(reader, bucket, halfway).rows == {}
    world.write({"1": (A, "again")})
    assert len(assert_in_step(reader, A).rows) == 1


def test_publishing_again_replaces_everything_at_a_device_that_is_ahead(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x"), "2": (A, "y")})
    device = assert_in_step(reader, A)
    world.write({"3": (A, "z")})
    world.bootstrap({"2": (A, "y")})
    assert contents([assert_in_step(reader, A, device)]) == {("todos", "2"): {"text": "y"}}


def test_a_rebuilt_store_gives_out_higher_ids(world: World, tmp_path: Path) -> None:
    last = world.bootstrap({str(i): (A, "x") for i in range(3000)}).op_id
    other = SqliteStore(tmp_path / "rebuilt")
    rebuilt = World(tmp_path / "rebuilt", other, other.acquire(SOURCE, "here:2", 30.0))
    first = SqliteStore.open_reader(tmp_path / "rebuilt")
    checkpoint = rebuilt.bootstrap({"1": (A, "x")})
    assert min(int(str(op["op_id"])) for op in parse_ops(first.chunk(A, OpId(0), checkpoint.op_id).ops)) > last
    first.close()
    other.close()


def test_touched_names_what_a_flush_changed(world: World, reader: StoreReader) -> None:
    first = world.bootstrap({"1": (A, "x"), "2": (B, "y")})
    flush = world.store.begin(world.lease)
    flush.replace_lookups(world.table, "1", [LookupEntry('l["u"]', "[1]")])
    middle = flush.commit(SOURCE, Progress(Lsn(500)))
    last = world.write({"2": (B, "changed")}, lsn=510)
    assert reader.touched(first.op_id, middle.op_id).lookups == frozenset({'l["u"]'})
    assert reader.touched(middle.op_id, last.op_id).buckets == frozenset({B})
    assert reader.touched(first.op_id, last.op_id).buckets == frozenset({B})
    assert reader.touched(OpId(0), last.op_id).buckets is None


def test_lookups_follow_their_rows(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})

    def answers() -> list[str]:
        with reader.snapshot() as snapshot:
            assert snapshot is not None
            return snapshot.lookups(["k"])["k"]

    for entries, expected in (
        ([LookupEntry("k", "[1]"), LookupEntry("k", "[2]")], ["[1]", "[2]"]),
        ([LookupEntry("k", "[2]"), LookupEntry("other", "[9]")], ["[2]"]),
        ([], []),
    ):
        flush = world.store.begin(world.lease)
        flush.replace_lookups(world.table, "1", entries)
        flush.commit(SOURCE, Progress(Lsn(world.lsn)))
        assert answers() == expected


def test_the_source_position_moves_with_the_flush(world: World, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    world.write({"1": (A, "y")}, lsn=777)
    state = world.store.source_state(SOURCE)
    assert state is not None
    assert state.lsn == 777
    checkpoint = reader.checkpoint()
    assert checkpoint is not None
    assert checkpoint[0].lsns == {SOURCE: 777}


def test_a_second_holder_waits_for_the_lease_and_then_ends_the_first(world: World, tmp_path: Path) -> None:
    other = SqliteStore(world.directory)
    with pytest.raises(LeaseHeldError):
        other.acquire(SOURCE, "there:2", 30.0)
    world.store.acquire(SOURCE, "here:1", 0.0)  # expires at once
    newer = other.acquire(SOURCE, "there:2", 30.0)
    with pytest.raises(LeaseLostError):
        world.store.begin(world.lease)
    with pytest.raises(LeaseLostError):
        world.store.renew(world.lease)
    other.begin(newer).rollback()
    other.close()


def test_listeners_are_readable_after_a_commit(world: World, reader: StoreReader) -> None:
    import select

    listener = reader.listen()
    assert not select.select([listener], [], [], 0)[0]
    world.bootstrap({"1": (A, "x")})
    assert select.select([listener], [], [], 10)[0]
    listener.drain()
    assert not select.select([listener], [], [], 0)[0]
    world.write({"1": (A, "y")})
    assert select.select([listener], [], [], 10)[0]
    listener.close()


def test_write_checkpoints_grow_per_key(reader: StoreReader) -> None:
    assert reader.create_write_checkpoint(["u/1", "u/2", "u/1"], {SOURCE: Lsn(5)}) == {"u/1": 1, "u/2": 1}
    assert reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(9)}) == {"u/1": 2}
    newest = reader.write_checkpoint("u/1")
    assert newest is not None
    assert (newest.id, newest.lsns) == (2, {SOURCE: 9})
    assert [w.key for w in reader.write_checkpoints(0)] == ["u/2", "u/1"]
    assert [w.key for w in reader.write_checkpoints(2)] == ["u/1"]


def test_large_rows_are_cut_into_chunks_of_a_megabyte(world: World, reader: StoreReader) -> None:
    world.bootstrap({"0": (A, "x")})
    checkpoint = world.write({**{str(i): (A, "y" * 400_000) for i in range(1, 8)}, "9": (A, "z" * 3_000_000)})
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


@settings(max_examples=40, deadline=None)
@given(first=st.dictionaries(_ROWS, _TARGET.filter(bool), max_size=8), steps=st.lists(_STEP, max_size=8))
def test_every_device_converges_from_every_position(
    tmp_path_factory: pytest.TempPathFactory,
    first: dict[str, tuple[str, str]],
    steps: list[dict[str, tuple[str, str] | None] | str],
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = SqliteStore(folder)
    world = World(folder, store, store.acquire(SOURCE, "here:1", 30.0))
    reader = SqliteStore.open_reader(folder)
    truth = dict(first)
    world.bootstrap(truth, parts=2)
    devices = [{A: assert_in_step(reader, A), B: assert_in_step(reader, B)}]
    for step in steps:
        if step == "truncate":
            truth.clear()
            world.truncate()
        elif step == "publish":
            world.bootstrap(truth, parts=2)
        else:
            assert isinstance(step, dict)
            for row_id, target in step.items():
                truth.pop(row_id, None)
                if target is not None:
                    truth[row_id] = target
            world.write(step)
        devices.append({A: assert_in_step(reader, A), B: assert_in_step(reader, B)})
    expected = {("todos", row_id): {"text": text} for row_id, (_, text) in truth.items()}
    for device in devices:
        for bucket, model in device.items():
            assert_in_step(reader, bucket, model)
        assert contents(device.values()) == expected
    reader.close()
    store.close()
