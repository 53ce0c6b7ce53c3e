"""Opens the file or the tables of a store past everything that is ours, while a service may have them open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import apsw
import psycopg

from headwater.storage.address import PostgresAddress, StoreAddress

WAIT_MS = 30_000
"""For whoever writes meanwhile. SQLite's own default is to fail at once."""


@contextmanager
def store_file(directory: Path | str, wait_ms: int = WAIT_MS) -> Iterator[apsw.Connection]:
    """The store's database, closed at the end; what is written without a transaction of its own is durable at once."""
    with closing(apsw.Connection(f"{directory}/store.db", flags=apsw.SQLITE_OPEN_READWRITE)) as db:
        db.set_busy_timeout(wait_ms)
        yield db


@contextmanager
def store_tables(storage: PostgresAddress) -> Iterator[psycopg.Connection]:
    """A transaction on a store in Postgres, committed at the end."""
    options = f"-c search_path={storage.schema} -c lock_timeout={WAIT_MS}ms"
    with psycopg.connect(storage.conninfo, options=options) as conn:
        yield conn


def nobody_writes(address: StoreAddress) -> bool:
    """Whether the store's write lock is free at this moment."""
    if isinstance(address, PostgresAddress):
        with store_tables(address) as conn, suppress(psycopg.errors.LockNotAvailable):
            conn.execute("select from state, leases for update nowait")
            return True
        return False
    with store_file(address.directory, wait_ms=0) as db, suppress(apsw.BusyError):
        db.execute("begin immediate; rollback")
        return True
    return False
