"""The network between two processes, which a test cuts, or has swallow everything."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from typing import Self

Change = Callable[[bytes], bytes]

_READY = b"Z\0\0\0\5"  # Postgres: ReadyForQuery


class Network:
    """Carries TCP connections from `port` to the port of a server, until told otherwise. A context manager. While
    `foreign` is set, nobody can read what the server says on connections that are made. `round_trips` counts how often
    the server said that it waits for the client."""

    def __init__(self, to: int) -> None:
        self._to = to
        self.foreign = False
        self.round_trips = 0
        self._listener = _listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._accept()
        return self

    def __exit__(self, *_: object) -> None:
        self._flows.set()
        self.cut()

    def cut(self) -> None:
        """End what is connected, and refuse new connections."""
        _end(self._listener)
        self.drop()

    def drop(self) -> None:
        """End what is connected."""
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            _end(end)

    def swallow(self) -> None:
        """Carry nothing any more, and tell nobody: connections stay, and new ones are made."""
        self._flows.clear()

    def mend(self) -> None:
        """Carry everything again; what was connected meanwhile is ended."""
        self.drop()
        self._flows.set()
        if self._listener.fileno() < 0:
            self._listener = _listen(self.port)
            self._accept()

    def _accept(self) -> None:
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # the server is not there
                near.close()
                continue
            with self._lock:
                self._ends += [near, far]
            up, down = self.carried()
            for change, here, there in ((up, near, far), (down, far, near)):
                threading.Thread(target=self._carry, args=(change, here, there), daemon=True).start()

    def carried(self) -> tuple[Change, Change]:
        """What becomes of the bytes of a new connection, on their way up and down."""
        return self._count, _translator() if self.foreign else self._count

    def _count(self, data: bytes) -> bytes:
        self.round_trips += data.count(_READY)
        return data

    def _carry(self, change: Change, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(65536):
                self._flows.wait()
                there.sendall(change(data))
        _end(here)
        _end(there)


def _translator() -> Change:
    """Changes messages of Postgres, without TLS."""
    rest = b""

    def translate(data: bytes) -> bytes:
        nonlocal rest
        translated, rest = _translated(rest + data)
        return translated

    return translate


def _translated(data: bytes) -> tuple[bytes, bytes]:
    """The whole messages, with those that people read in no language; and the rest."""
    messages, at = [], 0
    while len(data) >= at + 5 and len(data) >= (end := at + 1 + int.from_bytes(data[at + 1 : at + 5], "big")):
        body = data[at + 5 : end]
        messages.append(data[at : at + 5] + (_foreign(body) if data[at : at + 1] in {b"E", b"N"} else body))
        at = end
    return b"".join(messages), data[at:]


def _foreign(notice: bytes) -> bytes:
    """An error or notice with its severity and texts in no language; its SQLSTATE stays."""
    fields = notice.split(b"\0")
    return b"\0".join(re.sub(rb"\w", b"x", f[1:]).join((f[:1], b"")) if f[:1] in b"SMDH" else f for f in fields)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    return listener


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
    end.close()
