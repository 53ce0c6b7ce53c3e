"""Reading a store's history in bulk, beside its writer: finished ops, what is known of the flushes they came with, and
the rows that stand in buckets at one moment. For whoever takes a store's changes elsewhere; devices read chunks.

Runs on executors too. Every function answers for one moment by itself; `upto` and `checkpoint` tie several together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress


class OvertakenError(HeadwaterError):
    """Compaction has merged changes that were to be read one by one."""

    code = "HW_4101"


class HistoryOp(NamedTuple):
    """One op of a bucket. `line` is the finished op, a JSON object."""

    op_id: int
    bucket: str
    definition: str
    line: str


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which buckets to read: those of some definitions, those with some names, or both. Empty means any."""

    definitions: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()


EVERY_BUCKET = HistoryFilter()
START = OpId(0)
"""Where a reader stands that has read nothing."""


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How far history goes. `store` is the same for as long as op ids are those of one store. Up to `merged`,
    compaction has rewritten what some of the buckets asked for held: only a reader that starts at 0 may read that.
    `ops` is about how many ops those buckets hold."""

    store: str
    checkpoint: OpId
    merged: OpId
    ops: int


@dataclass(frozen=True, slots=True)
class FlushRange:
    """Ops in (after, last] were committed at once, when `source` stood at `lsn`. `committed_us` is the time of the
    newest commit among them, counted from 2000-01-01, or 0 when bulk work or upkeep wrote them; then `source` may be
    empty."""

    after: OpId
    last: OpId
    source: str
    lsn: Lsn
    committed_us: int


@dataclass(frozen=True, slots=True)
class Slice:
    """One of `count` parts of the buckets, told apart by their keys."""

    number: int
    count: int = field(default=1)


def history_limits(address: StoreAddress, where: HistoryFilter = EVERY_BUCKET, *, since: OpId = START) -> HistoryLimits:
    """How far history goes now. A store that nothing was published in yet has checkpoint 0. Raises OvertakenError when
    compaction has merged anything that a reader at `since` has not read; one at 0 has nothing to lose by that."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import history

            return history.limits(address, where, since)
        case PostgresAddress():
            from headwater.storage.postgres import history as postgres

            return postgres.limits(address, where, since)


def read_history(
    address: StoreAddress,
    after_op: OpId,
    upto_op: OpId,
    where: HistoryFilter = EVERY_BUCKET,
    *,
    within: tuple[OpId, OpId] | None = None,
) -> Iterator[list[HistoryOp]]:
    """Ops with after_op < op_id <= upto_op, each once, in batches and in no order, as of one moment.

    The range is part of `within` (by default all of it), which a reader that stands at its beginning is catching up
    with. Raises OvertakenError when compaction has merged anything after that beginning; a reader at 0 has nothing to
    lose by that, unless compaction went past the end.
    """
    start, end = within or (after_op, upto_op)
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import history

            return history.read(address, (after_op, upto_op), where, start or end)
        case PostgresAddress():
            from headwater.storage.postgres import history as postgres

            return postgres.read(address, (after_op, upto_op), where, start or end)


def cut_history(address: StoreAddress, after_op: OpId, upto_op: OpId, ops: int) -> list[tuple[OpId, OpId]]:
    """(after_op, upto_op] as consecutive ranges of about `ops` ops each; none when there are no ops at all."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import history

            return history.cut(address, after_op, upto_op, ops)
        case PostgresAddress():
            from headwater.storage.postgres import history as postgres

            return postgres.cut(address, after_op, upto_op, ops)


def history_end(address: StoreAddress, after_op: OpId, upto_op: OpId, ops: int) -> OpId:
    """The highest op id up to which (after_op, …] holds no more than `ops` ops: the end of a flush where one is in
    reach, `upto_op` when all fit."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import history

            return history.end(address, after_op, upto_op, ops)
        case PostgresAddress():
            from headwater.storage.postgres import history as postgres

            return postgres.end(address, after_op, upto_op, ops)


def read_flushes(address: StoreAddress, after_op: OpId, upto_op: OpId) -> Sequence[FlushRange]:
    """What is still known of the flushes with ops in (after_op, upto_op], oldest first. Records are kept for a while
    only, so the oldest ops may belong to none."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import history

            return history.flushes(address, after_op, upto_op)
        case PostgresAddress():
            from headwater.storage.postgres import history as postgres

            return postgres.flushes(address, after_op, upto_op)


def read_standing(
    address: StoreAddress, checkpoint: OpId, where: HistoryFilter = EVERY_BUCKET, part: Slice = Slice(0)
) -> Iterator[list[HistoryOp]]:
    """The PUTs that stand in the buckets of a part at a checkpoint, each with the op id of its own, in batches and in
    no order. Raises OvertakenError when compaction went past the checkpoint."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import history

            return history.standing(address, checkpoint, where, part)
        case PostgresAddress():
            from headwater.storage.postgres import history as postgres

            return postgres.standing(address, checkpoint, where, part)


def overtaken(bucket: str, since: OpId, merged: OpId) -> OvertakenError:
    """Says what a reader that was overtaken can do."""
    return OvertakenError(
        f"compaction merged the changes up to op {merged} before they were read; the reader stands at op {since}",
        f"bucket {bucket}",
        "read a consistent snapshot (option snapshot=true), then start a new stream, with a new checkpoint directory, "
        "at its op id (option startingOffset)",
    )


def moved_on(bucket: str, checkpoint: OpId) -> OvertakenError:
    """Says that a state which was to be read is no more."""
    return OvertakenError(
        f"compaction went past the state at op {checkpoint} while it was being read",
        f"bucket {bucket}",
        "read it again",
    )
