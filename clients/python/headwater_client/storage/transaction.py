"""One write transaction, begun at once so that it never finds out half-way that another was quicker."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headwater_client.errors import Retired
from headwater_client.storage.connection import BUSY_SECONDS, retired_of

_LOOK_SECONDS: Final = 0.2
"""Between looks at whether to wait on."""


@contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A transaction that is committed at the end of the block, and undone where an error leaves it. Raises `Retired`
    when the connection is retired while it waits for another transaction."""
    retired = retired_of(connection)
    if retired is None:
        connection.execute("BEGIN IMMEDIATE")
    else:
        _begin(connection, retired)
    try:
        yield connection
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _begin(connection: sqlite3.Connection, retired: threading.Event) -> None:
    """SQLite waits for its lock in one piece, so that whoever ends sync would wait with it."""
    until = time.monotonic() + BUSY_SECONDS
    _set_busy(connection, _LOOK_SECONDS)
    try:
        while not _begun(connection, last=time.monotonic() > until):
            if retired.is_set():
                raise Retired("sync was ended while it waited to write")
    finally:
        _set_busy(connection, BUSY_SECONDS)


def _begun(connection: sqlite3.Connection, *, last: bool) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except connection.OperationalError as error:
        if last or "locked" not in str(error):
            raise
        return False
    return True


def _set_busy(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}").fetchall()
