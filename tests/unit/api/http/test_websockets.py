"""Websockets of strangers, on a route of the test's own: nothing of them is kept without bounds."""

from __future__ import annotations

import asyncio
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network

import pytest
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from headwater.api.http import connections, websocket
from headwater.api.http.websocket import FRAMES_AT_ONCE, MAX_FIRST_MESSAGE, MAX_MESSAGE, MOST_FIRST_FRAMES
from headwater.api.limits import HttpLimits
from tests.support.fix_api import Endpoint
from tests.support.loop_turns import in_each_turn
from tests.support.memory import forget_peak, peak
from tests.support.memory_store import MemoryStore
from tests.support.raw_http import RawConnection, connected
from tests.support.waiting import wait_until
from tests.unit.api import by_hand
from tests.unit.api.by_hand import MEBIBYTE, StartEndpoint

UPGRADE = by_hand.UPGRADE.replace(b"/sync/stream", b"/echo").removesuffix(b"\r\n")


class Played:
    """The application's side: echoes, or sends for as long as somebody takes it."""

    def __init__(self) -> None:
        self.sent = 0

    async def echo(self, websocket: WebSocket) -> None:
        await websocket.accept()
        try:
            while True:
                await websocket.send_bytes(await websocket.receive_bytes())
        except WebSocketDisconnect:
            pass

    async def pour(self, websocket: WebSocket) -> None:
        await websocket.accept()
        while True:
            await websocket.send_bytes(bytes(MEBIBYTE))
            self.sent += 1
            await asyncio.sleep(0)


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def start_sockets(start_endpoint: StartEndpoint, memory_store: MemoryStore, played: Played) -> StartEndpoint:
    routes = [WebSocketRoute("/echo", played.echo), WebSocketRoute("/pour", played.pour)]

    def start(**limits: object) -> Endpoint:
        http = HttpLimits(**{"drain_seconds": 0, **limits})  # type: ignore[arg-type]
        return start_endpoint(memory_store, extra_routes=routes, http=http)

    return start


@pytest.fixture
def sockets(start_sockets: StartEndpoint) -> Endpoint:
    return start_sockets()


def open_at(endpoint: Endpoint, path: str, said: str = "") -> ClientConnection:
    """A websocket; `said` is what a proxy says of who wants it."""
    host, port = endpoint.address
    headers = {"x-forwarded-for": said} if said else {}
    return connect(f"ws://{host}:{port}{path}", max_size=None, additional_headers=headers)


def upgraded(connection: RawConnection) -> None:
    connection.send(UPGRADE, b"\r\n")
    assert connection.answer().status == 101


HEAD_BYTES = 14
"""Of a large frame: what comes before its payload."""


def frame(opcode: int, payload: bytes = b"", *, last: bool = True) -> bytes:
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xff" + struct.pack("!Q", len(payload))
    return bytes([(0x80 if last else 0) | opcode]) + length + bytes(4) + payload


def closed_with(websocket: ClientConnection) -> int:
    """The code with which the other side closes it."""
    with pytest.raises(ConnectionClosed) as closed:
        websocket.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_message_size_limit(sockets: Endpoint) -> None:
    with open_at(sockets, "/echo") as websocket:
        for size in (0, 1, MAX_MESSAGE):
            websocket.send(bytes(size))
            assert websocket.recv() == bytes(size)
        # its head alone: a peer that is closed with something unread may never see why
        websocket.socket.sendall(frame(2, bytes(MAX_MESSAGE + 1))[:HEAD_BYTES])
        assert closed_with(websocket) == 1009


@pytest.mark.parametrize("frames", [1, 3])
def test_first_message_size_limit(sockets: Endpoint, frames: int) -> None:
    """The large one that the client sends right behind it is taken."""
    part = bytes(MAX_FIRST_MESSAGE // frames)
    with open_at(sockets, "/echo") as websocket:
        websocket.send([part] * frames if frames > 1 else part)
        websocket.send(bytes(MAX_MESSAGE))
        assert [len(websocket.recv()) for _ in range(2)] == [len(part) * frames, MAX_MESSAGE]
    with open_at(sockets, "/echo") as websocket:
        for number in range(frames):
            websocket.socket.sendall(frame(0 if number else 2, part, last=False))
        websocket.socket.sendall(frame(0, part, last=False))
        assert closed_with(websocket) == 1009


@pytest.mark.parametrize("size", [0, 1000])
def test_endless_message_is_not_kept(sockets: Endpoint, size: int) -> None:
    before = forget_peak()
    with connected(sockets) as connection:
        upgraded(connection)
        connection.send(frame(2, last=False))
        assert connection.send_until_over(frame(0, bytes(size), last=False) * 1000, most=64 * MEBIBYTE) < 64 * MEBIBYTE
        connection.read_to_the_end()
    assert peak() - before < 16 * MEBIBYTE


def test_backpressure(sockets: Endpoint, played: Played) -> None:
    before = forget_peak()
    with socket.create_connection(sockets.address, timeout=60) as plain:
        plain.sendall(UPGRADE.replace(b"/echo", b"/pour") + b"\r\n")
        plain.recv(1)
        while played.sent < 2:
            assert sockets.http.get("/probes/liveness").status_code == 200
        for _ in range(50):
            assert sockets.http.get("/probes/liveness").status_code == 200
        assert played.sent < 20
        assert peak() - before < 32 * MEBIBYTE


def test_pings_of_a_peer_that_does_not_read(sockets: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_PER_SECOND", 1_000_000)
    before = forget_peak()
    with connected(sockets) as connection:
        upgraded(connection)
        connection.send(frame(2))
        for _ in range(32):
            connection.send(frame(9, b"x" * 125) * 8000)
        assert peak() - before < 16 * MEBIBYTE
        assert sockets.http.get("/probes/liveness").status_code == 200


SMALL = {
    "ping": frame(9),
    "pong": frame(10),
    "binary": frame(2),
    "in pieces": frame(2, b"x", last=False) + frame(0, b"x", last=False) * 100 + frame(0, b"x"),
}


@pytest.mark.parametrize("kind", ["ping", "pong", "in pieces"])
def test_frames_before_the_first_message(sockets: Endpoint, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    frames = in_each_turn(monkeypatch, websocket._Conversation, "recv_frame")
    with connected(sockets) as connection:
        upgraded(connection)
        connection.send_until_over(SMALL[kind] * 10_000, most=MEBIBYTE)
        connection.read_to_the_end()
    assert sockets.refused() == {"HW_6030": 1}
    assert frames.all == MOST_FIRST_FRAMES + 1
    assert frames.most <= FRAMES_AT_ONCE


@pytest.mark.parametrize("kind", SMALL)
def test_small_frames_are_throttled_and_cut_off(sockets: Endpoint, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(connections, "LATE_SECONDS", 1.0)
    frames = in_each_turn(monkeypatch, websocket._Conversation, "recv_frame")
    before = forget_peak()
    with connected(sockets) as connection:
        upgraded(connection)
        connection.send(frame(2))
        while frames.all < 1:
            assert sockets.http.get("/probes/liveness").status_code == 200
        for _ in range(16):
            try:
                connection.send(SMALL[kind] * (MEBIBYTE // len(SMALL[kind])))
            except OSError:
                break
        connection.read_to_the_end()
    assert sockets.http.get("/probes/liveness").status_code == 200
    assert sockets.refused() == {"HW_6030": 1}
    assert frames.most <= FRAMES_AT_ONCE
    assert frames.all < 10 * connections.MOST_AT_ONCE
    assert peak() - before < 16 * MEBIBYTE


def test_many_messages_at_the_allowed_pace(sockets: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_PER_SECOND", 1000)
    many = 3 * connections.MOST_AT_ONCE
    with open_at(sockets, "/echo") as websocket, ThreadPoolExecutor(1) as reader:
        came = reader.submit(lambda: [websocket.recv(timeout=60) for _ in range(many)])
        for number in range(many):
            websocket.send(str(number).encode())
        assert came.result() == [str(number).encode() for number in range(many)]


def test_websocket_counts_as_a_connection_until_it_ends(start_sockets: StartEndpoint) -> None:
    sockets = start_sockets(max_connections_per_address=2)
    with open_at(sockets, "/echo"), connected(sockets) as other:
        assert other.answer().status == 429

    def status() -> int:
        with connected(sockets) as connection:
            connection.send(b"GET /probes/liveness HTTP/1.1\r\nhost: x\r\n\r\n")
            return connection.answer().status

    wait_until(lambda: status() == 200, "room for another")


def test_websockets_per_address_behind_a_proxy(start_sockets: StartEndpoint) -> None:
    proxies = (ip_network("127.0.0.1"),)
    sockets = start_sockets(max_connections_per_address=1, trusted_proxies=proxies)
    with open_at(sockets, "/echo", said="203.0.113.7"):
        with pytest.raises(InvalidStatus):
            open_at(sockets, "/echo", said="203.0.113.7")
        with open_at(sockets, "/echo", said="203.0.113.8") as other:
            other.send(b"x")
            assert other.recv() == b"x"


def test_handshake_with_too_long_a_header(sockets: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with connected(sockets) as connection:
        connection.send(UPGRADE, b"x: ", b"y" * 20_000, b"\r\n\r\n")
        assert connection.answer().status == 431
        assert connection.is_ended()
    assert sockets.refused() == {"HW_6022": 1}
    assert not any(record.exc_info for record in caplog.records)


NO_TEXT, NO_FRAME = frame(1, b"\xff"), b"\x83\x80" + bytes(4)


@pytest.mark.parametrize(
    "sent",
    [NO_TEXT, NO_TEXT + frame(8, b"\x03\xe8"), NO_FRAME, frame(2, b"not rsocket") + NO_TEXT],
    ids=["no text", "no text and a close", "no frame", "an answer is due"],
)
def test_protocol_violation_logs_no_trace(sockets: Endpoint, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    with connected(sockets) as connection:
        connection.send(by_hand.UPGRADE)
        assert connection.answer().status == 101
        connection.send(sent)
        connection.read_to_the_end()
    assert sockets.http.get("/probes/liveness").status_code == 200
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize(
    ("wrong", "right", "status"),
    [(b"version: 13", b"version: 8", 400), (b"key: ", b"key: x", 400), (b"connection: upgrade", b"connection: x", 404)],
)
def test_wrong_handshake_is_refused_and_counted(sockets: Endpoint, wrong: bytes, right: bytes, status: int) -> None:
    with connected(sockets) as connection:
        connection.send(UPGRADE.replace(wrong, right), b"\r\n")
        assert connection.answer().status == status
    code = "PSYNC_S2002" if status == 404 else "HW_6029"
    wait_until(lambda: sockets.refused() == {code: 1}, "the count of what was answered before")


@pytest.mark.parametrize("sent", [NO_TEXT, NO_FRAME, frame(2, bytes(MAX_FIRST_MESSAGE + 1))[:HEAD_BYTES]])
def test_protocol_violation_is_counted(sockets: Endpoint, sent: bytes) -> None:
    with connected(sockets) as connection:
        upgraded(connection)
        connection.send(sent)
        connection.read_to_the_end()
    assert sockets.refused() == {"HW_6030": 1}


def test_query_of_a_websocket_is_not_logged(sockets: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with open_at(sockets, "/echo?token=swordfish") as websocket:
        websocket.send(b"x")
        websocket.recv()
    assert "swordfish" not in caplog.text


def test_websockets_close_on_shutdown(sockets: Endpoint) -> None:
    with open_at(sockets, "/echo") as websocket:
        sockets.terminate()
        assert closed_with(websocket) == 1012
