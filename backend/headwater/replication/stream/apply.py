"""From decoded messages to flushes of the store: whole source transactions, many to a flush.

The store always holds a state that the source had. A flush ends between two transactions, in the order in which the
source committed them, and its rows, ops, checkpoint and LSN are committed together. Only then is the LSN acknowledged,
so Postgres sends everything again that a crash took from us, and what arrives twice is skipped: transactions come in
the order of their commit records, so one whose commit record begins before the stored position is in the store. (Where
transactions begin tells nothing: they overlap.)

Two things do not fit that, and neither is guessed at. A value that the stream left out as unchanged and that the store
does not have is read from the source, where it may be newer than the flush. So the row stays out of the store until it
is read, and the flush stays open until the stream has passed what the source showed then. A change that can't be
applied, since its table has another name or form in the stream than in the store, is left to a comparison: the flush
that skips the change also marks the table, so no crash can separate the two.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.oplog.change import (
    Begin,
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
from headwater.oplog.lsn import Lsn
from headwater.replication.errors import ProtocolError
from headwater.replication.stream.flush import StreamFlush
from headwater.replication.tables.schema_watch import SchemaWatch
from headwater.source.triggers import is_hint, told_names

CHUNK_CHANGES = 5_000


class Applier:
    """Applies the messages of one stream. Transactions in `left_out`, named by where their commit records begin, are
    skipped. Raises ProtocolError, SchemaChangedError, and errors of the source and the store."""

    def __init__(self, flush: StreamFlush, schema: SchemaWatch, left_out: frozenset[Lsn] = frozenset()) -> None:
        self._flush = flush
        self._schema = schema
        self._left_out = left_out
        self.in_transaction = False
        self.careful = False  # whether each transaction is applied by itself, so that one which fails is known
        self.skipping = False  # whether nothing of the current transaction is applied

    @property
    def tag(self) -> str:
        return self._flush.tag

    @property
    def position(self) -> Lsn:
        """The store has everything up to there."""
        return self._flush.position

    @property
    def final_lsn(self) -> Lsn:
        """Where the commit record of the current transaction begins."""
        return self._flush.final_lsn

    @property
    def settled(self) -> bool:
        """Whether no flush is open, so that bulk jobs may write."""
        return self._flush.settled and not self.in_transaction

    @property
    def crowded(self) -> bool:
        """Whether the last `settle` committed several transactions."""
        return self._flush.crowded

    def follows(self, oid: int) -> bool:
        """Whether the rules read this table."""
        return oid in self._flush.followed.tables

    def consume(self, messages: Sequence[Message], size: int) -> None:
        """Take in a batch of messages that have `size` bytes together."""
        flush = self._flush
        pending, tables, shapes = flush.pending, flush.followed.tables, flush.followed.shapes
        for message in messages:
            kind = type(message)
            if kind is Insert or kind is Update or kind is Delete:
                change: RowChange = message  # type: ignore[assignment]  # the line above says so, cheaply
                table = tables.get(change.relation.oid)
                if table is not None and not self.skipping:
                    if shapes:
                        found = flush.reshaped(table, change)
                        if found is None:
                            continue
                        change = found
                    pending.append((table, change))
                    for log in flush.logs:
                        log.note(flush.final_lsn, table, change)
                    if len(pending) >= CHUNK_CHANGES:
                        flush.apply_pending()
            else:
                self._consume_rare(message)
        flush.take_size(size)

    def _consume_rare(self, message: Message) -> None:
        match message:
            case Begin():
                self.in_transaction = True
                self._flush.begin_transaction(message.xid, message.final_lsn)
                self.skipping = message.final_lsn < self.position or message.final_lsn in self._left_out
            case Commit():
                self._end_transaction(message)
            case Truncate() if not self.skipping:
                self._flush.truncate(message)
            case Relation():
                self._check_relation(message)
            case LogicalMessage():
                if is_hint(message):
                    self._schema.hint()
                    if self.in_transaction and self.final_lsn >= self.position:
                        self._flush.take_names(told_names(message))
                if not message.transactional and not self.in_transaction:
                    self._flush.pass_message(message.lsn)
            case _:
                pass

    def _end_transaction(self, commit: Commit) -> None:
        if not self.in_transaction:
            raise ProtocolError("a commit without a begin", self.tag)
        if self.careful:
            self._flush.apply_pending()
        self.in_transaction = False
        known = self.skipping and self.final_lsn < self.position
        self.skipping = False
        if not known:
            self._flush.end_transaction(commit)

    def _check_relation(self, relation: Relation) -> None:
        followed = self._flush.followed
        followed.take_relation(relation)
        if relation.oid in followed.tables or followed.context.reads(relation):
            self._schema.hint()  # a column that was dropped and made again looks the same here

    def settle(self, received: Lsn, *, idle: bool) -> None:
        """Called between batches: commit the open flush if it is time. `received` is how far the stream has come."""
        if not self.in_transaction:
            self._flush.settle(received, idle=idle)

    def abandon(self) -> None:
        """Roll the open flush back; the stream brings its changes again."""
        self._flush.abandon()
