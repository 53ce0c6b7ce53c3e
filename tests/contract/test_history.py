"""What `storage.contract.history` promises to whoever reads a store's changes in bulk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise

from headwater.oplog.op import OpId
from headwater.storage.contract.history import HistoryOp
from headwater.storage.contract.reader import FlushMark
from headwater.storage.open import open_store
from tests.support.written_store import A, B, WrittenStore, compact

START = OpId(0)


def told(batches: Iterable[list[HistoryOp]]) -> list[HistoryOp]:
    return sorted(op for batch in batches for op in batch)


def shown(ops: Iterable[HistoryOp]) -> Counter[tuple[str, str, str]]:
    """Bucket, id and text of PUTs."""
    found = [(op.bucket, json.loads(op.line)) for op in ops]
    return Counter((bucket, op["object_id"], json.loads(op["data"])["text"]) for bucket, op in found)


def test_parts_of_history(lived: WrittenStore) -> None:
    compact(lived.address, A, B)
    end = lived.write({"20": (A, "after the compaction")}).op_id
    with open_store(lived.address).open_history() as view:
        whole = told(view.ops(START, end))
        parts = pairwise(map(OpId, [0, *(op.op_id for op in whole[299::300]), end]))
        found = [told(view.ops(after, upto)) for after, upto in parts]
        cuts = view.cut(START, end, 300)
    assert [op for ops in found for op in ops] == whole
    assert len({op.op_id for op in whole}) == len(whole)
    assert all(op.definition == op.bucket.partition("[")[0] for op in whole)
    assert (cuts[0][0], cuts[-1][1]) == (0, end)
    assert all(before[1] == after[0] < after[1] for before, after in pairwise(cuts))


def test_view_stays(lived: WrittenStore) -> None:
    before = lived.standing()
    with open_store(lived.address).open_history() as view:
        state = view.state()
        lived.write({"5": None, "6": (B, "later")})
        compact(lived.address, A, B)
        assert shown(op for batch in view.live() for op in batch) == before
        rows = [row for table in view.tables() for batch in view.rows(table) for _, row in batch]
        assert view.state() == state
    assert {row.row_id for row in rows} == {row_id for _, row_id, _ in before}
    with open_store(lived.address).open_history() as view:
        assert shown(op for batch in view.live() for op in batch) == lived.standing() != before
        assert (view.state().store, view.state().definitions) == (state.store, ("notes", "todos"))


def test_read_flushes(lived: WrittenStore) -> None:
    first = lived.write({"7": (A, "x")}, committed_us=70)
    second = lived.write({"8": (A, "x")}, committed_us=80)
    (found,) = open_store(lived.address).read_flushes(first.op_id, second.op_id)
    assert (found.after, found.last, found.source, found.committed_us) == (first.op_id, second.op_id, "default", 80)
    assert found.lsn == second.lsns["default"]
    with open_store(lived.address).open_history() as view:
        assert (view.flushed_at(second.op_id), view.flushed_at(OpId(second.op_id + 1))) == (80, None)
        assert view.knows_flushes_before(second.op_id)
        assert not view.knows_flushes_before(START)


def test_touched_flushes(lived: WrittenStore) -> None:
    before = lived.write({"7": (A, "x")}, committed_us=70)
    first = lived.write({"8": (A, "x")}, committed_us=80)
    lived.write({"9": (A, "x")}, committed_us=0)  # as bulk work writes
    last = lived.write({"8": (A, "y")}, committed_us=90)
    with closing(open_store(lived.address).open_reader()) as reader:
        found = reader.touched(before.op_id, last.op_id).flushes
    assert found == (FlushMark(first.op_id, "default", 80), FlushMark(last.op_id, "default", 90))
    assert found[0].committed_at == 946_684_800.00008
