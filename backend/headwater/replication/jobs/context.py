"""The parts that bulk jobs of one source share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headwater.bulk.bound_table import distinct
from headwater.bulk.contract import BulkProgress
from headwater.bulk.work import BulkWork
from headwater.decode.types import TypeCatalog
from headwater.replication.stream.access import StreamAccess
from headwater.replication.tables.live import LiveContext
from headwater.replication.tables.schema_watch import readable_tables
from headwater.source.catalog.published import PublishedTable, load_types, locked_tables
from headwater.source.catalog.shape import leaf_oids
from headwater.source.connect import SharedConnection, SourceSettings
from headwater.storage.backend import Store
from headwater.storage.contract.parts import Places
from headwater.storage.contract.store import Lease, StoredTable
from headwater_rules.plan import SyncPlan

_ROWS_A_TASK = 250_000


def types_of(connection: SharedConnection, tables: Sequence[StoredTable]) -> TypeCatalog:
    """The present types of the tables' columns, from the source."""
    with connection.use() as conn:
        return load_types(conn, {c.type_oid for table in tables for layout in table.layouts for c in layout.columns})


@dataclass(frozen=True, slots=True)
class JobContext:
    """What jobs work with while one source is followed. Methods that take tables or plans read the source's catalog,
    and raise its errors."""

    source: SourceSettings
    store: Store
    lease: Lease
    bulk: BulkWork
    stream: StreamAccess
    progress: Callable[[BulkProgress], None]
    connection: SharedConnection

    @property
    def tag(self) -> str:
        return self.source.tag

    def published(self, plans: Sequence[SyncPlan]) -> dict[int, PublishedTable]:
        """By oid, the published tables that the plans read and that can be read; without those whose definition can't
        be read since they are locked. Raises KeyNotSentError."""
        with self.connection.use() as conn:
            tables = readable_tables(conn, self.source, plans, self.stored().keys())
        return {table.relation.oid: table for table in tables if not table.locked}

    def locked(self, tables: Sequence[StoredTable]) -> frozenset[int]:
        """The oids of those tables that can't be read since they, or partitions of them, are locked."""
        leaves = {table.relation.oid: leaf_oids(table.fingerprint) | {table.relation.oid} for table in tables}
        with self.connection.use() as conn:
            locked = locked_tables(conn, frozenset[int]().union(*leaves.values()))
        return frozenset(oid for oid, own in leaves.items() if own & locked)

    def stored(self) -> dict[int, StoredTable]:
        """The source's tables in the store, by oid."""
        return {table.relation.oid: table for table in self.store.tables(self.tag)}

    def places(self, table: int) -> Places:
        """Ranges of a table's current rows, one for a task."""
        return self.store.place_ranges(table, _ROWS_A_TASK)

    def types(self, tables: Sequence[StoredTable]) -> TypeCatalog:
        """The types of the tables' columns."""
        return types_of(self.connection, tables)

    def follow(self, plans: Sequence[SyncPlan]) -> None:
        """Follow the stream by these plans, and by the tables as stored now. Between flushes only."""
        stored = list(self.stored().values())
        self.stream.renew(self.live_context(plans, stored), plans, stored)

    def live_context(self, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> LiveContext:
        """What live tables are built from."""
        return LiveContext(self.tag, distinct(plans), self.types(stored), self.store.keys(), self.source.piece_bytes)
