"""The status that a replicator reports, in a file beside the database. It is written in place, so that it can be
reported while a large transaction has the database locked, and while the disk is full. The replicator has the file
locked: the system releases that lock when the process dies.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import zlib
from pathlib import Path

from headwater.errors import machine_errors
from headwater.storage.contract.reader import ReplicatorStatus
from headwater.storage.contract.store import Lease

FOLDER = "told"

_ROOM = 64 << 10
_HEADER = "{:08x} {:08x}\n"  # bytes of the text, and their checksum
_HEADER_BYTES = 18
_READS = 20
_READ_AGAIN_SECONDS = 0.005


class StatusFile:
    """The file of one lease. Of earlier leases of the same name nothing is left."""

    def __init__(self, directory: Path, lease: Lease) -> None:
        self.lease = lease
        path = _path(directory, lease.name, lease.epoch)
        with machine_errors():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = 0
            self._make_room(_ROOM)
        for former in path.parent.glob(f"{_stem(lease.name)}-*"):
            if former != path:
                former.unlink(missing_ok=True)

    def write(self, text: str) -> None:
        """Replace the text. Raises MachineError."""
        body = text.encode()
        with machine_errors():
            self._make_room(_HEADER_BYTES + len(body))
            os.pwrite(self._fd, _HEADER.format(len(body), zlib.crc32(body)).encode() + body, 0)

    def _make_room(self, size: int) -> None:
        """Have the disk hold so much for the file, so that writing there can't fail for want of room."""
        if size > self._size:
            os.pwrite(self._fd, bytes(size - self._size), self._size)
            self._size = size

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._fd)


def read_status(directory: Path, name: str, epoch: int) -> ReplicatorStatus | None:
    """The status that the holder of a lease reported; None when it has not reported any."""
    return _read_file(_path(directory, name, epoch))


def last_status(directory: Path, name: str) -> ReplicatorStatus:
    """The last status that any holder of a lease of this name reported, without asking the database."""
    files = (directory / FOLDER).glob(f"{_stem(name)}-*")
    newest = max(files, key=lambda file: int(file.name.rpartition("-")[2]), default=None)
    return (newest and _read_file(newest)) or ReplicatorStatus()


def _read_file(path: Path) -> ReplicatorStatus | None:
    try:
        with path.open("rb") as file:
            told_at, text = _read(file.fileno())
            return ReplicatorStatus(text, max(0.0, time.time() - told_at), _is_locked(file.fileno()))
    except FileNotFoundError:
        return None


def _read(fd: int) -> tuple[float, str]:
    """When the text was written, and the text. Empty when it never comes out whole."""
    for _ in range(_READS):
        found = os.fstat(fd)
        data = os.pread(fd, found.st_size, 0)
        sizes = data[:_HEADER_BYTES].split()
        if len(sizes) == 2 and sizes[0].strip(b"\0"):
            body = data[_HEADER_BYTES : _HEADER_BYTES + int(sizes[0], 16)]
            if zlib.crc32(body) == int(sizes[1], 16):
                return found.st_mtime, body.decode()
        elif not data.strip(b"\0"):
            break
        time.sleep(_READ_AGAIN_SECONDS)  # it is being written
    return time.time(), ""


def _is_locked(fd: int) -> bool | None:
    """None where files can't be locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _path(directory: Path, name: str, epoch: int) -> Path:
    return directory / FOLDER / f"{_stem(name)}-{epoch}"


def _stem(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
