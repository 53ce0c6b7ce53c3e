"""A connection that says what no HTTP client would."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.fix_api import Endpoint


class RawConnection:
    """Bytes to an endpoint, and answers from it."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._held = b""

    def send(self, *parts: bytes) -> None:
        self._socket.sendall(b"".join(parts))

    def send_until_over(self, part: bytes, pause: float = 0.0, most: int = 1 << 40) -> int:
        """Send a part again and again, until the other side says or does something, or reads no more; how many bytes
        were sent."""
        self._socket.settimeout(1)
        sent, deadline = 0, time.monotonic() + 60
        while sent < most and not self._has_news():
            assert time.monotonic() < deadline, "the other side ends it"
            try:
                self._socket.sendall(part)
            except OSError:
                break
            sent += len(part)
            time.sleep(pause)
        self._socket.settimeout(60)
        return sent

    def answer(self) -> Answer:
        """The next answer. Raises EOFError where there is none."""
        while b"\r\n\r\n" not in self._held:
            self._receive()
        head, _, self._held = self._held.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        headers = dict(field.lower().split(": ", 1) for field in fields)
        while len(self._held) < int(headers.get("content-length", "0")):
            self._receive()
        length = int(headers.get("content-length", "0"))
        body, self._held = self._held[:length], self._held[length:]
        return Answer(int(status.split()[1]), headers, body)

    def is_ended(self) -> bool:
        """Wait until the other side has ended the connection; whether it did without another word."""
        try:
            while not self._held:
                self._receive()
        except EOFError:
            return True
        return False

    def read_to_the_end(self) -> None:
        """Read until the other side has ended the connection."""
        try:
            while True:
                self._held = b""
                self._receive()
        except EOFError:
            pass

    def _has_news(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._held += self._socket.recv(1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._socket.settimeout(1)
        return True

    def _receive(self) -> None:
        try:
            part = self._socket.recv(1 << 16)
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError
        self._held += part


@dataclass(frozen=True)
class Answer:
    """Status, headers in lower case, and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error["status"] == self.status
        return error


@contextmanager
def connected(endpoint: Endpoint) -> Iterator[RawConnection]:
    with socket.create_connection(endpoint.address, timeout=60) as connection:
        yield RawConnection(connection)
