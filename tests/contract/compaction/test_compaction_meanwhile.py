"""What is written, cleared or compacted by others while a bucket is compacted, asked of every store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import pytest

from headwater.compaction.bucket import Forgetter, classify
from headwater.compaction.compactor import CompactionPass
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.compaction import HistoryChangedError
from headwater.storage.contract.store import LeaseHeldError, LeaseLostError, ReplicationProgress
from headwater.storage.open import open_store
from headwater.storage.postgres.cursor import PostgresCursor
from headwater.storage.shared import compaction, segments
from headwater.storage.shared.compaction import Cut
from headwater.storage.sql import compaction as sql_compaction
from headwater.storage.sql.compaction import CompactionStore
from headwater.storage.sql.cursor import Value
from tests.contract.compaction.compaction_setup import FREE, LAVISH, A, CompactionSetup, kinds
from tests.support import store_checker
from tests.support.model_device import ModelBucket, parse_ops
from tests.support.store_file import store_tables
from tests.support.waiting import wait_until
from tests.support.written_store import SOURCE, shown


@pytest.mark.usefixtures("form")
def test_changed_row(compacted: CompactionSetup) -> None:
    compacted.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    for n in range(30):
        compacted.hand.write({"busy": (A, str(n))})
    upto = compacted.compaction.checkpoint()
    bucket = compacted.state(A)
    compacted.hand.write({"goes": (A, "newer")})
    with CompactionPass(compacted.compaction, "here:1", lambda _: False) as work:
        result = work.bucket(bucket, upto, LAVISH)
    assert result is not None
    assert result.reput >= 1
    compacted.assert_whole({})


@pytest.mark.usefixtures("form")
def test_rows_with_newer_ops(compacted: CompactionSetup) -> None:
    compacted.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    bucket, seen = compacted.state(A), compacted.compaction.checkpoint()
    run = compacted.compaction.read(bucket.key, compacted.compaction.pieces(bucket.key, seen)[-1])
    history = compaction.scan([2], lambda _: run)
    (rows,) = compaction.live_before(Cut(1, 0, 0, 2, 0), history, lambda _: run)
    compacted.hand.write({"goes": None})
    lease = compacted.compaction.acquire("here:1", 30.0)
    put, changed, newest = compacted.compaction.reput(lease, bucket, seen, rows)
    compacted.compaction.release(lease)
    assert (put, len(changed), newest) == (1, 1, compacted.compaction.checkpoint())
    compacted.assert_whole({})


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("newer", [None, (A, "newer")], ids=["removed", "changed"])
def test_rows_of_later_batches_change_between_two_steps(
    compacted: CompactionSetup, monkeypatch: pytest.MonkeyPatch, newer: tuple[str, str] | None
) -> None:
    monkeypatch.setattr("headwater.compaction.bucket._REPUT_OPS", 10)
    rows = [f"row {n}" for n in range(40)]
    compacted.hand.publish(dict.fromkeys(rows, (A, "x")))
    for n in range(30):
        compacted.hand.write({"busy": (A, str(n))})
    bucket, upto = compacted.state(A), compacted.compaction.checkpoint()

    def change() -> None:
        compacted.hand.write(dict.fromkeys(rows, newer))

    store = _Meddled(compacted, "reput", change, 1).as_store()
    with CompactionPass(store, "here:1", lambda _: False) as work:
        work.bucket(bucket, upto, LAVISH)
    compacted.assert_whole({})


def test_flush_between_statements(compacted: CompactionSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "RUN_OPS", 2)
    compacted.hand.publish({"stays": (A, "x"), "goes": (A, "x")})
    bucket, seen = compacted.state(A), compacted.compaction.checkpoint()
    first_run = compacted.compaction.read(bucket.key, compacted.compaction.pieces(bucket.key, seen)[-1])
    goes = next(compaction.op_head(line).row for line in first_run.split(b"\n") if b'"goes"' in line)
    compacted.hand.write({"a": (A, "x")})
    op_head, written = compaction.op_head, False

    def write_first(line: bytes) -> compaction.OpHead:
        nonlocal written
        if not written:
            written = True
            compacted.hand.write({"goes": None})
            compacted.hand.write({"b1": (A, "x"), "b2": (A, "x")})
        return op_head(line)

    monkeypatch.setattr(compaction, "op_head", write_first)
    early, seen = compacted.compaction.rows_after(bucket.key, seen)
    late, _ = compacted.compaction.rows_after(bucket.key, seen)
    assert goes in early | late or not written


def test_cleared_bucket(compacted: CompactionSetup) -> None:
    compacted.hand.publish({str(n): (A, "x") for n in range(50)})
    bucket = compacted.state(A)
    pieces = compacted.compaction.pieces(bucket.key, compacted.compaction.checkpoint())
    compacted.hand.truncate()
    lease = compacted.compaction.acquire("here:1", 30.0)
    with pytest.raises(HistoryChangedError):
        compacted.compaction.replace(lease, bucket, pieces, [], OpId(0))
    with pytest.raises(HistoryChangedError):
        compacted.compaction.reput(lease, bucket, pieces[-1].last, [])
    compacted.compaction.release(lease)
    compacted.assert_whole({})


def test_bucket_reset_while_compacted(compacted: CompactionSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    address, key = compacted.address, compacted.key(A)
    if isinstance(address, SqliteAddress):
        pytest.skip("a transaction has the whole store")
    busy(compacted)
    compacted.compact()
    compacted.hand.write({str(n): (A, "z") for n in range(0, 50, 2)})
    flush = compacted.hand.store.begin(compacted.hand.lease)
    resetting = threading.Thread(target=flush.reset_bucket, args=(key, None))

    def waits() -> bool:
        with store_tables(address) as db:
            return db.execute("select from pg_stat_activity where wait_event_type = 'Lock'").rowcount > 0

    def reset_meanwhile(name: str) -> None:
        if name == "compact.before_commit" and resetting.ident is None:
            resetting.start()
            wait_until(waits, "the flush to wait for the compaction")
        elif name == "compact.after_commit":
            resetting.join()
            flush.commit(SOURCE, ReplicationProgress(Lsn(1000)))

    monkeypatch.setattr(sql_compaction, "failpoint", reset_meanwhile)
    with CompactionPass(compacted.compaction, "here:1", lambda _: False) as work:
        assert work.bucket(compacted.state(A), compacted.compaction.checkpoint(), FREE) is None
    assert kinds(compacted.ops(A)) == ["CLEAR"]
    with store_tables(address) as db:
        assert db.execute("select from segment_blobs").rowcount == 0
        assert db.execute("select from ops").rowcount == 1


class _Meddled:
    """An compaction store beside which something happens before each of the next so many calls of a method."""

    def __init__(self, compacted: CompactionSetup, method: str, meddle: Callable[[], None], times: int) -> None:
        self._world = compacted
        self._method = method
        self._meddle = meddle
        self._times = times

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._times > 0:
            self._times -= 1
            self._meddle()
        return getattr(self._world.compaction, name)

    def as_store(self) -> CompactionStore:
        return cast("CompactionStore", self)


def busy(compacted: CompactionSetup) -> set[int]:
    """A bucket with ops that later ones overrule; which these are."""
    compacted.hand.publish({str(n): (A, "x") for n in range(50)})
    compacted.hand.write({str(n): (A, "y") for n in range(50)})
    return {int(str(op["op_id"])) for op in compacted.ops(A)}


def cleared(compacted: CompactionSetup) -> None:
    compacted.hand.truncate()
    compacted.hand.write({str(n): (A, "x") for n in range(50)})


def test_cleared_during_compaction(compacted: CompactionSetup) -> None:
    busy(compacted)
    bucket, meddled = compacted.state(A), _Meddled(compacted, "replace", lambda: cleared(compacted), 1)
    with CompactionPass(meddled.as_store(), "here:1", lambda _: False) as work:
        assert work.bucket(bucket, compacted.compaction.checkpoint(), FREE) is None
        work.seal(bucket, compacted.compaction.checkpoint())  # as it was before
    compacted.assert_whole({})


@pytest.mark.parametrize("times", [1, 1_000])
def test_changed_bucket_is_begun_anew(compacted: CompactionSetup, times: int) -> None:
    busy(compacted)
    lease = compacted.compaction.acquire("here:1", 600.0)
    store = _Meddled(compacted, "replace", lambda: cleared(compacted), times).as_store()
    with nullcontext() if times == 1 else pytest.raises(HistoryChangedError):
        Forgetter(store, lease, lambda _: None).rewrite(compacted.key(A), clear=True)
    compacted.compaction.release(lease)
    compacted.assert_whole({})


@pytest.mark.parametrize("times", [1, 1_000])
def test_compacted_while_classified(compacted: CompactionSetup, times: int) -> None:
    ops = busy(compacted)
    compacted.compact()
    texts = itertools.count()

    def compact() -> None:
        compacted.hand.write({str(n): (A, f"z{next(texts)}") for n in range(50)})
        compacted.compact()

    store = _Meddled(compacted, "read", compact, times).as_store()
    with nullcontext() if times == 1 else pytest.raises(HistoryChangedError):
        found = classify(store, compacted.key(A), ops)
        assert found is not None
        assert (found.standing, found.rows) == (0, 50)
    compacted.assert_whole({})


def test_bucket_that_is_gone(compacted: CompactionSetup) -> None:
    compacted.hand.publish({"1": (A, "x")})
    lease = compacted.compaction.acquire("here:1", 600.0)
    assert classify(compacted.compaction, compacted.key("gone[]"), {1}) is None
    Forgetter(compacted.compaction, lease, lambda _: None).rewrite(compacted.key("gone[]"), clear=True)
    compacted.compaction.release(lease)
    compacted.assert_whole({})


@pytest.mark.parametrize("new_address", ["postgres"], indirect=True)  # the embedded store has one writer at a time
@pytest.mark.parametrize(
    ("method", "statement"),
    [
        ("publish", "update buckets"),
        ("publish", "insert into ops"),
        ("truncate", "update buckets"),
        ("truncate", "insert into ops"),
        ("reset_bucket", "delete from segments"),
        ("reset_bucket", "delete from ops"),
    ],
)
def test_compacted_before_a_statement_that_clears(
    compacted: CompactionSetup, monkeypatch: pytest.MonkeyPatch, method: str, statement: str
) -> None:
    rows = {str(n): (f'todos.1["{n}"]', "x") for n in range(5)}
    emptied = rows["2"][0]
    compacted.hand.publish(rows)
    device = {bucket: ModelBucket() for bucket, _ in rows.values()}
    compacted.hand.write({"2": (emptied, "y")})
    compacted.hand.write({"2": None})
    compacted.hand.catch_up(device)
    with compacting_before(statement, compacted, monkeypatch):
        if method == "publish":
            compacted.hand.publish(rows)
        elif method == "truncate":
            compacted.hand.truncate()
        else:
            flush = compacted.hand.store.begin(compacted.hand.lease)
            flush.reset_bucket(compacted.key(emptied), None)
            flush.commit(SOURCE, ReplicationProgress(Lsn(compacted.hand.lsn)))
    compacted.hand.write({"2": (emptied, "again")})
    assert store_checker.problems(compacted.address) == []
    for each in (device, {bucket: ModelBucket() for bucket in device}):
        compacted.hand.catch_up(each)
        assert shown(each) == compacted.hand.standing()


@contextmanager
def compacting_before(statement: str, compacted: CompactionSetup, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Meanwhile, compacts before the first statement of the store that begins so, as far as locks let it."""
    thread = threading.Thread(target=compacted.compact)

    def blocked(db: PostgresCursor) -> bool:
        sessions = "select 1 from pg_stat_activity where application_name = 'headwater compaction'"
        return bool(db.rows(f"{sessions} and wait_event_type = 'Lock'"))

    def compact_first(method: Callable[..., Any]) -> Callable[..., Any]:
        def execute(db: PostgresCursor, text: str, *values: Value) -> Any:
            if text.lstrip().startswith(statement) and thread.ident is None:
                thread.start()
                wait_until(lambda: not thread.is_alive() or blocked(db), "the compaction")
            return method(db, text, *values)

        return execute

    with monkeypatch.context() as patch:
        for name in ("rows", "execute"):
            patch.setattr(PostgresCursor, name, compact_first(getattr(PostgresCursor, name)))
        yield
    thread.join()


def test_one_compaction_at_a_time(compacted: CompactionSetup) -> None:
    other = open_store(compacted.address).open_compaction()
    lease = compacted.compaction.acquire("here:1", 30.0)
    with pytest.raises(LeaseHeldError):
        other.acquire("there:2", 30.0)
    compacted.compaction.acquire("here:1", 30.0)
    with pytest.raises(LeaseLostError):
        compacted.compaction.renew(lease)
    other.close()


def test_download_during_compaction(compacted: CompactionSetup) -> None:
    """A reader and a writer at work while the same bucket is compacted over and over."""
    compacted.hand.publish({str(n): (A, "first") for n in range(1_200)})
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                follow(compacted)
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(5):
            compacted.hand.write({str(i): (A, f"round {n}") for i in range(n * 40, n * 40 + 200)})
            compacted.compact(LAVISH if n % 3 == 2 else FREE)
    finally:
        stop.set()
        reader.join()
    assert failures == []
    compacted.assert_whole({})


def follow(compacted: CompactionSetup) -> None:
    """One device: chunk by chunk to the newest checkpoint; on to a newer one whenever a chunk is overtaken."""
    model = ModelBucket()
    while True:
        upto, checksum, _ = compacted.total(A)
        overtaken, after = False, OpId(model.position)
        while True:
            chunk = compacted.reader.chunk(A, after, upto)
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
