"""Reattaches a store to its replication slot, or to a new one when the old one can't be continued.

With a new slot, changes in between are missed. Comparing every table with the source finds them, so after a lost slot,
a failover, a restore or another cluster in the source's place, devices download only what differs. Another database is
followed only if it seems to hold the same data, or if somebody said so (see `moved_source`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import psycopg

from headwater.oplog.lsn import ZERO, format_lsn
from headwater.replication.computed import note_states
from headwater.replication.errors import OtherDataError, SourceReplacedError
from headwater.replication.moved_source import DatabaseIdentity, accepted, doubts, look, renumbered
from headwater.replication.own_slot import OwnSlot
from headwater.replication.stream.failed import FailedTransactions
from headwater.replication.tables.changes import NameBook, distrust
from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import published_tables
from headwater.source.connect import SourceSettings, SourceUnreachableError, connect
from headwater.source.slot import (
    SlotError,
    SlotLostError,
    SystemIdentity,
    database_oid,
    end_of_log,
    end_reader,
    system_identity,
    timeline_ends,
)
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Lease, Request, RequestState, SourceState, StoredTable
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)


class SlotResume:
    """Checks whether a store's slot can be continued from the store's position, and makes a new slot where it can't."""

    def __init__(self, source: SourceSettings, store: StoreWriter, lease: Lease, slot: OwnSlot) -> None:
        self._source = source
        self._store = store
        self._lease = lease
        self._slot = slot

    def ensure_usable(self, state: SourceState, plans: Sequence[SyncPlan], *, slot_lost: bool = False) -> None:
        """Make sure that the stream can be followed from `store.source_state`, which this may change. `plans` decide
        which tables are followed; `slot_lost` says that the slot exists but can't be read. Raises SourceReplacedError
        when a snapshot is needed, PublicationError while a new slot would not help, SlotForeignError while another
        service has the slot, SourceUnreachableError while the source is a standby."""
        with connect(self._source) as conn:
            if conn.execute("select pg_is_in_recovery()").fetchall() == [(True,)]:
                raise SourceUnreachableError(
                    "the source is a standby", self._source.address, "waiting until it is promoted to primary"
                )
            identity = system_identity(conn)
            try:
                self._check(conn, state, identity)
                if slot_lost:
                    raise self._lost("the slot can't be read any more", state)
            except SlotLostError as error:
                moved = self._moved(conn, state, identity)
                requests = self._allowed(conn, plans) if moved else []
                _log.warning("%s", error)
                self._replace_slot(conn, state, identity, plans if moved else None)
                for request in requests:
                    self._store.update_request(self._lease, request.id, RequestState.DONE, result="{}")
                return
            if identity.timeline != state.timeline:
                self._store.rewind_write_checkpoints(state.source, end_of_log(conn))
                self._store.move_source(self._lease, replace(state, timeline=identity.timeline))
                _log.info("the source failed over to timeline %d; slot %s is continued", identity.timeline, state.slot)
            end_reader(conn, state.slot)

    def _check(self, conn: psycopg.Connection, state: SourceState, now: SystemIdentity) -> None:
        slot = self._slot.find(state.slot)
        if now.system_id != state.system_id:
            raise self._lost("the source is another cluster now", state)
        if slot is None or slot.wal_status == "lost":
            raise self._lost("the slot is gone", state)
        named_otherwise = state.slot != self._slot.name
        if not named_otherwise and not self._slot.claim(state.slot):
            raise self._lost("another service used the slot meanwhile", state)
        if end_of_log(conn) < state.lsn or not self._shares_history(state, now):
            raise self._lost("the source lacks changes that were read from it, as after a restore", state)
        if slot.confirmed_flush > state.lsn:
            raise SourceReplacedError(
                "the slot is ahead of the store, as after a restore from a backup",
                f"slot {format_lsn(slot.confirmed_flush)}, store {format_lsn(state.lsn)}",
            )
        if named_otherwise:
            raise self._lost("the slot needs another name now", state)

    def _lost(self, what: str, state: SourceState) -> SlotLostError:
        return SlotLostError(what, f"{self._source.address}, slot {state.slot}", "all tables are compared with it")

    def _shares_history(self, state: SourceState, now: SystemIdentity) -> bool:
        """Whether the present timeline's history contains everything up to `state.lsn`."""
        if now.timeline == state.timeline:
            return True
        try:
            ended = timeline_ends(self._source, now.timeline).get(state.timeline)
        except SlotError as error:  # the source may have removed the history file
            _log.info("%s", error)
            return False
        return ended is not None and state.lsn <= ended

    def _moved(self, conn: psycopg.Connection, state: SourceState, now: SystemIdentity) -> bool:
        """Whether this is another database than before, as far as that is known. Without a slot, an attempt was killed
        that may have taken over the oids of another."""
        other = self._slot.database not in {0, database_oid(conn)}
        return now.system_id != state.system_id or other or not state.slot

    def _allowed(self, conn: psycopg.Connection, plans: Sequence[SyncPlan]) -> list[Request]:
        """The requests to follow this database in the former one's place, if there are any. Raises OtherDataError if
        there is none, and it does not seem to hold the same data."""
        requests = accepted(self._store, self._source.name, DatabaseIdentity.of(conn))
        if not requests and (found := doubts(look(conn, self._source, self._store, plans))):
            raise OtherDataError(self._source.name, self._source.address, found)
        return requests

    def _replace_slot(
        self, conn: psycopg.Connection, state: SourceState, now: SystemIdentity, plans: Sequence[SyncPlan] | None
    ) -> None:
        """Make a new slot, and have all tables compared. With `plans`, it is in another database, of which they decide
        the tables."""
        lease = self._lease
        published_tables(conn, self._source.publications)  # a slot older than its publication can't be read
        same = (now.system_id, now.timeline) == (state.system_id, state.timeline)
        rewritten = not same or state.lsn == ZERO or end_of_log(conn) < state.lsn
        # First: if we were killed after making the slot, it would look like one ahead of a restored store. And by the
        # position of another history, writes would count as replicated that the stream is still to bring
        self._store.move_source(lease, replace(state, slot="", lsn=ZERO if rewritten else state.lsn))
        with self._slot.make() as keeper:
            name, position = keeper.slot, keeper.consistent_point
        stored = self._store.tables(self._source.name)
        if plans is not None:
            stored = self._renumber(conn, stored, plans)
        distrust(self._store, lease, stored, ResyncReason(Cause.SLOT_LOST))
        note_states(self._store, lease, {})  # so that computed tables are refreshed, too
        if rewritten or position < state.lsn:
            self._store.rewind_write_checkpoints(state.source, end_of_log(conn))
            FailedTransactions(self._source, self._store).clear(lease)  # their positions are of another history
            NameBook(self._store, state.source).forget(lease)
        self._store.move_source(lease, SourceState(state.source, position, name, now.system_id, now.timeline))
        _log.info("slot %s starts at %s; all tables are compared with the source", name, format_lsn(position))

    def _renumber(
        self, conn: psycopg.Connection, stored: list[StoredTable], plans: Sequence[SyncPlan]
    ) -> list[StoredTable]:
        """Give the stored tables, and the types of their columns, the oids of another database, found by name."""
        there = {(t.relation.schema, t.relation.name): t.relation for t in wanted_tables(conn, self._source, plans)}
        found = {table.id: table.layouts for table in renumbered(stored, there)}
        gone = [table.id for table in stored if table.id not in found]
        self._store.mark_resync(self._lease, gone, ResyncReason(Cause.IDS_LOST))
        self._store.replace_layouts(self._lease, found, "of another database")
        return self._store.tables(self._source.name)
