"""Connections for bulk reading of the history of a store in Postgres. See `storage.shared.history`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count

import psycopg

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import StoreError
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.migrate import read_secret
from headwater.storage.shared.history import Row

_FETCHED = 500
_names = count()

_BEGIN = """
begin transaction isolation level repeatable read read only;
set local idle_in_transaction_session_timeout = '1h'
"""


@dataclass(frozen=True, slots=True)
class PostgresHistory:
    """See `HistoryDb`."""

    connection: psycopg.Connection
    secret: bytes
    segment_order = "last_op"

    def rows(self, statement: str, *values: str | int) -> list[Row]:
        return list(self.connection.execute(_marked(statement), values).fetchall())

    def stream(self, statement: str, *values: str | int) -> Iterator[Row]:
        with self.connection.cursor(f"rows_{next(_names)}") as cursor:
            cursor.itersize = _FETCHED
            yield from cursor.execute(_marked(statement), values)


def _marked(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()


@contextmanager
def reading(address: PostgresAddress) -> Iterator[PostgresHistory]:
    """See `shared.history.Reading`."""
    with closing(connect(address, "history")) as connection, postgres_errors(address):
        if connection.execute("select to_regclass('meta')").fetchall() == [(None,)]:
            raise StoreError("there is no store", str(address), "check database and schema")
        connection.execute(_BEGIN)
        yield PostgresHistory(connection, read_secret(connection))
