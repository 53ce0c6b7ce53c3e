"""Reading a store's history in bulk, beside its writer: finished ops, what is known of the flushes they came with, and
the rows that stand in buckets at one moment. For whoever takes a store's changes elsewhere; devices read chunks.

Runs on executors too. Every function answers for one moment by itself; `upto` and `checkpoint` tie several together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId


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


WHOLE = Slice(0)


def stands_at(after_op: OpId, upto_op: OpId, within: tuple[OpId, OpId] | None) -> OpId:
    """Up to where compaction may have merged what a reader wants that catches up with `within`, see
    `Backend.read_history`: where it stands, or if it has nothing yet, the end."""
    start, end = within or (after_op, upto_op)
    return start or end


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
