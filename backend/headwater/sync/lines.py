"""The lines of the stream: one JSON object with exactly one key, ended by a newline.

Numbers that a client keeps as 64-bit (op ids, write checkpoints) are strings; checksums and counts are numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import orjson

from headwater.oplog.op import OpId
from headwater.storage.contract.store import BucketTotal, Chunk
from headwater_rules.results import ResolvedBucket, StreamStatus


def checkpoint(
    op_id: OpId,
    write_checkpoint: int | None,
    buckets: Iterable[Mapping[str, object]],
    streams: Sequence[StreamStatus],
) -> bytes:
    """The first line of a connection: everything the client should have."""
    head = _head(op_id, write_checkpoint)
    return _line("checkpoint", {**head, "buckets": list(buckets), "streams": [_stream(item) for item in streams]})


def checkpoint_diff(
    op_id: OpId,
    write_checkpoint: int | None,
    updated: Iterable[Mapping[str, object]],
    removed: Iterable[str],
) -> bytes:
    """What differs from the checkpoint before. The client forgets a write checkpoint that is not repeated."""
    head = _head(op_id, write_checkpoint)
    return _line("checkpoint_diff", {**head, "updated_buckets": list(updated), "removed_buckets": list(removed)})


def bucket(resolved: ResolvedBucket, total: BucketTotal) -> dict[str, object]:
    """A bucket as a checkpoint names it."""
    return {
        "bucket": resolved.name,
        "checksum": total.checksum,
        "count": total.count,
        "priority": resolved.priority,
        "subscriptions": [dict(reason) for reason in resolved.reasons],
    }


def data(bucket_name: str, after: OpId, chunk: Chunk, *, raw: bool) -> bytes:
    """One chunk of one bucket. The ops go through as they are; without `raw` the rows in them are unwrapped."""
    more = b"true" if chunk.more else b"false"
    return b'{"data":{"bucket":%b,"data":[%b],"has_more":%b,"after":"%d","next_after":"%d"}}\n' % (
        orjson.dumps(bucket_name),
        chunk.ops if raw else _unwrapped(chunk.ops),
        more,
        after,
        chunk.next_after,
    )


def complete(op_id: OpId) -> bytes:
    """Every bucket of the checkpoint has been sent."""
    return b'{"checkpoint_complete":{"last_op_id":"%d"}}\n' % op_id


def partially_complete(op_id: OpId, priority: int) -> bytes:
    """Every bucket of this priority, or of a more urgent one, has been sent."""
    return b'{"partial_checkpoint_complete":{"last_op_id":"%d","priority":%d}}\n' % (op_id, priority)


def token_expires_in(seconds: float) -> bytes:
    """Keeps the connection alive, and tells the client when to fetch a new token."""
    return b'{"token_expires_in":%d}\n' % max(0, ceil(seconds))


def _head(op_id: OpId, write_checkpoint: int | None) -> dict[str, object]:
    head: dict[str, object] = {"last_op_id": str(op_id)}
    if write_checkpoint:
        head["write_checkpoint"] = str(write_checkpoint)
    return head


def _stream(status: StreamStatus) -> dict[str, object]:
    errors = [dict(error) for error in status.errors]
    return {"name": status.name, "is_default": status.is_default, "errors": errors}


def _line(key: str, value: Mapping[str, object]) -> bytes:
    # concatenation copies orjson's oversized result into one of the right size
    return orjson.dumps({key: value}) + b"\n"


def _unwrapped(ops: bytes) -> bytes:
    """Rows as nested objects instead of text, for clients from before `raw_data`."""
    parsed: list[dict[str, object]] = orjson.loads(b"[%b]" % ops)
    for op in parsed:
        row = op.get("data")
        if isinstance(row, str):
            op["data"] = orjson.Fragment(row)
    return orjson.dumps(parsed)[1:-1]
