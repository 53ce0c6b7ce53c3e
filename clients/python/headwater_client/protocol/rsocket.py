"""RSocket 1.0 as a device speaks it, one frame to a websocket message: one stream of a connection, and its credit.

Source: the protocol's specification, https://rsocket.io/about/protocol. Does no input or output.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final, TypeAlias

from headwater_client.errors import ProtocolError
from headwater_client.protocol.lines import LONGEST

_LIFETIME_SECONDS: Final = 90
_CREDIT: Final = 10
"""Payloads that a server may send ahead of what is stored."""

_CONNECTION: Final = 0
_STREAM: Final = 1
_JSON: Final = b"application/json"

_HEADER: Final = struct.Struct(">IH")
_SETUP: Final = struct.Struct(">HHII")
_NUMBER: Final = struct.Struct(">I")


class _Kind(IntEnum):
    SETUP = 0x01
    KEEPALIVE = 0x03
    REQUEST_STREAM = 0x06
    REQUEST_N = 0x08
    PAYLOAD = 0x0A
    ERROR = 0x0B


class _Flag(IntFlag):
    METADATA = 0x100
    FOLLOWS = 0x80
    RESPOND = 0x80
    COMPLETE = 0x40
    NEXT = 0x20


@dataclass(frozen=True)
class Payload:
    """A whole payload, of all its fragments."""

    data: bytes


@dataclass(frozen=True)
class Reply:
    """A frame to send."""

    frame: bytes


@dataclass(frozen=True)
class Completed:
    """The stream has come to its end in order."""


@dataclass(frozen=True)
class StreamFailed:
    """The server ended the stream or the connection, and says why."""

    text: str


Event: TypeAlias = Payload | Reply | Completed | StreamFailed


def setup(authorization: str, user_agent: str, keepalive_seconds: float) -> bytes:
    """The first frame of a connection, which will have a sign of life so often."""
    head = _SETUP.pack(1, 0, int(keepalive_seconds * 1000), _LIFETIME_SECONDS * 1000)
    kind = bytes([len(_JSON)]) + _JSON
    metadata = _metadata({"token": authorization, "user_agent": user_agent})
    return _frame(_CONNECTION, _Kind.SETUP, _Flag.METADATA, head + kind + kind + metadata)


def request(path: str, body: bytes) -> bytes:
    """Asks for the stream of a path, and for its first payloads."""
    content = _NUMBER.pack(_CREDIT) + _metadata({"path": path}) + body
    return _frame(_STREAM, _Kind.REQUEST_STREAM, _Flag.METADATA, content)


def keepalive() -> bytes:
    """A sign of life that the server has to answer."""
    return _frame(_CONNECTION, _Kind.KEEPALIVE, _Flag.RESPOND, bytes(8))


class Requester:
    """What comes of the frames of one stream."""

    def __init__(self) -> None:
        self._credit = _CREDIT
        self._fragments: list[bytes] = []
        self._held = 0
        self._ended = False

    def receive(self, message: bytes) -> list[Event]:
        """What a frame says, in this order. Raises `ProtocolError`."""
        try:
            return self._receive(message)
        except struct.error:
            raise ProtocolError("an RSocket frame is too short") from None

    def taken(self) -> bytes | None:
        """Tell that a payload is stored; the frame that asks for more, where it is time for that."""
        if self._ended or self._credit > _CREDIT // 2:
            return None
        more, self._credit = _CREDIT - self._credit, _CREDIT
        return _frame(_STREAM, _Kind.REQUEST_N, 0, _NUMBER.pack(more))

    def _receive(self, message: bytes) -> list[Event]:
        stream, kind_and_flags = _HEADER.unpack_from(message)
        kind, flags, rest = kind_and_flags >> 10, kind_and_flags & 0x3FF, message[_HEADER.size :]
        if stream not in {_CONNECTION, _STREAM}:
            return []
        match kind:
            case _Kind.PAYLOAD if stream == _STREAM:
                return self._payload(flags, rest)
            case _Kind.KEEPALIVE if flags & _Flag.RESPOND:
                return [Reply(_frame(_CONNECTION, _Kind.KEEPALIVE, 0, bytes(8) + rest[8:]))]
            case _Kind.ERROR:
                _NUMBER.unpack_from(rest)
                return [StreamFailed(str(rest[_NUMBER.size :], "utf-8", "replace"))]
            case _:  # leases, and what later versions have
                return []

    def _payload(self, flags: int, rest: bytes) -> list[Event]:
        data = _without_metadata(rest) if flags & _Flag.METADATA else rest
        self._fragments.append(data)
        self._held += len(data)
        if self._held > LONGEST:
            raise ProtocolError(f"a line is longer than {LONGEST >> 20} MiB")
        if flags & _Flag.FOLLOWS:
            return []
        whole, self._fragments, self._held = b"".join(self._fragments), [], 0
        events: list[Event] = []
        if flags & _Flag.NEXT:
            self._credit -= 1
            events.append(Payload(whole))
        if flags & _Flag.COMPLETE:
            self._ended = True
            events.append(Completed())
        return events


def _frame(stream: int, kind: _Kind, flags: int, content: bytes) -> bytes:
    return _HEADER.pack(stream, kind << 10 | flags) + content


def _metadata(fields: Mapping[str, str]) -> bytes:
    text = json.dumps(fields).encode()
    return len(text).to_bytes(3, "big") + text


def _without_metadata(rest: bytes) -> bytes:
    length = int.from_bytes(rest[:3], "big")
    if len(rest) < 3 + length:
        raise ProtocolError("an RSocket frame is too short")
    return rest[3 + length :]
