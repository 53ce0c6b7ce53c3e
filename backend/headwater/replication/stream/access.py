"""What bulk jobs read from the stream and write beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from headwater.oplog.change import Cells, FullCells
from headwater.oplog.limits import stored_line
from headwater.oplog.lsn import Lsn
from headwater.oplog.row_id import IdentityKind
from headwater.replication.stream.flush import FlushBuilder
from headwater.replication.tables.live import LiveContext, LiveTable
from headwater.replication.tables.schema_watch import SchemaWatch
from headwater.storage.contract.flush import Flush
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import StoredTable
from headwater.storage.shared.loading import loaded_rows
from headwater_rules.plan import SyncPlan


class StreamAccess:
    """All methods are called between flushes of the stream, with no transaction half read."""

    def __init__(self, flush: FlushBuilder, schema: SchemaWatch) -> None:
        self._flush = flush
        self.schema = schema
        self.registry = flush.tables
        self.recording = flush.recording
        self.fill = flush.fill

    @property
    def position(self) -> Lsn:
        """The store has everything up to there."""
        return self._flush.position

    @property
    def is_flushed(self) -> bool:
        """Whether no flush is open. A merge leaves one open while the stream has not passed values that it read."""
        return self._flush.is_empty

    def table(self, oid: int) -> LiveTable | None:
        """The present generation of a table that the rules read."""
        return self.registry.tables.get(oid)

    def renew(self, context: LiveContext, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> None:
        """Follow other plans or tables from here on."""
        self._flush.renew(context, stored)
        self.schema.renew(plans, stored)

    # rows

    def incomplete(self, table: LiveTable) -> Mapping[str, Cells]:
        """By row id, rows of a table that lack values and are therefore not stored: what the stream said of them."""
        return self._flush.incomplete.of(table.id)

    def complete_next(self, table: LiveTable) -> bool:
        """Whether rows of a table still lack values after a comparison. The next flush reads them from the source."""
        if not self.incomplete(table):
            return False
        self.registry.compared.discard(table.id)
        return True

    def stored_rows(self, table: LiveTable, row_ids: Sequence[str]) -> Iterator[CurrentRow]:
        """Those of these rows that are stored, loaded a few at a time."""
        with self._reading() as flush:
            yield from loaded_rows(flush, table.id, row_ids, self._flush.batch_bytes)

    def copies(self, table: LiveTable, contents: Mapping[str, str]) -> dict[str, list[str]]:
        """Row ids by content, of a table without key. `contents` has the COPY text of each content."""
        with self._reading() as flush:
            if table.identity.kind is IdentityKind.FULL:
                return {content: flush.copies(table.id, content) for content in contents}
            lines = {content: stored_line(line) for content, line in contents.items()}
            by_line = flush.rows_with_lines(table.id, list(lines.values()))
            return {content: by_line[line] for content, line in lines.items()}

    @contextmanager
    def _reading(self) -> Iterator[Flush]:
        """The open flush, or one that ends without changes."""
        was_open = self._flush.is_open
        try:
            yield self._flush.open()
        finally:
            if not was_open:
                self._flush.abandon()

    def merge(
        self, table: LiveTable, states: Mapping[str, FullCells | None], *, waiting: Collection[str], reevaluate: bool
    ) -> int:
        """Make rows of a table what `states` says, and commit; see `Fold.write`. Rows in `waiting` go on lacking what
        they lack. Returns the number of ops."""
        incomplete = self._flush.incomplete
        kept = {row_id: cells for row_id, cells in incomplete.of(table.id).items() if row_id in waiting}
        fold = self._flush.fold()
        ops = fold.write(table, states, reevaluate=reevaluate)
        for row_id, cells in kept.items():
            incomplete.put(table.id, row_id, cells)
        self._flush.log_errors(fold)
        self._flush.commit()
        return ops
