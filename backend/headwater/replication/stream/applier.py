"""From messages of the stream to flushes of the store: whole source transactions, many to a flush.

The store always holds a state that the source had. A flush ends between two transactions, in the order in which the
source committed them, and its rows, ops, checkpoint and LSN are committed together. Only then is the LSN acknowledged,
so Postgres sends everything again that a crash took from us, and what arrives twice is skipped: transactions come in
the order of their commit records, so one whose commit record begins before the stored position is in the store. (Where
transactions begin tells nothing: they overlap.)

A transaction that can't be applied is identified, and skipped if that is allowed; see `failed`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg

from headwater.decode.pgoutput import Decoder
from headwater.decode.wire import DecodeError
from headwater.errors import HeadwaterError, machine_error
from headwater.oplog.change import Begin, Commit, Delete, Insert, LogicalMessage, Message, Relation, Truncate, Update
from headwater.oplog.limits import OVERSIZED_NAMED
from headwater.oplog.lsn import ZERO, Lsn
from headwater.replication.errors import PoisonError, StreamProtocolError
from headwater.replication.stream.flush_builder import FlushBuilder
from headwater.replication.tables.schema_watch import SchemaWatch
from headwater.source.rows.generated import NotComputableError
from headwater.source.stream import Received
from headwater.source.triggers import is_hint, told_names

_log = logging.getLogger(__name__)

CHUNK_CHANGES = 5_000


class TransactionApplier:
    """Applies the messages of one stream to `flush`. Transactions in `skipped`, named by where their commit records
    begin, are left out.

    After a batch that failed for no outside reason, the next attempt applies transactions one by one up to
    `isolate_until`, and so identifies the one that fails. An error of this machine, such as a full disk, is an outside
    reason, however it shows.
    """

    def __init__(
        self, flush: FlushBuilder, schema: SchemaWatch, skipped: frozenset[Lsn] = frozenset(), isolate_until: Lsn = ZERO
    ) -> None:
        self._flush = flush
        self._schema = schema
        self._skipped = skipped
        self._isolate_until = isolate_until
        self._isolating = flush.position <= isolate_until
        self._decoder = Decoder()
        self._skipping = False  # whether nothing of the current transaction is applied
        self.in_transaction = False

    @property
    def is_flushed(self) -> bool:
        """Whether no flush is open, so that bulk jobs may write."""
        return self._flush.is_empty and not self.in_transaction

    def apply(self, received: Received) -> None:
        """Apply a batch of messages, whose list is cleared, and commit the open flush if it is time. Raises
        PoisonError, without `lsn` while it is not known which transaction fails; StreamProtocolError,
        SchemaChangedError, and errors of the source and the store."""
        with self._transaction_errors():
            try:
                messages = self._decoder.decode(received.payloads)
            except DecodeError:
                self._apply_singly(received)
            else:
                received.payloads.clear()  # before the rows are copied again
                self._consume(messages, received.size)
            self._log_unreadable_rows()
            if not self.in_transaction:
                self._flush.commit_if_due(received.position, idle=received.idle)
        if self._flush.position > self._isolate_until:
            self._isolating = False

    def _consume(self, messages: Sequence[Message], size: int) -> None:
        flush = self._flush
        if flush.commits.active:
            flush.commits.see(messages)
        pending, tables, shapes = flush.pending, flush.tables.tables, flush.tables.shapes
        for message in messages:
            if type(message) is Insert or type(message) is Update or type(message) is Delete:
                table = tables.get(message.relation.oid)
                if table is not None and not self._skipping:
                    change = flush.reshaped(table, message) if shapes else message
                    if change is None:
                        continue
                    pending.append((table, change))
                    for log in flush.recording.logs:
                        log.record(flush.final_lsn, table, change)
                    if len(pending) >= CHUNK_CHANGES:
                        flush.apply_pending()
            else:
                self._consume_rare(message)
        flush.add_bytes(size)

    def _consume_rare(self, message: Message) -> None:
        flush = self._flush
        match message:
            case Begin():
                self.in_transaction = True
                flush.begin_transaction(message)
                self._skipping = message.final_lsn < flush.position or message.final_lsn in self._skipped
            case Commit():
                self._end_transaction(message)
            case Truncate() if not self._skipping:
                flush.truncate(message)
            case Relation():
                flush.tables.describe(message)
                if message.oid in flush.tables.tables or flush.tables.context.reads(message):
                    self._schema.hint()  # a column that was dropped and made again looks the same here
            case LogicalMessage():
                if is_hint(message):
                    self._schema.hint()
                    if self.in_transaction and flush.final_lsn >= flush.position:
                        flush.take_names(told_names(message))
                if not message.transactional and not self.in_transaction:
                    flush.pass_message(message.lsn)
            case _:
                pass

    def _end_transaction(self, commit: Commit) -> None:
        flush = self._flush
        if not self.in_transaction:
            raise StreamProtocolError("a commit without a begin", flush.source)
        if self._isolating:
            flush.apply_pending()
        is_stored = self._skipping and flush.final_lsn < flush.position
        self.in_transaction = self._skipping = False
        if not is_stored:
            flush.end_transaction(commit)

    # transactions that can't be applied

    @contextmanager
    def _transaction_errors(self) -> Iterator[None]:
        """Raises PoisonError for an error that means that a transaction can't be applied."""
        try:
            yield
        except Exception as error:
            if isinstance(error, DecodeError | NotComputableError):
                why = str(error)
            elif isinstance(error, HeadwaterError | psycopg.Error):
                raise
            else:
                why = f"{type(error).__name__} in {_raised_in(error)}"
            lsn, is_known = self._flush.final_lsn, self._isolating and self.in_transaction
            poison = PoisonError(why, self._flush.source, lsn if is_known else None, upto=lsn)
            raise (machine_error(error) or poison) from error

    def _apply_singly(self, received: Received) -> None:
        """Apply messages one by one, without those of a skipped transaction that can't be decoded."""
        self._isolating = True
        for payload in received.payloads:
            try:
                messages = self._decoder.decode([payload])
            except DecodeError:
                if self._skipping:
                    continue
                raise
            self._consume(messages, len(payload))

    def _log_unreadable_rows(self) -> None:
        if self._decoder.left_out:
            rows = [row for row in self._decoder.left_out if row.relation.oid in self._flush.tables.tables]
            self._decoder.left_out.clear()
            for row in rows[:OVERSIZED_NAMED]:
                _log.error("%s", row)


def _raised_in(error: BaseException) -> str:
    """The function and line that raised it. Its message could contain values of rows."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown" if trace is None else f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"
