"""One sync stream seen from the device: a request's body goes out, lines come in, what to do comes out. It knows no
file, network or clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
class Position:
    """Up to where a device has a bucket."""

    bucket: str
    after: int


@dataclass(frozen=True)
class RequestedStream:
    """A stream requested by name and parameters; `priority` replaces that of the stream."""

    stream: str
    parameters: Mapping[str, object] | None
    priority: int | None


@dataclass(frozen=True)
class RequestBody:
    """What a device sends as it connects."""

    client_id: str
    positions: Sequence[Position] = ()
    subscriptions: Sequence[RequestedStream] = ()
    include_defaults: bool = True
    parameters: Mapping[str, object] = field(default_factory=dict)
    app_metadata: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """As JSON."""
        request = {
            "buckets": [{"name": each.bucket, "after": str(each.after)} for each in self.positions],
            "include_checksum": True,
            "raw_data": True,
            "binary_data": True,
            "client_id": self.client_id,
            "parameters": dict(self.parameters),
            "app_metadata": dict(self.app_metadata),
            "streams": {
                "include_defaults": self.include_defaults,
                "subscriptions": [
                    {
                        "stream": each.stream,
                        "parameters": None if each.parameters is None else dict(each.parameters),
                        "override_priority": each.priority,
                    }
                    for each in self.subscriptions
                ],
            },
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


class Closing(Enum):
    """Why a device hangs up."""

    EXPIRED = "the token has expired"
    MISMATCH = "a checksum differs"


@dataclass(frozen=True)
class Close:
    """End the connection."""

    reason: Closing


Instruction: TypeAlias = BeginCheckpoint | Save | Finish | RenewToken | Tick | Close


class FinishOutcome(Enum):
    """What came of a `Finish`."""

    APPLIED = "applied"
    BLOCKED = "local writes wait to be confirmed"
    MISMATCH = "a checksum differs"


@dataclass
class StreamSession:
    """The state of one connection."""

    target: CheckpointTarget | None = None
    _blocked: Finish | None = field(default=None, init=False)

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

    def finished(self, what: Finish, outcome: FinishOutcome) -> Iterator[Instruction]:
        """Tell what came of a `Finish`."""
        self._blocked = None
        if outcome is FinishOutcome.MISMATCH:
            yield Close(Closing.MISMATCH)
        elif outcome is FinishOutcome.BLOCKED and what.priority is None:
            self._blocked = what

    def uploads_finished(self) -> Iterator[Instruction]:
        """Tell that local writes are confirmed: what they blocked may show now."""
        if self._blocked is not None:
            yield self._blocked

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
        self._blocked = None
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
        yield Close(Closing.EXPIRED)
        return
    if seconds <= FETCH_AHEAD:
        yield RenewToken(expired=False)
    yield Tick()
