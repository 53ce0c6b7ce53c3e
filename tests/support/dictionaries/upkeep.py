"""Keeping histories short, as far as `storage.shared.compaction` says that they can be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import orjson

from headwater.oplog.op import OpId, finished_op
from headwater.storage.contract.compaction import (
    LEASE,
    Again,
    BucketState,
    Cleared,
    HistoryChangedError,
    Piece,
    SealedRun,
)
from headwater.storage.contract.store import Lease
from headwater.storage.contract.verify import StoredSegment
from headwater.storage.shared.compaction import clear_line, op_head
from headwater.storage.shared.packing import unpacked
from headwater.storage.shared.render import numbered
from tests.support.dictionaries.kept import Kept
from tests.support.dictionaries.state import Bucket, Flushed, Segment, State


class DictUpkeep:
    """See `storage.contract.compaction.UpkeepStore`."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.acquire = partial(kept.acquire, LEASE)
        self.renew, self.release = kept.renew, kept.release

    def checkpoint(self) -> OpId:
        return OpId(self._kept.state.checkpoint or 0)

    def bucket(self, key: int) -> BucketState | None:
        held = self._kept.state.buckets.get(key)
        return None if held is None else _told(key, held)

    def buckets(self, changed_after: OpId) -> list[BucketState]:
        held = sorted(self._kept.state.buckets.items())
        return [_told(key, bucket) for key, bucket in held if bucket.last_op > changed_after]

    def unsealed_ops(self, bucket: int, upto: OpId, limit: int) -> int:
        held = self._kept.state.buckets.get(bucket)
        return 0 if held is None else min(limit, len(list(held.hot_between(0, upto))))

    def has_remains(self, bucket: int) -> bool:
        held = self._kept.state.buckets.get(bucket)
        return held is not None and any(first < held.clear_op for first in (*held.hot, *held.segments))

    def pieces(self, bucket: int, upto: OpId) -> list[Piece]:
        held = self._kept.state.buckets.get(bucket)
        if held is None:
            return []
        position, pieces = held.clear_op - 1, list[Piece]()
        for segment in held.segments_after(position):
            pieces += _hot_piece(held, position, min(segment.stored.first - 1, upto))
            if segment.stored.last > upto:
                return pieces
            pieces.append(_piece(segment))
            position = segment.stored.last
        return pieces + _hot_piece(held, position, upto)

    def read(self, bucket: int, piece: Piece) -> bytes:
        held = _with_piece(self._kept.state, bucket, piece)
        if not piece.blob:
            return b"\n".join(line for _, line in held.hot_between(piece.first - 1, piece.last))
        content = unpacked(held.segments[piece.first].stored.bodies or b"")
        return content if piece.sealed else numbered(content, piece.first)

    def rows_after(self, bucket: int, seen: OpId) -> tuple[set[int], OpId]:
        return _rows_after(self._kept.state, bucket, seen)

    def put_again(self, lease: Lease, bucket: BucketState, seen: OpId, rows: Sequence[Again]) -> tuple[int, OpId]:
        with self._kept.changing(lease) as state:
            held = _same(state, bucket)
            changed, newest = _rows_after(state, bucket.key, seen)
            rows = [row for row in rows if row.row not in changed]
            for row in rows:
                newest = OpId(state.take_op())
                held.hot[newest] = finished_op(newest, row.body).encode()
                held.hold(newest, 1, row.checksum)
            if rows:
                state.checkpoint = newest
                state.flushes[newest] = Flushed(newest, "", 0, 0, orjson.dumps([bucket.name]).decode(), "[]")
            return len(rows), newest

    def clear(self, lease: Lease, bucket: BucketState, cut: Piece, cleared: Cleared, compacted_op: OpId) -> list[Piece]:
        with self._kept.changing(lease) as state:
            held = _same(state, bucket, [cut])
            placed = []
            if cut.blob:
                del held.segments[cut.first]
                placed = [_piece(state.place(bucket.key, _stored(run))) for run in cleared.rest]
            held.hot[cleared.op_id] = clear_line(cleared.op_id, cleared.checksum).encode()
            held.count += 1 - cleared.replaced
            held.clear_op, held.compacted_op = cleared.op_id, max(held.compacted_op, compacted_op)
            rest = [] if cut.blob else _hot_piece(held, cleared.op_id, cut.last)
            return [*_hot_piece(held, cleared.op_id - 1, cleared.op_id), *placed, *rest]

    def replace(
        self, lease: Lease, bucket: BucketState, old: Sequence[Piece], new: Sequence[SealedRun], compacted_op: OpId
    ) -> list[Piece]:
        with self._kept.changing(lease) as state:
            held = _same(state, bucket, old)
            for piece in old:
                if piece.blob:
                    del held.segments[piece.first]
                else:
                    for op_id, _ in held.hot_between(piece.first - 1, piece.last):
                        del held.hot[op_id]
            held.compacted_op = max(held.compacted_op, compacted_op)
            return [_piece(state.place(bucket.key, _stored(run))) for run in new]

    def purge(self, lease: Lease, bucket: int, limit: int) -> bool:
        with self._kept.changing(lease) as state:
            held = state.buckets.get(bucket)
            if held is not None:
                clear = held.clear_op
                held.compacted_op = max(held.compacted_op, clear)
                held.hot = {op_id: line for op_id, line in held.hot.items() if op_id >= clear}
                held.segments = {first: each for first, each in held.segments.items() if each.stored.last >= clear}
            return False

    def finish(self, lease: Lease, bucket: BucketState, count: int, live_rows: int) -> None:
        with self._kept.changing(lease) as state:
            held = state.buckets.get(bucket.key)
            if held is not None and held.clear_op >= bucket.clear_op:
                held.compacted_count, held.live_rows = count, live_rows

    def prune(self, lease: Lease, flushes: int) -> int:
        with self._kept.changing(lease) as state:
            gone = sorted(state.flushes)[:-flushes]
            for last in gone:
                del state.flushes[last]
            return len(gone)

    def close(self) -> None:
        pass


def _told(key: int, held: Bucket) -> BucketState:
    marks = OpId(held.clear_op), OpId(held.last_op), OpId(held.compacted_op)
    return BucketState(key, held.name, held.definition, held.count, *marks, held.compacted_count, held.live_rows)


def _piece(segment: Segment) -> Piece:
    blob, (first, last, sealed, size, _, bodies) = segment
    return Piece(OpId(first), OpId(last), size, blob, sealed, len(bodies or b""))


def _hot_piece(held: Bucket, after: int, upto: int) -> list[Piece]:
    ops = list(held.hot_between(after, upto))
    return [Piece(OpId(ops[0][0]), OpId(ops[-1][0]), len(ops), 0, False, sum(len(op[1]) for op in ops))] if ops else []


def _stored(run: SealedRun) -> StoredSegment:
    return StoredSegment(run.first, run.last, True, run.size, run.checksum, run.blob)


def _same(state: State, bucket: BucketState, pieces: Sequence[Piece] = ()) -> Bucket:
    """The bucket, if nothing cleared it since and these pieces are as they were read. Raises HistoryChangedError."""
    held = _with_piece(state, bucket.key, *pieces)
    if held.clear_op != bucket.clear_op:
        raise _changed(bucket.key)
    return held


def _with_piece(state: State, key: int, *pieces: Piece) -> Bucket:
    held = state.buckets.get(key)
    if held is None:
        raise _changed(key)
    for piece in pieces:
        segment = held.segments.get(piece.first)
        blob = 0 if segment is None else segment.blob
        hot = len(list(held.hot_between(piece.first - 1, piece.last)))
        if blob != piece.blob or (not blob and hot != piece.size):
            raise _changed(key)
    return held


def _rows_after(state: State, key: int, seen: int) -> tuple[set[int], OpId]:
    held = state.buckets.get(key)
    if held is None or held.segments_after(seen):
        raise _changed(key)
    ops = list(held.hot_between(seen, 1 << 62))
    rows = {row for _, line in ops if (row := op_head(line).row) is not None}
    return rows, OpId(ops[-1][0] if ops else seen)


def _changed(key: int) -> HistoryChangedError:
    return HistoryChangedError("a bucket's history changed meanwhile", f"bucket key {key}", "it is looked at again")
