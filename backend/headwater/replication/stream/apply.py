"""From decoded messages to flushes of the store: whole source transactions, many to a flush.

Messages go in batch by batch; a transaction may span batches, a flush never ends inside one. What arrives again
after a restart is known by the position its commit record starts at, and skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

from headwater.oplog.change import (
    Begin,
    Cell,
    Cells,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RowChange,
    Truncate,
    Update,
)
from headwater.oplog.limits import stored_line
from headwater.oplog.lsn import ZERO, Lsn, format_lsn
from headwater.oplog.row_id import IdentityKind
from headwater.replication.errors import ProtocolError, SchemaChangedError
from headwater.replication.stream.fold import Fold
from headwater.replication.stream.followed import Followed, same_name
from headwater.replication.stream.lacking import Lacking, completed
from headwater.replication.stream.source_rows import Asking
from headwater.replication.stream.touches import TouchLog
from headwater.replication.tables.changes import empty
from headwater.replication.tables.generated import Filler
from headwater.replication.tables.live import FullCells, LiveContext, LiveTable
from headwater.replication.tables.roots import NameBook
from headwater.replication.tables.schema_watch import SchemaWatch
from headwater.source.rows.fetch import RowFetcher
from headwater.source.rows.generated import NotComputedLockedError
from headwater.source.triggers import is_hint
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Flush, Lease, Progress, StoredTable, StoreWriter
from headwater.storage.shared.loading import loaded_rows
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)

CHUNK_CHANGES = 5_000
FLUSH_CHANGES = 20_000
FLUSH_SECONDS = 0.2
IDLE_SECONDS = 1.0


class Applier:
    """Applies the messages of one stream. `position` is up to where the store has everything."""

    def __init__(
        self,
        store: StoreWriter,
        lease: Lease,
        context: LiveContext,
        stored: Sequence[StoredTable],
        position: Lsn,
        fetcher: RowFetcher,
        schema: SchemaWatch,
        left_out: frozenset[Lsn] = frozenset(),
    ) -> None:
        self._store = store
        self._lease = lease
        self._context = context
        self._names = NameBook(store, context.tag)
        self._followed = Followed(context, stored, self._names.read())
        self._by_root = set[int]()  # the oids of partitioned tables that the open flush has changes of
        self._asking = Asking(fetcher, context.piece)
        self._filler = Filler(fetcher.generated, self._fetch)
        self._schema = schema
        self.position = position
        self.in_transaction = False
        self.careful = False  # each transaction is applied by itself, so that one which fails is known
        self.transactions = 0
        self.rows = 0
        self.skipping = False  # nothing of the transaction that is being read is applied
        self._left_out = left_out  # transactions that are not applied, by where their commit records begin
        self._flush: Flush | None = None
        self._opened_at = 0.0
        self._in_flush = 0  # changes in the open flush
        self._reached = position  # end of the last transaction or message that was read
        self._committed_us = 0
        self._piece = context.piece  # bytes of rows that are pending, loaded or written at once
        self._pending: list[tuple[LiveTable, RowChange]] = []
        self._pending_bytes = 0  # of the messages that they came in, about
        self._xids: list[int] = []  # transactions of which changes are pending, and the last one
        self._lacking = Lacking()
        self.unsettled = False  # a table was marked to be compared with the source
        self._reported: set[str] = set()
        self.final_lsn = ZERO  # where the commit record of the transaction begins that is being read
        self._logs: list[TouchLog] = []
        self._written: dict[int, set[str]] = {}

    def consume(self, messages: Sequence[Message], size: int) -> None:
        """Take a batch of so many bytes in."""
        pending, tables, shapes = self._pending, self._followed.tables, self._followed.shapes
        for message in messages:
            kind = type(message)
            if kind is Insert or kind is Update or kind is Delete:
                change: RowChange = message  # type: ignore[assignment]  # the line above says so, cheaply
                table = tables.get(change.relation.oid)
                if table is not None and not self.skipping:
                    if shapes:
                        found = self._reshaped(table, change)
                        if found is None:
                            continue
                        change = found
                    pending.append((table, change))
                    for log in self._logs:
                        log.note(self.final_lsn, table, change)
                    if len(pending) >= CHUNK_CHANGES:
                        self._apply_pending()
            else:
                self._consume_rare(message)
        self._pending_bytes += size
        if self._pending_bytes >= self._piece:
            self._apply_pending()

    def _consume_rare(self, message: Message) -> None:
        match message:
            case Begin():
                self.in_transaction = True
                self._xids.append(message.xid)
                self.final_lsn = message.final_lsn
                if self._followed.doubted:
                    self._followed.reach(message.final_lsn)
                self.skipping = message.final_lsn < self.position or message.final_lsn in self._left_out
            case Commit():
                self._end_transaction(message)
            case Truncate() if not self.skipping:
                self._truncate(message)
            case Relation():
                self._check_relation(message)
            case LogicalMessage():
                if is_hint(message):
                    self._schema.hint()
                if not message.transactional and not self.in_transaction:
                    self._reached = Lsn(max(self._reached, message.lsn))
                    self._open()
            case _:
                pass

    def _end_transaction(self, commit: Commit) -> None:
        if not self.in_transaction:
            raise ProtocolError("a commit without a begin", self._context.tag)
        if self.careful:
            self._apply_pending()
        self.in_transaction = False
        known = self.skipping and self.final_lsn < self.position
        self.skipping = False
        if known:
            return
        self._reached = Lsn(max(self._reached, commit.end_lsn))
        self._committed_us = commit.committed_us
        self.transactions += 1
        self._open()
        if self._in_flush + len(self._pending) >= FLUSH_CHANGES:
            self.flush(self._reached)

    def _check_relation(self, relation: Relation) -> None:
        self._followed.hear(relation)
        if relation.oid in self._followed.tables or self._context.reads(relation):
            self._schema.hint()  # a column that was dropped and made again looks the same here

    def _reshaped(self, table: LiveTable, change: RowChange) -> RowChange | None:
        """A change of another shape of its table in the present one; None for one that only the comparison with the
        source can take in, such as one from when the table had another name: it was not the one that rules speak of."""
        if change.relation.oid not in self._followed.shapes:
            return change
        found = self._followed.shapes[change.relation.oid]
        if found is None or not found.whole:
            self._leave(table)
        return None if found is None else found.change(change)

    def _leave(self, table: LiveTable) -> None:
        """What happened to a table in the transaction that is being read is left to a comparison with the source, of
        which the flush takes note. Raises SchemaChangedError."""
        if table.relation.oid in self._followed.unheard:
            self.abandon()
            what = "the stream calls a table by a name that it had"
            raise SchemaChangedError(what, table.name, "it is read again, and tells all tables anew")
        if table.relation.oid in self._asking.completed:
            self._leave_completed(table)
        self._have_compared(table)

    def _leave_completed(self, table: LiveTable) -> None:
        """The open flush has rows with values of later, and waits for the stream to bring all else that was done to
        them by then. With a part of that left out, they would be a mix of two. Once the table is marked, no row of it
        is completed again. Raises SchemaChangedError."""
        self.abandon()
        self._mark(table, Cause.REPLACED)
        what = "rows were completed with what they became in changes that can't be taken in"
        raise SchemaChangedError(what, table.name, "the stream is read again")

    def _mark(self, table: LiveTable, cause: Cause) -> None:
        """Have a table compared, with no flush open."""
        stored = [stored for stored in self._store.tables(self.tag) if stored.relation.oid == table.relation.oid]
        self._store.mark_resync(self._lease, [table.id for table in stored], ResyncReason(cause))

    def _have_compared(self, table: LiveTable) -> None:
        """A comparison with the source is to bring what is missing."""
        for log in self._logs:
            log.spoil(self.final_lsn, table.relation.oid)
        if table.id in self._followed.stale:
            return
        _log.info("%s has to be compared with the source", table.name)
        self._open().mark_resync(table.id, ResyncReason(Cause.REPLACED))
        self._followed.compared.add(table.id)
        self._followed.stale.add(table.id)
        self.unsettled = True

    def _apply_pending(self) -> None:
        self._pending_bytes = 0
        if not self._pending:
            return
        if self._followed.roots:
            oids = {table.relation.oid for table in {id(table): table for table, _ in self._pending}.values()}
            self._by_root |= oids & self._followed.roots
        fold = self._fold()
        fold.apply(self._pending)
        self.rows += len(self._pending)
        self._in_flush += len(self._pending)
        self._pending.clear()
        if not self._lacking.tables():
            del self._xids[:-1]
        self._report(fold)

    def _fold(self) -> Fold:
        stale, ahead = self._followed.stale, self._asking.ahead
        return Fold(self._open(), self.fill, self._lacking, self._leave, self._written, stale, ahead, self._piece)

    def _truncate(self, message: Truncate) -> None:
        self._apply_pending()
        flush = self._open()
        for relation in message.relations:
            table = self._followed.tables.get(relation.oid)
            if table is None:
                continue
            if not same_name(relation, table.relation):
                self._leave(table)
                continue
            if relation.oid in self._followed.roots:
                self._by_root.add(relation.oid)
            for log in self._logs:
                log.truncate(self.final_lsn, table)
            self._lacking.forget(table.id)
            new_id = empty(flush, table, self._context.salt)
            self._followed.emptied(table, new_id)
            self._in_flush += 1

    def _complete(self) -> None:
        """Ask the source for what rows of this flush lack. Where that does not come to an end, and for tables that are
        compared with the source anyway, the comparison brings it."""
        for table in [table for table in self._followed.tables.values() if table.id not in self._followed.compared]:
            while rows := dict(islice(self._lacking.of(table.id).items(), self._asking.at_once)):
                found = None if self._asking.too_long else self._ask(table, list(rows.values()))
                if found is None:
                    for log in self._logs:
                        log.lacks(table.relation.oid)
                    self._have_compared(table)
                    break
                self._asking.completed.add(table.relation.oid)
                pairs = zip(rows.items(), found, strict=True)
                states = {row_id: cells and completed(known, cells, table.computed) for (row_id, known), cells in pairs}
                fold = self._fold()
                # One that is gone by now has its DELETE or key change ahead in the stream, before the flush may commit
                fold.write(table, states)
                self._report(fold)

    def _ask(self, table: LiveTable, keys: Sequence[Sequence[Cell]]) -> list[FullCells | None] | None:
        known = self._followed
        xids = () if table.id in known.compared else self._xids
        return self._asking.rows(table, keys, known.files.get(table.relation.oid, ()), xids)

    def _fetch(self, table: LiveTable, keys: Sequence[Sequence[Cell]]) -> list[FullCells | None]:
        self._open()  # what a comparison reads belongs to the flush that it merges in: it is not closed before
        found = self._ask(table, keys)
        if found is None:
            raise SchemaChangedError("rows can't be seen in the source", table.name, "the stream is read again")
        return found

    def fill(self, table: LiveTable, rows: Sequence[FullCells]) -> list[FullCells | None]:
        """Rows with the values of their generated columns; None for one that is gone from the source. Raises
        SchemaChangedError when nobody can say, since the table is locked: its changes are left to a comparison."""
        try:
            return self._filler.fill(table, rows)
        except NotComputedLockedError as error:
            self.abandon()
            self._mark(table, Cause.LOCKED)
            raise SchemaChangedError(error.what, table.name, "the stream is read again, without its changes") from error

    def _open(self) -> Flush:
        if self._flush is None:
            self._flush = self._store.begin(self._lease)
            self._opened_at = time.monotonic()
        return self._flush

    # the end of a flush

    def settle(self, received: Lsn, *, idle: bool) -> None:
        """Between batches: commit the open flush if it is time. `received` is how far the stream has come."""
        if self.in_transaction:
            return
        reached = Lsn(max(self._reached, received))
        if self._flush is None and any(table not in self._followed.compared for table in self._lacking.tables()):
            self._open()  # the comparison that was to bring what these rows lack is over
        if self._flush is None:
            self._advance(reached, idle=idle)
            return
        if idle or time.monotonic() - self._opened_at > FLUSH_SECONDS:
            self.flush(reached)

    def flush(self, reached: Lsn) -> None:
        """Commit what is open, unless it holds a row from ahead that the stream has not passed."""
        self._apply_pending()
        if self._flush is None:
            return
        if self._lacking.tables():
            self._complete()
        if reached < self._asking.hold:
            return
        if self._by_root:
            self._check_names()
        self._flush.commit(self._context.tag, Progress(self._reached, self._committed_us))
        self._flush = None
        self._in_flush = 0
        self._by_root.clear()
        self._asking.over()
        if not self._lacking.tables():
            del self._xids[:-1]
        self.position = self._reached

    def _check_names(self) -> None:
        """Partitioned tables that the open flush has changes of are still called what the store calls them. Raises
        SchemaChangedError."""
        now = self._asking.names(self._by_root)
        renamed = self._followed.misnamed_now(now.by_oid)
        if not renamed:
            return
        self.abandon()
        for table in [self._followed.tables[oid] for oid in renamed]:
            self._mark(table, Cause.REPLACED)
        self._names.distrust(self._lease, renamed, now.seen)
        what = "a partitioned table has another name by now, which the stream does not say"
        raise SchemaChangedError(what, self.tag, "the stream is read again, without its changes")

    def _advance(self, reached: Lsn, *, idle: bool) -> None:
        """With nothing to store, still note now and then how far the log was read, so that the source may drop it.
        Never acknowledged before it is stored: a slot ahead of its store is how a restored backup shows."""
        if not idle or reached <= self.position or time.monotonic() - self._opened_at < IDLE_SECONDS:
            return
        self._reached = reached
        self._open()
        self.flush(reached)

    def abandon(self) -> None:
        """Drop the open flush; the stream brings it again."""
        if self._flush is not None:
            self._flush.rollback()
            self._flush = None
            self._by_root.clear()
            self._asking.over()

    @property
    def tag(self) -> str:
        return self._context.tag

    # bulk work beside the stream; between flushes only

    @property
    def settled(self) -> bool:
        """Whether no flush is open, so that bulk work may write."""
        return self._flush is None and not self.in_transaction and not self._pending

    def table(self, oid: int) -> LiveTable | None:
        """The present generation of a table that the rules read."""
        return self._followed.tables.get(oid)

    def renew(self, context: LiveContext, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> None:
        """Follow other plans or tables from here on."""
        before = self._followed.layouts()
        self._context = context
        self._followed.renew(context, stored)
        self._schema.renew(plans, stored)
        now = self._followed.layouts()
        for table in [table for table in self._lacking.tables() if now.get(table) != before.get(table)]:
            self._lacking.forget(table)  # gone, or compared anew in its present form

    def trust(self, tables: Collection[int]) -> None:
        """See `Followed.trust`; ids of generations."""
        self._followed.trust(tables)

    def brought(self, oids: Collection[int]) -> None:
        """See `Followed.brought`."""
        self._followed.brought(oids)

    def doubt(self, tables: Mapping[int, Lsn]) -> None:
        """Leave what the stream brings of these tables, by oid, up to a position to comparisons."""
        self._followed.doubted.update(tables)

    def look_again(self) -> None:
        """Something says that a table is not what it was: have the catalog looked at."""
        self._schema.hint()

    def record(self, log: TouchLog) -> None:
        """Tell `log` of every change from here on."""
        self._logs.append(log)

    def forget(self, log: TouchLog) -> None:
        """Tell it no more."""
        if log in self._logs:
            self._logs.remove(log)

    def watch(self, tables: Sequence[int]) -> Mapping[int, set[str]]:
        """By table id, the ids of all rows that are written, or go, from here on. One watch at a time."""
        self._written = {table: set() for table in tables}
        return self._written

    def unwatch(self) -> None:
        """Note them no more."""
        self._written = {}

    def lacking(self, table: LiveTable) -> Mapping[str, Cells]:
        """By row id, what the stream told of rows of a table that lack values, and are not in the store for that."""
        return self._lacking.of(table.id)

    def completes(self, table: LiveTable) -> bool:
        """Whether rows of a table still lack values though a comparison brought what it has. They are asked for with
        the next flush."""
        if not self._lacking.of(table.id):
            return False
        self._followed.compared.discard(table.id)
        return True

    def stored_rows(self, table: LiveTable, row_ids: Sequence[str]) -> Iterator[CurrentRow]:
        """Those rows of a table that are there, loaded a few at a time."""
        alone = self._flush is None
        try:
            yield from loaded_rows(self._open(), table.id, row_ids, self._piece)
        finally:
            if alone:
                self.abandon()

    def merge(
        self, table: LiveTable, states: Mapping[str, FullCells | None], *, waiting: Collection[str], anew: bool
    ) -> int:
        """Make rows of a table what `states` says, in a flush of its own; see `Fold.write`. Those that are `waiting`
        go on lacking what they lack. Returns the number of ops."""
        kept = {row_id: cells for row_id, cells in self._lacking.of(table.id).items() if row_id in waiting}
        fold = self._fold()
        ops = fold.write(table, states, anew=anew)
        for row_id, cells in kept.items():
            self._lacking.put(table.id, row_id, cells)
        self._report(fold)
        self.flush(self._reached)
        return ops

    def copies(self, table: LiveTable, contents: Mapping[str, str]) -> dict[str, list[str]]:
        """Row ids by content, of a table whose rows nothing identifies. `contents` gives the line of each."""
        alone = self._flush is None
        flush = self._open()
        if table.identity.kind is IdentityKind.FULL:
            found = {content: flush.copies(table.id, content) for content in contents}
        else:
            lines = {content: stored_line(line) for content, line in contents.items()}
            by_line = flush.rows_with_lines(table.id, list(lines.values()))
            found = {content: by_line[line] for content, line in lines.items()}
        if alone:
            self.abandon()
        return found

    def _report(self, fold: Fold) -> None:
        for refused in fold.refused:
            _log.error("at %s: %s", format_lsn(Lsn(max(self.final_lsn, self._reached))), refused)
        for error in fold.evaluation_errors:
            if error not in self._reported and len(self._reported) < 1000:
                self._reported.add(error)
                _log.warning("a rule failed on a row and was left out: %s", error)
