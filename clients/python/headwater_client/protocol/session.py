"""One sync stream seen from the device: a request's body goes out, lines come in, what to do comes out. It knows no
file, network or clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from headwater_client.errors import ProtocolError
from headwater_client.protocol.lines import (
    BucketChecksum,
    CheckpointComplete,
    CheckpointDiff,
    CheckpointLine,
    Data,
    Line,
    PartialCheckpointComplete,
    StreamInfo,
    TokenExpiresIn,
)


@dataclass(frozen=True)
class RequestedStream:
    """A stream requested by name and parameters; `priority` replaces that of the stream."""

    stream: str
    parameters: dict[str, object] | None
    priority: int | None


def request_body(
    client_id: str, positions: Mapping[str, int], requested: Iterable[RequestedStream], *, include_defaults: bool,
    parameters: Mapping[str, object], app_metadata: Mapping[str, str],
) -> bytes:  # fmt: skip
    """What a device sends as it connects. `positions` is up to where it has each bucket."""
    subscriptions = [
        {"stream": each.stream, "parameters": each.parameters, "override_priority": each.priority} for each in requested
    ]
    request = {
        "buckets": [{"name": name, "after": str(after)} for name, after in positions.items()],
        "include_checksum": True,
        "raw_data": True,
        "binary_data": True,
        "client_id": client_id,
        "parameters": dict(parameters),
        "app_metadata": dict(app_metadata),
        "streams": {"include_defaults": include_defaults, "subscriptions": subscriptions},
    }
    return _dumped(request).encode()


def json_text(value: object) -> str:
    """As compact JSON with sorted keys, which can be sent. Raises ValueError, TypeError or RecursionError for what JSON
    or UTF-8 has no form for."""
    text = _dumped(value)
    text.encode()
    return text


def _dumped(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


FETCH_AHEAD = 30
"""Seconds before the end of a token at which a new one is fetched."""


@dataclass(frozen=True)
class CheckpointTarget:
    """The checkpoint to reach: what each bucket holds, and the write checkpoint that it contains."""

    last_op_id: int
    buckets: dict[str, BucketChecksum]
    write_checkpoint: int | None

    def of_priority(self, priority: int | None) -> dict[str, BucketChecksum]:
        """The buckets of this priority or a lower number; None takes all."""
        if priority is None:
            return self.buckets
        return {name: each for name, each in self.buckets.items() if each.priority <= priority}


@dataclass(frozen=True)
class BeginCheckpoint:
    """A checkpoint is on its way: drop the buckets `removed`, or with None every one that it does not name."""

    target: CheckpointTarget
    removed: tuple[str, ...] | None
    streams: tuple[StreamInfo, ...] | None


@dataclass(frozen=True)
class Save:
    """Store these operations."""

    data: Data


@dataclass(frozen=True)
class Finish:
    """Compare checksums, then show what was stored; with a priority only the buckets of it and lower numbers."""

    target: CheckpointTarget
    priority: int | None


@dataclass(frozen=True)
class RenewToken:
    """Fetch a token; an `expired` one must not be used again."""

    expired: bool


@dataclass(frozen=True)
class Tick:
    """The server lives: time to look at the clock."""


@dataclass(frozen=True)
class Close:
    """End the connection: the token has expired."""


Instruction: TypeAlias = BeginCheckpoint | Save | Finish | RenewToken | Tick | Close


class FinishOutcome(Enum):
    """What came of a `Finish`."""

    APPLIED = "applied"
    BLOCKED = "local writes wait to be confirmed"
    MISMATCH = "a checksum differs"


@dataclass
class StreamSession:
    """The state of one connection. `blocked` is what may show once local writes are confirmed."""

    target: CheckpointTarget | None = None
    blocked: Finish | None = None

    def receive(self, line: Line) -> Iterator[Instruction]:
        """What to do about a line, in this order. Raises `ProtocolError` where it cannot follow the lines before."""
        match line:
            case Data():
                if self._known().buckets.get(line.bucket) is None:
                    raise ProtocolError(f"operations came for {line.bucket!r}, which is not in the checkpoint")
                yield Save(line)
            case CheckpointLine():
                yield self._begin(line.last_op_id, line.write_checkpoint, line.buckets, None, line.streams)
            case CheckpointDiff():
                yield self._differ(line)
            case CheckpointComplete():
                yield Finish(self._known(), None)
            case PartialCheckpointComplete():
                yield Finish(self._known(), line.priority)
            case TokenExpiresIn():
                yield from _on_token(line.seconds)

    def finished(self, what: Finish, outcome: FinishOutcome) -> None:
        """Tell what came of a `Finish`."""
        self.blocked = what if outcome is FinishOutcome.BLOCKED and what.priority is None else None

    def _differ(self, line: CheckpointDiff) -> Instruction:
        removed = set(line.removed_buckets)
        kept = [each for name, each in self._known().buckets.items() if name not in removed]
        return self._begin(
            line.last_op_id, line.write_checkpoint, [*kept, *line.updated_buckets], line.removed_buckets, None
        )

    def _begin(
        self,
        last_op_id: str,
        write_checkpoint: str | None,
        buckets: Iterable[BucketChecksum],
        removed: tuple[str, ...] | None,
        streams: tuple[StreamInfo, ...] | None,
    ) -> Instruction:
        # Data of the new checkpoint would show together with that of the blocked one
        self.blocked = None
        self.target = CheckpointTarget(
            op_number(last_op_id),
            {each.bucket: each for each in buckets},
            None if write_checkpoint is None else op_number(write_checkpoint),
        )
        return BeginCheckpoint(self.target, removed, streams)

    def _known(self) -> CheckpointTarget:
        if self.target is None:
            raise ProtocolError("a line came before the first checkpoint")
        return self.target


def op_number(text: str) -> int:
    """The number of an operation or a write checkpoint: 63 bits. Raises `ProtocolError`."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) >= 2**63 - 1:
        raise ProtocolError(f"{text[:40]!r} is not the number of an operation")
    return int(text)


def _on_token(seconds: int) -> Iterator[Instruction]:
    if seconds <= 0:
        yield RenewToken(expired=True)
        yield Close()
        return
    if seconds <= FETCH_AHEAD:
        yield RenewToken(expired=False)
    yield Tick()
