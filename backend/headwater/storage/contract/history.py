"""Bulk reading of a store's history, beside its writer: finished ops, the flushes that wrote them, and what is in each
bucket. For copies outside; devices read chunks instead.

Compaction may rewrite history between two readings. A reader that has every op up to a position, and then reads those
after it, has the same rows in each bucket as the store, and the same checksums: `storage.shared.compaction` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId


class HistoryOp(NamedTuple):
    """One op of a bucket. `line` is the finished op, a JSON object."""

    op_id: int
    bucket: str
    definition: str
    line: str


@dataclass(frozen=True, slots=True)
class HistoryState:
    """A store at one moment. `store` identifies it: while it stays the same, op ids do too. `checkpoint` is the newest
    op that devices may have, 0 before there are any; every commit of a source up to its LSN in `lsns` is among them.
    The buckets of other `definitions` than these are gone, without an op that says so."""

    store: str
    checkpoint: OpId
    lsns: Mapping[str, Lsn]
    definitions: tuple[str, ...]


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
