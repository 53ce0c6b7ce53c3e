"""A database as far as control tables need one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from headwater.storage.contract.store import Lease

Row = Sequence[object]

SEALED_MARK = "headwater-seal: "
"""How a database refuses to write to a sealed store; the seal's note follows."""


class ControlDb(Protocol):
    """An open connection. Values stand as `?` in statements, which are such that every back end understands them."""

    @property
    def now(self) -> str:
        """The time in seconds since 1970, as an expression."""

    def rows(self, statement: str, *values: str | float) -> list[Row]:
        """What a statement returns; nothing for one that only writes."""

    def handing_in(self) -> AbstractContextManager[None]:
        """A write transaction of whoever hands something in. Of two at once one comes after the other, and replicators
        look once it is committed."""

    def holding(self, lease: Lease) -> AbstractContextManager[None]:
        """A write transaction of the lease's holder, from whose end on the lease runs anew. Raises LeaseLostError."""

    def announce(self) -> None:
        """Within a transaction: readers hear of its commit, unless whoever opened the store tells them."""
