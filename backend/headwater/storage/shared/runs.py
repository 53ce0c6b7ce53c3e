"""Numbers the ops of a flush. Many ops of one bucket become runs, which are stored as segments: that takes less room,
and less work to write and to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from headwater.oplog.transform import DraftOp
from headwater.storage.shared.common import BucketSum
from headwater.storage.shared.segments import SegmentPacker

RUN_OPS = 100
"""The fewest ops of a bucket that make a run. Reading many short ones would cost more than reading their ops."""

_bucket_of = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Run:
    """A segment of `size` ops with consecutive ids from `first`; `bodies` are compressed, and have no ids."""

    bucket: int
    first: int
    size: int
    checksum: int
    bodies: bytes

    @property
    def last(self) -> int:
        return self.first + self.size - 1


Keep = Callable[[Run], None]
"""Stores a run."""


def number_ops(
    ops: Sequence[DraftOp], first: int, sums: dict[int, BucketSum], keep: Keep
) -> tuple[Sequence[DraftOp], int]:
    """Number ops from `first`, in the order given within each bucket, and add them to `sums`. Passes each run to `keep`
    when it is packed. Returns the ops that belong to none, and the id of the first of them."""
    large = _large_buckets(ops)
    if large:
        first = _pack([op for op in ops if op[0] in large], first, sums, keep)
        ops = [op for op in ops if op[0] not in large]
    for op_id, (bucket, checksum, _) in enumerate(ops, first):
        _add(sums, bucket, checksum, 1, op_id)
    return ops, first


def _large_buckets(ops: Sequence[DraftOp]) -> set[int]:
    if len(ops) < RUN_OPS:
        return set()
    return {bucket for bucket, count in Counter(map(_bucket_of, ops)).items() if count >= RUN_OPS}


def _pack(ops: Sequence[DraftOp], first: int, sums: dict[int, BucketSum], keep: Keep) -> int:
    """Pack all ops into runs. Returns the next id."""

    def number(bucket: int, size: int, checksum: int, bodies: bytes) -> None:
        nonlocal first
        run = Run(bucket, first, size, checksum, bodies)
        first += size
        _add(sums, bucket, checksum, size, run.last)
        keep(run)

    packer = SegmentPacker(number)
    packer.add(ops)
    packer.seal_all()
    return first


def _add(sums: dict[int, BucketSum], bucket: int, checksum: int, count: int, last_op: int) -> None:
    total = sums.get(bucket)
    if total is None:
        total = sums[bucket] = BucketSum()
    total.checksum += checksum
    total.count += count
    total.last_op = last_op
