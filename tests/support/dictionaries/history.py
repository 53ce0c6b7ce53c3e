"""Reading a store's history in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.history import (
    EVERY_BUCKET,
    START,
    WHOLE,
    FlushRange,
    HistoryFilter,
    HistoryLimits,
    HistoryOp,
    Slice,
    merge_floor,
    overtaken_error,
    state_overtaken_error,
)
from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater.storage.shared.common import life_of
from headwater.storage.shared.loading import BATCH_BYTES, batched
from headwater.storage.shared.unpack import batches, cut_up, nth, standing
from tests.support.dictionaries.kept import Place
from tests.support.dictionaries.state import Bucket, State

_BATCH_ROWS = 2_000


class History(Place):
    """What `storage.backend.Backend` has of it."""

    def read_rows(self, table: int, first: int, end: int, room: int = BATCH_BYTES) -> Iterator[list[PlacedRow]]:
        return read_rows(self.state, table, first, end, room)

    def find_row(self, table: int, row_id: str) -> CurrentRow | None:
        found = self.state.tables.get(table)
        placed = found.rows.get(row_id) if found is not None else None
        return None if placed is None else placed.row

    def history_limits(self, where: HistoryFilter = EVERY_BUCKET, *, since: OpId = START) -> HistoryLimits:
        state, buckets = self.state, _chosen(self.state, where).values()
        _check_not_overtaken(buckets, since or state.next_op)
        merged = max((bucket.compacted_op for bucket in buckets), default=0)
        ops = sum(bucket.count for bucket in buckets)
        return HistoryLimits(life_of(state.salt), OpId(state.checkpoint or 0), OpId(merged), ops)

    def read_history(
        self,
        after_op: OpId,
        upto_op: OpId,
        where: HistoryFilter = EVERY_BUCKET,
        *,
        within: tuple[OpId, OpId] | None = None,
    ) -> Iterator[list[HistoryOp]]:
        buckets = _chosen(self.state, where).values()
        _check_not_overtaken(buckets, merge_floor(after_op, upto_op, within))
        yield from batches(
            HistoryOp(op_id, bucket.name, bucket.definition, line)
            for bucket in buckets
            for op_id, line in bucket.lines(after_op, upto_op)
        )

    def cut_history(self, after_op: OpId, upto_op: OpId, ops: int) -> list[tuple[OpId, OpId]]:
        return cut_up(((op_id, 1) for op_id in _ids(self.state, after_op, upto_op)), after_op, upto_op, ops)

    def history_end(self, after_op: OpId, upto_op: OpId, ops: int) -> OpId:
        state = self.state
        found = nth(_ids(state, after_op, upto_op), (), ops, upto_op)
        flushes = [last for last in state.flushes if after_op < last <= found]
        return OpId(found if found == upto_op else max(flushes, default=found))

    def read_flushes(self, after_op: OpId, upto_op: OpId) -> Sequence[FlushRange]:
        flushes = self.state.flushes
        known = [(before, flushes[last]) for before, last in pairwise(sorted(flushes))]
        return [
            FlushRange(OpId(before), OpId(flush.last_op), flush.source, Lsn(flush.lsn), flush.committed_us)
            for before, flush in known
            if flush.last_op > after_op and before < upto_op
        ]

    def read_standing(
        self, checkpoint: OpId, where: HistoryFilter = EVERY_BUCKET, part: Slice = WHOLE
    ) -> Iterator[list[HistoryOp]]:
        for key, bucket in _chosen(self.state, where).items():
            if key % part.count == part.number:
                if bucket.compacted_op > checkpoint:
                    raise state_overtaken_error(bucket.name, checkpoint)
                puts = standing(reversed(bucket.lines(0, checkpoint)))
                yield from batches(HistoryOp(op_id, bucket.name, bucket.definition, line) for op_id, line in puts)


def read_rows(state: State, table: int, first: int, end: int, room: int = BATCH_BYTES) -> Iterator[list[PlacedRow]]:
    """The rows at places [first, end) in batches."""
    if table in state.tables:
        rows = (placed for placed in state.tables[table].in_order() if first <= placed.place < end)
        yield from batched(rows, _BATCH_ROWS, room)


def _chosen(state: State, where: HistoryFilter) -> dict[int, Bucket]:
    return {
        key: bucket
        for key, bucket in state.buckets.items()
        if (not where.definitions or bucket.definition in where.definitions)
        and (not where.buckets or bucket.name in where.buckets)
    }


def _ids(state: State, after: int, upto: int) -> list[int]:
    return sorted(op_id for bucket in state.buckets.values() for op_id, _ in bucket.lines(after, upto))


def _check_not_overtaken(buckets: Iterable[Bucket], since: int) -> None:
    for bucket in buckets:
        if bucket.compacted_op > since:
            raise overtaken_error(bucket.name, OpId(since), OpId(bucket.compacted_op))
