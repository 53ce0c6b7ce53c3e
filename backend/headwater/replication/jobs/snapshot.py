"""Reads a source for the first time: makes a slot, reads every table, and publishes all of it in one step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from headwater.bulk.contract import BulkProgress, JobKind, SnapshotJob, SnapshotTable
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import format_lsn
from headwater.replication.own_slot import OwnSlot
from headwater.replication.tables.schema_watch import readable_tables
from headwater.replication.versions import RETIRED_AT_ONCE
from headwater.source.catalog.published import load_types
from headwater.source.connect import SourceSettings, connect
from headwater.source.slot import SnapshotKeeper, SystemIdentity, drop_unread_slot, end_of_log
from headwater.storage.contract.parts import BulkRecord, StagedTable
from headwater.storage.contract.store import Lease, SourceState
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import definitions_of

if TYPE_CHECKING:
    from headwater.pipeline.jobs import BulkJobs


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InitialSnapshot:
    """Reads a whole source. `plan` is its part of `version`, `others` the definitions (name to digest) that the other
    sources need for it; `progress` is called now and then; `clock` gives, for a connection to the
    source, the clock that rules see."""

    source: SourceSettings
    store: StoreWriter
    plan: SyncPlan
    version: int
    bulk: BulkJobs
    progress: Callable[[BulkProgress], None]
    others: Mapping[str, Mapping[str, str]]
    clock: Callable[[psycopg.Connection], Callable[[], int]]

    def run(self, lease: Lease, slot: OwnSlot) -> None:
        """Replace everything that the store has of the source. Clients see the change at once, at the end. Raises
        SlotForeignError when the slot belongs to another service.

        A first snapshot that fails leaves no slot: it would make Postgres keep its log, perhaps for ever.
        """
        self.store.discard_staged(lease)
        while self.store.retire(lease, (), RETIRED_AT_ONCE):
            pass  # the new rows may be in buckets that are being removed
        identity = slot.cluster()
        first = self.store.source_state(self.source.name) is None
        keeper = slot.make()
        try:
            self._read(lease, keeper, identity)
        except BaseException:
            if first:
                self._drop(lease, keeper.slot)
            raise

    def _drop(self, lease: Lease, name: str) -> None:
        try:
            self.store.renew(lease)  # without the lease, the slot may be in use by another replicator
            with connect(self.source) as conn:
                drop_unread_slot(conn, name)
        except (HeadwaterError, psycopg.Error) as error:
            _log.warning("slot %s could not be dropped; the next start does it, unless you do: %s", name, error)

    def _read(self, lease: Lease, keeper: SnapshotKeeper, identity: SystemIdentity) -> None:
        started = time.time()
        with keeper, connect(self.source) as conn:
            _log.info("slot %s starts at %s", keeper.slot, format_lsn(keeper.consistent_point))
            tables, job = self._job(conn, keeper, lease)
            outcome = self.bulk.snapshot(job, self.progress)
        for problem in [problem for part in outcome.parts for problem in part.refused]:
            _log.error("%s", problem)
        self.store.stage(lease, outcome.parts)
        record = BulkRecord(
            JobKind.SNAPSHOT,
            self.source.name,
            outcome.application,
            outcome.tasks,
            sum(part.rows for part in outcome.parts),
            sum(part.ops for part in outcome.parts),
            started,
            time.time(),
        )
        with connect(self.source) as conn:  # a restored source may be behind what was read before
            self.store.rewind_write_checkpoints(self.source.name, end_of_log(conn))
        state = SourceState(
            self.source.name, keeper.consistent_point, keeper.slot, identity.system_id, identity.timeline
        )
        self.store.publish(lease, state, tables, self.version, definitions_of(self.plan), record, self.others)
        _log.info("snapshot published: %d rows, %d ops", record.rows, record.ops)

    def _job(
        self, conn: psycopg.Connection, keeper: SnapshotKeeper, lease: Lease
    ) -> tuple[list[StagedTable], SnapshotJob]:
        stored = {table.relation.oid for table in self.store.tables(self.source.name)}
        with conn.transaction():
            conn.execute("set transaction isolation level repeatable read read only")
            conn.execute(sql.SQL("set transaction snapshot {}").format(keeper.snapshot))
            published = readable_tables(conn, self.source, [self.plan], stored)
            for table in published:
                if table.locked:
                    raise HeadwaterError(
                        "a table is locked", table.qualified_name, "the snapshot waits for it", code="HW_2302"
                    )
            types = load_types(conn, {c.type_oid for table in published for c in table.relation.columns})
        pairs = [(table.relation, table.shape) for table in published]
        staged = self.store.stage_tables(lease, self.source.name, pairs)
        job = SnapshotJob(
            source=self.source,
            snapshot=keeper.snapshot,
            tables=tuple(SnapshotTable(s.id, p) for s, p in zip(staged, published, strict=True)),
            plan=self.plan,
            types=types,
            keys=self.store.keys(),
            store=self.store.address,
            directory=self.store.staging_directory(lease),
            now=self.store.move_tick(lease, self.source.name, self.clock(conn)()) if self.plan.reads_clock else 0,
        )
        return staged, job
