"""The tables that the stream is followed for: how each is stored, and how the stream describes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.replication.tables.changes import changed_unseen, compared_whole, is_root
from headwater.replication.tables.live import LiveContext, LiveTable, Reshape, as_kept, reshape
from headwater.source.catalog.shape import files
from headwater.storage.contract.reason import Cause
from headwater.storage.contract.store import StoredTable


class TableRegistry:
    """State of the tables, by oid unless it says ids."""

    context: LiveContext

    tables: dict[int, LiveTable]
    """The tables that the rules read, in their present generation."""

    shapes: dict[int, Reshape | None]
    """Converts changes of a table whose stored form is not the streamed one; None where changes are left to a
    comparison."""

    files: dict[int, frozenset[int]]
    """Where a table's rows were at the last look at the catalog: the stream does not tell when they are rewritten."""

    compared: set[int]
    """Ids of tables that are compared as a whole, now or soon."""

    stale: set[int]
    """Ids of tables among these whose stored rows may be older than the stream."""

    roots: set[int]
    """Partitioned tables, whose renames the stream does not tell."""

    uncertain_until: dict[int, Lsn]
    """Changes of roots up to such a position are left to comparisons, since the stream may use a wrong name."""

    renamed: set[int]
    """Tables that were compared under their present name, while the stream last used another one. Their next change
    should come under the present name; before version 16, Postgres may go on with the former name after a schema was
    renamed."""

    def __init__(self, context: LiveContext, stored: Sequence[StoredTable], uncertain_until: Mapping[int, Lsn]) -> None:
        self.context = context
        self.tables, self.shapes, self.renamed = {}, {}, set()
        self.uncertain_until = dict(uncertain_until)
        self._described: dict[int, Relation] = {}  # how the stream describes a table
        self.renew(context, stored)

    def renew(self, context: LiveContext, stored: Sequence[StoredTable]) -> None:
        """Follow other tables, or by other plans, from here on."""
        known = self.tables.values() if context == self.context else ()
        self.context = context
        self.tables = context.tables(stored, known)
        self.files = {table.relation.oid: files(table.fingerprint) for table in stored}
        self.compared = {table.id for table in stored if compared_whole(table)}
        self.stale = {table.id for table in stored if changed_unseen(table)}
        self._waiting = {table.id for table in stored if table.has(Cause.REKEYED, Cause.LOCKED)}
        self.roots = {table.relation.oid for table in stored if is_root(table)}
        for table in self.tables.values():
            self._fit(table)
        # Rows that are being copied to other ids come due there
        rekeyed = {table.relation.oid for table in stored if table.has(Cause.REKEYED)}
        self._with_clock = [o for o, table in self.tables.items() if table.bound.has_clock and o not in rekeyed]

    def with_clock(self) -> list[LiveTable]:
        """The tables whose rows are evaluated again when their time has come."""
        return [self.tables[oid] for oid in self._with_clock]

    def layouts(self) -> dict[int, tuple[Relation, ...]]:
        """The layouts of each table, by id."""
        return {table.id: table.layouts for table in self.tables.values()}

    def reach(self, position: Lsn) -> None:
        """Called when the stream comes to a transaction whose commit record begins at `position`."""
        for oid in [oid for oid, until in self.uncertain_until.items() if until <= position]:
            del self.uncertain_until[oid]
            if oid in self.tables:
                self._fit(self.tables[oid])

    def named_otherwise(self, names: Mapping[int, tuple[str | None, str | None]]) -> list[int]:
        """The oids of tables that have another name there than in the store."""
        kept = {oid: self.tables[oid].relation for oid in names if oid in self.tables}
        return [oid for oid, relation in kept.items() if names[oid] != (relation.schema, relation.name)]

    def describe(self, relation: Relation) -> None:
        """Called when the stream describes a table."""
        self._described[relation.oid] = relation
        self.renamed.discard(relation.oid)
        table = self.tables.get(relation.oid)
        if table is not None:
            self._fit(table)

    def truncated(self, table: LiveTable, new_id: int) -> None:
        """A new, empty generation has replaced a table."""
        for ids in (self.compared, self.stale, self._waiting):
            if table.id in ids:
                ids.add(new_id)
        renewed = self.context.table(new_id, table.layouts)
        if renewed is not None:
            self.tables[table.relation.oid] = renewed

    def mark_clean(self, tables: Collection[int]) -> None:
        """These tables (ids) are equal to the source, and no longer compared."""
        for ids in (self.compared, self.stale, self._waiting):
            ids.difference_update(tables)
        for table in [table for table in self.tables.values() if table.id in tables]:
            self._fit(table)

    def caught_up(self, oids: Collection[int]) -> None:
        """A comparison has brought these tables up to the stream's present position."""
        pairs = [(self._described.get(oid), self.tables.get(oid)) for oid in oids]
        self.renamed |= {
            described.oid
            for described, table in pairs
            if described and table and not same_name(described, table.relation)
        }

    def _fit(self, table: LiveTable) -> None:
        oid = table.relation.oid
        described = self._described.get(oid)
        streamed = table.streamed if described is None else as_kept(described, table.relation)
        if table.id in self._waiting or oid in self.uncertain_until or not same_name(streamed, table.relation):
            self.shapes[oid] = None
        elif streamed != table.streamed:
            self.shapes[oid] = reshape(streamed, table.relation)
        elif table.widen is not None:
            self.shapes[oid] = table.widen
        else:
            self.shapes.pop(oid, None)


def same_name(streamed: Relation, kept: Relation) -> bool:
    """Whether a table has one name in the stream and the store. Under another name, other rules may read it."""
    return (streamed.schema, streamed.name) == (kept.schema, kept.name)
