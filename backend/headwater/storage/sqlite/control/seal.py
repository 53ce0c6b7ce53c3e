"""The seal of an embedded store: triggers that refuse a statement that every writer has to execute."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.seal import sealed_error
from headwater.storage.contract.store import LeaseHeldError, StoreError
from headwater.storage.shared.control.database import SEALED_MARK
from headwater.storage.sqlite.connection import immediate, open_reader, open_writer, sqlite_errors
from headwater.storage.sqlite.control.write_checkpoints import WriteCheckpoints

_GUARDED = {
    "store.db": ("leases", "versions", "requests", "sources", "state"),
    "write_checkpoints.db": ("write_checkpoints",),
}


def seal(address: SqliteAddress, note: str) -> None:
    """See `Backend.seal`."""
    with _writing(address, "store.db") as db:
        known = _note(db)
        if known is not None:
            raise sealed_error(known, str(address))
        held = db.execute("select name, owner from leases where expires_at > ?", (time.time(),)).fetchone()
        if held is not None:
            raise LeaseHeldError(
                f"the store is being written to ({held[1]})", str(address), "stop the service, then seal the store"
            )
        db.execute("insert into meta values ('sealed', ?)", (note,))
        _guard(db, "store.db", note)
    # Made where no client ever asked for one: an endpoint that is started later would make it, and write to it
    WriteCheckpoints(Path(address.directory) / "write_checkpoints.db").close()
    with _writing(address, "write_checkpoints.db") as db:
        _guard(db, "write_checkpoints.db", note)


def unseal(address: SqliteAddress) -> str | None:
    """See `Backend.unseal`."""
    for file in reversed(_GUARDED):
        if not (Path(address.directory) / file).is_file():
            continue
        with _writing(address, file) as db:
            for table in _GUARDED[file]:
                for event in ("insert", "update"):
                    db.execute(f"drop trigger if exists sealed_{table}_{event}")
            if file == "store.db":
                known = _note(db)
                db.execute("delete from meta where key = 'sealed'")
                return known
    return None


def note(address: SqliteAddress) -> str | None:
    """See `Backend.seal_note`."""
    path = Path(address.directory) / "store.db"
    with closing(open_reader(path)) as db, sqlite_errors(path):
        return _note(db)


@contextlib.contextmanager
def _writing(address: SqliteAddress, file: str) -> Iterator[apsw.Connection]:
    path = Path(address.directory) / file
    if not path.is_file():
        raise StoreError("there is no store", str(path), "check storage.path")
    with closing(open_writer(path)) as db, sqlite_errors(path), immediate(db):
        yield db


def _note(db: apsw.Connection) -> str | None:
    row = db.execute("select value from meta where key = 'sealed'").fetchone()
    return None if row is None else str(row[0])


def _guard(db: apsw.Connection, file: str, note: str) -> None:
    message = f"{SEALED_MARK}{note}".replace("'", "''")
    for table in _GUARDED[file]:
        for event in ("insert", "update"):
            if (table, event) != ("state", "insert"):  # opening the store tries that one
                db.execute(
                    f"create trigger sealed_{table}_{event} before {event} on {table}"
                    f" begin select raise(abort, '{message}'); end"
                )
