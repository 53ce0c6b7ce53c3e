"""The seal of a store: triggers that refuse a statement that every writer has to execute."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.storage.contract.store import LeaseHeldError, sealed_error
from headwater.storage.sql.control import get_meta, set_meta
from headwater.storage.sql.cursor import SEALED_MARK, Cursor

_KEY = "sealed"


def seal_note(db: Cursor) -> str | None:
    """The note of a sealed store, else None."""
    return get_meta(db, _KEY)


def seal(databases: Sequence[Cursor], note: str) -> None:
    """Refuse every write from now on. The first of the databases has the leases."""
    main, *others = databases
    dialect = main.dialect
    with main.transaction():
        known = seal_note(main)
        if known is not None:
            raise sealed_error(known, main.where)
        if dialect.lock_leases:  # a process that takes a lease meanwhile waits, and is then refused
            main.execute(dialect.lock_leases)
        held = main.one(f"select owner from leases where expires_at > {dialect.clock}")
        if held is not None:
            raise LeaseHeldError(
                f"the store is being written to ({held[0]})", main.where, "stop the service, then seal the store"
            )
        set_meta(main, _KEY, note)
        _guard(main, note)
    for db in others:
        with db.transaction():
            _guard(db, note)


def _guard(db: Cursor, note: str) -> None:
    message = f"{SEALED_MARK}{note}".replace("'", "''")
    for table, statement in db.dialect.seal:
        if db.has_table(table):
            db.script(statement.format(message=message))


def unseal(databases: Sequence[Cursor]) -> str | None:
    """Allow writes again. Returns the note, or None when the store was not sealed."""
    note = None
    for db in reversed(databases):
        with db.transaction():
            for statement in db.dialect.unseal:
                db.script(statement)
            note = seal_note(db) if db is databases[0] else None
            if db is databases[0]:
                db.execute("delete from meta where key = ?", _KEY)
    return note
