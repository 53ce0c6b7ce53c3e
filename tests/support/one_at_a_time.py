"""What several test processes want to do and only one may do at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Wait until no other process is inside of this for the same file, which has to be there."""
    with file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
