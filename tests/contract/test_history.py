"""What `storage.contract.history` promises to whoever reads a store's changes in bulk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise

import pytest

from headwater.oplog.op import OpId
from headwater.storage.contract.history import HistoryFilter, HistoryOp, OvertakenError, Slice
from headwater.storage.contract.reader import FlushMark
from headwater.storage.open import open_store
from tests.support.written_store import WrittenStore, compact

A, B, C = 'todos["a"]', 'todos["b"]', 'notes["c"]'
START = OpId(0)


@pytest.fixture
def lived(written: WrittenStore) -> WrittenStore:
    """Bulk work, changes, removals and a bucket that comes later."""
    written.publish({str(i): (A if i % 3 else B, f"text {i}") for i in range(3000)})
    for step in range(5):
        written.write({str(i): (A, f"step {step}") for i in range(step * 10, step * 10 + 20)})
    written.write({"1": None, "2": (C, "moved")})
    return written


def told(batches: Iterable[list[HistoryOp]]) -> list[HistoryOp]:
    return sorted(op for batch in batches for op in batch)


def shown(ops: Iterable[HistoryOp]) -> Counter[tuple[str, str, str]]:
    """Bucket, id and text of PUTs."""
    found = [(op.bucket, json.loads(op.line)) for op in ops]
    return Counter((bucket, op["object_id"], json.loads(op["data"])["text"]) for bucket, op in found)


def test_parts_of_history(lived: WrittenStore) -> None:
    compact(lived.address, A, B)
    end = lived.write({"20": (A, "after the compaction")}).op_id
    backend = open_store(lived.address)
    whole = told(backend.read_history(START, end))
    parts = pairwise(map(OpId, [0, *(op.op_id for op in whole[299::300]), end]))
    found = [told(backend.read_history(after, upto, within=(START, end))) for after, upto in parts]
    assert [op for ops in found for op in ops] == whole
    assert len({op.op_id for op in whole}) == len(whole)
    cuts = backend.cut_history(START, end, 300)
    assert (cuts[0][0], cuts[-1][1]) == (0, end)
    assert all(before[1] == after[0] < after[1] for before, after in pairwise(cuts))


def test_history_end(lived: WrittenStore) -> None:
    backend = open_store(lived.address)
    end = backend.history_limits().checkpoint
    ids = [op.op_id for op in told(backend.read_history(START, end))]
    flushes = {flush.last for flush in backend.read_flushes(START, end)}
    for most in (1, 7, 998, 1000, 2999, 3050, 10_000):
        upto = backend.history_end(START, end, most)
        taken = sum(op_id <= upto for op_id in ids)
        assert taken == min(most, len(ids)) or (taken < most and upto in flushes)


def test_history_filter(lived: WrittenStore) -> None:
    backend = open_store(lived.address)
    for where, expected in (
        (HistoryFilter(definitions=("todos",)), {A, B}),
        (HistoryFilter(buckets=(B, C)), {B, C}),
        (HistoryFilter(("todos",), (B, C)), {B}),
    ):
        limits = backend.history_limits(where)
        ops = told(backend.read_history(START, limits.checkpoint, where))
        assert {op.bucket for op in ops} == expected
        assert len(ops) == limits.ops
        assert all(op.definition == op.bucket.partition("[")[0] for op in ops)


def test_read_standing(lived: WrittenStore) -> None:
    before, checkpoint = lived.standing(), open_store(lived.address).history_limits().checkpoint
    lived.write({"5": None, "6": (B, "later")})
    backend = open_store(lived.address)
    parts = [told(backend.read_standing(checkpoint, part=Slice(number, 3))) for number in range(3)]
    assert shown(op for part in parts for op in part) == before
    compact(lived.address, A, B)
    with pytest.raises(OvertakenError):
        told(backend.read_standing(checkpoint))


def test_read_flushes(lived: WrittenStore) -> None:
    first = lived.write({"7": (A, "x")}, committed_us=70)
    second = lived.write({"8": (A, "x")}, committed_us=80)
    (found,) = open_store(lived.address).read_flushes(first.op_id, second.op_id)
    assert (found.after, found.last, found.source, found.committed_us) == (first.op_id, second.op_id, "default", 80)
    assert found.lsn == second.lsns["default"]


def test_touched_flushes(lived: WrittenStore) -> None:
    before = lived.write({"7": (A, "x")}, committed_us=70)
    first = lived.write({"8": (A, "x")}, committed_us=80)
    lived.write({"9": (A, "x")}, committed_us=0)  # as bulk work writes
    last = lived.write({"8": (A, "y")}, committed_us=90)
    with closing(open_store(lived.address).open_reader()) as reader:
        found = reader.touched(before.op_id, last.op_id).flushes
    assert found == (FlushMark(first.op_id, "default", 80), FlushMark(last.op_id, "default", 90))
    assert found[0].committed_at == 946_684_800.00008


def test_overtaken(lived: WrittenStore) -> None:
    backend = open_store(lived.address)
    early = lived.write({"1": (A, "x")}).op_id
    lived.write({"1": (A, "y")})
    compact(lived.address, A)
    end = lived.write({"1": (B, "z")}).op_id
    limits = backend.history_limits()
    assert early < limits.merged < end == limits.checkpoint
    for overtaken in (
        lambda: backend.history_limits(since=early),
        lambda: told(backend.read_history(early, end)),
        lambda: told(backend.read_history(START, early)),
    ):
        with pytest.raises(OvertakenError):
            overtaken()
    assert told(backend.read_history(limits.merged, end))
    assert backend.history_limits(HistoryFilter(buckets=(C,)), since=early).merged == 0
