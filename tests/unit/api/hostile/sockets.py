"""Websockets with something wrong: their handshake, their frames, RSocket's frames in them, the requests in these."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any, Final

import bson

from tests.support import rsocket_client as client
from tests.unit.api.hostile.conversation import Conversation, Credentials
from tests.unit.api.hostile.damage import damaged, split
from tests.unit.api.hostile.requests import STREAM
from tests.unit.api.hostile.values import damaged_bson, damaged_json

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
SENTINEL: Final = b"all that was said before"
_ASKING: Final = client.frame(0, client.KEEPALIVE, client.RESPOND, bytes(8) + SENTINEL)
_JSON, _BSON = "application/json", "application/bson"
_HANDSHAKE: Final = (
    b"GET /sync/stream HTTP/1.1", b"host: x", b"connection: Upgrade", b"upgrade: websocket",
    b"sec-websocket-version: 13", b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)  # fmt: skip
_MORE_LINES: Final = (
    b"sec-websocket-extensions: permessage-deflate; client_max_window_bits", b"sec-websocket-extensions: \xff;;=",
    b"sec-websocket-protocol: a, b", b"sec-websocket-protocol: \xff", b"sec-websocket-version: 8",
    b"sec-websocket-key: x", b"sec-websocket-key: " + b"a" * 9000, b"content-length: 5", b"transfer-encoding: chunked",
    b"origin: \xff", b"connection: close", b"upgrade: h2c", b"user-agent: " + b"\x80" * 100, b"authorization: Token x",
    b"x: " + b"y" * 20_000, b"expect: 100-continue", b"host: y",
)  # fmt: skip
_STARTS: Final = (
    b"POST /sync/stream HTTP/1.1", b"GET /api/x HTTP/1.1", b"GET / HTTP/1.0", b"GET /%ff%00 HTTP/1.1",
    b"GET http://x/sync HTTP/1.1", b"HEAD /sync/stream HTTP/1.1", b"GET /sync/stream?token=x&%zz HTTP/1.1",
    b"GET /" + b"a" * 7000 + b" HTTP/1.1", b"OPTIONS * HTTP/1.1", b"GET \xc3\xa9 HTTP/1.1",
    b"GET /probes/liveness HTTP/1.1",
)  # fmt: skip


def message(chance: random.Random, opcode: int, content: bytes, *, last: bool = True) -> bytes:
    """A websocket frame as clients send it."""
    length = len(content)
    if length < 126:
        head = struct.pack(">BB", (0x80 if last else 0) | opcode, 0x80 | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", (0x80 if last else 0) | opcode, 0x80 | 126, length)
    else:
        head = struct.pack(">BBQ", (0x80 if last else 0) | opcode, 0x80 | 127, length)
    mask = chance.getrandbits(32)
    return head + mask.to_bytes(4, "big") + _masked(content, mask)


class HostileSockets:
    """Makes conversations over a websocket."""

    def __init__(self, chance: random.Random, credentials: Credentials) -> None:
        self._chance = chance
        self._credentials = credentials

    def handshake(self) -> Conversation:
        """Another way to ask for a websocket."""
        chance = self._chance
        lines = list(_HANDSHAKE)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(lines))
            match chance.randrange(5):
                case 0:
                    lines[0] = chance.choice(_STARTS)
                case 1:
                    del lines[at]
                case 2:
                    lines[at] = damaged(chance, lines[at])
                case _:
                    lines.append(chance.choice(_MORE_LINES))
            if not lines:
                break
        content = b"\r\n".join([*lines, b"", b""])
        return self._conversation("handshake", self._messages(self._frames()), content)

    def messages(self) -> Conversation:
        """Frames of the websocket that its protocol does not allow, or that nobody expects."""
        chance = self._chance
        parts = self._messages(self._frames())
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(parts) + 1)
            match chance.randrange(8):
                case 0:
                    parts[at:at] = [message(chance, chance.randrange(16), chance.randbytes(chance.randrange(200)))]
                case 1:
                    code = struct.pack(
                        ">H", chance.choice((0, 999, 1000, 1001, 1005, 1006, 1011, 1015, 3000, 5000, 65535))
                    )
                    parts[at:at] = [
                        message(chance, CLOSE, chance.choice((b"", b"\x03", code, code + b"\xff", code + b"bye")))
                    ]
                case 2:
                    parts[at:at] = [message(chance, TEXT, chance.choice((b"hello", b"\xff", b"")))] * chance.choice(
                        (1, 5)
                    )
                case 3:
                    parts[at:at] = [message(chance, PING, b"x" * chance.choice((0, 125, 126)))] * chance.choice((1, 40))
                case 4:
                    parts[at:at] = [message(chance, chance.choice((0, 1, 2)), b"a", last=False)] * chance.choice(
                        (1, 3, 1100)
                    )
                case 5:
                    parts[at:at] = [
                        bytes([0x82, 0xFF]) + struct.pack(">Q", chance.choice((1 << 22, 1 << 63, (1 << 64) - 1)))
                    ]
                case 6:
                    parts[at:at] = [bytes([0x82, 0x05]) + b"plain"]
                case _:
                    parts = [damaged(chance, b"".join(parts))]
        return self._conversation("websocket frames", parts)

    def frames(self) -> Conversation:
        """Frames of RSocket: damaged, out of order, twice, in pieces."""
        chance = self._chance
        frames = self._frames()
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(frames) or 1)
            match chance.randrange(7) if frames else 5:
                case 0 | 1:
                    frames[at] = damaged(chance, frames[at])
                case 2:
                    frames.insert(at, chance.choice(frames))
                case 3:
                    frames.append(frames.pop(at))
                case 4:
                    frames[at : at + 1] = self._in_pieces(frames[at])
                case 5:
                    frames.insert(at, self._odd())
                case _:
                    kind, flags = chance.randrange(64), chance.randrange(1024)
                    stream = chance.choice((0, 1, 2, 3, 0x7FFF_FFFF, 0xFFFF_FFFF))
                    body = chance.randbytes(chance.randrange(60))
                    frames.insert(at, client.frame(stream, kind, flags, body))
        return self._conversation("rsocket frames", self._messages(frames))

    def requests(self) -> Conversation:
        """Frames as they should be, with something wrong in their metadata or data."""
        chance = self._chance
        mime = chance.choice((_JSON, _BSON))
        write = damaged_bson if mime == _BSON else damaged_json
        setup: Any = {"token": self._token(), "user_agent": "x/1"}
        path: Any = {"path": "/sync/stream"}
        metadata, data = _written(path, mime), _written(STREAM, mime)
        told = _written(setup, mime)
        match chance.randrange(4):
            case 0:
                told = write(chance, setup)
            case 1:
                metadata = write(chance, path)
            case _:
                data = write(chance, STREAM)
        frames = [_setup(told, mime), _request(metadata, data)]
        if len(metadata) + len(data) > 100 and chance.random() < 0.3:
            frames[1:] = self._in_pieces(frames[1])
        return self._conversation(f"rsocket {mime}", self._messages(frames))

    def _conversation(self, kind: str, parts: Sequence[bytes], handshake: bytes = b"") -> Conversation:
        chance = self._chance
        begin = handshake or b"\r\n".join([*_HANDSHAKE, b"", b""])
        content = b"".join(parts)
        if chance.random() < 0.05:
            content = content[: chance.randrange(len(content) + 1)]
        pieces = (
            [*split(chance, begin), *split(chance, content)]
            if chance.random() < 0.1
            else [begin, *split(chance, content)]
        )
        deaf = chance.random() < 0.02
        waits = chance.random() < 0.9
        return Conversation(kind, pieces, waits=waits, last=SENTINEL, deaf=deaf)

    def _messages(self, frames: Sequence[bytes]) -> list[bytes]:
        """Each frame as a message, some in several frames of the websocket, and last a question."""
        parts = []
        for each in (*frames, _ASKING):
            pieces = split(self._chance, each) if self._chance.random() < 0.1 else (each,)
            for number, piece in enumerate(pieces):
                last = number == len(pieces) - 1
                parts.append(message(self._chance, 0 if number else BINARY, piece, last=last))
        return parts

    def _frames(self) -> list[bytes]:
        """What a device would say."""
        token = self._token() if self._chance.random() < 0.97 else self._chance.choice(self._credentials.bad).decode()
        frames = [_setup(_written({"token": token}, _JSON), _JSON)]
        frames.append(_request(_written({"path": "/sync/stream"}, _JSON), _written(STREAM, _JSON)))
        return [*frames, client.frame(1, client.REQUEST_N, 0, struct.pack(">I", 5)), client.frame(1, client.CANCEL)][
            : self._chance.choice((1, 2, 2, 3, 4))
        ]

    def _odd(self) -> bytes:
        """A frame that some protocol would know."""
        chance = self._chance
        credit = struct.pack(">I", chance.choice((0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)))
        stream = chance.choice((0, 1, 1, 3, 5))
        return chance.choice((
            client.frame(stream, client.REQUEST_N, 0, credit),
            client.frame(stream, client.CANCEL, chance.randrange(1024)),
            client.frame(stream, client.PAYLOAD, client.COMPLETE, b"{}"),
            client.frame(stream, client.PAYLOAD, chance.choice((0, client.NEXT, client.FOLLOWS)), b"{}"),
            client.frame(stream, client.ERROR, 0, b"\0\0\1\1bye"),
            client.frame(stream, client.KEEPALIVE, client.RESPOND, b"\xff" * chance.choice((0, 7, 8, 500))),
            client.frame(stream, client.REQUEST_STREAM, client.FOLLOWS, b"\0\0\0\1{"),
            client.setup({"token": self._token()}, mime=chance.choice((_JSON, _BSON, "", "text/plain", "x" * 200))),
            client.setup({"token": self._token()}, lifetime_ms=chance.choice((0, 0xFFFF_FFFF))),
            client.setup({"token": self._token()}, flags=chance.randrange(1024)),
            b"", b"\0",
        ))  # fmt: skip

    def _in_pieces(self, whole: bytes) -> list[bytes]:
        """A request in fragments, some of which are missing, in another order, or of another stream."""
        chance = self._chance
        stream, kind = struct.unpack_from(">IH", whole) if len(whole) > 6 else (1, 0)
        pieces = list(split(chance, whole[6:])) if len(whole) > 7 else [b"{}"]
        frames = [client.frame(stream, kind >> 10 & 63, (kind & 0x3FF) | client.FOLLOWS, pieces[0])]
        for number, piece in enumerate(pieces[1:], 2):
            flags = client.NEXT | (client.FOLLOWS if number < len(pieces) else 0)
            other = chance.random() < 0.05
            frames.append(client.frame(stream ^ 2 if other else stream, client.PAYLOAD, flags, piece))
        if chance.random() < 0.3:
            del frames[chance.randrange(len(frames))]
        elif chance.random() < 0.2:
            chance.shuffle(frames)
        return frames

    def _token(self) -> str:
        return "Token " + self._chance.choice(self._credentials.good).decode()


def _setup(metadata: bytes, mime: str) -> bytes:
    kind = bytes([len(mime)]) + mime.encode()
    head = struct.pack(">HHII", 1, 0, 20_000, 90_000)
    return client.frame(0, client.SETUP, client.METADATA, head + kind + kind + _sized(metadata))


def _request(metadata: bytes, data: bytes, credit: int = 10) -> bytes:
    content = struct.pack(">I", credit) + _sized(metadata) + data
    return client.frame(1, client.REQUEST_STREAM, client.METADATA, content)


def _sized(metadata: bytes) -> bytes:
    return min(len(metadata), 0xFFFFFF).to_bytes(3, "big") + metadata


def _written(document: dict[str, Any], mime: str) -> bytes:
    return bson.encode(document) if mime == _BSON else json.dumps(document).encode()


def _masked(content: bytes, mask: int) -> bytes:
    if not content:
        return b""
    whole = (len(content) + 3) // 4 * 4
    key = int.from_bytes(mask.to_bytes(4, "big") * (whole // 4), "big")
    return (int.from_bytes(content.ljust(whole, b"\0"), "big") ^ key).to_bytes(whole, "big")[: len(content)]
