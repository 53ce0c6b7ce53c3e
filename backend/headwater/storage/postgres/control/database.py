"""Access to the store's Postgres for control tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import psycopg

from headwater.storage.contract.store import Lease
from headwater.storage.postgres.control import lease as leases
from headwater.storage.shared.control.database import Row


@dataclass(frozen=True, slots=True)
class PostgresControl:
    """A `ControlDb`. Uses the database's clock, so that clocks of machines may differ."""

    connection: psycopg.Connection
    now = "extract(epoch from clock_timestamp())::double precision"

    def rows(self, statement: str, *values: str | float) -> list[Row]:
        cursor = self.connection.execute(statement.replace("?", "%s").encode(), values)
        return list(cursor.fetchall()) if cursor.description is not None else []

    @contextmanager
    def submitting(self) -> Iterator[None]:
        with self.connection.transaction():
            self.connection.execute("update inbox set number = number + 1")
            yield
            self.announce()

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        return leases.holding(self.connection, lease)

    def announce(self) -> None:
        self.connection.execute("select pg_notify(current_schema(), '')")
