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


def take_up_changes(context: JobContext, scheduler: JobScheduler) -> None:
    """Make the store's tables what the last look at the catalog found, if they differ. Raises PublicationError and
    KeyNotSentError."""
    stream, schema = context.stream, context.stream.schema
    if stream.recording.take_marked():
        scheduler.look_soon()
    found = schema.take()
    state = None if found is None else context.store.source_state(context.tag)
    if found is None or state is None:
        return
    stored = context.store.tables(context.tag)
    changes = table_changes(stored, found)
    if not changes:
        return
    with context.connection.use() as conn:
        uncertain = distrust_named(NameBook(context.store, context.tag), context.lease, conn, changes)
    stream.registry.uncertain_until.update(uncertain)
    adapt(context.store, context.lease, state, context.live_context(schema.plans, stored), changes)
    context.follow(schema.plans)
    if changes.oids:
        scheduler.tables_changed(changes.oids)
