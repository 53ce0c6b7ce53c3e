"""What bulk work beside the stream works with, and the plans that the stream is followed by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwater.bulk.binding import distinct
from headwater.bulk.jobs import BulkProgress
from headwater.decode.catalog import TypeCatalog
from headwater.replication.apply import Applier
from headwater.replication.bulk import BulkWork
from headwater.replication.live import LiveContext
from headwater.source.catalog import load_types
from headwater.source.connect import SourceSettings, connect
from headwater.storage.contract import Lease, StoredTable
from headwater.storage.open import Store
from headwater_rules.plan import SyncPlan

ROWS_A_TASK = 250_000
"""About how many current rows a task of bulk work reads."""


def types_of(source: SourceSettings, tables: Sequence[StoredTable]) -> TypeCatalog:
    """The types of the tables' columns, as the source knows them now."""
    with connect(source) as conn:
        return load_types(conn, {c.type_oid for table in tables for layout in table.layouts for c in layout.columns})


@dataclass(frozen=True, slots=True)
class Site:
    """The parts that work together on one source while it is followed."""

    source: SourceSettings
    store: Store
    lease: Lease
    bulk: BulkWork
    applier: Applier
    progress: Callable[[BulkProgress], None]

    @property
    def tag(self) -> str:
        return self.source.tag

    def stored(self) -> dict[int, StoredTable]:
        """The source's tables in the store, by oid."""
        return {table.relation.oid: table for table in self.store.tables(self.tag)}

    def ranges(self, table: int) -> tuple[tuple[int, int], ...]:
        """The places of a table's current rows, cut into what tasks read."""
        return tuple(self.store.place_ranges(table, ROWS_A_TASK))

    def types(self, tables: Sequence[StoredTable]) -> TypeCatalog:
        """The types of the tables' columns."""
        return types_of(self.source, tables)

    def follow(self, plans: Sequence[SyncPlan]) -> None:
        """From here on, evaluate what the stream brings by these plans. Between flushes only."""
        stored = list(self.stored().values())
        salt, piece = self.store.subkey_salt(), self.source.piece_bytes
        context = LiveContext(self.tag, distinct(plans), self.types(stored), salt, piece)
        self.applier.renew(context, plans, stored)
