"""A bucket is what its name says. Here the hash of names is so weak that most of them share a key: whatever is done to
the store, each bucket keeps its own rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.api.streams.cache import ChunkCache
from headwater.compaction.compactor import CompactionPass
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import RowKeys, row_ops
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.archive import export_store, import_store
from headwater.storage.contract.parts import CurrentRow, StagedPart
from headwater.storage.contract.reader import Chunk, StoreReader
from headwater.storage.contract.store import BucketKeyTakenError, ReplicationProgress
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.bucket_keys import KnownBuckets, Naming
from headwater.storage.sql.bulk import taken_keys
from tests.contract.source_writer import SIDES, A, B, Rows, SourceWriter, named, put, totals, write_batch
from tests.support.examples import examples
from tests.support.fix_headwater import read_bucket
from tests.support.fix_stores import NewAddress
from tests.support.store_checker import problems
from tests.support.store_file import store_tables

NAMES = [f'todos.1["{letter}"]' for letter in "abcdefg"]


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names have one of two keys."""
    monkeypatch.setattr(StoreKeys, "hashed_name", lambda _, name: crc32(name.encode()) % 2)


def until_done(step: Callable[[], object]) -> int:
    """Do something, and again after keys were given out. Returns how often that was."""
    for tries in range(50):
        try:
            step()
        except BucketKeyTakenError:
            continue
        return tries
    raise AssertionError("keys are given out for ever")


def seen(reader: StoreReader, names: list[str]) -> dict[str, set[str]]:
    """The ids of the rows that a new device gets of each bucket, checksums verified."""
    found = {}
    for name in names:
        checkpoint, checksum, _ = totals(reader, name)
        model = read_bucket(reader, name, checkpoint)
        assert model.checksum == checksum, name
        if model.rows:
            found[name] = {row_id for _, row_id, _ in model.rows}
    return found


def expected(rows: Rows) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row_id, (bucket, _) in rows.items():
        found.setdefault(bucket, set()).add(row_id)
    return found


_ROWS = st.dictionaries(st.sampled_from("123456789"), st.sampled_from(NAMES), max_size=9)
_STEPS = st.lists(st.tuples(st.sampled_from(["write", "publish", "page", "compact", "reopen"]), _ROWS), max_size=6)


@pytest.mark.usefixtures("weak")
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(first=_ROWS, steps=_STEPS)
def test_names_of_one_key(
    new_writer: Callable[..., SourceWriter], first: dict[str, str], steps: list[tuple[str, dict[str, str]]]
) -> None:
    writer = new_writer()
    rows: Rows = {row_id: (bucket, "x") for row_id, bucket in first.items()}
    until_done(lambda: writer.bootstrap(rows, parts=2))
    for number, (what, changes) in enumerate(steps):
        given_rows: Rows = {row_id: (bucket, f"text {number}") for row_id, bucket in changes.items()}
        match what:
            case "write":
                gone = dict.fromkeys(rows.keys() - changes.keys()) if number % 2 else {}
                until_done(partial(writer.write, {**given_rows, **gone}))
                rows = {key: row for key, row in {**rows, **given_rows}.items() if key not in gone}
            case "publish":
                rows = given_rows
                until_done(partial(writer.bootstrap, rows, parts=3))
            case "page":
                _add(writer, rows, given_rows)
            case "compact":
                _compact(writer.address)
            case _:
                writer.store.release(writer.lease)
                writer.store.close()
                writer.store = open_store(writer.address).open_writer()
                writer.lease = writer.store.acquire(writer.source, "again", 30.0)
    with closing(open_store(writer.address).open_reader()) as reader:
        assert seen(reader, NAMES) == expected(rows)
        assert reader.marks(["todos.1[7]"]) == {}
    assert problems(writer.address) == []
    writer.store.close()


def _add(writer: SourceWriter, rows: Rows, added: Rows) -> None:
    """Bring rows that are in no bucket yet, then the page that says which they are in."""
    fresh = {row_id: row for row_id, row in added.items() if row_id not in rows}
    if not fresh:
        return
    flush = writer.store.begin(writer.lease)
    flush.put_rows(writer.table, [CurrentRow(key, 0, f"{key}\t{text}", "", None) for key, (_, text) in fresh.items()])
    flush.commit(writer.source, ReplicationProgress(writer.state().lsn))

    def take() -> None:
        writer.store.discard_staged(writer.lease)
        part: StagedPart = writer.additions({k: v for k, v in fresh.items() if k not in taken}, rows_a_page=2)
        for page in range(part.pages):
            writer.store.take_page(writer.lease, part, page, ())
            taken.update(list(fresh)[len(taken) : len(taken) + 2])

    taken: set[str] = set()
    until_done(take)
    rows.update(fresh)


def _compact(address: StoreAddress) -> None:
    with (
        closing(open_store(address).open_compaction()) as store,
        CompactionPass(store, "test", lambda _: False) as work,
    ):
        for bucket in list(store.buckets(OpId(0))):
            work.bucket(bucket, store.checkpoint(), CompactionPolicy(budget=1 << 20, least=1), finish=True)


def test_foreign_name_of_a_key(writer: SourceWriter, reader: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does he learn that it is there."""
    checkpoint = writer.bootstrap({"1": (A, "x")})
    key = writer.key(A)
    monkeypatch.setattr(StoreKeys, "hashed_name", lambda *_: key)
    assert reader.chunk(B, OpId(0), checkpoint.op_id).ops == b""
    assert reader.marks([B]) == {}
    assert totals(reader, B)[1:] == (0, 0)
    cached = ChunkCache(reader, 1 << 20)
    with cached.reader.snapshot():
        assert cached.written(_Plain(), B, OpId(0), checkpoint.op_id, None).content is None
    assert reader.chunk(A, OpId(0), checkpoint.op_id).size == 2


class _Plain:
    def write(self, bucket: str, after: OpId, chunk: Chunk) -> bytes:
        return chunk.ops


def test_foreign_name_of_a_new_bucket(writer: SourceWriter, reader: StoreReader) -> None:
    """As if it had been made since: what the snapshot did not see is not read."""
    checkpoint = writer.bootstrap({"1": (A, "x")})
    cached = ChunkCache(reader, 1 << 20)
    with cached.reader.snapshot():
        assert cached.written(_Plain(), A, OpId(0), checkpoint.op_id, None).content is None


@pytest.mark.usefixtures("weak")
def test_known_buckets_are_compared(writer: SourceWriter, reader: StoreReader) -> None:
    same = [name for name in NAMES if writer.key(name) == writer.key(A)]
    assert len(same) > 2
    writer.bootstrap({"0": (A, "x")})
    writer.write({"1": (A, "x")})
    for number, name in enumerate(same[1:], 2):
        assert until_done(partial(writer.write, {str(number): (name, "y")})) == 1
        assert until_done(partial(writer.write, {str(number): (name, "z")})) == 0
    assert seen(reader, same) == {A: {"0", "1"}} | {name: {str(n)} for n, name in enumerate(same[1:], 2)}


@pytest.mark.usefixtures("weak")
def test_new_buckets_of_one_key(writer: SourceWriter, reader: StoreReader) -> None:
    same = [name for name in NAMES if writer.key(name) == writer.key(A)][:3]
    writer.bootstrap({})
    assert until_done(lambda: writer.write({str(n): (name, "x") for n, name in enumerate(same)})) == 1
    assert seen(reader, same) == {name: {str(n)} for n, name in enumerate(same)}


@pytest.mark.usefixtures("weak")
def test_key_while_a_bucket_is_forgotten(writer: SourceWriter, reader: StoreReader) -> None:
    """The rows still say that they are in the bucket with this key."""
    same = [name for name in NAMES if writer.key(name) == writer.key(A)][:2]
    writer.bootstrap({str(n): (A, "x") for n in range(5)})
    assert writer.store.retire(writer.lease, list(SIDES), 1)
    (other,) = [f"more.1{name.removeprefix('todos.1')}" for name in same[1:]]
    while writer.key(other) != writer.key(A):
        other += " "
    until_done(lambda: writer.write({"9": (other, "y")}))
    while writer.store.retire(writer.lease, (), 1):
        pass
    assert seen(reader, [A, other]) == {other: {"9"}}
    assert problems(writer.address) == []


def test_bucket_made_again_while_removed(writer: SourceWriter, reader: StoreReader) -> None:
    """Else its ops and memberships were removed with those of before."""
    writer.bootstrap({str(n): (A, "x") for n in range(5)})
    assert writer.store.retire(writer.lease, list(SIDES), 1)
    assert until_done(lambda: writer.write({"9": (A, "y")})) == 1
    assert seen(reader, [A]) == {A: {"9"}}
    left = 0
    while writer.store.retire(writer.lease, (), 1):
        left += 1
        assert left < 50
    assert seen(reader, [A]) == {}, "its definition was on its way out"
    assert problems(writer.address) == []


@pytest.mark.parametrize("how", ["publish", "page"])
def test_bulk_work_while_a_bucket_is_removed(writer: SourceWriter, reader: StoreReader, how: str) -> None:
    writer.bootstrap({str(n): (A, "x") for n in range(5)})
    rows: Rows = {"9": (A, "y")}
    writer.write({"9": (B, "y")})
    assert writer.store.retire(writer.lease, list(SIDES), 1)
    if how == "publish":
        assert until_done(lambda: writer.bootstrap(rows)) == 1
    else:
        assert until_done(lambda: writer.store.take_page(writer.lease, writer.additions(rows), 0, ())) == 1
    assert seen(reader, [A]) == {A: {"9"}}


def test_missing_reads_not_all() -> None:
    """Nearly every append asks, and a process knows many buckets."""

    class Unread(dict[int, str]):
        def keys(self) -> NoReturn:
            raise AssertionError("all of it is read")

        __iter__ = keys

    known = KnownBuckets()
    known.names = Unread({1: A, 2: B})
    naming = Naming(known)
    naming.fresh[3] = "todos.1[3]"
    assert naming.missing({1, 3, 4}) == {4}


def test_memory_of_long_names(writer: SourceWriter) -> None:
    writer.bootstrap({})
    keys, size = writer.keys, 100_000
    with open_store(writer.address).open_part(writer.table, 0, "1") as part:
        write_batch(part, writer.table, [("0", (A, "x"))], keys)
        tracemalloc.start()
        try:
            for number in range(1, 51):
                write_batch(part, writer.table, [(str(number), (f'todos.1["{number:0>{size}}"]', "x"))], keys)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert held < 10 * size


def test_cost_of_publishing(new_postgres_address: NewAddress) -> None:
    """Not once for each other one."""
    address, count = new_postgres_address(), 500
    numbers = f"generate_series(1, {count}) i"
    new = f"(select i::bigint as id, 'todos[' || i || ']' as name, 'todos' as definition from {numbers})"
    query = f"explain (analyze, format json) {taken_keys(new)}".encode()
    open_store(address).open_writer().close()
    assert isinstance(address, PostgresAddress)
    with store_tables(address) as db:
        (plan,) = db.execute(query).fetchall()[0][0]
    assert _read(plan["Plan"]) < 20 * count


def _read(node: dict[str, Any]) -> int:
    """How many rows a query went through."""
    own = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    return int(own) + sum(map(_read, node.get("Plans", ())))


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize("to", ["sqlite", "postgres"])
def test_moved_names_of_one_key(writer: SourceWriter, request: pytest.FixtureRequest, tmp_path: Path, to: str) -> None:
    new_address: NewAddress = request.getfixturevalue(f"new_{to}_address")
    rows: Rows = {str(n): (name, "x") for n, name in enumerate(NAMES)}
    until_done(lambda: writer.bootstrap(rows))
    until_done(lambda: writer.write({str(n): (name, "y") for n, name in enumerate(NAMES, 10)}))
    writer.store.release(writer.lease)
    address = new_address()
    export_store(writer.address, tmp_path / "archive", lambda *_: None)
    import_store(tmp_path / "archive", address, lambda *_: None)
    with closing(open_store(address).open_reader()) as reader:
        assert seen(reader, NAMES) == {name: {str(n), str(n + 10)} for n, name in enumerate(NAMES)}
    with closing(open_store(address).open_writer()) as store:
        moved = SourceWriter(address, store, store.acquire(writer.source, "there", 30.0), writer.source)
        (moved.table,) = [table.id for table in store.tables(writer.source)]
        assert moved.keys.secret == writer.keys.secret
        assert until_done(lambda: moved.write({"0": (NAMES[0], "z")})) == 0, "it knows what was moved"


def test_keys_of_two_stores_differ(new_writer: Callable[..., SourceWriter]) -> None:
    """So nobody who can't read the store computes them, and what he learns of one tells him nothing of another."""
    one, other = new_writer().keys, new_writer().keys
    assert len(one.secret) >= 16
    assert one.bucket(A) != other.bucket(A)
    assert one.content("todos", "1", "{}") != other.content("todos", "1", "{}")
    assert one.removal("todos", "1", "1") != other.removal("todos", "1", "1")
    assert one.compared("1\tx") != other.compared("1\tx")
    assert one.entry("1") != other.entry("1")


def test_forged_part(writer: SourceWriter, reader: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote it did not know the store's keys."""
    writer.bootstrap({"1": (A, "x")})
    keys = writer.keys
    forged = named(keys, B)._replace(key=keys.bucket(A))
    flush = writer.store.begin(writer.lease)
    ops, _ = row_ops((), [put(B, "9", "forged")], RowKeys(writer.table, "9", keys))
    flush.append([op._replace(bucket=forged.key) for op in ops], {B: forged})
    with pytest.raises(BucketKeyTakenError):
        flush.commit(writer.source, ReplicationProgress(Lsn(writer.lsn + 10)))
    flush.rollback()
    assert seen(reader, [A, B]) == {A: {"1"}}


def test_reader_during_import(writer: SourceWriter, new_postgres_address: NewAddress, tmp_path: Path) -> None:
    """It was opened on the empty store before, which had another secret."""
    writer.bootstrap({"1": (A, "x"), "2": (B, "y")})
    writer.store.release(writer.lease)
    address = new_postgres_address()
    with closing(open_store(address).open_reader()) as reader:
        export_store(writer.address, tmp_path / "archive", lambda *_: None)
        import_store(tmp_path / "archive", address, lambda *_: None)
        assert seen(reader, [A, B]) == {A: {"1"}, B: {"2"}}


def test_file_modes(tmp_path: Path) -> None:
    """Also in a directory that others may look into: they have the secret, and all rows."""
    tmp_path.chmod(0o755)
    backend = open_store(SqliteAddress(str(tmp_path)))
    with closing(backend.open_writer()), closing(backend.open_reader()):
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir() if file.is_file()}
    assert modes.keys() >= {"store.db", "store.db-wal", "write_checkpoints.db"}
    assert set(modes.values()) == {0o600}
