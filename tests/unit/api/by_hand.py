"""Sockets that speak the stream's protocols by hand, and read only as much of an answer as a test wants."""

from __future__ import annotations

import socket
from base64 import b64encode
from collections.abc import Callable

from tests.support import rsocket_client
from tests.support.fix_api import Endpoint, make_token

StartEndpoint = Callable[..., Endpoint]

MEBIBYTE = 1 << 20
UPGRADE = (
    b"GET /sync/stream HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: " + b64encode(b"k" * 16) + b"\r\n\r\n"
)
KEEPALIVE = rsocket_client.frame(0, rsocket_client.KEEPALIVE, rsocket_client.RESPOND, bytes(8))


def post(body: bytes = b"{}", user: str = "u1", *headers: str) -> bytes:
    """A request of a stream over HTTP."""
    lines = ["POST /sync/stream HTTP/1.1", "host: x", f"authorization: Token {make_token(user)}", *headers]
    return ("\r\n".join([*lines, f"content-length: {len(body)}"]) + "\r\n\r\n").encode() + body


def masked(content: bytes) -> bytes:
    """A message over a websocket, in one frame."""
    length = bytes([0x80 | len(content)]) if len(content) < 126 else b"\xfe" + len(content).to_bytes(2, "big")
    return b"\x82" + length + bytes(4) + content


def read_until(connection: socket.socket, mark: bytes) -> None:
    received = b""
    while mark not in received:
        part = connection.recv(1 << 16)
        assert part, received
        received += part


def upgrade(connection: socket.socket, user: str = "u1", agent: str = "tests/1", handshake: bytes = UPGRADE) -> None:
    """Set up a websocket on a connection, without a stream yet."""
    connection.sendall(handshake)
    read_until(connection, b"\r\n\r\n")
    connection.sendall(masked(rsocket_client.setup({"token": f"Token {make_token(user)}", "user_agent": agent})))


def request_stream(connection: socket.socket, body: bytes = b"{}") -> None:
    """Request the stream over a websocket, with credit for 16 payloads."""
    request = b"\0\0\0\x10" + rsocket_client.with_metadata({"path": "/sync/stream"}, body)
    connection.sendall(masked(rsocket_client.frame(1, rsocket_client.REQUEST_STREAM, rsocket_client.METADATA, request)))
