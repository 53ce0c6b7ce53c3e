"""Bulk reading of a store's history, beside its writer: finished ops, the flushes that wrote them, and the rows in
buckets at one moment. For exporting changes; devices read chunks instead.

Runs on executors too. Each call sees its own moment; `upto` and `checkpoint` tie several calls together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId


class OvertakenError(HeadwaterError):
    """Compaction has merged changes that were still to be read one by one."""

    code = "HW_4101"


class HistoryOp(NamedTuple):
    """One op of a bucket. `line` is the finished op, a JSON object."""

    op_id: int
    bucket: str
    definition: str
    line: str


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which buckets to read: by definition, by name, or both. Empty means any."""

    definitions: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()


EVERY_BUCKET = HistoryFilter()
START = OpId(0)
"""The position of a reader that has read nothing."""


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """How far history goes. `store` identifies the store: while it stays the same, op ids do too. Up to `merged`,
    compaction has rewritten some of the requested buckets, so only a reader that starts at 0 may read that part. `ops`
    is the approximate number of ops in those buckets."""

    store: str
    checkpoint: OpId
    merged: OpId
    ops: int


@dataclass(frozen=True, slots=True)
class FlushRange:
    """Ops in (after, last] that were committed together when `source` had reached `lsn`. `committed_us` is the newest
    commit time among them, in microseconds since 2000-01-01. It is 0, and `source` may be empty, for ops that bulk work
    or compaction wrote."""

    after: OpId
    last: OpId
    source: str
    lsn: Lsn
    committed_us: int


@dataclass(frozen=True, slots=True)
class Slice:
    """One of `count` shares of the buckets, divided by key."""

    number: int
    count: int = field(default=1)


WHOLE = Slice(0)


def merge_floor(after_op: OpId, upto_op: OpId, within: tuple[OpId, OpId] | None) -> OpId:
    """The op id after which no op that the reader needs may have been merged: the position where it starts, or the end
    of the range if it starts at 0. `within` is described at `Store.read_history`."""
    start, end = within or (after_op, upto_op)
    return start or end


def overtaken_error(bucket: str, since: OpId, merged: OpId) -> OvertakenError:
    """The error of a reader that compaction has overtaken."""
    return OvertakenError(
        f"compaction merged the changes up to op {merged} before they were read; the reader is at op {since}",
        f"bucket {bucket}",
        "read a consistent snapshot (option snapshot=true), then start a new stream, with a new checkpoint directory, "
        "at its op id (option startingOffset)",
    )


def state_overtaken_error(bucket: str, checkpoint: OpId) -> OvertakenError:
    """The error for reading a state that compaction has removed."""
    return OvertakenError(
        f"compaction went past the state at op {checkpoint} while it was being read",
        f"bucket {bucket}",
        "read it again",
    )
