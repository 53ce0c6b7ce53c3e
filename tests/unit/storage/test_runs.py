"""Ops of a flush keep their order, ids and sums, whether they are stored in runs or one by one."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from headwater.oplog.op import finished_op
from headwater.oplog.transform import DraftOp
from headwater.storage.shared import segments
from headwater.storage.shared.segments import BucketSum, Run, number_ops, segment_lines

_OPS = st.lists(st.builds(DraftOp, st.integers(1, 3), st.integers(0, 2**32 - 1), st.text("ab\\%", max_size=3)))


def numbered(ops: list[DraftOp], first: int, sums: dict[int, BucketSum]) -> dict[int, list[tuple[int, str]]]:
    """By bucket, the finished ops with their ids, in the order of the ids."""
    kept: list[Run] = []
    single, next_op = number_ops(ops, first, sums, kept.append)
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for run in kept:
        lines = segment_lines(run.first, False, run.bodies)
        assert len(lines) == run.size
        found[run.bucket] += lines
    for op_id, op in enumerate(single, next_op):
        found[op.bucket].append((op_id, finished_op(op_id, op.body)))
    return {bucket: sorted(lines) for bucket, lines in found.items()}


@given(ops=_OPS, least_run=st.integers(1, 5), first=st.integers(1, 2**50))
def test_number_ops(ops: list[DraftOp], least_run: int, first: int) -> None:
    sums: dict[int, BucketSum] = {}
    with patch.object(segments, "RUN_OPS", least_run):
        by_bucket = numbered(ops, first, sums)
    ids = sorted(op_id for lines in by_bucket.values() for op_id, _ in lines)
    assert ids == list(range(first, first + len(ops)))
    for bucket, lines in by_bucket.items():
        given_ops = [op for op in ops if op.bucket == bucket]
        assert [line for _, line in lines] == [
            finished_op(op_id, op.body) for (op_id, _), op in zip(lines, given_ops, strict=True)
        ]
        total = sums.pop(bucket)
        assert (total.count, total.last_op) == (len(lines), lines[-1][0])
        assert (total.checksum - sum(op.checksum for op in given_ops)) % 2**32 == 0
    assert not sums


def test_many_ops_are_packed() -> None:
    body = '"op":"PUT","object_type":"todos","object_id":"' + "x" * 200
    ops = [DraftOp(1, 1, body) for _ in range(2_500)] + [DraftOp(2, 1, body)]
    kept: list[Run] = []
    single, first = number_ops(ops, 1, {}, kept.append)
    assert sum(len(run.bodies) for run in kept) < len(body) * 2_500 / 5
    assert ([op.bucket for op in single], first) == ([2], 2_501)
