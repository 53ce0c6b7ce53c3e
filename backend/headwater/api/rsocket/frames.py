"""Reads and writes frames of RSocket 1.0, one to a websocket message. Pure.

Source: the protocol's specification, https://rsocket.io/about/protocol. Supports only the frames that client SDKs send
and those that answer a stream.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

CONNECTION = 0
"""The stream id of frames that are about the connection."""

MAX_CREDIT = 0x7FFF_FFFF
"""The most payloads that a client can ask for at once. It means that there is no limit."""


class FrameError(Exception):
    """The bytes are not a frame, or the frame is not allowed now."""


class FrameType(IntEnum):
    """Types of frames."""

    SETUP = 0x01
    KEEPALIVE = 0x03
    REQUEST_STREAM = 0x06
    REQUEST_N = 0x08
    CANCEL = 0x09
    PAYLOAD = 0x0A
    ERROR = 0x0B


class Flag(IntFlag):
    """Flags; some values mean different things in different frames."""

    IGNORE = 0x200
    METADATA = 0x100
    FOLLOWS = 0x80
    RESUME = 0x80
    RESPOND = 0x80
    LEASE = 0x40
    COMPLETE = 0x40
    NEXT = 0x20


class ErrorCode(IntEnum):
    """The code of an ERROR frame. Codes below 0x200 are about the connection."""

    INVALID_SETUP = 0x001
    UNSUPPORTED_SETUP = 0x002
    REJECTED_SETUP = 0x003
    CONNECTION_ERROR = 0x101
    CONNECTION_CLOSE = 0x102
    APPLICATION_ERROR = 0x201
    REJECTED = 0x202


@dataclass(frozen=True, slots=True)
class Setup:
    """The first frame of a connection. `lifetime` is the seconds after which a silent connection counts as dead."""

    lifetime: float
    metadata_type: str
    data_type: str
    metadata: bytes
    flags: int


@dataclass(frozen=True, slots=True)
class RequestStream:
    """A request for a stream. `credit` is how many payloads may be sent before the client asks for more. With
    `follows`, fragments with the rest of the request come after it."""

    stream: int
    credit: int
    metadata: bytes
    data: bytes
    follows: bool


@dataclass(frozen=True, slots=True)
class Fragment:
    """A further part of a request. With `follows`, more come after it."""

    stream: int
    metadata: bytes
    data: bytes
    follows: bool


@dataclass(frozen=True, slots=True)
class RequestMore:
    """The client asks for `credit` more payloads (REQUEST_N)."""

    stream: int
    credit: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client cancels a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A sign that the client is alive, which may ask for an answer."""

    answer_wanted: bool
    data: bytes


Frame = Setup | RequestStream | Fragment | RequestMore | Cancel | Keepalive

_HEADER = struct.Struct(">IH")
_SETUP = struct.Struct(">HHII")


def read_frame(content: bytes) -> Frame | None:
    """The frame in a message. None for one that needs neither an answer nor any action. Raises FrameError."""
    try:
        return _read(content)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise FrameError("a frame is too short") from error


def _read(content: bytes) -> Frame | None:
    stream, kind_and_flags = _HEADER.unpack_from(content)
    kind, flags, rest = kind_and_flags >> 10, kind_and_flags & 0x3FF, memoryview(content)[_HEADER.size :]
    if stream > MAX_CREDIT:
        raise FrameError("a stream id has its first bit set")
    match kind:
        case FrameType.SETUP:
            return _setup(rest, flags)
        case FrameType.KEEPALIVE:
            struct.unpack_from(">Q", rest)
            return Keepalive(bool(flags & Flag.RESPOND), bytes(rest[8:]))
        case FrameType.REQUEST_STREAM:
            metadata, data = _payload(rest[4:], flags)
            return RequestStream(stream, _credit(rest), metadata, data, bool(flags & Flag.FOLLOWS))
        case FrameType.REQUEST_N:
            return RequestMore(stream, _credit(rest))
        case FrameType.CANCEL:
            return Cancel(stream)
        case FrameType.PAYLOAD:
            return Fragment(stream, *_payload(rest, flags), follows=bool(flags & Flag.FOLLOWS))
        case FrameType.ERROR:
            return None if stream == CONNECTION else Cancel(stream)
        case _ if flags & Flag.IGNORE:
            return None
        case _:
            raise FrameError(f"frames of type {kind:#04x} are not supported")


def _setup(rest: memoryview, flags: int) -> Setup:
    major, _, _, lifetime = _SETUP.unpack_from(rest)
    if major != 1:
        raise FrameError(f"version {major} of RSocket is not supported")
    rest = rest[_SETUP.size :]
    if flags & Flag.RESUME:
        rest = rest[2 + struct.unpack_from(">H", rest)[0] :]
    metadata_type, rest = _short_text(rest)
    data_type, rest = _short_text(rest)
    metadata, _ = _payload(rest, flags)
    return Setup((lifetime & MAX_CREDIT) / 1000, metadata_type, data_type, metadata, flags)


def _short_text(rest: memoryview) -> tuple[str, memoryview]:
    length = rest[0]
    if len(rest) <= length:
        raise FrameError("a frame is too short")
    return str(rest[1 : 1 + length], "ascii", "replace"), rest[1 + length :]


def _payload(rest: memoryview, flags: int) -> tuple[bytes, bytes]:
    """Metadata and data."""
    if not flags & Flag.METADATA:
        return b"", bytes(rest)
    length = int.from_bytes(rest[:3], "big")
    if len(rest) < 3 + length:
        raise FrameError("a frame is too short")
    return bytes(rest[3 : 3 + length]), bytes(rest[3 + length :])


def _credit(rest: memoryview) -> int:
    credit: int = struct.unpack_from(">I", rest)[0]
    if not 0 < credit <= MAX_CREDIT:
        raise FrameError("a number of payloads is out of range")
    return credit


def payload(stream: int, data: bytes | memoryview, *, follows: bool) -> bytes:
    """One payload of a stream, or a fragment of one. With `follows`, more fragments come after it."""
    return _header(stream, FrameType.PAYLOAD, Flag.NEXT | (Flag.FOLLOWS if follows else 0)) + data


def complete(stream: int) -> bytes:
    """The normal end of a stream."""
    return _header(stream, FrameType.PAYLOAD, Flag.COMPLETE)


def error(stream: int, code: ErrorCode, message: str) -> bytes:
    """The end of a stream, or of the connection."""
    return _header(stream, FrameType.ERROR) + struct.pack(">I", code) + message.encode()


def keepalive(data: bytes) -> bytes:
    """The answer to a KEEPALIVE."""
    return _header(CONNECTION, FrameType.KEEPALIVE) + bytes(8) + data


def _header(stream: int, kind: FrameType, flags: int = 0) -> bytes:
    return _HEADER.pack(stream, kind << 10 | flags)
