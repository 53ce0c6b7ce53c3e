"""The replicator of one source: takes the lease, makes a snapshot when needed, and follows the stream.

A start reads from the store, in this order: whether the sync config file is new (`versions.ConfigFile`), the note of
the slot (`own_slot`), how far the source was followed and whether the slot still leads there (`slot_resume`),
transactions to be skipped, the versions in use, and the tables, which are made what the catalog says. Jobs that a stop
interrupted are found again by their marks (`jobs.scheduler`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, TypeVar

import psycopg

from headwater.bulk.contract import BulkProgress
from headwater.codes import Kind
from headwater.errors import HeadwaterError, machine_errors
from headwater.oplog.lsn import format_lsn
from headwater.replication.errors import PoisonError, SchemaChangedError, SourceReplacedError
from headwater.replication.intervals import PollIntervals
from headwater.replication.jobs.job import JobContext, live_context
from headwater.replication.jobs.sampling import SamplingSettings
from headwater.replication.jobs.scheduler import JobScheduler
from headwater.replication.jobs.snapshot import InitialSnapshot
from headwater.replication.meters import Figures
from headwater.replication.monitor import SourceMonitor
from headwater.replication.own_slot import OwnSlot
from headwater.replication.recovery import Recovery
from headwater.replication.slot_resume import SlotResume
from headwater.replication.status import ReplicationState
from headwater.replication.stream.applier import TransactionApplier
from headwater.replication.stream.failed import FailedTransactions
from headwater.replication.stream.flush_builder import FlushBuilder
from headwater.replication.tables.changes import NameBook, adapt, distrust_named, table_changes
from headwater.replication.tables.schema_watch import SchemaWatch, readable_tables
from headwater.replication.versions import (
    RETIRED_AT_ONCE,
    ConfigFile,
    Peers,
    forget_half_built,
    in_use,
    needed_for,
    part_of,
    to_read_by,
)
from headwater.source.clock import source_clock
from headwater.source.connect import SharedConnection, SourceSettings, source_errors
from headwater.source.readiness.checks import unseen_findings
from headwater.source.rows.fetch import RowFetcher
from headwater.source.stream import ReplicationStream
from headwater.storage.contract.store import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    SourceState,
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
)
from headwater.storage.contract.versions import KEEP_STOPPED_SECONDS, VersionState
from headwater.storage.sql.writer import StoreWriter
from headwater.telemetry.log_facts import thread_beside
from headwater_rules.errors import SyncConfigError
from headwater_rules.plan import SyncPlan

if TYPE_CHECKING:
    from headwater.pipeline.jobs import BulkJobs

_log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
_WAIT = 0.5

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Replicator:
    """Replicates `source` into `store` by the deployed versions of the sync config. `file` is the sync config file,
    deployed at the start if it is new; None when only commands deploy. `peers` are all sources of the configuration,
    this one included: a version is served when all of them are done with it. Each has a Replicator and a writer of the
    store of its own.

    `following` is called each time the stream has started. Definitions of a stopped version are kept up to date for
    `keep_stopped` seconds. With `take_slot`, a slot of our name in our database is taken over from another service,
    until the source was followed once. `lost` is called, from another thread, when another replicator has taken the
    lease: long work for this one should end. `figures` are counted up. `clock` is the
    time that rules see, in microseconds since 1970, in place of the source's.
    """

    source: SourceSettings
    store: StoreWriter
    file: ConfigFile | None
    peers: Peers
    bulk: BulkJobs
    owner: str
    progress: Callable[[BulkProgress], None]
    following: Callable[[], None]
    keep_stopped: float = KEEP_STOPPED_SECONDS
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    intervals: PollIntervals = field(default_factory=PollIntervals)
    take_slot: bool = False
    lost: Callable[[], None] = lambda: None
    figures: Figures = field(default_factory=Figures)
    clock: Callable[[], int] | None = None

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. Raises errors that a person has to fix. After a lost lease, waits for it again."""
        with contextlib.closing(_Turns(stop)) as turns:
            self._run(turns, stop)

    def _run(self, turns: _Turns, stop: threading.Event) -> None:
        file, followed = self.file, False
        if file is not None:
            _when_possible(partial(file.begin, self.store), stop)
        while (lease := _when_possible(self._acquire, stop)) is not None:
            recovery, ended = Recovery(followed=followed), turns.begin()
            watch = SourceMonitor(
                self.source, self.store, lease, self.intervals.health, self.bulk.preparing, self.figures.totals
            )
            try:
                with _LeaseKeeper(self.store, lease, ended, self.lost) as keeper, watch:
                    if file is not None:
                        _when_possible(partial(self._deploy, file, lease), ended)
                    _LeaseHolder(self, lease, ended, watch, recovery).run()
                    keeper.raise_if_lost()
                return
            except LeaseLostError as error:
                _log.warning("%s", error)
            followed = recovery.followed

    def _acquire(self) -> Lease:
        return self.store.acquire(self.source.name, self.owner, LEASE_SECONDS)

    def _deploy(self, file: ConfigFile, lease: Lease) -> None:
        """Raises LeaseLostError: another holder may have deployed a newer file meanwhile."""
        self.store.renew(lease)
        file.deploy(self.store, lease)


def _when_possible(do: Callable[[], _T], stop: threading.Event) -> _T | None:
    """The result of `do`, once the store can be reached and nobody else has the lease. None when `stop` was set."""
    level = logging.WARNING
    while not stop.is_set():
        try:
            return do()
        except (LeaseHeldError, StoreBusyError, StoreUnreachableError) as error:
            _log.log(level, "waiting: %s", error)
            level = logging.DEBUG
            stop.wait(_WAIT)
    return None


class _LeaseHolder:
    """Follows the source while the lease is held: again and again, after errors that may pass."""

    def __init__(
        self, replicator: Replicator, lease: Lease, stop: threading.Event, watch: SourceMonitor, recovery: Recovery
    ) -> None:
        self._replicator = replicator
        self._source, self._store, self._bulk = replicator.source, replicator.store, replicator.bulk
        self._lease = lease
        self._stop = stop
        self._watch = watch
        self._recovery = recovery
        self._failed = FailedTransactions(self._source, self._store)
        self._names = NameBook(self._store, self._source.name)

    def run(self) -> None:
        """Run until the event is set. Raises LeaseLostError, and errors that a person has to fix."""
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                with machine_errors(), source_errors(self._source):
                    self._attempt()
            except HeadwaterError as error:
                if self._stop.is_set() and not isinstance(error, LeaseLostError):
                    return  # work that was cut short by the stop
                self._recovery.note(error)
                if not isinstance(error, SchemaChangedError):
                    self._watch.failed(error)
                _log.log(logging.WARNING if error.kind in {Kind.RETRY, Kind.RESYNC} else logging.ERROR, "%s", error)
                # A store that can't be reached now records it when the stream comes to the transaction again
                with contextlib.suppress(StoreBusyError, StoreUnreachableError):
                    if isinstance(error, PoisonError) and self._failed.record(self._lease, error):
                        _log.error("the transaction is skipped, and all tables are compared with the source")
                self._recovery.pause(started, self._stop, error)

    def _attempt(self) -> None:
        recovery = self._recovery
        # Without the lease, the slot's reader may be a newer holder's, which must not be ended
        self._store.renew(self._lease)
        take = self._replicator.take_slot and not recovery.followed
        with contextlib.closing(OwnSlot(self._source, self._store, self._lease, take=take, stop=self._stop)) as slot:
            slot.adopt()
            if recovery.must_read or self._needs_snapshot(slot):
                self._watch.become(ReplicationState.SNAPSHOT)
                self._read_all(slot)
            recovery.must_read = recovery.slot_lost = False
            self._failed.take_requests(self._lease)
            self._follow(slot)

    def _needs_snapshot(self, slot: OwnSlot) -> bool:
        """Whether the store can't catch up by the stream and comparisons."""
        state = self._store.source_state(self._source.name)
        if state is None:
            return True
        plans = in_use(self._store, self._source, self._replicator.keep_stopped).plans
        resume = SlotResume(self._source, self._store, self._lease, slot)
        try:
            resume.ensure_usable(state, plans, slot_lost=self._recovery.slot_lost)
        except SourceReplacedError as error:
            _log.warning("%s", error)
            return True
        return False

    def _read_all(self, slot: OwnSlot) -> None:
        """A new slot and a snapshot of every table."""
        peers = self._replicator.peers
        version = to_read_by(self._store, self._source, peers)
        while version is None and not self._stop.wait(_WAIT):
            version = to_read_by(self._store, self._source, peers)
        if version is None:
            return
        try:
            plan = part_of(version.yaml, self._source.tag)
        except SyncConfigError as error:
            self._store.mark_version(self._lease, version.id, VersionState.FAILED, str(error))
            raise
        self._bulk.warm_up()
        others = {name: needed for name, needed in needed_for(version.yaml, peers).items() if name != self._source.name}
        snapshot = InitialSnapshot(
            self._source, self._store, plan, version.id, self._bulk, self._progress, others, self._clock
        )
        snapshot.run(self._lease, slot)

    def _clock(self, conn: psycopg.Connection) -> Callable[[], int]:
        """The clock that rules see."""
        return self._replicator.clock or source_clock(conn)

    def _progress(self, done: BulkProgress) -> None:
        self._watch.works(done)
        self._replicator.figures.worked(done)
        self._replicator.progress(done)

    def _follow(self, slot: OwnSlot) -> None:
        """Follow the stream from where the store is, until the event is set."""
        settings, source, store, lease = self._replicator, self._source, self._store, self._lease
        recovery = self._recovery
        state = store.source_state(source.name)
        if state is None:
            return
        store.discard_staged(lease)  # files of a job that was killed
        forget_half_built(store, lease, source)
        used = in_use(store, source, settings.keep_stopped)
        if used.obsolete:  # first, since `_adapt` drops the tables that only they read
            store.retire(lease, used.obsolete, RETIRED_AT_ONCE)
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(contextlib.closing(SharedConnection(source)))
            self._adapt(state, used.plans, connection)
            self._names.pass_over(lease, state.lsn)
            stored = store.all_tables(source.name)
            context = live_context(source, store, connection, used.plans, stored)
            fetcher = stack.enter_context(contextlib.closing(RowFetcher(source)))
            schema = stack.enter_context(
                contextlib.closing(SchemaWatch(source, used.plans, store.tables(source.name), settings.intervals))
            )
            with connection.use() as conn:
                clock = self._clock(conn)
            flush = FlushBuilder(store, lease, context, stored, state.lsn, fetcher, settings.figures, clock)
            flush.alone = len(settings.peers) == 1
            applier = TransactionApplier(flush, schema, self._failed.skipped(), recovery.isolate_until)
            jobs = JobContext(
                source, store, lease, self._bulk, flush, schema, self._progress, connection, settings.peers
            )
            stream = stack.enter_context(
                ReplicationStream(source, state.slot, state.lsn, source.publications, recovery.patience)
            )
            scheduler = JobScheduler(jobs, settings.keep_stopped, settings.sampling, settings.intervals)
            stack.enter_context(contextlib.closing(scheduler))
            _log.info("following the stream from %s", format_lsn(state.lsn))
            recovery.followed = True
            self._watch.flow.begun(state.lsn)
            self._watch.become(ReplicationState.STREAMING)
            settings.following()
            try:
                self._pump(slot, stream, applier, jobs, scheduler)
            finally:
                if flush.position > state.lsn:
                    recovery.progressed()
                flush.abandon()

    def _adapt(self, state: SourceState, plans: Sequence[SyncPlan], connection: SharedConnection) -> None:
        """Make the store's tables what the catalog says."""
        stored = self._store.tables(self._source.name)
        with connection.use() as conn:
            wanted = readable_tables(conn, self._source, plans, {table.relation.oid for table in stored})
            for finding in unseen_findings(conn, wanted):
                _log.warning("%s", finding)
            changes = table_changes(stored, wanted)
            distrust_named(self._names, self._lease, conn, changes)
        if changes:
            context = live_context(self._source, self._store, connection, plans, stored)
            adapt(self._store, self._lease, state, context, changes)

    def _pump(
        self,
        slot: OwnSlot,
        stream: ReplicationStream,
        applier: TransactionApplier,
        jobs: JobContext,
        scheduler: JobScheduler,
    ) -> None:
        """Move batches from the stream to the store, and positions back; between flushes, do bulk work."""
        flow, figures, intervals = self._watch.flow, self._replicator.figures, self._replicator.intervals
        flush, idle = jobs.stream, True
        while not self._stop.is_set():
            slot.keep()
            patience = scheduler.patience if idle and not flush.joined.is_busy else 0.0
            received = stream.receive(patience, more_expected=applier.in_transaction)
            flow.received(received.size)
            applier.apply(received)
            idle = received.idle
            flow.settled(flush.position, everything=applier.is_flushed, committed_at=figures.committed_at)
            stream.report(flush.position)  # before other work: commits at the source may wait for it
            if applier.is_flushed:
                take_up_changes(jobs, scheduler)
                flush.evaluate_due()
                flush.evaluate_joined()
                self._watch.evaluating = flush.joined.describe()
                scheduler.step()
            if idle and applier.is_flushed:  # which a job may have changed
                if not scheduler.busy and stream.bloated:
                    break  # and follow again
                if flush.progress.coalesced:
                    self._stop.wait(intervals.commit_delay)
        stream.report(flush.position, force=True)


def take_up_changes(context: JobContext, scheduler: JobScheduler) -> None:
    """Make the store's tables what the last look at the catalog found, if they differ. Called between two flushes,
    while the stream goes on. Raises PublicationError and KeyNotSentError.

    This is safe in this order. A table is marked to be compared before its new layout is stored, each in a transaction
    that can be repeated, so a crash in between leaves the mark, and the next look at the catalog finds the rest to do.
    The tables that the stream is followed by are renewed before it is read on: a change in a former layout is brought
    to the new one or left to the comparison, never read by the wrong columns. The comparison begins at a snapshot after
    all that, so it sees whatever the stream could not tell. Jobs on other tables are not disturbed.
    """
    stream, schema = context.stream, context.schema
    if stream.recording.take_marked():
        scheduler.look_soon()
    found = schema.take()
    state = None if found is None else context.store.source_state(context.name)
    if found is None or state is None:
        return
    stored = context.store.tables(context.name)
    changes = table_changes(stored, found)
    if not changes:
        return
    with context.connection.use() as conn:
        uncertain = distrust_named(NameBook(context.store, context.name), context.lease, conn, changes)
    stream.tables.uncertain_until.update(uncertain)
    adapt(context.store, context.lease, state, context.live_context(schema.plans, stored), changes)
    context.follow(schema.plans)
    if changes.oids:
        scheduler.tables_changed(changes.oids)


class _Turns:
    """One event for each time that the lease is held. Setting `stop` sets the present one, until `close`."""

    def __init__(self, stop: threading.Event) -> None:
        self._relay = _relay_of(stop)
        self._ended = threading.Event()

    def begin(self) -> threading.Event:
        """The event of the next time."""
        self.close()
        self._ended = threading.Event()
        self._relay.add(self._ended)
        return self._ended

    def close(self) -> None:
        self._relay.discard(self._ended)


class _Relay:
    """Sets others once `stop` is set, from a thread that all sources of a process share and that sleeps until then."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._lock = threading.Lock()
        self._others: set[threading.Event] = set()
        threading.Thread(target=self._wait, name="stop", daemon=True).start()

    def add(self, other: threading.Event) -> None:
        with self._lock:
            self._others.add(other)
        if self._stop.is_set():  # the thread may have passed it on before
            other.set()

    def discard(self, other: threading.Event) -> None:
        with self._lock:
            self._others.discard(other)

    def _wait(self) -> None:
        self._stop.wait()
        with self._lock:
            for other in self._others:
                other.set()


_relay_of = cache(_Relay)


class _LeaseKeeper:
    """Renews the lease from a thread, so that long bulk work does not lose it. When it is lost, sets `ended` and calls
    `lost`, and all work under it has to end."""

    def __init__(self, store: StoreWriter, lease: Lease, ended: threading.Event, lost: Callable[[], None]) -> None:
        self._store = store
        self._lease = lease
        self._ended = ended
        self._on_lost = lost
        self._done = threading.Event()
        self._lost: LeaseLostError | None = None
        self._thread = thread_beside(self._renew, "lease")

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
                self._on_lost()
                return
            except StoreBusyError:
                continue  # nobody can take the lease meanwhile; usually a long transaction of our own
            except HeadwaterError as error:
                _log.warning("the lease could not be renewed: %s", error)
