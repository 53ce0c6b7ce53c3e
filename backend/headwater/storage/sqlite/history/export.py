"""Connections for bulk reading of the embedded store's history. See `storage.shared.history`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.store import StoreError
from headwater.storage.shared.history import Row
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.migrate import read_secret


@dataclass(frozen=True, slots=True)
class SqliteHistory:
    """See `HistoryDb`."""

    connection: apsw.Connection
    secret: bytes
    segment_order = "first_op"

    def rows(self, statement: str, *values: str | int) -> list[Row]:
        return list(self.stream(statement, *values))

    def stream(self, statement: str, *values: str | int) -> Iterator[Row]:
        return self.connection.execute(statement, values)


@contextmanager
def reading(address: SqliteAddress) -> Iterator[SqliteHistory]:
    """See `shared.history.Reading`."""
    path = Path(address.directory) / "store.db"
    if not path.is_file():
        raise StoreError("there is no store", str(path), "check the path")
    with closing(open_reader(path)) as connection, sqlite_errors(path):
        connection.execute("begin")
        yield SqliteHistory(connection, read_secret(connection))
