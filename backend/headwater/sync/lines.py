"""The lines of the stream, each an object with exactly one key, before a format writes them.

Numbers that a client keeps as 64-bit (op ids, write checkpoints) are strings; checksums and counts are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import BucketTotal
from headwater_rules.results import ResolvedBucket, StreamStatus

Line = Mapping[str, object]


def checkpoint(
    op_id: OpId,
    write_checkpoint: int | None,
    buckets: Iterable[Line],
    streams: Sequence[StreamStatus],
) -> Line:
    """The first line of a connection: everything the client should have."""
    head = _head(op_id, write_checkpoint)
    return {"checkpoint": {**head, "buckets": list(buckets), "streams": [_stream(item) for item in streams]}}


def checkpoint_diff(op_id: OpId, write_checkpoint: int | None, updated: Iterable[Line], removed: Iterable[str]) -> Line:
    """What differs from the checkpoint before. The client forgets a write checkpoint that is not repeated."""
    head = _head(op_id, write_checkpoint)
    return {"checkpoint_diff": {**head, "updated_buckets": list(updated), "removed_buckets": list(removed)}}


def bucket(resolved: ResolvedBucket, total: BucketTotal) -> dict[str, object]:
    """A bucket as a checkpoint names it."""
    return {
        "bucket": resolved.name,
        "checksum": total.checksum,
        "count": total.count,
        "priority": resolved.priority,
        "subscriptions": [dict(reason) for reason in resolved.reasons],
    }


def complete(op_id: OpId) -> Line:
    """Every bucket of the checkpoint has been sent."""
    return {"checkpoint_complete": {"last_op_id": str(op_id)}}


def partially_complete(op_id: OpId, priority: int) -> Line:
    """Every bucket of this priority, or of a more urgent one, has been sent."""
    return {"partial_checkpoint_complete": {"last_op_id": str(op_id), "priority": priority}}


def token_expires_in(seconds: float) -> Line:
    """Keeps the connection alive, and tells the client when to fetch a new token."""
    return {"token_expires_in": max(0, ceil(seconds))}


def _head(op_id: OpId, write_checkpoint: int | None) -> dict[str, object]:
    head: dict[str, object] = {"last_op_id": str(op_id)}
    if write_checkpoint:
        head["write_checkpoint"] = str(write_checkpoint)
    return head


def _stream(status: StreamStatus) -> dict[str, object]:
    errors = [dict(error) for error in status.errors]
    return {"name": status.name, "is_default": status.is_default, "errors": errors}
