"""A client as the protocol describes it: takes lines, verifies checksums, applies checkpoints. Shares no code with
the service."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tests.support.model_device import ModelBucket, contents

Row = tuple[str, str]


@dataclass
class ModelClient:
    """`rows` is what the application sees: the state of the last complete checkpoint."""

    buckets: dict[str, ModelBucket] = field(default_factory=dict)
    rows: dict[Row, dict[str, object]] = field(default_factory=dict)
    write_checkpoint: int | None = None
    lines: list[dict[str, object]] = field(default_factory=list)
    completed: int = 0
    _wanted: dict[str, dict[str, object]] = field(default_factory=dict)
    _last_op: int = 0
    _connected: bool = False

    def connect(self) -> dict[str, int]:
        """Start a connection; returns the positions to ask for."""
        self._connected = False
        return {name: bucket.position for name, bucket in self.buckets.items()}

    def receive(self, body: bytes) -> None:
        """Take any number of whole lines."""
        assert not body or body.endswith(b"\n"), "a body ends at the end of a line"
        for line in body.splitlines():
            fields = json.loads(line)
            assert len(fields) == 1, "a line has one key"
            self.lines.append(fields)
            ((kind, value),) = fields.items()
            getattr(self, f"_on_{kind}")(value)

    def kinds(self) -> list[str]:
        """The kinds of the lines so far."""
        return [next(iter(line)) for line in self.lines]

    def _on_checkpoint(self, value: dict[str, object]) -> None:
        self._connected = True
        self._wanted = _by_name(value["buckets"])
        self._begin(value)

    def _on_checkpoint_diff(self, value: dict[str, object]) -> None:
        assert self._connected, "a diff follows a checkpoint on the same connection"
        removed = value["removed_buckets"]
        assert isinstance(removed, list)
        for name in removed:
            del self._wanted[name]
            self.buckets.pop(name, None)
        self._wanted |= _by_name(value["updated_buckets"])
        self._begin(value)

    def _on_data(self, value: dict[str, object]) -> None:
        name, ops = value["bucket"], value["data"]
        assert isinstance(name, str)
        assert isinstance(ops, list)
        assert ops, "an empty chunk is not sent"
        assert name in self._wanted, "data comes for buckets of the checkpoint only"
        for op in ops:
            self.buckets.setdefault(name, ModelBucket()).apply(op)
        assert ops[-1]["op_id"] == value["next_after"]

    def _on_partial_checkpoint_complete(self, value: dict[str, object]) -> None:
        priority = value["priority"]
        assert isinstance(priority, int)
        self._verify([name for name, entry in self._wanted.items() if int(str(entry["priority"])) <= priority])

    def _on_checkpoint_complete(self, value: dict[str, object]) -> None:
        assert value == {"last_op_id": str(self._last_op)}
        self._verify(list(self._wanted))
        for bucket in self.buckets.values():
            bucket.position = max(bucket.position, self._last_op)
        self.rows = contents(self.buckets.values())
        self.completed += 1

    def _on_token_expires_in(self, value: int) -> None:
        assert value >= 0

    def _begin(self, value: dict[str, object]) -> None:
        last_op = int(str(value["last_op_id"]))
        assert last_op >= self._last_op, "checkpoints do not go back"
        self._last_op = last_op
        write = value.get("write_checkpoint")
        self.write_checkpoint = None if write is None else int(str(write))
        self.buckets = {name: self.buckets.get(name, ModelBucket()) for name in self._wanted}

    def _verify(self, names: list[str]) -> None:
        for name in names:
            assert self.buckets[name].checksum == self._wanted[name]["checksum"], f"the checksum of {name} is right"


def _by_name(buckets: object) -> dict[str, dict[str, object]]:
    assert isinstance(buckets, list)
    return {str(entry["bucket"]): entry for entry in buckets}
