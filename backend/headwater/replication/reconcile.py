"""Taking up what the catalog says, between two flushes: the stream flows on, and of the work beside it only that ends
which concerns tables that are others now."""

from __future__ import annotations

from headwater.replication.jobs.context import JobContext
from headwater.replication.scheduler import JobScheduler
from headwater.replication.tables.changes import adapt, table_changes
from headwater.replication.tables.roots import NameBook, distrust_named
from headwater.replication.tables.schema_watch import SchemaWatch


class Reconciler:
    """Makes the store's tables what `schema` finds in the source."""

    def __init__(self, context: JobContext, schema: SchemaWatch, work: JobScheduler) -> None:
        self._context = context
        self._schema = schema
        self._work = work

    def step(self) -> None:
        """Take up what was found, if anything was. Raises PublicationUnusable and KeyNotSentError."""
        context, applier = self._context, self._context.applier
        if applier.unsettled:
            applier.unsettled = False
            self._work.look_soon()
        found = self._schema.take()
        state = None if found is None else context.store.source_state(context.tag)
        if found is None or state is None:
            return
        stored = context.store.tables(context.tag)
        changes = table_changes(stored, found)
        if not changes:
            return
        with context.asking.use() as conn:
            doubted = distrust_named(NameBook(context.store, context.tag), context.lease, conn, changes)
        applier.doubt(doubted)
        adapt(context.store, context.lease, state, context.live_context(self._schema.plans, stored), changes)
        context.follow(self._schema.plans)
        if changes.oids:
            self._work.tables_changed(changes.oids)
