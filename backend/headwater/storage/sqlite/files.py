"""Detects that files of an embedded store were removed or replaced while they are open.

A process that has a removed or replaced file open goes on using the old one. What it writes there is lost when it ends,
although the source was told that it is stored.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from headwater.errors import machine_errors
from headwater.storage.contract.store import StoreGoneError

_Identity = tuple[int, int]

_BESIDE = ("", "-wal", "-shm")


class OpenedFiles:
    """The files of a SQLite database as they are now. Create it right after reading from the database."""

    def __init__(self, path: Path) -> None:
        self._opened = {name: now for name in (f"{path}{end}" for end in _BESIDE) if (now := _identity(name))}

    def check(self) -> None:
        """Raises StoreGoneError when a file was removed or replaced. Takes microseconds."""
        for name, opened in self._opened.items():
            now = _identity(name)
            if now != opened:
                what = "removed" if now is None else "replaced"
                raise StoreGoneError(
                    f"a file of the store was {what} while it was in use; nothing more is confirmed to the source",
                    name,
                    "put the original back, or restart Headwater: what is missing then is read from the source",
                )

    def guard(self, connection: apsw.Connection) -> None:
        """Make the connection refuse to commit once a file was removed or replaced."""

        def refuse() -> bool:
            self.check()
            return False

        connection.set_commit_hook(refuse)


def _identity(name: str) -> _Identity | None:
    """None when the file does not exist. Raises MachineError when that can't be determined. Does not open the file:
    closing one of SQLite's files releases all locks that the process holds on it."""
    with machine_errors():
        try:
            found = os.stat(name)  # noqa: PTH116 - runs on every commit
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found.st_dev, found.st_ino
