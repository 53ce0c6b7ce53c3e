"""The database access that control tables need."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from headwater.storage.contract.store import Lease

Row = Sequence[object]

SEALED_MARK = "headwater-seal: "
"""How a database refuses to write to a sealed store; the seal's note follows."""


class ControlDb(Protocol):
    """An open connection. Statements mark values with `?` and use only SQL that every back end understands."""

    @property
    def now(self) -> str:
        """An SQL expression for the time in seconds since 1970."""

    def rows(self, statement: str, *values: str | float) -> list[Row]:
        """The rows that a statement returns; none for a statement that only writes."""

    def submitting(self) -> AbstractContextManager[None]:
        """A write transaction that submits a request or a version. Concurrent ones run one after the other, and
        replicators are notified at the commit."""

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        """A write transaction of the lease's holder, which renews the lease at its end. Raises LeaseLostError."""

    def announce(self) -> None:
        """Within a transaction: notify readers at its commit, unless the store does that itself."""
