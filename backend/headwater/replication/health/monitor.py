"""Watches a source while it is followed, from threads of its own: asks it how far its log goes, logs each problem once,
writes heartbeats, so that a quiet source has something to confirm, and tells how replication stands.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

import psycopg

from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError, machine_errors
from headwater.oplog.lsn import parse_lsn
from headwater.replication.health.figures import Totals
from headwater.replication.health.flow import FlowMeter
from headwater.replication.health.model import Compared, Health, State, Trouble, to_json
from headwater.replication.health.standing import state_of_the_stream
from headwater.replication.own_slot import slot_of
from headwater.replication.sampling.audit import sampling_findings
from headwater.replication.versions import deciding_in, tables_named
from headwater.source.connect import SourceSettings, connect_to_watch, source_errors
from headwater.source.head import ping_statement
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import look
from headwater.storage.contract.store import Lease
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import Deciding, TablePattern

_log = logging.getLogger(__name__)

_STEADY_SECONDS = 60.0  # an error after that much streaming is counted from one again
_TOLD_SECONDS = 2.0  # how old what is told may become; a reader takes it for old after five times as long
_ASKED_SECONDS = 2.0
_TOLD_STATES = {State.APPLYING, State.WAITING, State.UNKNOWN}  # of others, the replicator logs the reason itself
_REST_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_WAITING_SECONDS = 5.0
_CLOSE_SECONDS = 15.0


class Watch:
    """A context manager around the work under one lease; the other methods report what the replicator does. The source
    is checked every `seconds`. `preparing` returns what bulk work is waiting for, for a person; `totals` what was done
    so far. The stream's thread notes in `flow` how far it is."""

    def __init__(
        self,
        source: SourceSettings,
        store: StoreWriter,
        lease: Lease,
        seconds: float,
        preparing: Callable[[], str],
        totals: Callable[[], Totals],
    ) -> None:
        self.flow = FlowMeter()
        self._totals = totals
        self._source = source
        self._store = store
        self._lease = lease
        self._seconds = seconds
        self._preparing = preparing
        self._work = ""
        self._done: BulkProgress | None = None
        self._lock = threading.Lock()
        now = time.time()
        self._health = Health(State.STARTING, now, now)
        self._logged: dict[tuple[object, ...], Finding] = {}
        self._beat = time.monotonic()
        self._conn: psycopg.Connection | None = None
        self._untold = False
        self._refusal = ""
        self._said: State | None = None
        self._closing = threading.Event()
        self._news, self._look_now = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._tell_all, name="tell", daemon=True),
            threading.Thread(target=self._look_all, name="watch", daemon=True),
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self._become(State.STOPPED, error)
        self._closing.set()
        self._news.set()
        self._look_now.set()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

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
            self._health = replace(self._health, slot=None)  # unknown until the next look
        self._become(State.RETRYING, error)

    def _become(self, state: State, error: BaseException | None = None) -> None:
        with self._lock:
            now, before = time.time(), self._health
            trouble = before.trouble
            if error is not None:
                steady = before.state is State.STREAMING and now - before.since > _STEADY_SECONDS
                trouble = Trouble.of(error, now, 1 if steady or trouble is None else trouble.attempts + 1)
            self._health = replace(before, state=state, since=now, trouble=trouble)
        self._news.set()
        self._look_now.set()

    # the thread that tells

    def _tell_all(self) -> None:
        while not self._closing.is_set():
            self._tell()
            self._news.wait(_TOLD_SECONDS)
            self._news.clear()
            self._closing.wait(_REST_SECONDS)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            health = replace(
                self._health,
                at=time.time(),
                flow=self.flow.flow(),
                work=self._preparing() or self._work,
                done=self._done,
                totals=self._totals(),
            )
        if health.state is State.STOPPED:
            health = replace(health, work="", done=None)
        self._log_state(health)
        try:
            with machine_errors():
                self._store.report_status(self._lease, to_json(health))
        except HeadwaterError as error:  # or the lease is lost
            _log.log(logging.DEBUG if self._untold else logging.WARNING, "the state can't be told for now: %s", error)
            self._untold = True
        else:
            self._untold = False

    def _log_state(self, health: Health) -> None:
        """Log when the facts begin to say that the store does not keep up, and when that is over."""
        state, _, why = state_of_the_stream(health, health.at)
        before, self._said = self._said, state if state in _TOLD_STATES else None
        if before is not None and self._said is not before:
            _log.info("replication is not %s any more: it is %s", before.value, state.value)
        if self._said is not before and self._said is not None:
            _log.warning("replication is %s: %s", state.value, why)

    # the thread that looks

    def _look_all(self) -> None:
        store = self._open()
        if store is None:
            return
        try:
            while True:
                self._look_now.clear()  # before the end is looked for, which sets it
                if self._closing.wait(_REST_SECONDS):
                    break
                self._asking(lambda: self._look(store))
                due = time.monotonic() + self._pause()
                while not self._look_now.wait(min(self._seconds, _ASKED_SECONDS)) and time.monotonic() < due:
                    self._asking(self._ask)
        finally:
            store.close()
            self._disconnect()

    def _pause(self) -> float:
        """From one look to the next: shorter while bulk work may be waiting for transactions of the source."""
        with self._lock:
            waits = self._health.state is State.SNAPSHOT or self._health.compared
        return min(self._seconds, _WAITING_SECONDS) if waits else self._seconds

    def _open(self) -> StoreWriter | None:
        """The store, of which each thread has its own; None when that is over before it could be opened."""
        while not self._closing.is_set():
            try:
                with machine_errors():
                    return open_store(self._store.address).open_writer()
            except HeadwaterError as error:
                _log.debug("the store can't be opened to look at the source for now: %s", error)
            self._closing.wait(_AGAIN_SECONDS)
        return None

    def _asking(self, ask: Callable[[], object]) -> None:
        try:
            with machine_errors(), source_errors(self._source):
                ask()
        except HeadwaterError as error:
            self._disconnect()
            self.flow.not_asked(str(error))
            with self._lock:
                self._health = replace(self._health, slot=None)
            if str(error) not in {self._refusal, str(self._health.trouble)}:  # else the replicator has logged it
                _log.warning("the source could not be checked: %s", error)
            self._refusal = str(error)
            self._news.set()
        else:
            self._refusal = ""

    def _look(self, store: StoreWriter) -> None:
        stored = store.tables(self._lease.name)
        compared = tuple(
            Compared(f"{table.relation.schema}.{table.relation.name}", str(table.resync))
            for table in stored
            if table.resync
        )
        with self._lock:
            if compared != self._health.compared:
                self._news.set()
            self._health = replace(self._health, compared=compared)
        audited = sampling_findings(store, self._lease.name)
        slot, oids = slot_of(self._source, store), {table.relation.oid for table in stored}
        self._look_at(slot, oids, tables_named(store), deciding_in(store), audited)

    def _look_at(
        self,
        slot: str,
        tables: set[int],
        patterns: tuple[TablePattern, ...],
        deciding: Deciding,
        audited: tuple[Finding, ...],
    ) -> None:
        conn = self._ask()
        found = look(conn, self._source, slot, tables, patterns, deciding)
        findings = (*found.findings, *audited)
        self._log_findings(findings)
        with self._lock:
            if findings != self._health.findings:
                self._news.set()
            self._health = replace(
                self._health,
                findings=findings,
                slot=found.slot,
                triggers=found.triggers,
                looked_at=time.time(),
            )
            beat = self._health.state is State.STREAMING
        if beat and time.monotonic() - self._beat >= self._source.heartbeat_seconds:
            self._beat = time.monotonic()
            conn.execute(ping_statement(conn.info.server_version))

    def _ask(self) -> psycopg.Connection:
        """Ask the source how far its log goes."""
        if self._conn is None:
            self._conn = connect_to_watch(self._source, application_name="headwater watch")
        now = time.time()
        self.flow.asked(parse_lsn(self._conn.execute("select pg_current_wal_lsn()::text").fetchall()[0][0]), now)
        return self._conn

    def _log_findings(self, findings: tuple[Finding, ...]) -> None:
        """Log each finding when it appears, and again when it is resolved."""
        now = {finding.key: finding for finding in findings}
        for key, finding in now.items():
            if key not in self._logged:
                _log.log(logging.ERROR if finding.fatal else logging.WARNING, "%s", finding)
        for key, finding in self._logged.items():
            if key not in now:
                _log.info("resolved: [%s] %s", finding.code, finding.what)
        self._logged = now

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
