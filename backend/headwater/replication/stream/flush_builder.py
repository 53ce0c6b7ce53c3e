"""The flush that the stream is writing: collects the changes of whole transactions and commits them together.

A value that the stream left out as unchanged and that the store does not have is read from the source, where it may be
newer than the flush. So the row stays out of the store until it is read, and the flush stays open until the stream has
passed what the source showed then. A change that can't be applied, since its table has another name or form in the
stream than in the store, is left to a comparison: the flush that skips the change also marks the table, so no crash can
separate the two.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from headwater.bulk.bound_table import Times
from headwater.oplog.change import Begin, Cell, Commit, FullCells, RowChange, Truncate
from headwater.oplog.limits import is_stub, stored_line
from headwater.oplog.lsn import ZERO, Lsn, format_lsn
from headwater.oplog.op import OpId
from headwater.oplog.row_id import IdentityKind
from headwater.replication.errors import SchemaChangedError
from headwater.replication.meters import Figures
from headwater.replication.stream.change_log import Recording
from headwater.replication.stream.commit_watch import CommitWatch
from headwater.replication.stream.flush_time import LOOK_AGAIN, NEVER, FlushTime
from headwater.replication.stream.fold import Fold, IncompleteRows, completed
from headwater.replication.stream.joined_rows import JoinedRows
from headwater.replication.stream.registry import TableRegistry, same_name
from headwater.replication.stream.step_size import BESIDE_COMMITS, SECONDS, StepSize
from headwater.replication.tables.changes import NameBook, empty
from headwater.replication.tables.live import Filler, LiveContext, LiveTable
from headwater.source.rows.fetch import RowFetcher
from headwater.source.rows.generated import NotComputedLockedError
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import FlushMark
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Lease, ReplicationProgress, StoredTable
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.writer import StoreWriter
from headwater.telemetry.trace_choice import Flushed
from headwater_rules.plan import SyncPlan, TablePattern

_log = logging.getLogger(__name__)

FLUSH_CHANGES = 20_000
SHARED_CHANGES = 5_000
"""Of a source beside others, which wait while a flush is written."""
FLUSH_SECONDS = 0.2
IDLE_SECONDS = 1.0
READING_SECONDS = 1.0
_FIRST_READ, _MOST_READ = 4, 1_000
_CLEARED_AT_ONCE = 2_000
_COMMITS_COME = 0.5  # seconds since the last one: more are likely
_MOST_DEPENDENTS = 5_000  # evaluated by the flush that changes what they are joined to


class FlushBuilder:
    """The store has everything up to `position`. Methods that meet something which the stream alone can't resolve
    abandon the flush and raise SchemaChangedError."""

    def __init__(
        self,
        store: StoreWriter,
        lease: Lease,
        context: LiveContext,
        stored: Sequence[StoredTable],
        position: Lsn,
        fetcher: RowFetcher,
        figures: Figures,
        clock: Callable[[], int],
    ) -> None:
        self.alone = True  # whether there is no other source, which would wait while this one writes
        self._store = store
        self._lease = lease
        self.tables = TableRegistry(context, stored, NameBook(store, context.source).read())
        self.incomplete = IncompleteRows()
        self.recording = Recording()
        self.commits = CommitWatch()
        self.position = position
        self.progress = StreamProgress(figures, position)
        self.final_lsn = ZERO  # where the commit record of the transaction begins that is being read
        self.pending: list[tuple[LiveTable, RowChange]] = []
        self._pending_bytes = 0  # of the messages that they came in, about
        self._reads = SourceReads(fetcher, context.batch_bytes)
        self._flush: Flush | None = None
        self.time = FlushTime(clock, store, context.source)
        self.time.renew(self.tables)
        self.joined = JoinedRows(store, context.source)
        self.joined.renew(self.tables)
        self._due_step, self._joined_step = StepSize(), StepSize()

    @property
    def source(self) -> str:
        """The name of the source."""
        return self.tables.context.source

    @property
    def batch_bytes(self) -> int:
        """How many bytes of rows are pending, loaded or written at once."""
        return self.tables.context.batch_bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit. A merge leaves a flush open while the stream has not passed values that
        it read."""
        return self._flush is None and not self.pending

    def open(self) -> Flush:
        """The open flush, or a new one."""
        if self._flush is None:
            self._flush = self._store.begin(self._lease)
            self._flush.alone = self.alone
            self.progress.opened_at = time.monotonic()
            self.time.begin(self._flush)
            self.joined.watch(self._flush)
        return self._flush

    # changes

    def begin_transaction(self, begin: Begin) -> None:
        """Changes from here on are of this transaction."""
        self._reads.xids.append(begin.xid)
        self.final_lsn = begin.final_lsn
        if self.tables.uncertain_until:
            self.tables.reach(begin.final_lsn)

    def end_transaction(self, commit: Commit) -> None:
        """Commits the flush if it is large enough. A transaction of tables that are not followed only moves the
        position, which is stored now and then."""
        progress = self.progress
        progress.reached = Lsn(max(progress.reached, commit.end_lsn))
        progress.committed_us = commit.committed_us
        progress.transactions += 1
        if self.is_empty:
            return
        progress.arrived_at = time.monotonic()
        self.open()
        if progress.changes + len(self.pending) >= (FLUSH_CHANGES if self.alone else SHARED_CHANGES):
            self.commit()

    def pass_message(self, lsn: Lsn) -> None:
        """The stream brought a message of no transaction."""
        self.progress.reached = Lsn(max(self.progress.reached, lsn))
        self.open()

    def add_bytes(self, size: int) -> None:
        """The messages of the pending changes had so many more bytes."""
        if size:
            self.progress.figures.received(size)
        self._pending_bytes += size
        if self._pending_bytes >= self.batch_bytes:
            self.apply_pending()

    def apply_pending(self) -> None:
        """Write what the pending changes amount to."""
        self._pending_bytes = 0
        if not self.pending:
            return
        if self.tables.roots:
            oids = {table.relation.oid for table in {id(table): table for table, _ in self.pending}.values()}
            self._reads.roots |= oids & self.tables.roots
        fold = self.fold()
        fold.apply(self.pending)
        self.progress.changes += len(self.pending)
        self.pending.clear()
        self._forget_xids()
        self.log_errors(fold)

    def fold(self) -> Fold:
        """A fold that writes into the open flush."""
        return Fold(
            self.open(),
            self.incomplete,
            self.batch_bytes,
            fill=self.fill,
            defer_to_resync=self.defer_to_resync,
            written=self.recording.written,
            stale=self.tables.stale,
            read_ahead=self._reads.read_ahead,
        )

    def truncate(self, message: Truncate) -> None:
        """Empty the tables of a TRUNCATE."""
        self.apply_pending()
        flush = self.open()
        for relation in message.relations:
            table = self.tables.tables.get(relation.oid)
            if table is None:
                continue
            if not same_name(relation, table.relation):
                self.defer_to_resync(table)
                continue
            if relation.oid in self.tables.roots:
                self._reads.roots.add(relation.oid)
            for log in self.recording.logs:
                log.truncate(self.final_lsn, table)
            self.incomplete.clear(table.id)
            self.tables.truncated(table, empty(flush, table, self.tables.context.keys))
            self._renew_joined()
            self.progress.changes += 1

    def log_errors(self, fold: Fold) -> None:
        """Log each row of a fold that is too large, and each error of a rule once."""
        for oversized in fold.oversized:
            _log.error("at %s: %s", format_lsn(Lsn(max(self.final_lsn, self.progress.reached))), oversized)
        for error in self.progress.unreported(fold.evaluation_errors):
            _log.warning("a rule failed on a row and was left out: %s", error)

    # what is left to comparisons

    def reshaped(self, table: LiveTable, change: RowChange) -> RowChange | None:
        """A change in the layout in which its table is stored. None when only a comparison can bring it, such as a
        change from when the table had another name, under which other rules may have read it."""
        shapes = self.tables.shapes
        if change.relation.oid not in shapes:
            return change
        found = shapes[change.relation.oid]
        if found is None or not found.whole:
            self.defer_to_resync(table)
        return None if found is None else found.change(change)

    def defer_to_resync(self, table: LiveTable) -> None:
        """Leave what the current transaction did to a table to a comparison. The mark is part of the flush."""
        if table.relation.oid in self.tables.renamed:
            what = "the stream calls a table by a former name"
            raise self._restart(what, table.name, "the stream is read again, and describes all tables again")
        if table.relation.oid in self._reads.completed:
            # The open flush may only commit with all changes up to the values that were read from the source, and one
            # of these changes can't be applied. Once the table is marked, its rows are not completed any more.
            what = "rows were completed with values from changes that can't be applied"
            raise self._restart(what, table.name, mark=[table])
        self._mark_in_flush(table)

    def _mark_in_flush(self, table: LiveTable) -> None:
        """Mark a table to be compared, as part of the flush. A comparison that runs already begins again."""
        for log in self.recording.logs:
            log.invalidate(self.final_lsn, table.relation.oid)
        if table.id in self.tables.stale:
            return
        _log.info("%s has to be compared with the source", table.name)
        self.open().mark_resync(table.id, ResyncReason(Cause.REPLACED))
        self.tables.compared.add(table.id)
        self.tables.stale.add(table.id)
        self.recording.marked = True

    def _restart(
        self,
        what: str,
        where: str,
        fix: str = "the stream is read again",
        *,
        mark: Sequence[LiveTable] = (),
        cause: Cause = Cause.REPLACED,
    ) -> SchemaChangedError:
        """Abandon the flush, and mark tables to be compared. Returns the error by which the stream is read again."""
        self.abandon()
        for table in mark:
            ids = [stored.id for stored in self._store.tables(self.source) if stored.relation.oid == table.relation.oid]
            self._store.mark_resync(self._lease, ids, ResyncReason(cause))
        return SchemaChangedError(what, where, fix)

    # values that the stream left out

    def _complete(self) -> None:
        """Read the values from the source that rows of this flush lack. Where that takes too long, and for tables that
        are compared anyway, the comparison brings them."""
        for table in [table for table in self.tables.tables.values() if table.id not in self.tables.compared]:
            while rows := dict(islice(self.incomplete.of(table.id).items(), self._reads.at_once)):
                found = None if self._reads.too_long else self._read(table, list(rows.values()))
                if found is None:
                    for log in self.recording.logs:
                        log.mark_incomplete(table.relation.oid)
                    self._mark_in_flush(table)
                    break
                self._reads.completed.add(table.relation.oid)
                pairs = zip(rows.items(), found, strict=True)
                states = {row_id: cells and completed(known, cells, table.computed) for (row_id, known), cells in pairs}
                fold = self.fold()
                # The DELETE or key change of a row that is gone comes in the stream before the flush may commit
                fold.write(table, states)
                self.log_errors(fold)

    def _read(self, table: LiveTable, keys: Sequence[Sequence[Cell]]) -> list[FullCells | None] | None:
        wait_for = () if table.id in self.tables.compared else self._reads.xids
        return self._reads.rows(table, keys, self.tables.files.get(table.relation.oid, ()), wait_for)

    def _read_all(self, table: LiveTable, keys: Sequence[Sequence[Cell]]) -> list[FullCells | None]:
        self.open()  # what a comparison reads belongs to the flush that it merges in, which must not close before
        found = self._read(table, keys)
        if found is None:
            raise SchemaChangedError("rows can't be read from the source", table.name, "the stream is read again")
        return found

    def fill(self, table: LiveTable, rows: Sequence[FullCells]) -> list[FullCells | None]:
        """Rows with the values of their generated columns; None for one that is gone from the source. When the table
        is locked, its changes are left to a comparison."""
        try:
            return Filler(self._reads.fetcher.generated, self._read_all).fill(table, rows)
        except NotComputedLockedError as error:
            fix = "the stream is read again, without its changes"
            raise self._restart(error.what, table.name, fix, mark=[table], cause=Cause.LOCKED) from error

    def _forget_xids(self) -> None:
        """Called once changes were applied: with no row incomplete, only the last transaction may still bring one."""
        if not self.incomplete.tables():
            del self._reads.xids[:-1]

    # the end of the flush

    def commit_if_due(self, received: Lsn, *, idle: bool) -> None:
        """Called with no transaction half read. `received` is how far the stream has come."""
        self.progress.coalesced = False
        if self._flush is None and any(table not in self.tables.compared for table in self.incomplete.tables()):
            self.open()  # the comparison that was to bring the values of these rows is over
        if self._flush is None:
            self._advance(Lsn(max(self.progress.reached, received)), idle=idle)
        elif idle or self._flush.waited_for or self.progress.seconds_open() > FLUSH_SECONDS:
            self.commit(received)

    def commit(self, received: Lsn = ZERO) -> None:
        """Commit the open flush, unless the stream has not passed every value in it that was read from the source."""
        self.apply_pending()
        if self._flush is None:
            return
        if self.incomplete.tables():
            self._complete()
        progress = self.progress
        if max(received, progress.reached) < self._reads.hold:
            return
        if self._reads.roots:
            self._check_names()
        self._evaluate_dependents(self._flush)
        checkpoint = self._flush.commit(self.source, ReplicationProgress(progress.reached, progress.committed_us))
        self._flush = None
        self.joined.committed()
        progress.stored(self.source, checkpoint.op_id)
        self._reads.reset()
        self._forget_xids()
        self.position = progress.reached

    def _advance(self, reached: Lsn, *, idle: bool) -> None:
        """With nothing to store, still store the position now and then, so that the source can drop its log. It is
        never acknowledged before: a slot that is ahead of its store tells that the store is a restored backup."""
        if idle and reached > self.position and self.progress.seconds_open() >= IDLE_SECONDS:
            self.progress.reached = reached
            self.open()
            self.commit()

    def abandon(self) -> None:
        """Roll the open flush back; the stream brings its changes again."""
        if self._flush is not None:
            self._flush.rollback()
            self._flush = None
            self._reads.reset()
            self.joined.reset()

    # what bulk jobs read, and write beside the stream; all with no transaction half read

    def table(self, oid: int) -> LiveTable | None:
        """The present generation of a table that the rules read."""
        return self.tables.tables.get(oid)

    def complete_next(self, table: LiveTable) -> bool:
        """Whether rows of a table still lack values after a comparison. The next flush reads them from the source."""
        if not self.incomplete.of(table.id):
            return False
        self.tables.compared.discard(table.id)
        return True

    def stored_rows(self, table: LiveTable, row_ids: Sequence[str]) -> Iterator[CurrentRow]:
        """Those of these rows that are stored, loaded a few at a time."""
        with self._reading() as flush:
            yield from flush.load_all(table.id, row_ids, self.batch_bytes)

    def times(self, table: LiveTable, rows: Mapping[str, FullCells | None]) -> Times:
        """What these rows of a table are judged by, given their cells by id."""
        if not (table.bound.has_clock or table.bound.has_joins):
            return Times()
        keys = table.bound.join_keys((cells, row_id) for row_id, cells in rows.items() if cells is not None)
        with self._reading() as flush:
            flips = flush.flips(table.id, rows.keys()) if table.bound.has_clock else {}
            return Times(self.time.now, flips, flush.joined(keys))

    def job_time(self, plans: Iterable[SyncPlan]) -> int:
        """The time at which work beside the stream evaluates rows by these plans; 0 when they don't read the clock."""
        if not any(plan.reads_clock for plan in plans):
            return 0
        now = self.time.move(self._lease)
        if self._flush is not None:
            self.time.begin(self._flush)
        return now

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
        was_open = self._flush is not None
        try:
            yield self.open()
        finally:
            if not was_open:
                self.abandon()

    def merge(
        self, table: LiveTable, states: Mapping[str, FullCells | None], *, waiting: Collection[str], reevaluate: bool
    ) -> int:
        """Make rows of a table what `states` says, and commit; see `Fold.write`. Rows in `waiting` go on lacking what
        they lack. Returns the number of ops."""
        kept = {row_id: cells for row_id, cells in self.incomplete.of(table.id).items() if row_id in waiting}
        fold = self.fold()
        ops = fold.write(table, states, reevaluate=reevaluate)
        for row_id, cells in kept.items():
            self.incomplete.put(table.id, row_id, cells)
        self.log_errors(fold)
        self.commit()
        return ops

    def merge_parts(
        self, table: LiveTable, parts: Iterable[Mapping[str, FullCells | None]], *, reevaluate: bool
    ) -> int:
        """Like `merge`, of rows that nothing else writes, and that are not in memory together: they are written part by
        part, and committed together."""
        fold = self.fold()
        ops = sum(fold.write(table, states, reevaluate=reevaluate) for states in parts)
        self.log_errors(fold)
        self.commit()
        return ops

    # rows whose time has come

    def evaluate_due(self) -> None:
        """Evaluate rows again whose buckets depend on the time and may be others now, and commit. Between flushes; does
        nothing most of the time. Of very many rows, the next call does more."""
        if left_over := self.time.left_over():
            flush = self.open()
            for table_id in left_over:
                flush.put_flips(table_id, dict.fromkeys(flush.due(table_id, NEVER, _CLEARED_AT_ONCE)))
            self.commit()
            return
        tables = self.tables.with_clock()
        if not self.time.is_due(tables):
            return
        flush, left, started = self.open(), self._due_step.rows, time.perf_counter()
        for table in tables:
            if left > 0 and (due := flush.due(table.id, flush.now, left)):
                self._evaluate_again(flush, table, due)
                left -= len(due)
        if left <= 0:
            self.time.more_due()
        rows = self._due_step.rows - left
        self.commit()
        self._due_step.took(rows, time.perf_counter() - started, self._longest_step())

    def _evaluate_again(self, flush: Flush, table: LiveTable, due: Sequence[str]) -> None:
        lacking = self.incomplete.of(table.id)
        # Rows that are gone or can't be read have no time; those that lack values are evaluated when they have them
        flush.put_flips(table.id, {each: flush.now + LOOK_AGAIN if each in lacking else None for each in due})
        self._evaluate(flush, table, due)

    # rows that are evaluated with rows of other tables

    def take_in_joined(self, lookups: Sequence[str], evaluated: Sequence[TablePattern]) -> None:
        """A deploy has evaluated these lookups over all rows: from here on rows are evaluated with what they give, and
        those of the tables `evaluated` are again."""
        self.joined.take_in(lookups, evaluated)
        self._watch_joined()

    def mark_clean(self, tables: Collection[int]) -> None:
        """These tables (ids) are equal to the source, and no longer compared."""
        self.tables.mark_clean(tables)
        self._renew_joined()

    def _renew_joined(self) -> None:
        self.joined.renew(self.tables)
        self._watch_joined()

    def _watch_joined(self) -> None:
        if self._flush is not None:
            self.joined.watch(self._flush)

    def evaluate_joined(self) -> None:
        """Evaluate some of the rows again that wait for it since others changed that they are joined to, and commit.
        Between flushes; does nothing most of the time."""
        if self.joined.is_busy:
            started, step = time.perf_counter(), self._joined_step
            table, row_ids = self.joined.next_rows(self.open(), step.rows) or (None, [])
            if table is not None:
                self._evaluate(self.open(), table, row_ids)
            self.commit()
            step.took(len(row_ids), time.perf_counter() - started, self._longest_step())

    def _longest_step(self) -> float:
        """How many seconds a step may take between flushes."""
        return BESIDE_COMMITS if time.monotonic() - self.progress.arrived_at < _COMMITS_COME else SECONDS

    def _evaluate_dependents(self, flush: Flush) -> None:
        """Evaluate rows again that depend on what the flush has changed in others."""
        left = _MOST_DEPENDENTS
        while rows := list(self.joined.dependents(flush, left)):
            for table, row_ids in rows:
                self._evaluate(flush, table, row_ids)
                left -= len(row_ids)

    def _evaluate(self, flush: Flush, table: LiveTable, row_ids: Sequence[str]) -> None:
        """Evaluate stored rows again. Those that lack values are evaluated when they have them."""
        lacking = self.incomplete.of(table.id)
        states: dict[str, FullCells | None] = {}
        for row in flush.load_all(table.id, [row_id for row_id in row_ids if row_id not in lacking], self.batch_bytes):
            cells = None if is_stub(row.line) else table.intact_cells(row)
            if cells is not None:
                states[row.row_id] = cells
        fold = self.fold()
        fold.write(table, states, reevaluate=True)
        self.log_errors(fold)

    # tables

    def _check_names(self) -> None:
        """Make sure that partitioned tables in the open flush still have the names that the store knows."""
        now = self._reads.fetcher.names(self._reads.roots)
        renamed = self.tables.named_otherwise(now.by_oid)
        if renamed:
            raise self._renamed(renamed, now.seen)

    def take_names(self, names: Mapping[int, tuple[str, str]]) -> None:
        """The current transaction is said to give tables these names. A partitioned table whose name is not the stored
        one is left to a comparison, up to the present end of the log: another message names it after each rename."""
        known = self.tables
        others = known.named_otherwise(names)
        renamed = [oid for oid in others if oid in known.roots and oid not in known.uncertain_until]
        if renamed:
            raise self._renamed(renamed, self._reads.fetcher.names(renamed).seen)

    def _renamed(self, oids: Sequence[int], until: Lsn) -> SchemaChangedError:
        """Leave what the stream brings of renamed tables, up to a position, to comparisons."""
        what = "a partitioned table was renamed, which the stream does not say"
        fix = "the stream is read again, without its changes"
        error = self._restart(what, self.source, fix, mark=[self.tables.tables[oid] for oid in oids])
        NameBook(self._store, self.source).distrust(self._lease, oids, until)
        return error

    def renew(self, context: LiveContext, stored: Sequence[StoredTable]) -> None:
        """Follow other plans or tables from here on."""
        before = self.tables.layouts()
        self.tables.renew(context, stored)
        self.time.renew(self.tables)
        self._renew_joined()
        now = self.tables.layouts()
        for table in [table for table in self.incomplete.tables() if now.get(table) != before.get(table)]:
            self.incomplete.clear(table)  # gone, or compared again in its present form


@dataclass(slots=True)
class StreamProgress:
    """How far the stream was read, and what it brought since the last flush was committed."""

    figures: Figures
    reached: Lsn
    """Where a transaction or a message of its own ends."""
    committed_us: int = 0
    transactions: int = 0
    changes: int = 0
    coalesced: bool = False
    """Whether the last flush had several transactions."""
    opened_at: float = 0.0
    arrived_at: float = 0.0
    """When the last transaction came that changes anything, by the monotonic clock."""
    op_id: OpId = field(default=OpId(0))
    """Of the checkpoint after the last flush."""
    _reported: set[str] = field(default_factory=set)

    def seconds_open(self) -> float:
        """How long ago a flush was opened last."""
        return time.monotonic() - self.opened_at

    def stored(self, tag: str, op_id: OpId) -> None:
        """Count a flush, which is in the store now. The next one begins with nothing."""
        self.coalesced = self.transactions > 1
        self.figures.stored(self.transactions, self.changes, self.committed_us)
        if self.changes and op_id != self.op_id:
            now = time.time()
            mark = FlushMark(op_id, tag, self.committed_us)
            self.figures.flushed(Flushed(mark, now - self.seconds_open(), now, self.transactions, self.changes))
        self.op_id = op_id
        self.changes = self.transactions = self.committed_us = 0

    def unreported(self, errors: Sequence[str]) -> list[str]:
        """Those of the errors that were not logged before, as long as there are not too many."""
        new = [error for error in dict.fromkeys(errors) if error not in self._reported]
        new = new[: max(0, 1000 - len(self._reported))]
        self._reported.update(new)
        return new


class SourceReads:
    """What the open flush has read from the source, which may be newer than the flush."""

    def __init__(self, fetcher: RowFetcher, batch_bytes: int) -> None:
        self.fetcher = fetcher
        self._batch_bytes = batch_bytes
        self._since = 0.0  # when the open flush first read; 0 before
        self.at_once = _FIRST_READ  # how many rows to read next, so that they have about `batch_bytes`
        self.hold = ZERO  # the flush must not commit before the stream has passed it
        self.read_ahead = set[int]()  # the oids of tables with values that were read
        self.completed = set[int]()  # the oids of tables whose rows lacked them
        self.roots = set[int]()  # the oids of partitioned tables that the open flush has changes of
        self.xids: list[int] = []  # transactions of which changes are pending, and the last one

    def reset(self) -> None:
        """The flush has ended."""
        self._since, self.hold, self.at_once = 0.0, ZERO, _FIRST_READ
        self.read_ahead.clear()
        self.completed.clear()
        self.roots.clear()

    @property
    def too_long(self) -> bool:
        """Whether reading has delayed the flush for too long, with incomplete rows coming as fast as they are read."""
        return self._since > 0 and time.monotonic() - self._since > READING_SECONDS

    def rows(
        self, table: LiveTable, keys: Sequence[Sequence[Cell]], files: Collection[int], wait_for: Sequence[int]
    ) -> list[FullCells | None] | None:
        """Present rows of the source by key, None for each that is gone. Returns None when the rows can't be read, or
        are not in `files` any more. A row that is not found is read again once the transactions `wait_for` are visible;
        without any, it is gone."""
        self._since = self._since or time.monotonic()
        found = self.fetcher.fetch(table.relation, keys, files)
        if found is not None and len(found.rows) < len(keys) and wait_for:
            seen = self.fetcher.wait_until_visible(wait_for)
            found = self.fetcher.fetch(table.relation, keys, files) if seen else None
        if found is None:
            return None
        self.hold = Lsn(max(self.hold, found.seen))
        self.read_ahead.add(table.relation.oid)
        row_bytes = sum(len(cell or "") for row in found.rows for cell in row) // max(1, len(found.rows))
        self.at_once = max(1, min(self._batch_bytes // max(1, row_bytes), self.at_once * 8, _MOST_READ))
        key = table.identity.key
        rows = {key(row): row for row in found.rows}
        return [rows.get(key(cells)) for cells in keys]
