"""Watches a source while it is followed, from a thread of its own: logs each problem once, stores the health of
replication, and writes heartbeats, so that a quiet source has something to confirm.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import psycopg

from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError, machine_errors
from headwater.oplog.lsn import Lsn
from headwater.replication.health.figures import Totals
from headwater.replication.health.model import Compared, Health, State, Trouble, health_key, to_json
from headwater.replication.own_slot import slot_of
from headwater.replication.sampling.audit import sampling_findings
from headwater.replication.versions import deciding_in, tables_named
from headwater.source.connect import SourceSettings, connect_to_watch
from headwater.source.head import ping_statement
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import SourceHealth, look
from headwater.storage.backend import Store
from headwater.storage.contract.store import Lease
from headwater.storage.open import open_backend
from headwater_rules.plan import Deciding, TablePattern

_log = logging.getLogger(__name__)

_STEADY_SECONDS = 60.0  # an error after that much streaming is counted from one again
_KEPT_SECONDS = 15.0  # how old the stored health may be while only numbers change
_COUNTED_SECONDS = 5.0  # and how old while rows flow
_REST_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_WORK_SECONDS = 2.0
_WAITING_SECONDS = 5.0
_CLOSE_SECONDS = 15.0


class Watch:
    """A context manager around the work under one lease; the other methods report what the replicator does. The source
    is checked every `seconds`. `preparing` returns what bulk work is waiting for, for a person; `totals` what was done
    so far."""

    def __init__(
        self,
        source: SourceSettings,
        store: Store,
        lease: Lease,
        seconds: float,
        preparing: Callable[[], str],
        totals: Callable[[], Totals],
    ) -> None:
        self._totals = totals
        self._source = source
        self._lease = lease
        self._seconds = seconds
        self._preparing = preparing
        self._work = ""
        self._done: BulkProgress | None = None
        self._address = store.address
        self._lock = threading.Lock()
        now = time.time()
        self._health = Health(State.STARTING, now, now)
        self._stored: Health | None = None
        self._logged: dict[tuple[str, str], Finding] = {}
        self._lag = _Lag()
        self._beat = time.monotonic()
        self._conn: psycopg.Connection | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._become(State.STOPPED, error)
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)

    # what the replicator does

    def reading(self) -> None:
        """The snapshot begins."""
        self._become(State.SNAPSHOT)

    def streaming(self) -> None:
        """The stream is followed."""
        self._become(State.STREAMING)

    def works(self, progress: BulkProgress) -> None:
        """How far bulk work is."""
        self._work = "" if progress.over else f"{progress.what}: {progress}"
        self._done = None if progress.over else progress

    def failed(self, error: HeadwaterError) -> None:
        """An attempt failed; another follows after a while."""
        with self._lock:
            self._health = replace(self._health, slot=None, lag_seconds=None)  # unknown until the next look
        self._become(State.RETRYING, error)

    def _become(self, state: State, error: BaseException | None = None) -> None:
        with self._lock:
            now, before = time.time(), self._health
            trouble = before.trouble
            if error is not None:
                steady = before.state is State.STREAMING and now - before.since > _STEADY_SECONDS
                trouble = Trouble.of(error, now, 1 if steady or trouble is None else trouble.attempts + 1)
            self._health = replace(before, state=state, since=now, trouble=trouble)
        self._wake.set()

    # the thread

    def _run(self) -> None:
        store = self._open()
        if store is None:
            return
        try:
            while not self._closing.wait(_REST_SECONDS):
                self._turn(store)
                due = time.monotonic() + self._pause()
                while not self._wake.wait(min(self._seconds, _WORK_SECONDS)) and time.monotonic() < due:
                    self._store_health(store)  # the progress of bulk work
                self._wake.clear()
            self._store_health(store)
        finally:
            store.close()
            self._disconnect()

    def _pause(self) -> float:
        """From one look to the next: shorter while bulk work may be waiting for transactions of the source."""
        with self._lock:
            waits = self._health.state is State.SNAPSHOT or self._health.compared
        return min(self._seconds, _WAITING_SECONDS) if waits else self._seconds

    def _open(self) -> Store | None:
        """The store, of which each thread has its own; None when that is over before it could be opened."""
        logged = False
        while not self._closing.is_set():
            try:
                with machine_errors():
                    return open_backend(self._address).open_store()
            except HeadwaterError as error:
                level = logging.DEBUG if logged else logging.WARNING
                _log.log(level, "the health of replication can't be stored for now: %s", error)
                logged = True
            self._closing.wait(_AGAIN_SECONDS)
        return None

    def _turn(self, store: Store) -> None:
        self._store_health(store)  # first, since the source may not answer for a while
        try:
            stored = store.tables(self._lease.name)
            compared = tuple(
                Compared(f"{table.relation.schema}.{table.relation.name}", str(table.resync))
                for table in stored
                if table.resync
            )
            with self._lock:
                self._health = replace(self._health, compared=compared)
                streaming = self._health.state is State.STREAMING
            oids = {table.relation.oid for table in stored}
            with machine_errors():
                audited, name = sampling_findings(store, self._lease.name), slot_of(self._source, store)
                self._look(name, oids, tables_named(store), deciding_in(store), audited, beat=streaming)
        except (psycopg.Error, HeadwaterError) as error:  # the replicator meets the same error, and logs it
            _log.debug("the source could not be checked: %s", error)
            self._disconnect()
            with self._lock:
                self._health = replace(self._health, slot=None, lag_seconds=None)
        self._store_health(store)

    def _look(
        self,
        slot: str,
        tables: set[int],
        patterns: tuple[TablePattern, ...],
        deciding: Deciding,
        audited: tuple[Finding, ...],
        *,
        beat: bool,
    ) -> None:
        if self._conn is None:
            self._conn = connect_to_watch(self._source, application_name="headwater watch")
        found = look(self._conn, self._source, slot, tables, patterns, deciding)
        findings = (*found.findings, *audited)
        self._log_findings(findings)
        lag = self._lag.seconds(found, time.monotonic())
        with self._lock:
            self._health = replace(
                self._health, findings=findings, slot=found.slot, lag_seconds=lag, triggers=found.triggers
            )
        if beat and time.monotonic() - self._beat >= self._source.heartbeat_seconds:
            self._beat = time.monotonic()
            self._conn.execute(ping_statement(self._conn.info.server_version))

    def _log_findings(self, findings: tuple[Finding, ...]) -> None:
        """Log each finding when it appears, and again when it is resolved."""
        now = {(finding.code, finding.what): finding for finding in findings}
        for key, finding in now.items():
            if key not in self._logged:
                _log.log(logging.ERROR if finding.fatal else logging.WARNING, "%s", finding)
        for key, finding in self._logged.items():
            if key not in now:
                _log.info("resolved: [%s] %s", finding.code, finding.what)
        self._logged = now

    def _store_health(self, store: Store) -> None:
        """Store the health, if it changed."""
        with self._lock:
            totals = self._totals()
            health = replace(self._health, work=self._preparing() or self._work, done=self._done, totals=totals)
        if health.state is State.STOPPED:
            health = replace(health, work="", done=None)
        if health.state is State.STREAMING and health.compared:
            health = replace(health, state=State.RESYNCING)
        now = time.time()
        if self._stored is not None and _urgent(health) == _urgent(self._stored):
            kept = _KEPT_SECONDS if health.totals == self._stored.totals else _COUNTED_SECONDS
            if now - self._stored.at < kept:
                return
        health = replace(health, at=now)
        try:
            with machine_errors():
                store.note(self._lease, health_key(self._lease.name), to_json(health))
        except HeadwaterError as error:  # a long transaction of our own, or the lease is lost
            _log.debug("the health of replication could not be stored: %s", error)
            return
        self._stored = health

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def _urgent(health: Health) -> Health:
    """The part of which a change is stored at once."""
    return replace(health, at=0.0, slot=None, lag_seconds=None, totals=Totals())


class _Lag:
    """Estimates how old the oldest commit is that the store does not have."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, Lsn]] = deque(maxlen=1000)

    def seconds(self, found: SourceHealth, now: float) -> float:
        while self._ends and self._ends[0][1] <= found.confirmed:
            self._ends.popleft()
        oldest = self._ends[0][0] if self._ends else None
        if found.log_end > found.confirmed:
            self._ends.append((now, found.log_end))
        if oldest is not None:
            return now - oldest  # the position where the log ended then is still not confirmed
        return found.flush_lag if found.log_end > found.confirmed else 0.0
