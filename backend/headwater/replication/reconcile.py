"""Takes up changes of the source's tables between two flushes, while the stream goes on.

The catalog says what tables are now, the stream still brings rows from before. That is safe in this order. A table is
marked to be compared before its new layout is stored, each in a transaction that can be repeated, so a crash in between
leaves the mark, and the next look at the catalog finds the rest to do. The tables that the stream is followed by are
renewed before it is read on: a change in a former layout is brought to the new one or left to the comparison, never
read by the wrong columns. The comparison begins at a snapshot after all that, so it sees whatever the stream could not
tell. Jobs on other tables are not disturbed.
"""

from __future__ import annotations

from headwater.replication.jobs.job import JobContext
from headwater.replication.jobs.scheduler import JobScheduler
from headwater.replication.tables.changes import NameBook, adapt, distrust_named, table_changes
from headwater.replication.tables.schema_watch import SchemaWatch


class Reconciler:
    """Makes the store's tables what `schema` finds in the source."""

    def __init__(self, context: JobContext, schema: SchemaWatch, work: JobScheduler) -> None:
        self._context = context
        self._schema = schema
        self._work = work

    def step(self) -> None:
        """Take up what was found, if anything. Raises PublicationUnusable and KeyNotSentError."""
        context = self._context
        if context.stream.recording.take_marked():
            self._work.look_soon()
        found = self._schema.take()
        state = None if found is None else context.store.source_state(context.tag)
        if found is None or state is None:
            return
        stored = context.store.tables(context.tag)
        changes = table_changes(stored, found)
        if not changes:
            return
        with context.connection.use() as conn:
            doubted = distrust_named(NameBook(context.store, context.tag), context.lease, conn, changes)
        context.stream.registry.uncertain_until.update(doubted)
        adapt(context.store, context.lease, state, context.live_context(self._schema.plans, stored), changes)
        context.follow(self._schema.plans)
        if changes.oids:
            self._work.tables_changed(changes.oids)
