"""Opens the store at an address: the only module that knows all back ends."""

from __future__ import annotations

from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.backend import Backend


def open_backend(address: StoreAddress) -> Backend:
    """The store at an address. Opens nothing yet."""
    match address:  # a process loads the back end that it uses
        case SqliteAddress():
            from headwater.storage.sqlite.backend import SqliteBackend

            return SqliteBackend(address)
        case PostgresAddress():
            from headwater.storage.postgres.backend import PostgresBackend

            return PostgresBackend(address)
