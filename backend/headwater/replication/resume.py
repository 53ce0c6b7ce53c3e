"""Whether a source can be followed on from where the store stands; and following it from a new slot where it can't.

What was missed in between is found by comparing every table with the source, so a lost slot, a failover, a restored
source or another cluster in its place cost devices no more than what differs.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import psycopg

from headwater.oplog.lsn import format_lsn
from headwater.replication.errors import SourceReplacedError
from headwater.replication.own_slot import OwnSlot
from headwater.replication.stream.intake import FailedTransactions
from headwater.replication.tables.changes import distrust
from headwater.replication.tables.roots import NameBook
from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import published_tables
from headwater.source.connect import SourceSettings, SourceUnreachable, connect
from headwater.source.slot import (
    SlotError,
    SlotLostError,
    SlotStatus,
    SystemIdentity,
    end_of_log,
    end_reader,
    system_identity,
    timeline_ends,
)
from headwater.storage.backend import Store
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Lease, SourceState, StoredTable
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)


class SlotResume:
    """Finds a store's slot again and says whether its stream can be followed on from where the store stands. Makes a
    new slot where it can't."""

    def __init__(self, source: SourceSettings, store: Store, slot: OwnSlot) -> None:
        self._source = source
        self._store = store
        self._slot = slot

    def make_sure(
        self, lease: Lease, state: SourceState, plans: tuple[SyncPlan, ...], *, slot_lost: bool = False
    ) -> None:
        """See to it that the stream can be followed from where `store.source_state` is afterwards. `plans` say which
        tables are followed, `slot_lost` that the slot cannot be read on although it is there. Raises
        SourceReplacedError when everything has to be read anew, PublicationUnusable while a new slot would not help,
        SlotForeignError while the slot is another service's."""
        with connect(self._source) as conn:
            if conn.execute("select pg_is_in_recovery()").fetchall() == [(True,)]:
                raise SourceUnreachable("the source is a standby", self._source.address, "it is waited for as primary")
            identity = system_identity(conn)
            try:
                self._check(conn, state, identity)
                if slot_lost:
                    raise self._lost("the slot cannot be read on", state)
            except SlotLostError as error:
                _log.warning("%s", error)
                self._attach_anew(conn, lease, state, identity, plans)
                return
            if identity.timeline != state.timeline:
                self._store.cap_writes(state.tag, end_of_log(conn))
                self._store.move_source(lease, replace(state, timeline=identity.timeline))
                _log.info("the source failed over to timeline %d; slot %s goes on", identity.timeline, state.slot)
            end_reader(conn, state.slot)

    def _check(self, conn: psycopg.Connection, state: SourceState, now: SystemIdentity) -> None:
        slot = self._slot.here(state.slot)
        if now.system_id != state.system_id:
            raise self._lost("the source is another cluster than before", state)
        if slot is None or slot.wal_status == "lost":
            raise self._lost("the slot is gone", state)
        named_otherwise = state.slot != self._slot.name
        if not named_otherwise and not self._slot.hold(state.slot):
            raise self._lost("another service had the slot meanwhile", state)
        if end_of_log(conn) < state.lsn or not self._shares_history(state, now):
            raise self._lost("the source does not have all that was read from it, as after a restore", state)
        self._check_ahead(slot, state)
        if named_otherwise:
            raise self._lost("the slot is to have another name now", state)

    def _lost(self, what: str, state: SourceState) -> SlotLostError:
        return SlotLostError(what, f"{self._source.address}, slot {state.slot}", "all tables are compared with it")

    def _shares_history(self, state: SourceState, now: SystemIdentity) -> bool:
        """Whether what was read up to `state.lsn` is part of the present timeline's past."""
        if now.timeline == state.timeline:
            return True
        try:
            ended = timeline_ends(self._source, now.timeline).get(state.timeline)
        except SlotError as error:  # it may have removed the record
            _log.info("%s", error)
            return False
        return ended is not None and state.lsn <= ended

    def _check_ahead(self, slot: SlotStatus, state: SourceState) -> None:
        if slot.confirmed_flush > state.lsn:
            raise SourceReplacedError(
                "the slot is ahead of the store, as after a restore from a backup",
                f"slot {format_lsn(slot.confirmed_flush)}, store {format_lsn(state.lsn)}",
            )

    def _attach_anew(
        self,
        conn: psycopg.Connection,
        lease: Lease,
        state: SourceState,
        now: SystemIdentity,
        plans: tuple[SyncPlan, ...],
    ) -> None:
        published_tables(conn, self._source.publications)  # a slot from before a publication could not be read either
        # Should we be killed on the way, the new slot would look like one that is ahead of a restored store
        self._store.move_source(lease, replace(state, slot=""))
        with self._slot.make() as keeper:
            name, position = keeper.slot, keeper.consistent_point
        stored = self._store.tables(self._source.tag)
        if now.system_id != state.system_id:
            stored = self._renumber(conn, lease, stored, plans)
        distrust(self._store, lease, stored, ResyncReason(Cause.SLOT_LOST))
        if (now.system_id, now.timeline) != (state.system_id, state.timeline) or position < state.lsn:
            self._store.cap_writes(state.tag, end_of_log(conn))
            FailedTransactions(self._source, self._store).forget(lease)  # positions of another history
            NameBook(self._store, state.tag).forget(lease)
        self._store.move_source(lease, SourceState(state.tag, position, name, now.system_id, now.timeline))
        _log.info("slot %s starts at %s; all tables are compared with the source", name, format_lsn(position))

    def _renumber(
        self, conn: psycopg.Connection, lease: Lease, stored: list[StoredTable], plans: tuple[SyncPlan, ...]
    ) -> list[StoredTable]:
        """Another cluster has its own oids: tables go by their names."""
        found = {(t.relation.schema, t.relation.name): t.relation.oid for t in wanted_tables(conn, self._source, plans)}
        for table in stored:
            oid = found.get((table.relation.schema, table.relation.name))
            if oid is None:
                self._store.mark_resync(lease, [table.id], ResyncReason(Cause.IDS_LOST))
            elif oid != table.relation.oid:
                self._store.add_layout(lease, table.id, replace(table.relation, oid=oid), "of another cluster")
        return self._store.tables(self._source.tag)
