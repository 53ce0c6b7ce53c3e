"""From decoded messages to flushes of the store: whole source transactions, many to a flush.

Messages go in batch by batch; a transaction may span batches, a flush never ends inside one. What arrives again
after a restart is known by the position its commit record starts at, and skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from headwater.oplog.change import (
    Begin,
    Cell,
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
from headwater.oplog.lsn import ZERO, Lsn
from headwater.oplog.transform import RowKeys, decode_members, row_ops
from headwater.replication.errors import ProtocolError, SchemaChangedError
from headwater.replication.fold import Fold, FullCells
from headwater.replication.live import LiveContext, LiveTable
from headwater.replication.schema import SchemaWatch
from headwater.source.fetch import RowFetcher
from headwater.storage.contract import Flush, Lease, Progress, StoredTable, StoreWriter

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
    ) -> None:
        self._store = store
        self._lease = lease
        self._context = context
        self._tables = context.tables(stored)
        self._fetcher = fetcher
        self._schema = schema
        self.position = position
        self.in_transaction = False
        self.transactions = 0
        self.rows = 0
        self._skipping = False
        self._flush: Flush | None = None
        self._opened_at = 0.0
        self._in_flush = 0  # changes in the open flush
        self._reached = position  # end of the last transaction or message that was read
        self._committed_us = 0
        self._hold = ZERO  # the flush may not commit before the stream has passed this
        self._pending: list[tuple[LiveTable, RowChange]] = []
        self._reported: set[str] = set()

    def consume(self, messages: Sequence[Message]) -> None:
        """Take a batch in. Raises SchemaChangedError when a table is not what it was."""
        pending, tables = self._pending, self._tables
        for message in messages:
            kind = type(message)
            if kind is Insert or kind is Update or kind is Delete:
                change: RowChange = message  # type: ignore[assignment]  # the line above says so, cheaply
                table = tables.get(change.relation.oid)
                if table is not None and not self._skipping:
                    pending.append((table, change))
                    if len(pending) >= CHUNK_CHANGES:
                        self._apply_pending()
            else:
                self._consume_rare(message)

    def _consume_rare(self, message: Message) -> None:
        match message:
            case Begin():
                self.in_transaction = True
                self._skipping = message.final_lsn < self.position
            case Commit():
                self._end_transaction(message)
            case Truncate() if not self._skipping:
                self._truncate(message)
            case Relation():
                self._check_relation(message)
            case LogicalMessage(transactional=False) if not self.in_transaction:
                self._reached = Lsn(max(self._reached, message.lsn))
                self._open()
            case _:
                pass

    def _end_transaction(self, commit: Commit) -> None:
        if not self.in_transaction:
            raise ProtocolError("a commit without a begin", self._context.tag)
        self.in_transaction = False
        if self._skipping:
            self._skipping = False
            return
        self._reached = Lsn(max(self._reached, commit.end_lsn))
        self._committed_us = commit.committed_us
        self.transactions += 1
        self._open()
        if self._in_flush + len(self._pending) >= FLUSH_CHANGES:
            self.flush(self._reached)

    def _check_relation(self, relation: Relation) -> None:
        table = self._tables.get(relation.oid)
        if table is None and self._context.table(0, relation, 0) is None:
            return
        self._schema.check()
        if table is None or table.relation != relation:
            # The catalog is ahead of the stream and back at what it was: what lies between has other columns
            raise SchemaChangedError(
                "a table was different for a while", f"{relation.schema}.{relation.name}", "its rows are read again"
            )

    def _apply_pending(self) -> None:
        if not self._pending:
            return
        fold = Fold(self._open(), self._fetch)
        fold.apply(self._pending)
        self.rows += len(self._pending)
        self._in_flush += len(self._pending)
        self._pending.clear()
        self._report_errors(fold.evaluation_errors)

    def _truncate(self, message: Truncate) -> None:
        self._apply_pending()
        flush = self._open()
        for relation in message.relations:
            table = self._tables.get(relation.oid)
            if table is None:
                continue
            if not table.exclusive:
                self._remove_all(flush, table)
            new_id = flush.truncate(table.id, table.definitions if table.exclusive else ())
            renewed = self._context.table(new_id, table.relation, table.layout)
            if renewed is not None:
                self._tables[relation.oid] = renewed
            self._in_flush += 1

    def _remove_all(self, flush: Flush, table: LiveTable) -> None:
        """REMOVEs, where a bucket also holds rows of other tables."""
        for row_id, members, subkey in list(flush.table_members(table.id)):
            keys = RowKeys(table.id, row_id, self._context.salt, subkey)
            flush.append(row_ops(decode_members(members, row_id), (), keys)[0], {})

    def _fetch(self, table: LiveTable, key: Sequence[Cell]) -> FullCells | None:
        cells, seen = self._fetcher.fetch(table.relation, key)
        self._hold = Lsn(max(self._hold, seen))
        return cells

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
        if self._flush is None:
            self._advance(reached, idle=idle)
            return
        if idle or time.monotonic() - self._opened_at > FLUSH_SECONDS:
            self.flush(reached)

    def flush(self, reached: Lsn) -> None:
        """Commit what is open, unless it holds a row from ahead that the stream has not passed."""
        self._apply_pending()
        if self._flush is None or reached < self._hold:
            return
        self._flush.commit(self._context.tag, Progress(self._reached, self._committed_us))
        self._flush = None
        self._in_flush = 0
        self._hold = ZERO
        self.position = self._reached

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

    def _report_errors(self, errors: Sequence[str]) -> None:
        for error in errors:
            if error not in self._reported and len(self._reported) < 1000:
                self._reported.add(error)
                _log.warning("a rule failed on a row and was left out: %s", error)
