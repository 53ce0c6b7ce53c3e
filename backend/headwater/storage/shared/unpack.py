"""Pure functions that unpack history of any back end."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import orjson

from headwater.oplog.keys import in_memory
from headwater.oplog.op import OpId, finished_op
from headwater.storage.contract.history import HistoryOp
from headwater.storage.shared.packing import unpacked

_BATCH_OPS = 5_000
_BATCH_BYTES = 8 << 20

Line = tuple[int, str]
"""A finished op with its id."""


def segment_lines(first: int, sealed: bool, bodies: bytes) -> list[Line]:
    """The finished ops of a segment whose first op is `first`, in order."""
    lines = unpacked(bodies).decode().split("\n")
    if not sealed:
        return [(op_id, finished_op(op_id, body)) for op_id, body in enumerate(lines, first)]
    # A finished op is {"op_id":"<id>", and its body
    return [(int(line[10 : line.index('"', 10)]), line) for line in lines]


def batches(ops: Iterable[HistoryOp]) -> Iterator[list[HistoryOp]]:
    """Batches that are limited in number of ops and, to bound memory, in size."""
    batch: list[HistoryOp] = []
    size = 0
    for op in ops:
        batch.append(op)
        size += len(op.line)
        if len(batch) >= _BATCH_OPS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def standing(newest_first: Iterable[Line]) -> Iterator[Line]:
    """The live PUTs of one bucket, given its ops from the newest to the oldest: the newest op of a row decides whether
    it is live."""
    seen: set[int] = set()  # digests: a bucket may have millions of rows
    for op_id, line in newest_first:
        op = orjson.loads(line)
        if op["op"] == "CLEAR":
            return
        if op["op"] == "MOVE":
            continue
        row = in_memory(f"{op['object_type']}\0{op['object_id']}\0{op['subkey']}".encode())
        if row not in seen:
            seen.add(row)
            if op["op"] == "PUT":
                yield op_id, line


def cut_up(groups: Iterable[tuple[int, int]], after: OpId, upto: OpId, ops: int) -> list[tuple[OpId, OpId]]:
    """(after, upto] as ranges of about `ops` ops, from groups of ops: the last id and the number of each."""
    cuts: list[int] = []
    held, found = 0, False
    for last, count in sorted(groups):
        found = True
        held += count
        if held >= ops and last < upto:
            cuts.append(last)
            held = 0
    if not found:
        return []
    ends = [OpId(end) for end in dict.fromkeys([*cuts, upto])]
    return list(zip([after, *ends], ends, strict=False))


class Lowest:
    """The lowest `limit` of many ids."""

    def __init__(self, ids: Iterable[int], limit: int) -> None:
        self._heap = [-op_id for op_id in ids]
        heapq.heapify(self._heap)
        self._limit = limit

    def is_beyond(self, op_id: int) -> bool:
        """Whether an id can't be among them any more."""
        return len(self._heap) >= self._limit and op_id > -self._heap[0]

    def add(self, op_id: int) -> None:
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, -op_id)
        else:
            heapq.heappushpop(self._heap, -op_id)

    def sorted(self) -> list[int]:
        return sorted(-op_id for op_id in self._heap)


def nth(ids: Sequence[int], runs: Iterable[tuple[int, int]], ops: int, otherwise: int) -> int:
    """The id of op number `ops` of single `ids` (sorted) and runs of consecutive ids (sorted, first and last), or
    `otherwise` when there are no more than that."""
    in_runs = 0
    for first, last in runs:
        before = bisect_right(ids, first)
        if before + in_runs >= ops:
            return ids[ops - in_runs - 1]
        size = last - first + 1
        if before + in_runs + size >= ops:
            return first + ops - before - in_runs - 1
        in_runs += size
    return ids[ops - in_runs - 1] if len(ids) > ops - in_runs else otherwise
