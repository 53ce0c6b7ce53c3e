"""The replicator of one source: takes the lease, makes a snapshot when needed, and follows the stream."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headwater.bulk.bound_table import distinct
from headwater.bulk.contract import BulkProgress
from headwater.codes import Kind
from headwater.errors import HeadwaterError, machine_errors
from headwater.oplog.lsn import format_lsn
from headwater.replication.errors import PoisonError, SchemaChangedError, SourceReplacedError
from headwater.replication.health.figures import Figures
from headwater.replication.health.flow import FlowMeter
from headwater.replication.health.monitor import Watch
from headwater.replication.jobs.job import JobContext, types_of
from headwater.replication.jobs.scheduler import JobScheduler
from headwater.replication.jobs.snapshot import InitialSnapshot
from headwater.replication.own_slot import OwnSlot, own_slot
from headwater.replication.pace import Pace
from headwater.replication.reconcile import Reconciler
from headwater.replication.recovery import Recovery
from headwater.replication.resume import SlotResume
from headwater.replication.sampling.audit import SamplingSettings
from headwater.replication.stream.access import StreamAccess
from headwater.replication.stream.apply import Applier
from headwater.replication.stream.flush import StreamFlush
from headwater.replication.stream.intake import FailedTransactions, StreamIntake
from headwater.replication.tables.changes import NameBook, adapt, distrust_named, table_changes
from headwater.replication.stream.applier import TransactionApplier
from headwater.replication.stream.failed import FailedTransactions
from headwater.replication.stream.flush import FlushBuilder
from headwater.replication.tables.changes import adapt, table_changes, verify_once
from headwater.replication.tables.live import LiveContext
from headwater.replication.tables.schema_watch import SchemaWatch, UnseenAudit, readable_tables
from headwater.replication.versions import RETIRED_AT_ONCE, deploy_file, forget_half_built, in_state, in_use, newest
from headwater.source.connect import SharedConnection, SourceSettings, source_errors
from headwater.source.readiness.checks import unseen_findings
from headwater.source.rows.fetch import RowFetcher
from headwater.source.stream import ReplicationStream
from headwater.storage.backend import Store
from headwater.storage.contract.store import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    SourceState,
    StoreBusyError,
    StoredTable,
    StoreError,
    StoreUnreachableError,
    StoreWriter,
)
from headwater.storage.contract.versions import KEEP_STOPPED_SECONDS, VersionState
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleErrors
from headwater_rules.plan import SyncPlan

if TYPE_CHECKING:
    from headwater.pipeline.jobs import BulkJobs


_log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
_WAIT = 0.5


@dataclass(frozen=True, slots=True)
class Replicator:
    """Replicates `source` into `store` by the deployed versions of the sync config. `yaml` is the text of the sync
    config file, deployed at the start if it is new; None when only commands deploy.

    `following` is called each time the stream has started. Row sides of a stopped version are kept up to date for
    `keep_stopped` seconds. With `take_slot`, a slot of our name in our database is taken over from another service,
    until the source was followed once. `lost` is called, from another thread, when another replicator has taken the
    lease: long work for this one should end. `figures` are counted up.
    """

    source: SourceSettings
    store: Store
    yaml: str | None
    bulk: BulkJobs
    owner: str
    progress: Callable[[BulkProgress], None]
    following: Callable[[], None]
    keep_stopped: float = KEEP_STOPPED_SECONDS
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    pace: Pace = field(default_factory=Pace)
    take_slot: bool = False
    lost: Callable[[], None] = lambda: None
    figures: Figures = field(default_factory=Figures)

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. Raises errors that a person has to fix. After a lost lease, waits for it again."""
        turns, yaml, followed = _Turns(stop), self.yaml, False
        while (lease := self._wait_for_lease(stop)) is not None:
            recovery, ended = Recovery(followed=followed), turns.begin()
            try:
                with (
                    _LeaseKeeper(self.store, lease, ended, self.lost) as keeper,
                    Watch(
                        self.source, self.store, lease, self.pace.health, self.bulk.preparing, self.figures.totals
                    ) as watch,
                ):
                    if yaml is not None and self._deploys(yaml, lease, ended):
                        yaml = None  # not again: another holder of the lease may deploy a newer one
                    self._reporting_to(watch)._run_leased(lease, ended, watch, recovery)
                    keeper.raise_if_lost()
                return
            except LeaseLostError as error:
                _log.warning("%s", error)
            followed = recovery.followed

    def _deploys(self, yaml: str, lease: Lease, stop: threading.Event) -> bool:
        """Deploy the file as soon as the store can be reached. Returns False when `stop` was set before. Raises
        LeaseLostError: another holder may have deployed a newer file meanwhile."""
        told = False
        while not stop.is_set():
            try:
                self.store.renew(lease)
                deploy_file(self.store, lease, yaml)
            except (StoreBusyError, StoreUnreachableError) as error:
                _log.log(logging.DEBUG if told else logging.WARNING, "%s", error)
                told = True
                stop.wait(_WAIT)
            else:
                return True
        return False

    def _reporting_to(self, watch: Watch) -> Replicator:
        """The same replicator, which reports progress to the watch too."""

        def progress(done: BulkProgress) -> None:
            watch.works(done)
            self.figures.worked(done)
            self.progress(done)

        return replace(self, progress=progress)

    def _wait_for_lease(self, stop: threading.Event) -> Lease | None:
        logged = False
        while not stop.is_set():
            try:
                return self.store.acquire(self.source.tag, self.owner, LEASE_SECONDS)
            except (LeaseHeldError, StoreBusyError, StoreUnreachableError) as error:
                if not logged:
                    _log.warning("waiting: %s", error)
                    logged = True
                stop.wait(0.5)
        return None

    def _run_leased(self, lease: Lease, stop: threading.Event, watch: Watch, recovery: Recovery) -> None:
        failed = FailedTransactions(self.source, self.store)
        while not stop.is_set():
            started = time.monotonic()
            try:
                with machine_errors(), source_errors(self.source):
                    self._attempt(lease, stop, watch, recovery)
            except HeadwaterError as error:
                if stop.is_set() and not isinstance(error, LeaseLostError):
                    return  # work that was cut short by the stop
                recovery.note(error)
                if not isinstance(error, SchemaChangedError):
                    watch.failed(error)
                _log.log(logging.WARNING if error.kind in {Kind.RETRY, Kind.RESYNC} else logging.ERROR, "%s", error)
                # A store that can't be reached now learns of it when the stream comes to the transaction again
                with contextlib.suppress(StoreBusyError, StoreUnreachableError):
                    if isinstance(error, PoisonError) and failed.record(lease, error):
                        _log.error("the transaction is skipped, and all tables are compared with the source")
                recovery.pause(started, stop, error)

    def _attempt(self, lease: Lease, stop: threading.Event, watch: Watch, recovery: Recovery) -> None:
        self.store.renew(lease)  # without the lease, the slot's reader may be a newer holder's, which must not be ended
        take = self.take_slot and not recovery.followed
        with own_slot(self.source, self.store, lease, take=take, stop=stop) as slot:
            self._attempt_with(slot, lease, stop, watch, recovery)

    def _attempt_with(
        self, slot: OwnSlot, lease: Lease, stop: threading.Event, watch: Watch, recovery: Recovery
    ) -> None:
        if recovery.must_read or self._needs_snapshot(lease, slot, slot_lost=recovery.slot_lost):
            watch.reading()
            self._read_whole(lease, slot, stop)
        recovery.must_read = recovery.slot_lost = False
        FailedTransactions(self.source, self.store).take_requests(lease)
        self._follow(slot, lease, stop, watch, recovery)

    def _read_whole(self, lease: Lease, slot: OwnSlot, stop: threading.Event) -> None:
        """A new slot and a snapshot of every table, by the newest version of the sync config."""
        version = newest(self.store)
        while version is None and not stop.wait(_WAIT):
            version = newest(self.store)
        if version is None:
            return
        try:
            plan = compile_config(version.yaml).plan
        except RuleErrors as error:
            self.store.mark_version(lease, version.id, VersionState.FAILED, str(error))
            raise
        self.bulk.warm_up()
        InitialSnapshot(self.source, self.store, plan, version.id, self.bulk, self.progress).run(lease, slot)

    def _needs_snapshot(self, lease: Lease, slot: OwnSlot, *, slot_lost: bool) -> bool:
        """Whether the store can't catch up by the stream and comparisons. `slot_lost`: the slot can't be read any
        more."""
        state = self.store.source_state(self.source.tag)
        if state is None or in_state(self.store, VersionState.ACTIVE) is None:
            return True
        plans = tuple(in_use(self.store, self.keep_stopped).plans)
        try:
            SlotResume(self.source, self.store, slot).make_sure(lease, state, plans, slot_lost=slot_lost)
        except SourceReplacedError as error:
            _log.warning("%s", error)
            return True
        return False

    def _adapt(self, lease: Lease, state: SourceState, plans: Sequence[SyncPlan], connection: SharedConnection) -> None:
        """Make the store's tables what the catalog says."""
        stored = self.store.tables(self.source.tag)
        with connection.use() as conn:
            wanted = readable_tables(conn, self.source, plans, {table.relation.oid for table in stored})
            for finding in unseen_findings(conn, wanted):
                _log.warning("%s", finding)
            changes = table_changes(stored, wanted)
            distrust_named(NameBook(self.store, self.source.tag), lease, conn, changes)
        if changes:
            adapt(self.store, lease, state, self._context(plans, stored, connection), changes)

    def _context(
        self, plans: Sequence[SyncPlan], stored: Sequence[StoredTable], connection: SharedConnection
    ) -> LiveContext:
        types = types_of(connection, stored)
        return LiveContext(self.source.tag, distinct(plans), types, self.store.keys(), self.source.piece_bytes)

    def _follow(self, slot: OwnSlot, lease: Lease, stop: threading.Event, watch: Watch, recovery: Recovery) -> None:
        state = self.store.source_state(self.source.tag)
        if state is None:
            return
        self.store.discard_staged(lease)  # files of a job that was killed
        forget_half_built(self.store, lease)
        used = in_use(self.store, self.keep_stopped)
        plans = used.plans
        if used.obsolete:  # first, since `_adapt` drops the tables that only they read
            self.store.retire(lease, used.obsolete, RETIRED_AT_ONCE)
        with contextlib.closing(SharedConnection(self.source)) as connection:
            self._adapt(lease, state, plans, connection)
            self._stream(slot, lease, state, plans, connection, stop, watch, recovery)

    def _stream(
        self,
        slot: OwnSlot,
        lease: Lease,
        state: SourceState,
        plans: Sequence[SyncPlan],
        connection: SharedConnection,
        stop: threading.Event,
        watch: Watch,
        recovery: Recovery,
    ) -> None:
        stored = self.store.tables(self.source.tag)
        context = self._context(plans, stored, connection)
        with (
            contextlib.closing(RowFetcher(self.source)) as fetcher,
            contextlib.closing(SchemaWatch(self.source, plans, stored, self.pace)) as schema,
        ):
            NameBook(self.store, self.source.tag).pass_over(lease, state.lsn)
            left_out = FailedTransactions(self.source, self.store).skipped()
            flush = FlushBuilder(self.store, lease, context, stored, state.lsn, fetcher, self.figures)
            applier = TransactionApplier(flush, schema, left_out, recovery.isolate_until)
            access = StreamAccess(flush, schema)
            for_jobs = JobContext(self.source, self.store, lease, self.bulk, access, self.progress, connection)
            unseen = UnseenAudit(
                self.store,
                lease,
                self.source.tag,
                lambda: for_jobs.published(in_use(self.store, self.keep_stopped).plans).values(),
                self.pace.audit,
            )
            with (
                ReplicationStream(
                    self.source, state.slot, state.lsn, self.source.publications, recovery.patience
                ) as stream,
                contextlib.closing(JobScheduler(for_jobs, self.keep_stopped, self.sampling, self.pace)) as work,
            ):
                _log.info("following the stream from %s", format_lsn(state.lsn))
                recovery.followed = True
                watch.flow.begun(state.lsn)
                watch.streaming()
                self.following()
                tables = Reconciler(for_jobs, schema, work)
                try:
                    self._pump(slot, stream, applier, flush, watch.flow, (tables.step, unseen.step), work, stop)
                finally:
                    if flush.position > state.lsn:
                        recovery.progressed()
                    flush.abandon()

    def _pump(
        self,
        slot: OwnSlot,
        stream: ReplicationStream,
        applier: TransactionApplier,
        flush: FlushBuilder,
        flow: FlowMeter,
        before_work: Sequence[Callable[[], None]],
        work: JobScheduler,
        stop: threading.Event,
    ) -> None:
        """Move batches from the stream to the store, and positions back; between flushes, do bulk work, after the steps
        `before_work`."""
        idle = True
        while not stop.is_set():
            slot.keep()
            received = stream.receive(work.patience if idle else 0.0, more_expected=applier.in_transaction)
            flow.received(received.size)
            applier.apply(received)
            idle = received.idle
            flow.settled(flush.position, everything=applier.is_flushed, committed_at=self.figures.committed_at)
            stream.report(flush.position)  # before other work: commits at the source may wait for it
            if applier.is_flushed:
                for step in before_work:
                    step()
                work.step()
            if idle and applier.is_flushed and not work.busy and stream.bloated:
                break  # and follow anew
            if idle and applier.is_flushed and flush.progress.coalesced:
                stop.wait(self.pace.gather)
        stream.report(flush.position, force=True)


class _Turns:
    """One event for each time that the lease is held. Setting `stop` sets the present one."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name="stop", daemon=True).start()

    def begin(self) -> threading.Event:
        """The event of the next time."""
        self._ended = threading.Event()
        if self._stop.is_set():
            self._ended.set()
        return self._ended

    def _wait(self) -> None:
        self._stop.wait()
        self._ended.set()


class _LeaseKeeper:
    """Renews the lease from a thread, so that long bulk work does not lose it. When it is lost, sets `ended` and calls
    `lost`, and all work under it has to end."""

    def __init__(self, store: StoreWriter, lease: Lease, ended: threading.Event, lost: Callable[[], None]) -> None:
        self._store = store
        self._lease = lease
        self._ended = ended
        self._tell = lost
        self._done = threading.Event()
        self._lost: LeaseLostError | None = None
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> _LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self._lost is None:
            with contextlib.suppress(StoreError, StoreBusyError, StoreUnreachableError):  # the lease expires anyway
                self._store.release(self._lease)

    def raise_if_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> None:
        while not self._done.wait(self._lease.ttl / 3):
            try:
                with machine_errors():
                    self._store.renew(self._lease)
            except LeaseLostError as error:
                self._lost = error
                self._ended.set()
                self._tell()
                return
            except StoreBusyError:
                continue  # nobody can take the lease meanwhile; usually a long transaction of our own
            except HeadwaterError as error:
                _log.warning("the lease could not be renewed: %s", error)
