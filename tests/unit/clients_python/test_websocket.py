"""The sync stream over a websocket, from a server that keeps to RSocket and from others."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

import bson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from headwater_client import ConnectOptions, Credentials
from headwater_client.errors import (
    ClientError,
    ConnectError,
    ProtocolError,
    RefusedError,
    TokenRefusedError,
    UnreachableError,
)
from headwater_client.protocol.rsocket import Requester
from headwater_client.transport import websocket
from headwater_client.transport.websocket import Websocket
from tests.support import rsocket_client as rsocket
from tests.support.examples import examples

Play = Callable[[ServerConnection], None]

COMPLETE = rsocket.frame(1, rsocket.PAYLOAD, rsocket.COMPLETE)


@contextmanager
def playing(play: Play, refused: HTTPStatus | None = None) -> Iterator[str]:
    """A server that reads the two frames of an opening, and then does as `play` says; its endpoint."""

    def handle(connection: ServerConnection) -> None:
        connection.recv()
        connection.recv()
        play(connection)

    def refuse(connection: ServerConnection, _: Request) -> Response | None:
        return None if refused is None else connection.respond(refused, "not now")

    with serve(handle, "127.0.0.1", 0, process_request=refuse, compression=None, max_size=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def read(endpoint: str, taken: Callable[[int], None] = lambda _: None) -> list[bytes]:
    """The documents of one stream, to its end. `taken` is called as each is there."""

    async def all_pieces() -> list[bytes]:
        pieces: list[bytes] = []
        async with (
            Websocket("tests/1") as transport,
            transport.stream(Credentials(endpoint, "t"), b'{"buckets":[]}') as stream,
        ):
            async for piece in stream.pieces:
                pieces.append(piece)
                taken(len(pieces))
        return pieces

    return asyncio.run(all_pieces())


def payload(data: bytes, flags: int = rsocket.NEXT) -> bytes:
    return rsocket.frame(1, rsocket.PAYLOAD, flags, data)


def sending(*messages: bytes | str) -> Play:
    """Sends these, and nothing else."""

    def play(connection: ServerConnection) -> None:
        for message in messages:
            connection.send(message)

    return play


def credit_of(frame: str | bytes) -> int:
    """The number in a frame that asks for more."""
    assert isinstance(frame, bytes)
    stream, kind = struct.unpack_from(">IH", frame)
    assert (stream, kind >> 10) == (1, rsocket.REQUEST_N)
    (number,) = struct.unpack_from(">I", frame, 6)
    return int(number)


DOCUMENTS = [bson.encode({"token_expires_in": number}) for number in range(40)]


def test_credit_follows_storage() -> None:
    """The server sends as much as it may; it never may send more than ten that were not taken."""
    ahead: list[int] = []
    stored = 0

    def play(connection: ServerConnection) -> None:
        credit = 10
        for number, document in enumerate(DOCUMENTS):
            if credit == 0:
                credit += credit_of(connection.recv(timeout=60))
            connection.send(payload(document))
            credit -= 1
            ahead.append(number + 1 + credit - stored)
        connection.send(COMPLETE)

    def take(count: int) -> None:
        nonlocal stored
        stored = count

    with playing(play) as endpoint:
        assert read(endpoint, take) == DOCUMENTS
    assert max(ahead) <= 11  # one is being stored


def test_fragments() -> None:
    frames = [payload(DOCUMENTS[2], rsocket.NEXT | rsocket.COMPLETE)]
    for document in reversed(DOCUMENTS[:2]):
        first, middle = payload(document[:3], rsocket.NEXT | rsocket.FOLLOWS), payload(document[3:5], rsocket.FOLLOWS)
        frames = [first, middle, payload(document[5:], rsocket.NEXT), *frames]
    with playing(sending(*frames)) as endpoint:
        assert read(endpoint) == DOCUMENTS[:3]


def test_foreign_frames() -> None:
    frames = [
        rsocket.frame(3, rsocket.PAYLOAD, rsocket.NEXT, b"of another stream"),
        rsocket.frame(0, 0x0C, rsocket.METADATA, b"a push of metadata"),
        rsocket.frame(0, 0x3F, 0x200, b"an extension"),
        payload(b"\0\0\2{}" + DOCUMENTS[0], rsocket.NEXT | rsocket.METADATA),
    ]
    with playing(sending(*frames, COMPLETE)) as endpoint:
        assert read(endpoint) == DOCUMENTS[:1]


def test_keepalive_is_answered() -> None:
    answers: list[str | bytes] = []

    def play(connection: ServerConnection) -> None:
        connection.send(rsocket.frame(0, rsocket.KEEPALIVE, rsocket.RESPOND, bytes(8) + b"well?"))
        answers.append(connection.recv(timeout=60))
        connection.send(COMPLETE)

    with playing(play) as endpoint:
        read(endpoint)
    assert answers == [rsocket.frame(0, rsocket.KEEPALIVE, 0, bytes(8) + b"well?")]


def test_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "KEEPALIVE_SECONDS", 0.05)
    heard: list[str | bytes] = []

    def play(connection: ServerConnection) -> None:
        for _ in range(5):  # longer than a silent one would be waited for
            heard.append(connection.recv(timeout=60))
            connection.send(rsocket.frame(0, rsocket.KEEPALIVE, 0, bytes(8)))
        heard.extend(connection)

    with playing(play) as endpoint, pytest.raises(UnreachableError, match="silent"):
        read(endpoint)
    assert set(heard) == {rsocket.frame(0, rsocket.KEEPALIVE, rsocket.RESPOND, bytes(8))}
    assert len(heard) >= 5 + 3


def test_long_message_over_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "KEEPALIVE_SECONDS", 0.1)
    document = bson.encode({"token_expires_in": 1})

    def play(connection: ServerConnection) -> None:
        content = payload(document)
        message = bytes([0x82, len(content)]) + content
        for position in range(0, len(message), 6):
            connection.recv(timeout=20)  # so that it comes between two signs of life
            connection.socket.sendall(message[position : position + 6])
        connection.send(COMPLETE)

    with playing(play) as endpoint:
        assert read(endpoint) == [document]


def test_server_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CONNECT_SECONDS", 2.0)
    question = rsocket.frame(0, rsocket.KEEPALIVE, rsocket.RESPOND, bytes(1 << 20))

    def play(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                connection.send(question)

    with playing(play) as endpoint, pytest.raises(UnreachableError):
        read(endpoint)


@pytest.mark.parametrize(
    ("stream", "text", "kind"),
    [
        (0, "[PSYNC_S2103] the token has expired", TokenRefusedError),
        (1, "[PSYNC_S2101] no key fits", TokenRefusedError),
        (1, "[PSYNC_S2305] too many buckets", RefusedError),
        (0, "[HW_6028] a frame is too short", RefusedError),
        (0, "who are you?", TokenRefusedError),
    ],
)
def test_error_codes(stream: int, text: str, kind: type[ClientError]) -> None:
    frame = rsocket.frame(stream, rsocket.ERROR, 0, struct.pack(">I", 0x201) + text.encode())
    with playing(sending(frame)) as endpoint, pytest.raises(ClientError) as caught:
        read(endpoint)
    assert type(caught.value) is kind
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"), [(HTTPStatus.UNAUTHORIZED, TokenRefusedError), (HTTPStatus.BAD_GATEWAY, RefusedError)]
)
def test_refused_handshake(status: HTTPStatus, kind: type[RefusedError]) -> None:
    with playing(lambda _: None, status) as endpoint, pytest.raises(RefusedError) as caught:
        read(endpoint)
    assert (type(caught.value), caught.value.status) == (kind, int(status))


def test_broken_connection() -> None:
    with playing(lambda connection: connection.socket.close()) as endpoint, pytest.raises(UnreachableError):
        read(endpoint)


@pytest.mark.parametrize(
    "message",
    [
        b"\0",
        "a text",
        payload(b"\xff\xff\xff{}", rsocket.NEXT | rsocket.METADATA),
        rsocket.frame(1, rsocket.ERROR, 0, b"\0"),
    ],
    ids=["short", "text", "metadata", "error"],
)
def test_protocol_violation(message: bytes | str) -> None:
    with playing(sending(message)) as endpoint, pytest.raises(ProtocolError):
        read(endpoint)


FRAMES = st.one_of(
    st.binary(max_size=40),
    st.builds(
        rsocket.frame, st.sampled_from([0, 1, 2]), st.integers(0, 63), st.integers(0, 0x3FF), st.binary(max_size=30)
    ),
)


@settings(max_examples=examples(100))
@given(st.lists(FRAMES, max_size=8))
def test_any_frames(frames: list[bytes]) -> None:
    requester = Requester()
    try:
        for frame in frames:
            requester.receive(frame)
            requester.taken()
    except ClientError:
        pass


def test_unknown_options() -> None:
    for options in (ConnectOptions(transport="carrier pigeon"), ConnectOptions(checkpoint_mode="none")):  # type: ignore[arg-type]
        with pytest.raises(ConnectError, match="use one of"):
            options.check()
