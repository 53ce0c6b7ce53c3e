"""Removes ops that are to be forgotten from buckets. An op that a later one overrules becomes a MOVE, as in any
compaction. A REMOVE takes more, since devices that still have the row must lose it: everything up to the REMOVE becomes
one CLEAR, and the live rows from there are put again, so devices download them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from headwater.compaction.compactor import Compactor
from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import BucketState, HistoryChangedError, Piece, UpkeepStore
from headwater.storage.contract.store import Lease
from headwater.storage.shared import compaction
from headwater.storage.shared.compaction import REMOVES, STANDS, Survey, Thrift

_KEYS_IN_MEMORY = 2_000_000
_ATTEMPTS = 5
_FREE = Thrift(budget=0)
_AT_ANY_PRICE = Thrift(spare=0.0, budget=1 << 62, price=math.inf, least=1)
"""Leaves nothing but a CLEAR and the PUTs of live rows."""


@dataclass(frozen=True, slots=True)
class BucketFindings:
    """The ops of a bucket that are to be forgotten: `standing` PUTs of live rows, which can't be; `overruled` ops,
    which a later op overrules or which no device is sent any more; and `removes` that are the last op of their row. The
    bucket has `rows` live rows, and `again` of them, of `again_bytes`, have to be put again because of the REMOVEs."""

    name: str
    definition: str
    standing: int
    overruled: int
    removes: int
    rows: int
    again: int
    again_bytes: int

    @property
    def left(self) -> int:
        """How many ops can be removed."""
        return self.overruled + self.removes


def look(store: UpkeepStore, bucket: int, ops: Collection[int]) -> BucketFindings | None:
    """Classify the ops with these ids. None when the bucket is gone. Raises HistoryChangedError when the bucket keeps
    changing."""
    for attempt in range(_ATTEMPTS):
        state = store.bucket(bucket)
        if state is None:
            return None
        try:
            return _look(store, state, ops)
        except HistoryChangedError:
            if attempt == _ATTEMPTS - 1:
                raise
    return None


def _look(store: UpkeepStore, state: BucketState, ops: Collection[int]) -> BucketFindings:
    pieces = store.pieces(state.key, store.checkpoint())
    history = _survey(store, state.key, pieces)
    start = pieces[0].first if pieces else state.clear_op
    roles = _roles(store, state.key, pieces, history, ops)
    removes = sum(role == REMOVES for role in roles)
    standing = sum(role == STANDS for role in roles)
    cut = compaction.choose_cut(history, _AT_ANY_PRICE)
    again = (cut.rows, cut.cost) if removes else (0, 0)
    before = sum(op_id < start for op_id in ops)
    overruled = len(roles) - removes - standing + before
    return BucketFindings(state.name, state.definition, standing, overruled, removes, history.live, *again)


def _survey(store: UpkeepStore, bucket: int, pieces: list[Piece]) -> Survey:
    sizes = [piece.size for piece in pieces]
    partitions = max(1, -(-sum(sizes) // _KEYS_IN_MEMORY))
    return compaction.survey(sizes, lambda number: store.read(bucket, pieces[number]), partitions=partitions)


def _roles(store: UpkeepStore, bucket: int, pieces: list[Piece], history: Survey, ops: Collection[int]) -> list[int]:
    found: list[int] = []
    for piece, surveyed in zip(pieces, history.pieces, strict=True):
        if any(piece.first <= op_id <= piece.last for op_id in ops):
            ids = compaction.op_ids(store.read(bucket, piece))
            found += [role for op_id, role in zip(ids, surveyed.roles, strict=True) if op_id in ops]
    return found


class Forgetter:
    """To be used with the upkeep lease. `pause` is called after every transaction with the seconds that it took."""

    def __init__(self, store: UpkeepStore, lease: Lease, pause: Callable[[float], None]) -> None:
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

    def _compact(self, bucket: int, thrift: Thrift) -> None:
        for attempt in range(_ATTEMPTS):
            state = self._store.bucket(bucket)
            if state is None:
                return
            try:
                compactor = Compactor(self._store, self._lease, self._pause, lambda: None)
                compactor.compact(state, self._store.checkpoint(), thrift)
            except HistoryChangedError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return


def by_bucket(ops: Iterable[tuple[int, OpId | int]]) -> dict[int, set[int]]:
    """Op ids by the key of their bucket."""
    found: dict[int, set[int]] = {}
    for bucket, op_id in ops:
        found.setdefault(bucket, set()).add(int(op_id))
    return found
