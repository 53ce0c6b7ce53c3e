"""What bulk jobs read from the stream and write beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from headwater.oplog.change import Cells
from headwater.oplog.limits import stored_line
from headwater.oplog.lsn import Lsn
from headwater.oplog.row_id import IdentityKind
from headwater.replication.stream.flush import StreamFlush
from headwater.replication.stream.touches import TouchLog
from headwater.replication.tables.live import FullCells, LiveContext, LiveTable
from headwater.replication.tables.schema_watch import SchemaWatch
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import StoredTable
from headwater.storage.shared.loading import loaded_rows
from headwater_rules.plan import SyncPlan


class StreamAccess:
    """All methods are called between flushes of the stream, with no transaction half read."""

    def __init__(self, flush: StreamFlush, schema: SchemaWatch) -> None:
        self._flush = flush
        self._schema = schema

    @property
    def position(self) -> Lsn:
        """The store has everything up to there."""
        return self._flush.position

    @property
    def settled(self) -> bool:
        """Whether no flush is open. A merge leaves one open while the stream has not passed values that it read."""
        return self._flush.settled

    def take_marked(self) -> bool:
        """Whether the stream marked a table to be compared since this was last asked."""
        marked, self._flush.unsettled = self._flush.unsettled, False
        return marked

    # the tables that are followed

    def table(self, oid: int) -> LiveTable | None:
        """The present generation of a table that the rules read."""
        return self._flush.followed.tables.get(oid)

    def renew(self, context: LiveContext, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> None:
        """Follow other plans or tables from here on."""
        self._flush.renew(context, stored)
        self._schema.renew(plans, stored)

    def trust(self, tables: Collection[int]) -> None:
        """See `Followed.trust`; ids of generations."""
        self._flush.followed.trust(tables)

    def caught_up(self, oids: Collection[int]) -> None:
        """See `Followed.caught_up`."""
        self._flush.followed.caught_up(oids)

    def doubt(self, tables: Mapping[int, Lsn]) -> None:
        """Leave what the stream brings of these tables, by oid, up to a position to comparisons."""
        self._flush.followed.doubted.update(tables)

    def look_again(self) -> None:
        """Have the catalog read soon: a table may not be what it was."""
        self._schema.hint()

    # what the stream changes

    def record(self, log: TouchLog) -> None:
        """Have every change from here on noted in `log`."""
        self._flush.logs.append(log)

    def forget(self, log: TouchLog) -> None:
        """Note nothing in it any more."""
        if log in self._flush.logs:
            self._flush.logs.remove(log)

    def watch(self, tables: Sequence[int]) -> Mapping[int, set[str]]:
        """By table id, the ids of all rows that are written or deleted from here on. One watch at a time."""
        return self._flush.watch(tables)

    def unwatch(self) -> None:
        """End the watch."""
        self._flush.unwatch()

    # rows

    def fill(self, table: LiveTable, rows: Sequence[FullCells]) -> list[FullCells | None]:
        """See `StreamFlush.fill`."""
        return self._flush.fill(table, rows)

    def lacking(self, table: LiveTable) -> Mapping[str, Cells]:
        """By row id, rows of a table that lack values and are therefore not stored: what the stream said of them."""
        return self._flush.lacking.of(table.id)

    def completes(self, table: LiveTable) -> bool:
        """Whether rows of a table still lack values after a comparison. The next flush reads them from the source."""
        if not self._flush.lacking.of(table.id):
            return False
        self._flush.followed.compared.discard(table.id)
        return True

    def stored_rows(self, table: LiveTable, row_ids: Sequence[str]) -> Iterator[CurrentRow]:
        """Those of these rows that are stored, loaded a few at a time."""
        alone = not self._flush.is_open
        try:
            yield from loaded_rows(self._flush.open(), table.id, row_ids, self._flush.piece)
        finally:
            if alone:
                self._flush.abandon()

    def copies(self, table: LiveTable, contents: Mapping[str, str]) -> dict[str, list[str]]:
        """Row ids by content, of a table without key. `contents` has the COPY text of each content."""
        alone = not self._flush.is_open
        flush = self._flush.open()
        if table.identity.kind is IdentityKind.FULL:
            found = {content: flush.copies(table.id, content) for content in contents}
        else:
            lines = {content: stored_line(line) for content, line in contents.items()}
            by_line = flush.rows_with_lines(table.id, list(lines.values()))
            found = {content: by_line[line] for content, line in lines.items()}
        if alone:
            self._flush.abandon()
        return found

    def merge(
        self, table: LiveTable, states: Mapping[str, FullCells | None], *, waiting: Collection[str], reevaluate: bool
    ) -> int:
        """Make rows of a table what `states` says, and commit; see `Fold.write`. Rows in `waiting` go on lacking what
        they lack. Returns the number of ops."""
        lacking = self._flush.lacking
        kept = {row_id: cells for row_id, cells in lacking.of(table.id).items() if row_id in waiting}
        fold = self._flush.fold()
        ops = fold.write(table, states, reevaluate=reevaluate)
        for row_id, cells in kept.items():
            lacking.put(table.id, row_id, cells)
        self._flush.report(fold)
        self._flush.commit(self._flush.reached)
        return ops
