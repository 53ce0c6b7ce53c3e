"""What a flush that is open sees, and what others see of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import closing

import pytest

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import DraftOp, RowKeys, row_ops
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import ReplicationProgress
from headwater.storage.open import open_store
from headwater.storage.sql import flush as flushes
from headwater.storage.sql.flush import Flush
from headwater_rules.results import LookupEntry
from tests.contract.source_writer import A, B, SourceWriter, assert_in_step, named, put
from tests.contract.test_several_sources import texts
from tests.contract.test_writers import op_ids


@pytest.fixture(params=[flushes.KEPT_BYTES, 40, 0], ids=["kept", "written now and then", "written at once"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much a flush keeps back."""
    monkeypatch.setattr(flushes, "KEPT_BYTES", request.param)


def test_a_flush_sees_what_it_wrote(kept: None, writer: SourceWriter) -> None:
    writer.bootstrap({row_id: (A, f"first {row_id}") for row_id in ("a", "b", "c", "d")})
    table = writer.table
    with writer.rolled_back() as flush:
        assert {row_id: row.line for row_id, row in flush.current(table, ["a", "x"]).items()} == {"a": "a\tfirst a"}
        flush.put_rows(table, [CurrentRow("a", 0, "second", "", None), CurrentRow("new", 0, "first", "m", "key")])
        flush.delete_rows(table, ["b", "nobody"])
        flush.put_rows(table, [CurrentRow("c", 0, "second", "", None)])
        flush.delete_rows(table, ["c"])
        flush.delete_rows(table, ["d"])
        flush.put_rows(table, [CurrentRow("d", 0, "third", "", None)])
        ids = ["a", "b", "c", "d", "new", "nobody"]
        expected = {"a": "second", "d": "third", "new": "first"}
        assert {row_id: row.line for row_id, row in flush.current(table, ids).items()} == expected
        assert flush.current(table, ["new"])["new"] == CurrentRow("new", 0, "first", "m", "key")
        found: dict[str, str] = {}
        done = 0
        while done < len(ids):
            rows, count = flush.load(table, ids[done:], 1)
            assert set(rows) <= set(ids[done : done + count])
            found.update((row_id, row.line) for row_id, row in rows.items())
            done += count
        assert found == expected
        assert list(flush.table_members(table)) == [("new", "m", "key")]
        lines = flush.rows_with_lines(table, ["second", "third", "first", "b\tfirst b"])
        assert lines == {"second": ["a"], "third": ["d"], "first": ["new"], "b\tfirst b": []}
    assert {row_id: row.line for row_id, row in writer.rows().items()} == {
        row_id: f"{row_id}\tfirst {row_id}" for row_id in ("a", "b", "c", "d")
    }


def test_copies_that_a_flush_wrote(kept: None, writer: SourceWriter) -> None:
    writer.bootstrap(dict.fromkeys(("k", "k#2", "k$", "j"), (A, "x")))
    with writer.rolled_back() as flush:
        flush.put_rows(writer.table, [CurrentRow(row_id, 0, "", "", None) for row_id in ("k#3", "l")])
        flush.delete_rows(writer.table, ["k#2", "j"])
        assert sorted(flush.copies(writer.table, "k")) == ["k", "k#3"]
        assert flush.copies(writer.table, "j") == []


def test_lookups_that_a_flush_wrote(kept: None, writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    with writer.flush() as flush:
        flush.replace_lookups(writer.table, "1", [LookupEntry("k", "[1]")])
    with writer.rolled_back() as flush:
        flush.replace_lookups(writer.table, "1", [LookupEntry("k", "[2]")])
        flush.replace_lookups(writer.table, "2", [LookupEntry("k", "[3]")])
        assert flush.lookup_entries(writer.table, "1") == [LookupEntry("k", "[2]")]
        flush.replace_lookups(writer.table, "1", [])
        assert flush.lookup_entries(writer.table, "1") == []
        assert flush.lookup_entries(writer.table, "2") == [LookupEntry("k", "[3]")]


def test_a_flush_is_written_whole(kept: None, writer: SourceWriter) -> None:
    """Ops of one bucket from several appends stay in order, across a truncate."""
    writer.bootstrap({f"{n}": (A, "x") for n in range(3)})
    keys, table = writer.keys, writer.table
    with writer.flush() as flush:
        for n in range(3, 9):
            ops, _ = row_ops([], [put(B, f"{n}", f"row {n}")], RowKeys(table, f"{n}", keys))
            flush.append(ops, {B: named(keys, B)})
        flush.mark_resync(table, ResyncReason(Cause.REPLACED))
        writer.table = flush.truncate(table, ["todos.1"])
        ops, _ = row_ops([], [put(B, "9", "row 9")], RowKeys(writer.table, "9", keys))
        flush.append(ops, {B: named(keys, B)})
    with closing(open_store(writer.address).open_reader()) as reader:
        assert texts(reader, B) == ["9 row 9"]
        assert texts(reader, A) == []
        ids = op_ids(reader, B, OpId(2**53))
        assert ids == sorted(set(ids))


def test_a_mark_outlives_a_truncate(kept: None, writer: SourceWriter) -> None:
    """The flush goes on with the new generation as one that is compared, and does not mark it again."""
    writer.bootstrap({"1": (A, "x")})
    reason = ResyncReason(Cause.REPLACED)
    with writer.flush() as flush:
        flush.mark_resync(writer.table, reason)
        writer.table = flush.truncate(writer.table, ["todos.1"])
    (stored,) = writer.store.tables(writer.source)
    assert (stored.id, stored.resync) == (writer.table, reason)


def test_a_reset_bucket_has_nothing_from_before(kept: None, writer: SourceWriter, reader: StoreReader) -> None:
    """Nor what the same flush added to it before."""
    writer.bootstrap({"1": (A, "x")})
    keys = writer.keys
    bucket = named(keys, A)
    before, _ = row_ops([], [put(A, "2", "before")], RowKeys(writer.table, "2", keys))
    after, _ = row_ops([], [put(A, "3", "after")], RowKeys(writer.table, "3", keys))
    with writer.flush() as flush:
        flush.append(before, {A: bucket})
        flush.reset_bucket(bucket.key, bucket)
        flush.append(after, {A: bucket})
    assert texts(reader, A) == ["3 after"]
    assert_in_step(reader, A)
    with open_store(writer.address).open_verify() as verify:
        assert len(list(verify.hot(bucket.key, 0, 1 << 62))) == 2  # the CLEAR, and the row


def _delete(flush: Flush, table: int, ids: list[str]) -> None:
    flush.delete_rows(table, ids)


def _put(flush: Flush, table: int, ids: list[str]) -> None:
    flush.put_rows(table, [CurrentRow(row_id, 0, "", "", None) for row_id in ids])


def _leave_lookups(flush: Flush, table: int, ids: list[str]) -> None:
    for row_id in ids:
        flush.replace_lookups(table, row_id, ())


def _append(flush: Flush, _: int, ids: list[str]) -> None:
    flush.append([DraftOp(int(row_id), 0, f"{row_id[-1]}}}") for row_id in ids], {})


@pytest.mark.parametrize("write", [_delete, _put, _leave_lookups, _append])
def test_rows_and_ops_without_text_take_memory_too(
    writer: SourceWriter, monkeypatch: pytest.MonkeyPatch, write: Callable[[Flush, int, list[str]], None]
) -> None:
    """A transaction may have millions of them."""
    monkeypatch.setattr(flushes, "KEPT_BYTES", 1 << 20)
    writer.bootstrap({"1": (A, "x")})
    most = 0
    with writer.rolled_back() as flush:
        tracemalloc.start()
        try:
            for start in range(100_000, 160_000, 1_000):
                write(flush, writer.table, [str(n) for n in range(start, start + 1_000)])
                most = max(most, tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
    assert most < 4 << 20


def test_others_commit_while_a_flush_is_open(new_writer: Callable[..., SourceWriter]) -> None:
    """A source whose transaction takes long keeps no other from committing, and is numbered after it."""
    west = new_writer()
    west.bootstrap({"1": (A, "west")})
    east = new_writer(beside=west, source="east")
    east.bootstrap({"2": (B, "east")})
    keys = west.keys
    ops, _ = row_ops([], [put(A, "3", "slow")], RowKeys(west.table, "3", keys))
    flush = west.store.begin(west.lease)
    assert flush.current(west.table, ["1"])
    flush.append(ops, {A: named(keys, A)})
    flush.put_rows(west.table, [CurrentRow("3", 0, "3\tslow", "", None)])
    flush.replace_lookups(west.table, "3", [LookupEntry("k", "[1]")])
    flush.mark_resync(west.table, ResyncReason(Cause.REPLACED))
    meanwhile = east.write({"4": (B, "quick")})
    with closing(open_store(west.address).open_reader()) as reader:
        assert "4 quick" in texts(reader, B)
        assert "3 slow" not in texts(reader, A)
        after = flush.commit(west.source, ReplicationProgress(Lsn(west.lsn + 10)))
        assert after.op_id > meanwhile.op_id
        assert "3 slow" in texts(reader, A)
    assert west.store.tables(west.source)[0].resync
