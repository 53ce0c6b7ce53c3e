"""Taking ops that are to be forgotten out of buckets. What a later op overrules becomes a MOVE, as in any compaction.
A REMOVE that has to go needs more, for devices that have the row must still lose it: everything up to it becomes one
CLEAR, and the rows that stand there are put again, so devices download them again.
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
"""Leaves nothing but a CLEAR and the rows that stand."""


@dataclass(frozen=True, slots=True)
class BucketFindings:
    """What of a bucket's ops is to be forgotten: PUTs whose rows stand, which can't be; ops that a later one overrules
    or that no device is sent any more; REMOVEs that are the last word on their row. `rows` stand in the bucket, and
    `again` of them, of so many bytes, would have to be put again for the sake of the REMOVEs."""

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
        """How many ops can go, and are there."""
        return self.overruled + self.removes


def look(store: UpkeepStore, bucket: int, ops: Collection[int]) -> BucketFindings | None:
    """What the ops with these ids are to their bucket; None when it is no more. Raises HistoryChangedError when it
    changes all the time."""
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
    """Works under the upkeep lease. `pause` is called after every transaction with the seconds that it took."""

    def __init__(self, store: UpkeepStore, lease: Lease, pause: Callable[[float], None]) -> None:
        self._store = store
        self._lease = lease
        self._pause = pause

    def rewrite(self, bucket: int, *, clear: bool) -> None:
        """Leave no op in the bucket that a later one overrules, and with `clear` none but PUTs of rows that stand.
        Raises HistoryChangedError when the bucket changes all the time."""
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
