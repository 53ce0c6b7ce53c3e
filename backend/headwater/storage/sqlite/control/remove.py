"""Removes an embedded store."""

from __future__ import annotations

import shutil
from pathlib import Path

from headwater.errors import machine_errors
from headwater.storage.sqlite.control import told

_FILES = ("store.db", "write_checkpoints.db")
_BESIDE = ("", "-wal", "-shm")
_FOLDERS = ("stage", "wake", told.FOLDER)


def remove(directory: Path) -> None:
    """Remove the files of a store that nobody has open, and its directory if that holds nothing else. A call after one
    that was interrupted removes the rest. Raises MachineError."""
    with machine_errors():
        for name in _FILES:
            for end in _BESIDE:
                (directory / f"{name}{end}").unlink(missing_ok=True)
        for name in _FOLDERS:
            shutil.rmtree(directory / name, ignore_errors=True)
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
