"""Compacts one bucket, step by step, and removes ops that are to be forgotten from it. Each step is a short transaction
that leaves the store valid; between two steps, others can write.

An op to be forgotten that a later one overrules becomes a MOVE, as in any compaction. A REMOVE takes more, since
devices that still have the row must lose it: everything up to the REMOVE becomes one CLEAR, and the live rows from
there are put again, so devices download them again.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import BucketState, Cleared, HistoryChangedError, Piece
from headwater.storage.contract.store import Lease
from headwater.storage.shared import compaction
from headwater.storage.shared.common import SEGMENT_OPS, batched
from headwater.storage.shared.compaction import (
    CLEARS,
    MOVED,
    REMOVES,
    STANDS,
    SUPERSEDED,
    CompactionPolicy,
    Cut,
    HistoryScan,
    ScannedPiece,
    Sealer,
)
from headwater.storage.sql.compaction import CompactionStore

_KEYS_IN_MEMORY = 2_000_000
_PURGED_AT_ONCE = 2_000
_REPUT_OPS, _REPUT_BYTES = 500, 1 << 20
_SEGMENTS_AT_ONCE = 4
_OPS_BETWEEN_RESTS = 1_000
_LARGE_BYTES = 1 << 18  # compressed

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result for a bucket: ops before and after, and live rows. If `reput` rows of `reput_bytes` were put again,
    that was all: the next compaction can then clear the history before them."""

    before: int
    after: int
    live: int
    reput: int = 0
    reput_bytes: int = 0


class BucketCompactor:
    """To be used with the compaction lease. `pause` is called after every transaction with the seconds that it took,
    `rest` after so many ops that were read: they wait, so that others can work, and may raise to end the work."""

    def __init__(
        self, store: CompactionStore, lease: Lease, pause: Callable[[float], None], rest: Callable[[], None]
    ) -> None:
        self._store = store
        self._lease = lease
        self._pause = pause
        self._rest = rest
        self._renewed = time.monotonic()
        self._read_ops = 0  # since the last rest

    def compact(self, bucket: BucketState, upto: OpId, policy: CompactionPolicy) -> Compacted:
        """Shorten what the bucket holds up to the op `upto`. Raises HistoryChangedError when something else replaced
        its history meanwhile."""
        if bucket.clear_op > upto:
            return Compacted(bucket.count, bucket.count, bucket.live_rows)
        self._purge(bucket)
        pieces = self._store.pieces(bucket.key, upto)
        if not pieces:
            return Compacted(bucket.count, bucket.count, bucket.live_rows)
        history = _scan(pieces, lambda piece: self._read(bucket, piece))
        cut = compaction.choose_cut(history, policy)
        if cut.rows:
            return self._reput(bucket, pieces, history, cut)
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
        self._rewrite(bucket, tail, _scan(tail, lambda piece: self._read(bucket, piece)))

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

    def _reput(self, bucket: BucketState, pieces: Sequence[Piece], history: HistoryScan, cut: Cut) -> Compacted:
        gone, seen = self._store.rows_after(bucket.key, pieces[-1].last)
        rows = size = 0
        for found in compaction.live_before(cut, history, lambda number: self._read(bucket, pieces[number])):
            for batch in batched(
                (row for row in found if row.row not in gone), lambda row: len(row.body), _REPUT_OPS, _REPUT_BYTES
            ):
                newer, seen = self._store.rows_after(bucket.key, seen)
                gone |= newer
                left = [row for row in batch if row.row not in gone]
                put, newer, seen = self._timed(self._store.reput, self._lease, bucket, seen, left)
                gone |= newer  # rows of later batches, too
                rows += put
                size += sum(len(row.body) for row in left)
        return Compacted(history.ops, history.ops + rows, history.live, rows, size)

    def _clear(
        self, bucket: BucketState, pieces: list[Piece], history: HistoryScan, cut: Cut
    ) -> tuple[BucketState, list[Piece], HistoryScan]:
        """Replace everything before the cut by a CLEAR. Returns the bucket, its pieces and their scan afterwards."""
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
            HistoryScan([*rest, *history.pieces[number + 1 :]]),
        )

    def _rewrite(self, bucket: BucketState, pieces: Sequence[Piece], history: HistoryScan) -> None:
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


def _settled(piece: Piece, found: ScannedPiece) -> bool:
    """Whether a piece can stay: a sealed segment with nothing to shorten, and large enough."""
    return piece.sealed and not found.changes and _large(piece)


def _large(piece: Piece) -> bool:
    return piece.size >= SEGMENT_OPS // 2 or piece.bytes >= _LARGE_BYTES


def _cut_up(roles: bytearray, lengths: array[int], sizes: Sequence[int]) -> Iterator[ScannedPiece]:
    start = 0
    for size in sizes:
        # Checksums are left out: they are not needed after the history was cleared
        yield ScannedPiece(roles[start : start + size], lengths[start : start + size])
        start += size


_ATTEMPTS = 5
_FREE = CompactionPolicy(budget=0)
_AT_ANY_PRICE = CompactionPolicy(spare=0.0, budget=1 << 62, price=math.inf, least=1)
"""Leaves nothing but a CLEAR and the PUTs of live rows."""


@dataclass(frozen=True, slots=True)
class BucketFindings:
    """The ops of a bucket that are to be forgotten: `standing` PUTs of live rows, which can't be; `overruled` ops,
    which a later op overrules or which no device is sent any more; and `removes` that are the last op of their row. The
    bucket has `rows` live rows, and `reput` of them, of `reput_bytes`, have to be put again because of the REMOVEs."""

    name: str
    definition: str
    standing: int
    overruled: int
    removes: int
    rows: int
    reput: int
    reput_bytes: int

    @property
    def left(self) -> int:
        """How many ops can be removed."""
        return self.overruled + self.removes


def classify(store: CompactionStore, bucket: int, ops: Collection[int]) -> BucketFindings | None:
    """Classify the ops with these ids. None when the bucket is gone. Raises HistoryChangedError when the bucket keeps
    changing."""
    return _retried(store, bucket, lambda state: _classify(store, state, ops))


def _retried(store: CompactionStore, bucket: int, work: Callable[[BucketState], _R]) -> _R | None:
    """Do work on a bucket, and begin again when its history changed meanwhile. None when the bucket is gone."""
    for attempt in range(1, _ATTEMPTS + 1):
        state = store.bucket(bucket)
        if state is None:
            return None
        try:
            return work(state)
        except HistoryChangedError:
            if attempt == _ATTEMPTS:
                raise
    return None


def _classify(store: CompactionStore, state: BucketState, ops: Collection[int]) -> BucketFindings:
    pieces = store.pieces(state.key, store.checkpoint())
    history = _scan(pieces, lambda piece: store.read(state.key, piece))
    start = pieces[0].first if pieces else state.clear_op
    roles = _roles(store, state.key, pieces, history, ops)
    removes = sum(role == REMOVES for role in roles)
    standing = sum(role == STANDS for role in roles)
    cut = compaction.choose_cut(history, _AT_ANY_PRICE)
    again = (cut.rows, cut.cost) if removes else (0, 0)
    before = sum(op_id < start for op_id in ops)
    overruled = len(roles) - removes - standing + before
    return BucketFindings(state.name, state.definition, standing, overruled, removes, history.live, *again)


def _scan(pieces: Sequence[Piece], read: Callable[[Piece], bytes]) -> HistoryScan:
    sizes = [piece.size for piece in pieces]
    partitions = max(1, -(-sum(sizes) // _KEYS_IN_MEMORY))
    return compaction.scan(sizes, lambda number: read(pieces[number]), partitions=partitions)


def _roles(
    store: CompactionStore, bucket: int, pieces: list[Piece], history: HistoryScan, ops: Collection[int]
) -> list[int]:
    found: list[int] = []
    for piece, scanned in zip(pieces, history.pieces, strict=True):
        if any(piece.first <= op_id <= piece.last for op_id in ops):
            ids = compaction.op_ids(store.read(bucket, piece))
            found += [role for op_id, role in zip(ids, scanned.roles, strict=True) if op_id in ops]
    return found


class Forgetter:
    """To be used with the compaction lease. `pause` is called after every transaction with the seconds that it took."""

    def __init__(self, store: CompactionStore, lease: Lease, pause: Callable[[float], None]) -> None:
        self._store = store
        self._lease = lease
        self._pause = pause

    def rewrite(self, bucket: int, *, clear: bool) -> None:
        """Remove all ops that a later one overrules, and with `clear` all but PUTs of live rows. Raises
        HistoryChangedError when the bucket keeps changing."""
        self._compact(bucket, _FREE)
        if clear:
            self._compact(bucket, _AT_ANY_PRICE)
            self._compact(bucket, _FREE)

    def _compact(self, bucket: int, policy: CompactionPolicy) -> None:
        def compact(state: BucketState) -> Compacted:
            compactor = BucketCompactor(self._store, self._lease, self._pause, lambda: None)
            return compactor.compact(state, self._store.checkpoint(), policy)

        _retried(self._store, bucket, compact)


def by_bucket(ops: Iterable[tuple[int, OpId | int]]) -> dict[int, set[int]]:
    """Op ids by the key of their bucket."""
    found: dict[int, set[int]] = {}
    for bucket, op_id in ops:
        found.setdefault(bucket, set()).add(int(op_id))
    return found
