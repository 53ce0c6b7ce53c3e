"""The seal of a store in Postgres: triggers that refuse a statement that every writer has to execute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.seal import sealed_error
from headwater.storage.contract.store import LeaseHeldError, StoreError
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.shared.control.database import SEALED_MARK

_GUARDED = ("leases", "versions", "requests", "revocations", "sources", "state", "write_checkpoints", "write_state")

_REFUSE = """
create function refuse_write() returns trigger language plpgsql as
$$ begin raise exception using errcode = 'HWSEA', message = {message}; end $$
"""
_GUARD = "create trigger sealed before insert or update on {table} for each row execute function refuse_write()"


def seal(address: PostgresAddress, note: str) -> None:
    """See `Backend.seal`."""
    with _writing(address) as db:
        known = _note(db)
        if known is not None:
            raise sealed_error(known, str(address))
        # A process that takes a lease meanwhile waits, and is then refused
        db.execute("lock table leases in exclusive mode")
        held = db.execute("select owner from leases where expires_at > clock_timestamp()").fetchone()
        if held is not None:
            raise LeaseHeldError(
                f"the store is being written to ({held[0]})", str(address), "stop the service, then seal the store"
            )
        db.execute("insert into meta values ('sealed', %s)", [note])
        db.execute(sql.SQL(_REFUSE).format(message=sql.Literal(f"{SEALED_MARK}{note}")))
        for table in _GUARDED:
            db.execute(sql.SQL(_GUARD).format(table=sql.Identifier(table)))


def unseal(address: PostgresAddress) -> str | None:
    """See `Backend.unseal`."""
    with _writing(address) as db:
        known = _note(db)
        db.execute("drop function if exists refuse_write() cascade")
        db.execute("delete from meta where key = 'sealed'")
        return known


def note(address: PostgresAddress) -> str | None:
    """See `Backend.seal_note`."""
    with _writing(address) as db:
        return _note(db)


@contextmanager
def _writing(address: PostgresAddress) -> Iterator[psycopg.Connection]:
    with closing(connect(address, "seal")) as db, postgres_errors(address):
        if db.execute("select to_regclass('meta')").fetchall() == [(None,)]:
            raise StoreError("there is no store", str(address), "check database and schema")
        with db.transaction():
            yield db


def _note(db: psycopg.Connection) -> str | None:
    row = db.execute("select value from meta where key = 'sealed'").fetchone()
    return None if row is None else str(row[0])
