"""Whether the files of an embedded store are still where they were opened.

A file that is removed or replaced stays as it was for whoever has it open. Who goes on writing there writes for nobody:
all of it is gone with the process, though the source was told that it is kept.
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
    """A database of SQLite and what belongs to it, as they are now: to be made by whoever has just read from it."""

    def __init__(self, path: Path) -> None:
        self._opened = {name: now for name in (f"{path}{end}" for end in _BESIDE) if (now := _identity(name))}

    def check(self) -> None:
        """Raises StoreGoneError when one is another by now, or not there. Costs some microseconds."""
        for name, opened in self._opened.items():
            now = _identity(name)
            if now != opened:
                what = "removed" if now is None else "replaced"
                raise StoreGoneError(
                    f"a file of the store was {what} while it was in use; nothing more is confirmed to the source",
                    name,
                    "put back the one that was there, or stop Headwater and start it again: what is lacking then is"
                    " read from the source",
                )

    def guard(self, connection: apsw.Connection) -> None:
        """Have the connection commit nothing once they are others."""

        def refuse() -> bool:
            self.check()
            return False

        connection.set_commit_hook(refuse)


def _identity(name: str) -> _Identity | None:
    """None when it is not there. Raises MachineError when the machine does not tell. Opens nothing: to close a file of
    SQLite's gives up all locks that the process holds on it."""
    with machine_errors():
        try:
            found = os.stat(name)  # noqa: PTH116 - runs on every commit
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found.st_dev, found.st_ino
