"""The lines of a sync stream: cut from the bytes of a response, and parsed to typed values, from JSON texts or BSON
documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from headwater_client.errors import MissingExtraError, ProtocolError

DEFAULT_PRIORITY = 3

# What a file can hold: of SQLite's integers, and of priorities those below the number that stands for all of them
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Priority: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 2)]


class SubscriptionReason(Struct, frozen=True):
    """Why a bucket is sent: a stream that everybody has (an index into the streams), or a requested one."""

    default: int | None = None
    sub: int | None = None


class BucketChecksum(Struct, frozen=True):
    """What a bucket holds at a checkpoint: so many operations that add up to `checksum` (32 bits, signed or not)."""

    bucket: str
    checksum: int
    count: Count = 0
    priority: Priority = DEFAULT_PRIORITY
    subscriptions: tuple[SubscriptionReason, ...] = ()


class StreamErrorLine(Struct, frozen=True):
    """Why a stream gives nothing; `subscription` is an index into the requested ones, or `default`."""

    subscription: int | str
    message: str


class StreamInfo(Struct, frozen=True):
    """A stream that this device has."""

    name: str
    is_default: bool
    errors: tuple[StreamErrorLine, ...] = ()


class CheckpointLine(Struct, frozen=True):
    """The first state of the server that this connection is to reach."""

    last_op_id: str
    buckets: tuple[BucketChecksum, ...]
    write_checkpoint: str | None = None
    streams: tuple[StreamInfo, ...] = ()


class CheckpointDiff(Struct, frozen=True):
    """The next state, as its differences from the last."""

    last_op_id: str
    updated_buckets: tuple[BucketChecksum, ...] = ()
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


Line: TypeAlias = (
    CheckpointLine | CheckpointDiff | Data | CheckpointComplete | PartialCheckpointComplete | TokenExpiresIn
)


class _Envelope(Struct, frozen=True):
    data: Data | UnsetType = UNSET
    checkpoint: CheckpointLine | UnsetType = UNSET
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
    values: tuple[Line | int | UnsetType, ...] = msgspec.structs.astuple(envelope)
    given = [value for value in values if not isinstance(value, UnsetType)]
    if len(given) > 1:
        raise ProtocolError("a line has two keys")
    if not given:
        return None
    (value,) = given
    return TokenExpiresIn(value) if isinstance(value, int) else value


NDJSON: Final = "application/x-ndjson"
BSON: Final = "application/vnd.powersync.bson-stream"

LONGEST: Final = 256 << 20
"""Bytes of one line: no server sends a row this large."""


class Framing(Protocol):
    """Turns pieces of a body into lines."""

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that this piece completes. Raises `ProtocolError`."""

    def end(self) -> None:
        """The body has ended. Raises `ProtocolError` where that is in the middle of a line."""


class JsonLines:
    """One JSON object per line of text."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> Iterator[Line]:
        whole, newline, rest = piece.rpartition(b"\n")
        if not newline:
            self._hold(piece)
            return
        self._pieces.append(whole)
        texts, self._pieces, self._held = b"".join(self._pieces), [], 0
        self._hold(rest)
        for text in texts.split(b"\n"):
            line = parse_line(text) if text and not text.isspace() else None
            if line is not None:
                yield line

    def end(self) -> None:
        if b"".join(self._pieces).strip():
            raise ProtocolError("the stream ended in the middle of a line")

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._held += len(piece)
            if self._held > LONGEST:
                raise ProtocolError(f"a line is longer than {LONGEST >> 20} MiB")


class BsonDocuments:
    """BSON documents one after another, each beginning with its length."""

    def __init__(self) -> None:
        self._bson = _bson()
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[Line]:
        self._held += piece
        start = 0
        while len(self._held) - start >= 4:
            size = int.from_bytes(self._held[start : start + 4], "little", signed=True)
            if not 5 <= size <= LONGEST:
                raise ProtocolError(f"a BSON document cannot have {size} bytes")
            if len(self._held) - start < size:
                break
            line = self._line(bytes(self._held[start : start + size]))
            start += size
            if line is not None:
                yield line
        del self._held[:start]

    def end(self) -> None:
        if self._held:
            raise ProtocolError("the stream ended in the middle of a BSON document")

    def _line(self, text: bytes) -> Line | None:
        try:
            document: Mapping[str, object] = self._bson.decode(text)
        except self._bson.errors.BSONError as error:
            raise ProtocolError(f"a BSON document cannot be read: {error}") from None
        return parse_document(document)


def framing_of(content_type: str) -> Framing:
    """How a response of this type is cut: anything that is not BSON is taken as JSON lines."""
    return BsonDocuments() if content_type == BSON else JsonLines()


def accepted(*, bson: bool) -> str:
    """The Accept header: BSON only where it is wanted."""
    if not bson:
        return NDJSON
    _bson()
    return f"{BSON};q=0.9, {NDJSON};q=0.8"


def _bson() -> Any:
    try:
        import bson
    except ImportError:
        raise MissingExtraError("a BSON stream", "bson") from None
    return bson
