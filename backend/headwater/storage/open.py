"""Opens the store at an address: the only module that knows all databases."""

from __future__ import annotations

from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.store import Store


def open_store(address: StoreAddress) -> Store:
    """The store at an address. Opens nothing yet."""
    match address:  # a process loads the database driver that it uses
        case SqliteAddress():
            from headwater.storage.sqlite.store import SqliteStore

            return SqliteStore(address)
        case PostgresAddress():
            from headwater.storage.postgres.store import PostgresStore

            return PostgresStore(address)
