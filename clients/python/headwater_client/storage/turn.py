"""Whose turn it is to sync a file: one process at a time, or two would upload the same writes."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class Turn:
    """A lock on an empty file beside the device's, which the system gives up with the process that has it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"{path}-sync", timeout=0, isolation_level=None)

    def take(self) -> bool:
        """Whether it is ours now, until `close`."""
        try:
            # Nothing is written, but a process that is killed would leave a journal
            self._connection.execute("PRAGMA journal_mode = memory").fetchall()
            self._connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return False
            raise
        return True

    def close(self) -> None:
        self._connection.close()
