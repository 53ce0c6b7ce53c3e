"""The tables that the stream is followed for: what the store has of each, and what the stream calls it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.replication.tables.attached import compared_whole
from headwater.replication.tables.changes import changed_unseen
from headwater.replication.tables.live import LiveContext, LiveTable
from headwater.replication.tables.reshape import Reshape, as_kept, reshape
from headwater.replication.tables.roots import is_root
from headwater.source.catalog.shape import files
from headwater.storage.contract.reason import Cause
from headwater.storage.contract.store import StoredTable


class Followed:
    """`tables` by oid. `shapes` has, by oid, what brings the stream's changes of a table to the form in which the store
    has it, where that is another; None where only a comparison with the source can. `compared` are the ids of tables
    all of which is compared, now or soon; `stale` those of them of which the store may have rows from before a change
    that nobody saw. `files` tells, by oid, where rows of a table lay when it was last looked at: nothing in the stream
    says that they were rewritten. `unheard` are the oids of those that were compared and of which the stream was last
    heard under another name: the next change is the first under the present one, unless Postgres goes on to tell the
    name that it has in mind, as it does before 16 for a schema that was renamed. `roots` are the oids of those whose
    names the stream does not always tell; up to the positions in `doubted` what it says of them is left to
    comparisons."""

    def __init__(self, context: LiveContext, stored: Sequence[StoredTable], doubted: Mapping[int, Lsn]) -> None:
        self.doubted = dict(doubted)
        self._told: dict[int, Relation] = {}  # by oid, what the stream says of a table
        self.unheard = set[int]()
        self.shapes: dict[int, Reshape | None] = {}
        self.context = context
        self.tables: dict[int, LiveTable] = {}
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

    def layouts(self) -> dict[int, tuple[Relation, ...]]:
        """Of the tables, by id."""
        return {table.id: table.layouts for table in self.tables.values()}

    def reach(self, position: Lsn) -> None:
        """The stream has come to a transaction whose commit record begins there."""
        for oid in [oid for oid, upto in self.doubted.items() if upto <= position]:
            del self.doubted[oid]
            if oid in self.tables:
                self._fit(self.tables[oid])

    def misnamed_now(self, names: Mapping[int, tuple[str | None, str | None]]) -> list[int]:
        """Those of the tables that the source calls by another name than the store."""
        kept = {oid: self.tables[oid].relation for oid in names if oid in self.tables}
        return [oid for oid, relation in kept.items() if names[oid] != (relation.schema, relation.name)]

    def hear(self, relation: Relation) -> None:
        """The stream tells of a table."""
        self._told[relation.oid] = relation
        self.unheard.discard(relation.oid)
        table = self.tables.get(relation.oid)
        if table is not None:
            self._fit(table)

    def emptied(self, table: LiveTable, new_id: int) -> None:
        """A new, empty generation stands in the place of a table."""
        for ids in (self.compared, self.stale, self._waiting):
            if table.id in ids:
                ids.add(new_id)
        renewed = self.context.table(new_id, table.layouts)
        if renewed is not None:
            self.tables[table.relation.oid] = renewed

    def trust(self, tables: Collection[int]) -> None:
        """These are as the source has them, and compared no more."""
        for ids in (self.compared, self.stale, self._waiting):
            ids.difference_update(tables)
        for table in [table for table in self.tables.values() if table.id in tables]:
            self._fit(table)

    def brought(self, oids: Collection[int]) -> None:
        """A comparison has brought what these tables had when the stream was where it is."""
        pairs = [(self._told.get(oid), self.tables.get(oid)) for oid in oids]
        self.unheard |= {told.oid for told, table in pairs if told and table and not same_name(told, table.relation)}

    def _fit(self, table: LiveTable) -> None:
        oid = table.relation.oid
        told = self._told.get(oid)
        streamed = table.streamed if told is None else as_kept(told, table.relation)
        if table.id in self._waiting or oid in self.doubted or not same_name(streamed, table.relation):
            self.shapes[oid] = None
        elif streamed != table.streamed:
            self.shapes[oid] = reshape(streamed, table.relation)
        elif table.widen is not None:
            self.shapes[oid] = table.widen
        else:
            self.shapes.pop(oid, None)


def same_name(streamed: Relation, kept: Relation) -> bool:
    """Whether the stream calls a table what the store calls it: else it was another one to the rules."""
    return (streamed.schema, streamed.name) == (kept.schema, kept.name)
