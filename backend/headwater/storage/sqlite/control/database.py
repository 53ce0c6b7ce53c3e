"""Access to the embedded store's database for control tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import apsw

from headwater.storage.contract.store import Lease
from headwater.storage.shared.control.database import Row
from headwater.storage.sqlite.connection import immediate
from headwater.storage.sqlite.control import lease as leases


@dataclass(frozen=True, slots=True)
class SqliteControl:
    """A `ControlDb`."""

    connection: apsw.Connection
    now = "unixepoch('subsec')"

    def rows(self, statement: str, *values: str | float) -> list[Row]:
        return list(self.connection.execute(statement, values).fetchall())

    @contextmanager
    def submitting(self) -> Iterator[None]:
        with immediate(self.connection):
            self.connection.execute("update state set inbox = inbox + 1")
            yield

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        return leases.holding(self.connection, lease)

    def announce(self) -> None:
        """Does nothing: the store wakes readers after the commit."""
