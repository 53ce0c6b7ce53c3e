"""The lines of a sync stream, each parsed to a typed value: from JSON text, or from a decoded BSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headwater_client.errors import ProtocolError

DEFAULT_PRIORITY = 3

# What a file can hold: of SQLite's integers, and of priorities those below the number that stands for all of them
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Priority: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 2)]


class Subscription(Struct, frozen=True):
    """Why a bucket is sent: a stream that everybody has (an index into the streams), or one asked for."""

    default: int | None = None
    sub: int | None = None


class BucketSum(Struct, frozen=True):
    """What a bucket holds at a checkpoint: so many operations that add up to `checksum` (32 bits, signed or not)."""

    bucket: str
    checksum: int
    count: Count = 0
    priority: Priority = DEFAULT_PRIORITY
    subscriptions: tuple[Subscription, ...] = ()


class StreamError(Struct, frozen=True):
    """Why a stream gives nothing; `subscription` is an index into those asked for, or `default`."""

    subscription: int | str
    message: str


class StreamInfo(Struct, frozen=True):
    """A stream that this device has."""

    name: str
    is_default: bool
    errors: tuple[StreamError, ...] = ()


class Checkpoint(Struct, frozen=True):
    """The first state of the server that this connection is to reach."""

    last_op_id: str
    buckets: tuple[BucketSum, ...]
    write_checkpoint: str | None = None
    streams: tuple[StreamInfo, ...] = ()


class CheckpointDiff(Struct, frozen=True):
    """The next state, told as what differs from the last."""

    last_op_id: str
    updated_buckets: tuple[BucketSum, ...] = ()
    removed_buckets: tuple[str, ...] = ()
    write_checkpoint: str | None = None


class Op(Struct, frozen=True, gc=False):
    """One operation of a bucket; MOVE and CLEAR have neither row nor data. `data` is the row as JSON text."""

    op_id: str
    op: Literal["PUT", "REMOVE", "MOVE", "CLEAR"]
    checksum: int
    object_type: str | None = None
    object_id: str | None = None
    subkey: str | None = None
    data: str | None = None


class Data(Struct, frozen=True):
    """Operations of one bucket, in their order."""

    bucket: str
    data: list[Op]


class CheckpointComplete(Struct, frozen=True):
    """Every operation of the newest checkpoint was sent."""


class PartialCheckpointComplete(Struct, frozen=True):
    """Every operation of buckets with this priority or a lower number was sent."""

    priority: Priority


class TokenExpiresIn(Struct, frozen=True):
    """So many seconds are left to the token; it also shows that the connection lives."""

    seconds: int


Line: TypeAlias = Checkpoint | CheckpointDiff | Data | CheckpointComplete | PartialCheckpointComplete | TokenExpiresIn


class _Envelope(Struct, frozen=True):
    data: Data | UnsetType = UNSET
    checkpoint: Checkpoint | UnsetType = UNSET
    checkpoint_diff: CheckpointDiff | UnsetType = UNSET
    checkpoint_complete: CheckpointComplete | UnsetType = UNSET
    partial_checkpoint_complete: PartialCheckpointComplete | UnsetType = UNSET
    token_expires_in: int | UnsetType = UNSET


_decoder = msgspec.json.Decoder(_Envelope)


def parse_line(text: bytes) -> Line | None:
    """The line of this JSON text, or None for a kind that is not known. Raises `ProtocolError`."""
    try:
        envelope = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a line cannot be read: {error}") from None
    return _only(envelope)


def parse_document(document: Mapping[str, object]) -> Line | None:
    """The line of a decoded BSON document, or None for a kind that is not known. Raises `ProtocolError`."""
    try:
        envelope = msgspec.convert(document, _Envelope, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a BSON line cannot be read: {error}") from None
    return _only(envelope)


def _only(envelope: _Envelope) -> Line | None:
    given: Sequence[Line | int | UnsetType] = [
        value
        for value in (
            envelope.data,
            envelope.checkpoint,
            envelope.checkpoint_diff,
            envelope.checkpoint_complete,
            envelope.partial_checkpoint_complete,
            envelope.token_expires_in,
        )
        if value is not UNSET
    ]
    if len(given) > 1:
        raise ProtocolError("a line has two keys")
    if not given:
        return None
    (value,) = given
    if isinstance(value, int):
        return TokenExpiresIn(value)
    return None if isinstance(value, UnsetType) else value
