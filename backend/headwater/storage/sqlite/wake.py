"""Notifies the processes that read the store of a commit, with one datagram to a Unix socket of each.

The sockets are in a directory that belongs to the store. A datagram carries no data: its receiver looks at the store.
Losing one is harmless, because readers also poll.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import tempfile
import uuid
from pathlib import Path

_log = logging.getLogger(__name__)

_LONGEST_SOCKET_PATH = 100  # of 108 that Linux allows, 104 on macOS
_TRIES = 100


def wake_directory(store: Path) -> Path:
    """Directory of the sockets of the store's listeners: inside the store, or in a temporary directory if that path is
    too long for a socket."""
    directory = store.resolve() / "wake"
    name = f"headwater-{hashlib.sha256(str(directory).encode()).hexdigest()[:16]}"
    places = [directory, Path(tempfile.gettempdir()) / name]
    short = [place for place in places if len(str(place)) + 20 <= _LONGEST_SOCKET_PATH]
    return short[0] if short else Path("/tmp") / name  # noqa: S108 - the listener creates it for its user only


class WakeListener:
    """The receiving side, with a file descriptor for an event loop."""

    def __init__(self, store: Path) -> None:
        directory = wake_directory(store)
        self._path = directory / f"{uuid.uuid4().hex[:12]}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._bind()
        except OSError as error:
            _log.warning(
                "commits reach devices up to a second late, because this directory is not writable: %s (%s)",
                directory,
                error.strerror,
            )

    def _bind(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                self._socket.bind(str(self._path))
            except FileNotFoundError:  # another listener has just left, and removed it
                if not tries_left:
                    raise
            else:
                return

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(16)

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
            self._path.parent.rmdir()  # unless others listen


class Waker:
    """The sending side."""

    def __init__(self, store: Path) -> None:
        self._directory = wake_directory(store)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def wake(self) -> None:
        """Notify every listener. Removes the socket of a dead process; a listener whose queue is full has a datagram
        waiting anyway."""
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 - runs on every commit
        except OSError:
            return
        for name in names:
            path = os.path.join(self._directory, name)  # noqa: PTH118 - runs on every commit
            try:
                self._socket.sendto(b"1", path)
            except ConnectionRefusedError:
                with contextlib.suppress(OSError):
                    Path(path).unlink()
            except OSError:
                continue

    def close(self) -> None:
        self._socket.close()
