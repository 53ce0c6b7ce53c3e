"""One source's replicator: takes the lease, reads the source whole when it must, follows the stream otherwise."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwater.bulk.binding import distinct
from headwater.bulk.jobs import BulkProgress
from headwater.decode.pgoutput import Decoder
from headwater.errors import HeadwaterError, Kind
from headwater.oplog.lsn import format_lsn
from headwater.replication.adapt import REDEFINED, REKEYED, adapt, table_changes
from headwater.replication.apply import Applier
from headwater.replication.attach import Attachment
from headwater.replication.bootstrap import Bootstrap
from headwater.replication.bulk import BulkWork
from headwater.replication.errors import SchemaChangedError, SourceReplacedError
from headwater.replication.live import LiveContext
from headwater.replication.sampling import SamplingSettings
from headwater.replication.schema import POLL_SECONDS, SchemaWatch, wanted_tables
from headwater.replication.site import Site, types_of
from headwater.replication.versions import RETIRED_AT_ONCE, deploy_file, forget_half_built, in_state, in_use, newest
from headwater.replication.watch import WATCH_SECONDS, Watch
from headwater.replication.work import Work
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.fetch import RowFetcher
from headwater.source.slot import (
    SlotLostError,
)
from headwater.source.stream import ReplicationStream
from headwater.storage.contract import (
    Lease,
    LeaseHeldError,
    LeaseLostError,
    SourceState,
    StoreBusyError,
    StoredTable,
    StoreWriter,
)
from headwater.storage.open import Store
from headwater.storage.versions import KEEP_STOPPED_SECONDS, VersionState
from headwater_rules.compile import compile_config
from headwater_rules.errors import RuleErrors
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
_WAIT = 0.5
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 30.0
_STEADY = 60.0  # what ran this long in seconds begins with the shortest delay again


@dataclass(frozen=True, slots=True)
class Replicator:
    """Follows `source` into `store` by the sync config's versions, until told to stop. `yaml` is the text of the sync
    config file, deployed at the start if it is new; without it, what commands deployed is served.

    `following` is called each time the live stream has started. Row sides of a version that was served are kept right
    for `keep_stopped` seconds after it was stopped. The catalog is looked at every `poll_seconds`, the
    health of the source every `watch_seconds`.
    """

    source: SourceSettings
    store: Store
    yaml: str | None
    bulk: BulkWork
    owner: str
    progress: Callable[[BulkProgress], None]
    following: Callable[[], None]
    keep_stopped: float = KEEP_STOPPED_SECONDS
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    poll_seconds: float = POLL_SECONDS
    watch_seconds: float = WATCH_SECONDS

    def run(self, stop: threading.Event) -> None:
        """Returns when `stop` is set. Raises errors of ours that a person has to mend, and LeaseLostError."""
        lease = self._wait_for_lease(stop)
        if lease is None:
            return
        with (
            _LeaseKeeper(self.store, lease, stop) as keeper,
            Watch(self.source, self.store, lease, self.watch_seconds) as watch,
        ):
            self._run_leased(lease, stop, watch)
            keeper.raise_if_lost()

    def _wait_for_lease(self, stop: threading.Event) -> Lease | None:
        told = False
        while not stop.is_set():
            try:
                return self.store.acquire(self.source.tag, self.owner, LEASE_SECONDS)
            except (LeaseHeldError, StoreBusyError) as error:
                if not told:
                    _log.info("waiting: %s", error)
                    told = True
                stop.wait(0.5)
        return None

    def _run_leased(self, lease: Lease, stop: threading.Event, watch: Watch) -> None:
        if self.yaml is not None:
            deploy_file(self.store, self.yaml)
        delay = _FIRST_DELAY
        must_read = False
        different: int | None = None  # the oid of a table of which the stream has another shape than the store
        while not stop.is_set():
            started = time.monotonic()
            try:
                with source_errors(self.source):
                    self.store.renew(lease)  # the slot's reader may be a newer holder's, which we must not end
                    if must_read or self._needs_snapshot(lease):
                        watch.reading()
                        self._read_whole(lease, stop)
                        must_read = False
                    if different is not None:
                        stored = self.store.tables(self.source.tag)
                        marked = [t.id for t in stored if t.relation.oid == different and t.resync != REKEYED]
                        self.store.mark_resync(lease, marked, REDEFINED)
                        different = None
                    self._follow(lease, stop, watch)
            except HeadwaterError as error:
                if stop.is_set() and not isinstance(error, LeaseLostError):
                    return  # work that was cut short because we are to end
                if error.kind not in {Kind.RETRY, Kind.RESYNC}:
                    raise
                if isinstance(error, SchemaChangedError):
                    different = error.oid
                else:
                    watch.failed(error)
                    must_read = must_read or (error.kind is Kind.RESYNC and not isinstance(error, SlotLostError))
                _log.warning("%s", error)
                delay = _FIRST_DELAY if time.monotonic() - started > _STEADY else min(delay * 2, _LONGEST_DELAY)
                stop.wait(delay * random.uniform(0.8, 1.2))

    def _read_whole(self, lease: Lease, stop: threading.Event) -> None:
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
        Bootstrap(self.source, self.store, plan, version.id, self.bulk, self.progress).run(lease)

    def _needs_snapshot(self, lease: Lease) -> bool:
        """Whether the stream alone can't bring the store to where the source is."""
        state = self.store.source_state(self.source.tag)
        if state is None or in_state(self.store, VersionState.ACTIVE) is None:
            return True
        plans = tuple(in_use(self.store, self.keep_stopped).plans)
        try:
            Attachment(self.source, self.store).make_sure(lease, state, plans)
        except SourceReplacedError as error:
            _log.warning("%s", error)
            return True
        return False

    def _adapt(self, lease: Lease, state: SourceState, plans: Sequence[SyncPlan]) -> None:
        """Make the store's tables what the catalog says."""
        stored = self.store.tables(self.source.tag)
        with connect(self.source) as conn:
            changes = table_changes(stored, wanted_tables(conn, self.source, plans))
        if changes:
            adapt(self.store, lease, state, self._context(plans, stored), changes)

    def _context(self, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> LiveContext:
        types = types_of(self.source, stored)
        return LiveContext(self.source.tag, distinct(plans), types, self.store.subkey_salt())

    def _follow(self, lease: Lease, stop: threading.Event, watch: Watch) -> None:
        state = self.store.source_state(self.source.tag)
        if state is None:
            return
        self.store.discard_staged(lease)  # a job that died after its last step has left its files
        forget_half_built(self.store, lease)
        used = in_use(self.store, self.keep_stopped)
        plans = used.plans
        if used.obsolete:  # before tables go that only they read
            self.store.retire(lease, used.obsolete, RETIRED_AT_ONCE)
        self._adapt(lease, state, plans)
        stored = self.store.tables(self.source.tag)
        context = self._context(plans, stored)
        with (
            contextlib.closing(RowFetcher(self.source)) as fetcher,
            contextlib.closing(SchemaWatch(self.source, plans, stored, self.poll_seconds)) as schema,
        ):
            schema.check()
            applier = Applier(self.store, lease, context, stored, state.lsn, fetcher, schema)
            site = Site(self.source, self.store, lease, self.bulk, applier, self.progress)
            with (
                ReplicationStream(self.source, state.slot, state.lsn, self.source.publications) as stream,
                contextlib.closing(Work(site, self.keep_stopped, self.sampling)) as work,
            ):
                _log.info("following the stream from %s", format_lsn(state.lsn))
                watch.streaming()
                self.following()
                try:
                    _pump(stream, applier, schema, work, stop)
                finally:
                    applier.abandon()


def _pump(stream: ReplicationStream, applier: Applier, schema: SchemaWatch, work: Work, stop: threading.Event) -> None:
    """Move batches from the stream to the store, and positions back; between flushes, do bulk work."""
    decode = Decoder().decode
    idle = True
    while not stop.is_set():
        received = stream.receive(work.patience if idle else 0.0, more_expected=applier.in_transaction)
        applier.consume(decode(received.payloads))
        idle = received.idle
        applier.settle(received.position, idle=idle)
        stream.report(applier.position)  # before other work: commits at the source may wait for it
        if applier.settled:
            schema.raise_found()
            work.step()
    stream.report(applier.position, force=True)


class _LeaseKeeper:
    """Renews the lease from a thread, so that long bulk work does not lose it, and stops everything if it is lost."""

    def __init__(self, store: StoreWriter, lease: Lease, stop: threading.Event) -> None:
        self._store = store
        self._lease = lease
        self._stop = stop
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
            with contextlib.suppress(StoreBusyError):
                self._store.release(self._lease)

    def raise_if_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _renew(self) -> None:
        while not self._done.wait(self._lease.ttl / 3):
            try:
                self._store.renew(self._lease)
            except LeaseLostError as error:
                self._lost = error
                self._stop.set()
                return
            except StoreBusyError:
                continue  # nobody can take it meanwhile; mostly it is a long transaction of our own
            except HeadwaterError as error:
                _log.warning("the lease could not be renewed: %s", error)
