"""Taking up what the catalog says, between two flushes: the stream flows on, and of the work beside it only that ends
which concerns tables that are others now."""

from __future__ import annotations

from headwater.replication.jobs.context import Site
from headwater.replication.scheduler import Work
from headwater.replication.tables.changes import adapt, table_changes
from headwater.replication.tables.roots import NameBook, distrust_named
from headwater.replication.tables.schema_watch import SchemaWatch


class Reconciler:
    """Makes the store's tables what `schema` finds in the source."""

    def __init__(self, site: Site, schema: SchemaWatch, work: Work) -> None:
        self._site = site
        self._schema = schema
        self._work = work

    def step(self) -> None:
        """Take up what was found, if anything was. Raises PublicationUnusable and KeyNotSentError."""
        site, applier = self._site, self._site.applier
        if applier.unsettled:
            applier.unsettled = False
            self._work.look_soon()
        found = self._schema.take()
        state = None if found is None else site.store.source_state(site.tag)
        if found is None or state is None:
            return
        stored = site.store.tables(site.tag)
        changes = table_changes(stored, found)
        if not changes:
            return
        with site.asking.use() as conn:
            doubted = distrust_named(NameBook(site.store, site.tag), site.lease, conn, changes)
        applier.doubt(doubted)
        adapt(site.store, site.lease, state, site.context(self._schema.plans, stored), changes)
        site.follow(self._schema.plans)
        if changes.oids:
            self._work.tables_changed(changes.oids)
