"""A device as the protocol describes it: folds ops, sums checksums. Shares no code with the service, which it only
reads from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk, StoreReader


@dataclass
class ModelBucket:
    """One bucket on a device. `rows` maps (table, id, subkey) to (op id, data, checksum)."""

    position: int = 0
    removed_sum: int = 0
    rows: dict[tuple[str, str, str], tuple[int, str, int]] = field(default_factory=dict)

    def apply(self, op: dict[str, object]) -> None:
        op_id = int(str(op["op_id"]))
        assert op_id > self.position, "ops of a bucket come in strictly rising order"
        self.position = op_id
        checksum = int(str(op["checksum"]))
        if op["op"] == "CLEAR":
            self.rows.clear()
            self.removed_sum = checksum
            return
        if op["op"] == "MOVE":
            self.removed_sum += checksum
            return
        key = (str(op["object_type"]), str(op["object_id"]), str(op["subkey"]))
        old = self.rows.pop(key, None)
        if old is not None:
            self.removed_sum += old[2]
        if op["op"] == "PUT":
            self.rows[key] = (op_id, str(op["data"]), checksum)
        else:
            self.removed_sum += checksum

    @property
    def checksum(self) -> int:
        return (self.removed_sum + sum(row[2] for row in self.rows.values())) % 2**32


def parse_ops(ops: bytes) -> list[dict[str, object]]:
    """The op objects of a chunk."""
    parsed: list[dict[str, object]] = json.loads(b"[" + ops + b"]")
    return parsed


def chunks_of(reader: StoreReader, bucket: str, after: int, upto: int) -> Iterator[Chunk]:
    """The chunks of a bucket from one position to another."""
    more = True
    while more:
        chunk = reader.chunk(bucket, OpId(after), OpId(upto))
        yield chunk
        after, more = chunk.next_after, chunk.more


def contents(buckets: Iterable[ModelBucket]) -> dict[tuple[str, str], dict[str, object]]:
    """What the device shows: per (table, id) the newest data of all buckets."""
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for bucket in buckets:
        for (table, object_id, _), (op_id, data, _) in bucket.rows.items():
            if newest.get((table, object_id), (0, ""))[0] < op_id:
                newest[(table, object_id)] = (op_id, data)
    return {key: json.loads(data) for key, (_, data) in newest.items()}
