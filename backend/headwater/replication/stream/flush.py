"""The flush that the stream is writing: collects the changes of whole transactions and commits them together."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import islice

from headwater.oplog.change import Cell, Commit, RowChange, Truncate
from headwater.oplog.lsn import ZERO, Lsn, format_lsn
from headwater.oplog.op import OpId
from headwater.replication.errors import SchemaChangedError
from headwater.replication.health.figures import Figures
from headwater.replication.stream.fold import Fold
from headwater.replication.stream.followed import Followed, same_name
from headwater.replication.stream.lacking import Lacking, completed
from headwater.replication.stream.source_rows import SourceReads
from headwater.replication.stream.touches import TouchLog
from headwater.replication.tables.changes import NameBook, empty
from headwater.replication.tables.live import Filler, FullCells, LiveContext, LiveTable
from headwater.source.rows.fetch import RowFetcher
from headwater.source.rows.generated import NotComputedLockedError
from headwater.storage.contract.reader import FlushMark
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Flush, Lease, Progress, StoredTable, StoreWriter
from headwater.telemetry.trace_choice import Flushed

_log = logging.getLogger(__name__)

FLUSH_CHANGES = 20_000
FLUSH_SECONDS = 0.2
IDLE_SECONDS = 1.0


class StreamFlush:
    """The store has everything up to `position`; the stream was read up to `reached`, which is where a transaction or a
    message of its own ends. Methods that meet something which the stream alone can't resolve abandon the flush and
    raise SchemaChangedError."""

    def __init__(
        self,
        store: StoreWriter,
        lease: Lease,
        context: LiveContext,
        stored: Sequence[StoredTable],
        position: Lsn,
        fetcher: RowFetcher,
        figures: Figures,
    ) -> None:
        self._figures = figures
        self._store = store
        self._lease = lease
        self.tag = context.tag
        self.piece = context.piece  # bytes of rows that are pending, loaded or written at once
        self.position = position
        self.reached = position
        self.final_lsn = ZERO  # where the commit record of the transaction begins that is being read
        self.followed = Followed(context, stored, NameBook(store, context.tag).read())
        self.lacking = Lacking()
        self.logs: list[TouchLog] = []
        self.written: dict[int, set[str]] = {}  # by table id, where to note the rows that are written
        self.pending: list[tuple[LiveTable, RowChange]] = []
        self.crowded = False  # whether the last `settle` committed several transactions
        self.unsettled = False  # whether a table was marked to be compared with the source
        self._pending_bytes = 0  # of the messages that they came in, about
        self._reads = SourceReads(fetcher, context.piece)
        self._filler = Filler(fetcher.generated, self._fetch)
        self._flush: Flush | None = None
        self._opened_at = 0.0
        self._changes = 0  # in the open flush
        self._transactions = 0
        self._committed_us = 0
        self._op_id = OpId(0)  # of the checkpoint after the last flush
        self._by_root = set[int]()  # the oids of partitioned tables that the open flush has changes of
        self._xids: list[int] = []  # transactions of which changes are pending, and the last one
        self._reported: set[str] = set()

    @property
    def is_open(self) -> bool:
        return self._flush is not None

    @property
    def settled(self) -> bool:
        """Whether there is nothing to commit."""
        return self._flush is None and not self.pending

    def open(self) -> Flush:
        """The open flush, or a new one."""
        if self._flush is None:
            self._flush = self._store.begin(self._lease)
            self._opened_at = time.monotonic()
        return self._flush

    # changes

    def begin_transaction(self, xid: int, final_lsn: Lsn) -> None:
        """Changes from here on are of this transaction, whose commit record begins at `final_lsn`."""
        self._xids.append(xid)
        self.final_lsn = final_lsn
        if self.followed.doubted:
            self.followed.reach(final_lsn)

    def end_transaction(self, commit: Commit) -> None:
        """Commits the flush if it is large enough. A transaction of tables that are not followed only moves the
        position, which is stored now and then."""
        self.reached = Lsn(max(self.reached, commit.end_lsn))
        self._committed_us = commit.committed_us
        self._transactions += 1
        if not self.pending and self._flush is None:
            return
        self.open()
        if self._changes + len(self.pending) >= FLUSH_CHANGES:
            self.commit(self.reached)

    def pass_message(self, lsn: Lsn) -> None:
        """The stream brought a message of no transaction."""
        self.reached = Lsn(max(self.reached, lsn))
        self.open()

    def take_size(self, size: int) -> None:
        """The messages of the pending changes had so many more bytes."""
        if size:
            self._figures.received(size)
        self._pending_bytes += size
        if self._pending_bytes >= self.piece:
            self.apply_pending()

    def apply_pending(self) -> None:
        """Write what the pending changes amount to."""
        self._pending_bytes = 0
        if not self.pending:
            return
        if self.followed.roots:
            oids = {table.relation.oid for table in {id(table): table for table, _ in self.pending}.values()}
            self._by_root |= oids & self.followed.roots
        fold = self.fold()
        fold.apply(self.pending)
        self._changes += len(self.pending)
        self.pending.clear()
        if not self.lacking.tables():
            del self._xids[:-1]
        self.report(fold)

    def fold(self) -> Fold:
        """A fold that writes into the open flush."""
        stale, ahead, leave = self.followed.stale, self._reads.ahead, self.leave_to_comparison
        return Fold(self.open(), self.fill, self.lacking, leave, self.written, stale, ahead, self.piece)

    def truncate(self, message: Truncate) -> None:
        """Empty the tables of a TRUNCATE."""
        self.apply_pending()
        flush = self.open()
        for relation in message.relations:
            table = self.followed.tables.get(relation.oid)
            if table is None:
                continue
            if not same_name(relation, table.relation):
                self.leave_to_comparison(table)
                continue
            if relation.oid in self.followed.roots:
                self._by_root.add(relation.oid)
            for log in self.logs:
                log.truncate(self.final_lsn, table)
            self.lacking.forget(table.id)
            new_id = empty(flush, table, self.followed.context.keys)
            self.followed.emptied(table, new_id)
            self._changes += 1

    def report(self, fold: Fold) -> None:
        """Log what the fold left out: each row that is too large, and each error of a rule once."""
        for refused in fold.refused:
            _log.error("at %s: %s", format_lsn(Lsn(max(self.final_lsn, self.reached))), refused)
        for error in fold.evaluation_errors:
            if error not in self._reported and len(self._reported) < 1000:
                self._reported.add(error)
                _log.warning("a rule failed on a row and was left out: %s", error)

    # what is left to comparisons

    def reshaped(self, table: LiveTable, change: RowChange) -> RowChange | None:
        """A change in the layout in which its table is stored. None when only a comparison can bring it, such as a
        change from when the table had another name, under which other rules may have read it."""
        if change.relation.oid not in self.followed.shapes:
            return change
        found = self.followed.shapes[change.relation.oid]
        if found is None or not found.whole:
            self.leave_to_comparison(table)
        return None if found is None else found.change(change)

    def leave_to_comparison(self, table: LiveTable) -> None:
        """Leave what the current transaction did to a table to a comparison. The mark is part of the flush."""
        if table.relation.oid in self.followed.misnamed:
            self.abandon()
            what = "the stream calls a table by a former name"
            raise SchemaChangedError(what, table.name, "the stream is read again, and describes all tables anew")
        if table.relation.oid in self._reads.completed:
            self._leave_completed(table)
        self._have_compared(table)

    def _leave_completed(self, table: LiveTable) -> None:
        """The open flush has rows of the table that were completed with later values from the source. It may only
        commit with all changes up to those values, and one of them can't be applied. Marked before the stream is read
        again, the table has no rows completed then."""
        self.abandon()
        self._mark(table, Cause.REPLACED)
        what = "rows were completed with values from changes that can't be applied"
        raise SchemaChangedError(what, table.name, "the stream is read again")

    def _mark(self, table: LiveTable, cause: Cause) -> None:
        """Mark a table to be compared, with no flush open."""
        stored = [stored for stored in self._store.tables(self.tag) if stored.relation.oid == table.relation.oid]
        self._store.mark_resync(self._lease, [table.id for table in stored], ResyncReason(cause))

    def _have_compared(self, table: LiveTable) -> None:
        """Mark a table to be compared, as part of the flush. A comparison that runs already begins again."""
        for log in self.logs:
            log.spoil(self.final_lsn, table.relation.oid)
        if table.id in self.followed.stale:
            return
        _log.info("%s has to be compared with the source", table.name)
        self.open().mark_resync(table.id, ResyncReason(Cause.REPLACED))
        self.followed.compared.add(table.id)
        self.followed.stale.add(table.id)
        self.unsettled = True

    # values that the stream left out

    def _complete(self) -> None:
        """Ask the source for the values that rows of this flush lack. Where that takes too long, and for tables that
        are compared anyway, the comparison brings them."""
        for table in [table for table in self.followed.tables.values() if table.id not in self.followed.compared]:
            while rows := dict(islice(self.lacking.of(table.id).items(), self._reads.at_once)):
                found = None if self._reads.too_long else self._ask(table, list(rows.values()))
                if found is None:
                    for log in self.logs:
                        log.lacks(table.relation.oid)
                    self._have_compared(table)
                    break
                self._reads.completed.add(table.relation.oid)
                pairs = zip(rows.items(), found, strict=True)
                states = {row_id: cells and completed(known, cells, table.computed) for (row_id, known), cells in pairs}
                fold = self.fold()
                # The DELETE or key change of a row that is gone comes in the stream before the flush may commit
                fold.write(table, states)
                self.report(fold)

    def _ask(self, table: LiveTable, keys: Sequence[Sequence[Cell]]) -> list[FullCells | None] | None:
        known = self.followed
        xids = () if table.id in known.compared else self._xids
        return self._reads.rows(table, keys, known.files.get(table.relation.oid, ()), xids)

    def _fetch(self, table: LiveTable, keys: Sequence[Sequence[Cell]]) -> list[FullCells | None]:
        self.open()  # what a comparison reads belongs to the flush that it merges in, which must not close before
        found = self._ask(table, keys)
        if found is None:
            raise SchemaChangedError("rows can't be read from the source", table.name, "the stream is read again")
        return found

    def fill(self, table: LiveTable, rows: Sequence[FullCells]) -> list[FullCells | None]:
        """Rows with the values of their generated columns; None for one that is gone from the source. When the table
        is locked, its changes are left to a comparison."""
        try:
            return self._filler.fill(table, rows)
        except NotComputedLockedError as error:
            self.abandon()
            self._mark(table, Cause.LOCKED)
            raise SchemaChangedError(error.what, table.name, "the stream is read again, without its changes") from error

    # the end of the flush

    def settle(self, received: Lsn, *, idle: bool) -> None:
        """Commit the open flush if it is time, with no transaction half read. `received` is how far the stream has
        come."""
        reached = Lsn(max(self.reached, received))
        self.crowded = False
        if self._flush is None and any(table not in self.followed.compared for table in self.lacking.tables()):
            self.open()  # the comparison that was to bring the values of these rows is over
        if self._flush is None:
            self._advance(reached, idle=idle)
            return
        if idle or time.monotonic() - self._opened_at > FLUSH_SECONDS:
            self.commit(reached)

    def commit(self, reached: Lsn) -> None:
        """Commit the open flush, unless the stream, which has come to `reached`, has not passed every value in it that
        was read from the source."""
        self.apply_pending()
        if self._flush is None:
            return
        if self.lacking.tables():
            self._complete()
        if reached < self._reads.hold:
            return
        if self._by_root:
            self._check_names()
        checkpoint = self._flush.commit(self.tag, Progress(self.reached, self._committed_us))
        self._flush = None
        self._count(checkpoint.op_id)
        self._by_root.clear()
        self._reads.reset()
        if not self.lacking.tables():
            del self._xids[:-1]
        self.position = self.reached

    def _count(self, op_id: OpId) -> None:
        """Count the flush, which is in the store now. The next one begins with nothing."""
        self.crowded = self._transactions > 1
        self._figures.stored(self._transactions, self._changes, self._committed_us)
        if self._changes and op_id != self._op_id:
            now = time.time()
            began = now - (time.monotonic() - self._opened_at)
            mark = FlushMark(op_id, self.tag, self._committed_us)
            self._figures.flushed(Flushed(mark, began, now, self._transactions, self._changes))
        self._op_id = op_id
        self._changes = self._transactions = self._committed_us = 0

    def _check_names(self) -> None:
        """Make sure that partitioned tables in the open flush still have the names that the store knows."""
        now = self._reads.names(self._by_root)
        renamed = self.followed.renamed(now.by_oid)
        if renamed:
            self._distrust(renamed, now.seen)

    def take_names(self, names: Mapping[int, tuple[str, str]]) -> None:
        """The current transaction is said to give tables these names. A partitioned table whose name is not the stored
        one is left to a comparison, up to the present end of the log: another message tells of each name after it."""
        known = self.followed
        renamed = [oid for oid in known.renamed(names) if oid in known.roots and oid not in known.doubted]
        if renamed:
            self._distrust(renamed, self._reads.names(renamed).seen)

    def _distrust(self, renamed: Sequence[int], upto: Lsn) -> None:
        """Leave what the stream brings of renamed tables (oids), up to a position, to comparisons."""
        self.abandon()
        for table in [self.followed.tables[oid] for oid in renamed]:
            self._mark(table, Cause.REPLACED)
        NameBook(self._store, self.tag).distrust(self._lease, renamed, upto)
        what = "a partitioned table was renamed, which the stream does not say"
        raise SchemaChangedError(what, self.tag, "the stream is read again, without its changes")

    def _advance(self, reached: Lsn, *, idle: bool) -> None:
        """With nothing to store, still store the position now and then, so that the source can drop its log. It is
        never acknowledged before: a slot that is ahead of its store tells that the store is a restored backup."""
        if not idle or reached <= self.position or time.monotonic() - self._opened_at < IDLE_SECONDS:
            return
        self.reached = reached
        self.open()
        self.commit(reached)

    def abandon(self) -> None:
        """Roll the open flush back; the stream brings its changes again."""
        if self._flush is not None:
            self._flush.rollback()
            self._flush = None
            self._by_root.clear()
            self._reads.reset()

    def renew(self, context: LiveContext, stored: Sequence[StoredTable]) -> None:
        """Follow other plans or tables from here on."""
        before = self.followed.layouts()
        self.followed.renew(context, stored)
        now = self.followed.layouts()
        for table in [table for table in self.lacking.tables() if now.get(table) != before.get(table)]:
            self.lacking.forget(table)  # gone, or compared anew in its present form

    def watch(self, tables: Sequence[int]) -> Mapping[int, set[str]]:
        """By table id, the ids of all rows that are written or deleted from here on. One watch at a time."""
        self.written = {table: set() for table in tables}
        return self.written

    def unwatch(self) -> None:
        """End the watch."""
        self.written = {}
