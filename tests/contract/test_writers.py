"""Several writers at once, and readers beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import RowKeys, row_ops
from headwater.storage.contract.reader import ReplicatorStatus, StoreReader
from headwater.storage.contract.store import LeaseHeldError, ReplicationProgress
from headwater.storage.open import open_store
from headwater.storage.sqlite.cursor import open_writes
from tests.contract.source_writer import A, B, SourceWriter, named, put
from tests.support.fix_headwater import read_bucket
from tests.support.model_device import ModelBucket, parse_ops

FLUSHES = 40
READERS = 10


class Crew:
    """Threads whose first failure is the test's."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, run: Callable[..., object], *args: object) -> None:
        self._threads.append(threading.Thread(target=self._watch, args=(run, *args)))
        self._threads[-1].start()

    def _watch(self, run: Callable[..., object], *args: object) -> None:
        try:
            run(*args)
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            self.failures.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        assert not self.failures, self.failures


def test_no_gap_fills_later(new_writer: Callable[..., SourceWriter]) -> None:
    first = new_writer()
    first.bootstrap({})
    second = new_writer(beside=first, source="other")
    second.bootstrap({})
    sources = {A: first, B: second}
    writers, readers = Crew(), Crew()
    done = threading.Event()
    seen: list[Sights] = []

    def write(bucket: str) -> None:
        for n in range(FLUSHES):
            sources[bucket].write({f"{bucket} {n} {i}": (bucket, "x") for i in range(1 + n % 5)})

    def read() -> None:
        sights: Sights = {A: {}, B: {}}
        seen.append(sights)
        with closing(open_store(first.address).open_reader()) as reader:
            while not done.is_set():
                look(reader, sights)
            look(reader, sights)

    for _ in range(READERS):
        readers.start(read)
    for bucket in sources:
        writers.start(write, bucket)
    try:
        writers.join()
    finally:
        done.set()
        readers.join()
    with closing(open_store(first.address).open_reader()) as reader:
        final = {bucket: op_ids(reader, bucket, OpId(2**53)) for bucket in sources}
    assert any(len(sights[A]) > 2 for sights in seen), "readers and writers were at work at the same time"
    for sights in seen:
        for bucket, sight in sights.items():
            for checkpoint, ids in sight.items():
                assert ids == [op_id for op_id in final[bucket] if op_id <= checkpoint], "an op came in later"


Sights = dict[str, dict[int, list[int]]]
"""By bucket and checkpoint: the op ids that a reader was given."""


def look(reader: StoreReader, sights: Sights) -> None:
    """Note what each bucket holds at the newest checkpoint, whose totals must be right."""
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        checkpoint = snapshot.checkpoint.op_id
        totals = snapshot.totals([A, B])
    for bucket, sight in sights.items():
        if checkpoint not in sight:
            sight[checkpoint] = op_ids(reader, bucket, checkpoint)
            assert read_bucket(reader, bucket, checkpoint, ModelBucket()).checksum == totals[bucket].checksum
            assert len(sight[checkpoint]) == totals[bucket].count


def op_ids(reader: StoreReader, bucket: str, upto: OpId) -> list[int]:
    after, ids = OpId(0), list[int]()
    while True:
        chunk = reader.chunk(bucket, after, upto)
        ids += [int(str(op["op_id"])) for op in parse_ops(chunk.ops)]
        after = chunk.next_after
        if not chunk.more:
            return ids


def test_many_make_a_file_at_once(tmp_path: Path) -> None:
    """SQLite does not wait for another connection that turns the log of a new file on."""
    crew = Crew()
    for number in range(60):
        (directory := tmp_path / str(number)).mkdir()
        start = threading.Barrier(12)

        def make(directory: Path = directory, start: threading.Barrier = start) -> None:
            start.wait()
            open_writes(directory).close()

        for _ in range(start.parties):
            crew.start(make)
    crew.join()


def test_race_for_the_lease(new_writer: Callable[..., SourceWriter]) -> None:
    writer = new_writer()
    writer.store.acquire("wanted", "nobody", 0.0)  # over at once
    others = [new_writer(beside=writer, source=f"own {n}") for n in range(6)]
    start = threading.Barrier(len(others))
    crew = Crew()
    got: list[int] = []
    refused: list[int] = []

    def take(number: int) -> None:
        start.wait()
        try:
            others[number].store.acquire("wanted", f"elsewhere:{number}", 30.0)
            got.append(number)
        except LeaseHeldError:
            refused.append(number)

    for number in range(len(others)):
        crew.start(take, number)
    crew.join()
    assert (len(got), len(refused)) == (1, 5)


def test_order_of_write_checkpoints(writer: SourceWriter) -> None:
    """Readers that follow `seq` miss none of those that several processes make at once."""
    keys = [f"user/{n}" for n in range(5)]
    followed: list[int] = []

    def create(number: int) -> None:
        with closing(open_store(writer.address).open_reader()) as reader:
            for _ in range(15):
                reader.create_write_checkpoint(keys[number : number + 2], {})

    with closing(open_store(writer.address).open_reader()) as reader:
        threads = [threading.Thread(target=create, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        newest: dict[str, int] = {}
        while True:
            last = not any(thread.is_alive() for thread in threads)
            for write in reader.write_checkpoints(followed[-1] if followed else 0):
                followed.append(write.seq)
                newest[write.key] = write.id
            if last:
                break
        for thread in threads:
            thread.join()
        assert followed == sorted(set(followed))
        assert newest == {keys[0]: 15, keys[1]: 30, keys[2]: 30, keys[3]: 30, keys[4]: 15}


def test_heartbeat(
    new_writer: Callable[..., SourceWriter], open_reading: Callable[[SourceWriter], StoreReader]
) -> None:
    writer = new_writer()
    reader = open_reading(writer)
    assert reader.replicator_status("nobody") == ReplicatorStatus()
    assert reader.replicator_status(writer.source).text == ""
    heard = reader.replicator_status(writer.source)
    assert (heard.runs, heard.holder) == (True, writer.lease.owner)
    assert heard.held is not None
    assert 0 <= heard.held < 60
    writer.bootstrap({})
    with writer.rolled_back():
        for text in ("first", "a longer one " * 20_000, "last, “with” more than ASCII"):
            writer.store.report_status(writer.lease, text)
            heard = reader.replicator_status(writer.source)
            assert (heard.text, heard.runs) == (text, True)
            assert 0 <= heard.age < 60
            assert (heard.stored, reader.replicator_alive()) == (writer.state().lsn, True)
    writer.store.release(writer.lease)
    heard = reader.replicator_status(writer.source)
    assert (heard.text, heard.runs, reader.replicator_alive()) == ("last, “with” more than ASCII", False, False)
    again = new_writer()  # of another store
    newer = open_store(writer.address).open_writer()
    with closing(newer):
        lease = newer.acquire(writer.source, "here:2", 30.0)
        newer.report_status(lease, "of the next one")
        assert reader.replicator_status(writer.source).text == "of the next one"
        assert open_reading(again).replicator_status(writer.source).text == ""


def test_a_flush_sees_that_another_source_waits_for_it(new_writer: Callable[..., SourceWriter]) -> None:
    first = new_writer()
    first.bootstrap({"one": (A, "x")})
    second = new_writer(beside=first, source="other")
    second.bootstrap({"two": (B, "x")})
    keys = first.keys
    (draft,), _ = row_ops([], [put(A, "three", "x")], RowKeys(first.table, "three", keys))
    flush = first.store.begin(first.lease)
    flush.append([draft], {A: named(keys, A)})
    flush.lock()
    waited = [flush.waited_for]
    waiting = Crew()
    waiting.start(lambda: second.write({"four": (B, "y")}))
    while not waited[-1] and not waiting.failures:
        waited.append(flush.waited_for)
    assert not waited[0]
    flush.commit(first.source, ReplicationProgress(Lsn(first.lsn + 10)))
    waiting.join()
    with closing(open_store(first.address).open_reader()) as reader:
        assert max(op_ids(reader, A, OpId(2**53))) < max(op_ids(reader, B, OpId(2**53)))
