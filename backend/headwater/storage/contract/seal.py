"""Sealing a store: it can be read, but nobody writes to it any more, because another one has taken its place.

The seal is in the store itself, so that processes which have it open already are bound by it too.
"""

from __future__ import annotations

from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.store import StoreError

MARK = "headwater-seal: "
"""How the database's refusal begins; the seal's note follows."""


class SealedStoreError(StoreError):
    """The store is sealed."""

    code = "HW_4104"


def sealed(note: str, where: str) -> SealedStoreError:
    """Says where the store went."""
    return SealedStoreError(
        f"the store is sealed: {note}",
        where,
        "use the store that took its place; if there is none, `headwater store unseal` opens it again",
    )


def seal_store(address: StoreAddress, note: str) -> None:
    """Refuse every write from now on; `note` says why, and where the store went. Raises LeaseHeldError while somebody
    holds a lease of the store, SealedStoreError when it is sealed."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import seal as sqlite

            sqlite.seal(address, note)
        case PostgresAddress():
            from headwater.storage.postgres import seal as postgres

            postgres.seal(address, note)


def unseal_store(address: StoreAddress) -> str | None:
    """Allow writes again. Returns the note, None when the store was not sealed."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import seal as sqlite

            return sqlite.unseal(address)
        case PostgresAddress():
            from headwater.storage.postgres import seal as postgres

            return postgres.unseal(address)


def seal_note(address: StoreAddress) -> str | None:
    """The note of a sealed store, else None."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import seal as sqlite

            return sqlite.note(address)
        case PostgresAddress():
            from headwater.storage.postgres import seal as postgres

            return postgres.note(address)
