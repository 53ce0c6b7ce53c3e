"""A server as the protocol describes it, and what a device that follows it has to show. Plain dicts, no SQL."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.model_device import ModelBucket, contents

PRIORITIES = {"urgent": 0, "first": 1, "last": 3}
Op = dict[str, object]
Row = tuple[str, str]


@dataclass
class PlayedServer:
    """Buckets with their whole history. `total` of a bucket is the sum since its last CLEAR."""

    ops: dict[str, list[Op]] = field(default_factory=lambda: {name: [] for name in PRIORITIES})
    last_op: int = 0
    uploaded: int = 0
    confirmed_at: int = 0

    def put(self, bucket: str, row: str, value: str, subkey: str = "s") -> None:
        data = json.dumps({"id": row, "title": value})
        self._append(bucket, "PUT", row, subkey, data)

    def remove(self, bucket: str, row: str, subkey: str = "s") -> None:
        self._append(bucket, "REMOVE", row, subkey, None)

    def clear(self, bucket: str) -> None:
        self.last_op += 1
        self.ops[bucket].append({"op_id": str(self.last_op), "op": "CLEAR", "checksum": 0})

    def compact(self, bucket: str) -> None:
        """What later operations of the bucket replace becomes a MOVE."""
        seen: set[object] = set()
        for position in range(len(self.ops[bucket]) - 1, -1, -1):
            op = self.ops[bucket][position]
            if op["op"] == "CLEAR":
                break
            key = (op.get("object_id"), op.get("subkey"))
            if op["op"] in {"PUT", "REMOVE"} and key in seen:
                self.ops[bucket][position] = {"op_id": op["op_id"], "op": "MOVE", "checksum": op["checksum"]}
            seen.add(key)

    def upload(self) -> int:
        """Take a device's writes; the write checkpoint that will contain them."""
        self.uploaded += 1
        self.confirmed_at = self.last_op
        return self.uploaded

    def sums(self) -> list[dict[str, object]]:
        return [
            {
                "bucket": name, "checksum": self.checksum(name), "count": len(ops), "priority": PRIORITIES[name],
                "subscriptions": [{"default": 0}],
            }
            for name, ops in self.ops.items()
        ]  # fmt: skip

    def checksum(self, bucket: str) -> int:
        """As a signed number, which the protocol allows."""
        total = 0
        for op in self.ops[bucket]:
            total = 0 if op["op"] == "CLEAR" else total + int(str(op["checksum"]))
        total %= 2**32
        return total - 2**32 if total >= 2**31 else total

    def after(self, bucket: str, position: int) -> list[Op]:
        return [op for op in self.ops[bucket] if int(str(op["op_id"])) > position]

    def _append(self, bucket: str, kind: str, row: str, subkey: str, data: str | None) -> None:
        self.last_op += 1
        checksum = zlib.crc32(f"{kind} {row} {subkey} {data} {self.last_op}".encode())
        self.ops[bucket].append(
            {
                "op_id": str(self.last_op), "op": kind, "object_type": "todos", "object_id": row, "subkey": subkey,
                "data": data, "checksum": checksum,
            }
        )  # fmt: skip


@dataclass
class ModelDevice:
    """What is stored, and what the app sees."""

    stored: dict[str, ModelBucket] = field(default_factory=dict)
    applied: dict[str, int] = field(default_factory=dict)
    shown: dict[str, str | None] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    waiting: bool = False

    def take(self, bucket: str, ops: Iterable[Op]) -> None:
        held = self.stored.setdefault(bucket, ModelBucket())
        for op in ops:
            if int(str(op["op_id"])) <= held.position:
                continue
            if op["op"] == "CLEAR":
                self.touched |= {row for _, row, _ in held.rows}
                self.applied[bucket] = 0
            if op["op"] == "REMOVE":
                self.touched.add(str(op["object_id"]))
            held.apply(op)

    def drop(self, bucket: str) -> None:
        held = self.stored.pop(bucket, ModelBucket())
        self.touched |= {row for _, row, _ in held.rows}
        self.applied.pop(bucket, None)

    def show_all(self, last_op: int) -> None:
        self.shown = {row: str(data["title"]) for (_, row), data in contents(self.stored.values()).items()}
        self.touched.clear()
        self._applied(self.stored, last_op)

    def show(self, buckets: set[str], last_op: int) -> None:
        """A part of a checkpoint: the rows that changed in these buckets, as they are in these buckets."""
        involved = {name: held for name, held in self.stored.items() if name in buckets}
        newest = contents(involved.values())
        for name, held in involved.items():
            for (_, row, _), (op_id, _, _) in held.rows.items():
                if op_id > self.applied.get(name, 0):
                    self.shown[row] = str(newest["todos", row]["title"])
        self._applied(involved, last_op)

    def stored_up_to(self, buckets: Iterable[str], last_op: int) -> None:
        for name in buckets:
            if name in self.stored:
                self.stored[name].position = max(self.stored[name].position, last_op)

    def _applied(self, buckets: Iterable[str], last_op: int) -> None:
        for name in buckets:
            self.applied[name] = self.stored[name].position
