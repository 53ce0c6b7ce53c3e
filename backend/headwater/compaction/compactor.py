"""Compacts one bucket, step by step. Each step is a short transaction that leaves the store valid; between two steps,
others can write."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import Again, BucketState, Cleared, Piece, UpkeepStore
from headwater.storage.contract.store import Lease
from headwater.storage.shared import compaction
from headwater.storage.shared.common import SEGMENT_OPS
from headwater.storage.shared.compaction import (
    CLEARS,
    MOVED,
    SUPERSEDED,
    Cut,
    Sealer,
    Survey,
    SurveyedPiece,
    Thrift,
)

_KEYS_IN_MEMORY = 2_000_000
_PURGED_AT_ONCE = 2_000
_AGAIN_OPS, _AGAIN_BYTES = 500, 1 << 20
_SEGMENTS_AT_ONCE = 4
_OPS_BETWEEN_RESTS = 1_000
_LARGE_BYTES = 1 << 18  # compressed

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result for a bucket: ops before and after, and live rows. If `again` rows of `again_bytes` were put again,
    that was all: the next compaction can then clear the history before them."""

    before: int
    after: int
    live: int
    again: int = 0
    again_bytes: int = 0


class Compactor:
    """To be used with the upkeep lease. `pause` is called after every transaction with the seconds that it took, `rest`
    after so many ops that were read: they wait, so that others can work, and may raise to end the work."""

    def __init__(
        self, store: UpkeepStore, lease: Lease, pause: Callable[[float], None], rest: Callable[[], None]
    ) -> None:
        self._store = store
        self._lease = lease
        self._pause = pause
        self._rest = rest
        self._renewed = time.monotonic()
        self._read_ops = 0  # since the last rest

    def compact(self, bucket: BucketState, upto: OpId, thrift: Thrift) -> Compacted:
        """Shorten what the bucket holds up to the op `upto`. Raises HistoryChangedError when something else replaced
        its history meanwhile."""
        if bucket.clear_op > upto:
            return Compacted(bucket.count, bucket.count, bucket.live_rows)
        self._purge(bucket)
        pieces = self._store.pieces(bucket.key, upto)
        if not pieces:
            return Compacted(bucket.count, bucket.count, bucket.live_rows)
        history = self._survey(bucket, pieces)
        cut = compaction.choose_cut(history, thrift)
        if cut.rows:
            return self._put_again(bucket, pieces, history, cut)
        before, live = history.ops, history.live
        if cut.gain:
            bucket, pieces, history = self._clear(bucket, pieces, history, cut)
            self._purge(bucket)
        self._rewrite(bucket, pieces, history)
        self._timed(self._store.finish, self._lease, bucket, history.ops, live)
        return Compacted(before, history.ops, live)

    def seal(self, bucket: BucketState, upto: OpId) -> None:
        """Turn what is not sealed up to `upto` into large segments, without reading what is before it."""
        pieces = self._store.pieces(bucket.key, upto)
        done = [number for number, piece in enumerate(pieces) if piece.sealed and _large(piece)]
        tail = pieces[done[-1] + 1 :] if done else pieces
        self._rewrite(bucket, tail, self._survey(bucket, tail))

    def _survey(self, bucket: BucketState, pieces: Sequence[Piece]) -> Survey:
        sizes = [piece.size for piece in pieces]
        partitions = max(1, -(-sum(sizes) // _KEYS_IN_MEMORY))
        return compaction.survey(sizes, lambda number: self._read(bucket, pieces[number]), partitions=partitions)

    def _read(self, bucket: BucketState, piece: Piece) -> bytes:
        if time.monotonic() - self._renewed > self._lease.ttl / 3:
            self._timed(self._store.renew, self._lease)
        self._read_ops += piece.size
        if self._read_ops >= _OPS_BETWEEN_RESTS:
            self._read_ops = 0
            self._rest()
        return self._store.read(bucket.key, piece)

    def _timed(self, step: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run a step, which holds the write lock and renews the lease, then pause."""
        started = time.monotonic()
        result = step(*args, **kwargs)
        self._renewed = time.monotonic()
        self._pause(self._renewed - started)
        return result

    def _purge(self, bucket: BucketState) -> None:
        if self._store.has_remains(bucket.key):
            while self._timed(self._store.purge, self._lease, bucket.key, _PURGED_AT_ONCE):
                pass

    def _put_again(self, bucket: BucketState, pieces: Sequence[Piece], history: Survey, cut: Cut) -> Compacted:
        gone, seen = self._store.rows_after(bucket.key, pieces[-1].last)
        rows = size = 0
        for found in compaction.standing_before(cut, history, lambda number: self._read(bucket, pieces[number])):
            for batch in _batches([row for row in found if row.row not in gone]):
                newer, seen = self._store.rows_after(bucket.key, seen)
                gone |= newer
                left = [row for row in batch if row.row not in gone]
                put, seen = self._timed(self._store.put_again, self._lease, bucket, seen, left)
                rows += put
                size += sum(len(row.body) for row in left)
        return Compacted(history.ops, history.ops + rows, history.live, rows, size)

    def _clear(
        self, bucket: BucketState, pieces: list[Piece], history: Survey, cut: Cut
    ) -> tuple[BucketState, list[Piece], Survey]:
        """Replace everything before the cut by a CLEAR. Returns the bucket, its pieces and their survey afterwards."""
        number, offset = cut.piece, cut.offset
        if not offset:  # right after the piece before
            number, offset = number - 1, pieces[number - 1].size
        piece, found, before = pieces[number], history.pieces[number], history.pieces[:number]
        lines = compaction.shortened(self._read(bucket, piece), found.roles)
        sealer = Sealer()
        if piece.blob:
            sealer.add(lines[offset:])
        cleared = Cleared(
            op_id=OpId(compaction.op_head(lines[offset - 1]).op_id),
            checksum=(sum(each.checksum for each in before) + compaction.checksum_of(lines[:offset])) & 0xFFFFFFFF,
            replaced=sum(len(each.roles) for each in before) + offset,
            rest=tuple(sealer.take()),
        )
        placed = self._timed(self._store.clear, self._lease, bucket, piece, cleared, pieces[-1].last)
        roles = bytearray([CLEARS]) + found.roles[offset:]
        if piece.blob:
            roles = roles.replace(bytes([SUPERSEDED]), bytes([MOVED]))
        rest = _cut_up(roles, array("I", [0]) + found.lengths[offset:], [each.size for each in placed])
        return (
            replace(bucket, clear_op=cleared.op_id),
            [*placed, *pieces[number + 1 :]],
            Survey([*rest, *history.pieces[number + 1 :]]),
        )

    def _rewrite(self, bucket: BucketState, pieces: Sequence[Piece], history: Survey) -> None:
        """Make segments of every piece that is not sealed, has ops to shorten, or is small."""
        if not pieces:
            return
        compacted_op = pieces[-1].last if any(found.changes for found in history.pieces) else bucket.compacted_op

        def replace_pieces(old: Sequence[Piece], sealer: Sealer) -> Piece:
            return self._timed(self._store.replace, self._lease, bucket, old, sealer.take(), compacted_op)[-1]

        rewriter = _Rewriter(replace_pieces)
        for piece, found in zip(pieces, history.pieces, strict=True):
            if _settled(piece, found):
                rewriter.end()
            else:
                lines = compaction.shortened(self._read(bucket, piece), found.roles)
                rewriter.take(piece, lines, worthwhile=not piece.sealed or found.changes)
        rewriter.end()


class _Rewriter:
    """Collects consecutive pieces until they fill some segments. The last segment, which has room left, is written too,
    and written again together with what follows."""

    def __init__(self, write: Callable[[Sequence[Piece], Sealer], Piece]) -> None:
        self._write = write
        self._old: list[Piece] = []
        self._sealer = Sealer()
        self._worthwhile = False

    def take(self, piece: Piece, lines: Sequence[bytes], *, worthwhile: bool) -> None:
        self._worthwhile = self._worthwhile or worthwhile or bool(self._old)
        self._old.append(piece)
        self._sealer.add(lines)
        if self._sealer.full >= _SEGMENTS_AT_ONCE:
            left = list(self._sealer.open)
            last = self._write(self._old, self._sealer)
            self._old, self._worthwhile = [last], False
            self._sealer.add(left)

    def end(self) -> None:
        """Write what was taken, if that is worthwhile; what follows begins a new segment."""
        if self._worthwhile:
            self._write(self._old, self._sealer)
        self._old, self._sealer, self._worthwhile = [], Sealer(), False


def _settled(piece: Piece, found: SurveyedPiece) -> bool:
    """Whether a piece can stay: a sealed segment with nothing to shorten, and large enough."""
    return piece.sealed and not found.changes and _large(piece)


def _large(piece: Piece) -> bool:
    return piece.size >= SEGMENT_OPS // 2 or piece.bytes >= _LARGE_BYTES


def _cut_up(roles: bytearray, lengths: array[int], sizes: Sequence[int]) -> Iterator[SurveyedPiece]:
    start = 0
    for size in sizes:
        # Checksums are left out: they are not needed after the history was cleared
        yield SurveyedPiece(roles[start : start + size], lengths[start : start + size])
        start += size


def _batches(rows: Sequence[Again]) -> Iterator[list[Again]]:
    batch: list[Again] = []
    size = 0
    for row in rows:
        if batch and (len(batch) >= _AGAIN_OPS or size + len(row.body) > _AGAIN_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += len(row.body)
    if batch:
        yield batch
