"""From an address to the store there: the only place that knows which back ends there are."""

from __future__ import annotations

from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.backend import Backend


def open_backend(address: StoreAddress) -> Backend:
    """The store at an address. Touches nothing yet."""
    match address:  # a process loads the back end that it uses
        case SqliteAddress():
            from headwater.storage.sqlite.backend import SqliteBackend

            return SqliteBackend(address)
        case PostgresAddress():
            from headwater.storage.postgres.backend import PostgresBackend

            return PostgresBackend(address)
