"""Reports into the store how replication goes, and checks the source meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType

import psycopg

from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError, machine_errors
from headwater.oplog.lsn import parse_lsn
from headwater.replication.computed import refresh_findings, refresh_states
from headwater.replication.jobs.sampling import sampling_findings
from headwater.replication.meters import FlowMeter, Totals
from headwater.replication.own_slot import slot_of
from headwater.replication.status import Compared, ReplicationState, ReplicatorHealth, Trouble, stream_state, to_json
from headwater.replication.versions import deciding_in, tables_named
from headwater.source.connect import SourceSettings, connect_to_watch, source_errors
from headwater.source.head import ping_statement
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import look
from headwater.storage.address import StoreAddress
from headwater.storage.contract.store import Lease, LeaseHeldError
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater.telemetry.log_facts import thread_beside

_log = logging.getLogger(__name__)

_STEADY_SECONDS = 60.0  # an error after that much streaming is counted from one again
_REPORT_SECONDS = 2.0  # a reader takes a report for old after three times as long
_ASK_SECONDS = 2.0
_LOGGED_STATES = {
    ReplicationState.APPLYING,
    ReplicationState.WAITING,
    ReplicationState.UNKNOWN,
}  # of others, the replicator logs the reason itself
_REST_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_WAITING_SECONDS = 5.0
_CLOSE_SECONDS = 15.0

_REST_AFTER = 10
"""A source that is slow to answer is left alone for so many times as long."""

LOOKED_AT_AT_ONCE = 4
"""Sources of a process. A look costs their servers a hundred times what asking for a position does: all at once,
databases of one server would slow each other down until none answers in time."""

_looking = threading.BoundedSemaphore(LOOKED_AT_AT_ONCE)


@contextmanager
def _turn(closing: threading.Event) -> Iterator[bool]:
    """Wait until few enough others are looked at, some of which may not answer. Gives whether to look: not once
    `closing` is set."""
    while not (ours := _looking.acquire(timeout=_AGAIN_SECONDS)) and not closing.is_set():
        pass
    try:
        yield ours and not closing.is_set()
    finally:
        if ours:
            _looking.release()


def report_stopped(store: StoreWriter, source: str, owner: str, error: HeadwaterError) -> None:
    """Report that a source can't be followed for this reason, unless another replicator follows it. Raises
    HeadwaterError when the store can't be written."""
    try:
        lease = store.acquire(source, owner, _REPORT_SECONDS)
    except LeaseHeldError:
        return
    try:
        now = time.time()
        stopped = ReplicatorHealth(ReplicationState.STOPPED, now, now, Trouble.of(error, now, 1))
        store.report_status(lease, to_json(stopped))
    finally:
        store.release(lease)


class SourceMonitor:
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
        self.evaluating = ""  # what the stream does besides, in words
        self.closing, self.changed, self.look_now = threading.Event(), threading.Event(), threading.Event()
        self._store = store
        self._lease = lease
        self._preparing = preparing
        self._totals = totals
        self._progress: BulkProgress | None = None
        self._lock = threading.Lock()
        now = time.time()
        self._health = ReplicatorHealth(ReplicationState.STARTING, now, now)
        check = _SourceCheck(self, source, store.address, seconds)
        self._threads = [
            thread_beside(self._report_all, "report"),
            thread_beside(check.run, "watch"),
        ]

    def __enter__(self) -> SourceMonitor:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self.become(ReplicationState.STOPPED, error)
        self.closing.set()
        self.changed.set()
        self.look_now.set()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def health(self) -> ReplicatorHealth:
        """The last report, without what is found when it is made."""
        return self._health

    def works(self, progress: BulkProgress) -> None:
        self._progress = None if progress.over else progress

    def failed(self, error: HeadwaterError) -> None:
        """An attempt failed; another follows after a while."""
        self.change(lambda health: replace(health, slot=None))  # unknown until the next look
        self.become(ReplicationState.RETRYING, error)

    def change(self, change: Callable[[ReplicatorHealth], ReplicatorHealth]) -> ReplicatorHealth:
        """Change the health, which is reported when `changed` is set. Returns the health before. For any thread."""
        with self._lock:
            before, self._health = self._health, change(self._health)
        return before

    def become(self, state: ReplicationState, error: BaseException | None = None) -> None:
        """The replicator is in this state from now on, perhaps for an error."""

        def become(before: ReplicatorHealth) -> ReplicatorHealth:
            now, trouble = time.time(), before.trouble
            if error is not None:
                steady = before.state is ReplicationState.STREAMING and now - before.since > _STEADY_SECONDS
                trouble = Trouble.of(error, now, 1 if steady or trouble is None else trouble.attempts + 1)
            return replace(before, state=state, since=now, trouble=trouble)

        self.change(become)
        self.changed.set()
        self.look_now.set()

    def _report_all(self) -> None:
        """In a thread: report into the store whenever something changed, and regularly."""
        reported, logged, last = True, None, False
        while not last:
            last = self.closing.is_set()
            health = self._present()
            logged = _log_state(health, logged)
            try:
                with machine_errors():
                    self._store.report_status(self._lease, to_json(health))
                reported = True
            except HeadwaterError as error:  # or the lease is lost
                level = logging.WARNING if reported else logging.DEBUG
                _log.log(level, "the state can't be reported for now: %s", error)
                reported = False
            if not last:
                self.changed.wait(_REPORT_SECONDS)
                self.changed.clear()
                self.closing.wait(_REST_SECONDS)

    def _present(self) -> ReplicatorHealth:
        progress = self._progress
        work = self._preparing() or ("" if progress is None else f"{progress.what}: {progress}") or self.evaluating
        with self._lock:
            health = replace(self._health, at=time.time(), flow=self.flow.flow(), totals=self._totals())
        return health if health.state is ReplicationState.STOPPED else replace(health, work=work, done=progress)


def _log_state(health: ReplicatorHealth, logged: ReplicationState | None) -> ReplicationState | None:
    """Log when the facts begin to say that the store does not keep up, and when that is over. `logged` is the state
    that was logged last; returns the one for the next time."""
    state, _, why = stream_state(health, health.at)
    now = state if state in _LOGGED_STATES else None
    if logged is not None and now is not logged:
        _log.info("replication is no longer %s: it is %s", logged.value, state.value)
    if now is not logged and now is not None:
        _log.warning("replication is %s: %s", state.value, why)
    return now


class _SourceCheck:
    """Checks the source in a thread: asks how far its log goes, logs each problem once, and writes heartbeats, so that
    a quiet source has something to confirm."""

    def __init__(self, monitor: SourceMonitor, source: SourceSettings, store: StoreAddress, seconds: float) -> None:
        self._monitor = monitor
        self._source = source
        self._address = store
        self._seconds = seconds
        self._conn: psycopg.Connection | None = None
        self._logged: dict[tuple[object, ...], Finding] = {}
        self._beat_at = time.monotonic()
        self._refusal = ""

    def run(self) -> None:
        """Check until the monitor is closing."""
        store = self._open()
        if store is None:
            return
        look_now, closing = self._monitor.look_now, self._monitor.closing
        try:
            while True:
                look_now.clear()  # before `closing` is read, which is set before this
                if closing.wait(_REST_SECONDS):
                    break
                with _turn(closing) as ours:
                    if not ours:
                        break
                    began = time.monotonic()
                    if self._trying(lambda: self._look(store)):
                        self._refusal = ""
                    ended = time.monotonic()
                due = ended + max(self._pause(), _REST_AFTER * (ended - began))
                while not look_now.wait(min(self._seconds, _ASK_SECONDS)) and time.monotonic() < due:
                    self._trying(self._ask)
        finally:
            store.close()
            self._disconnect()

    def _pause(self) -> float:
        """From one look to the next: shorter while bulk work may be waiting for transactions of the source."""
        health = self._monitor.health
        waits = health.state is ReplicationState.SNAPSHOT or health.compared
        return min(self._seconds, _WAITING_SECONDS) if waits else self._seconds

    def _open(self) -> StoreWriter | None:
        """The store, of which each thread has its own; None when the monitor closes before it could be opened."""
        while not self._monitor.closing.is_set():
            try:
                with machine_errors():
                    return open_store(self._address).open_writer()
            except HeadwaterError as error:
                _log.debug("the store can't be opened to look at the source for now: %s", error)
            self._monitor.closing.wait(_AGAIN_SECONDS)
        return None

    def _trying(self, work: Callable[[], object]) -> bool:
        """Returns whether the work was done. Of an error, one after the other that is the same is not logged."""
        try:
            with machine_errors(), source_errors(self._source):
                work()
        except HeadwaterError as error:
            self._disconnect()
            self._monitor.flow.not_asked(str(error))
            before = self._monitor.change(lambda health: replace(health, slot=None))
            self._monitor.changed.set()
            if str(error) not in {self._refusal, str(before.trouble)}:  # else the replicator has logged it
                _log.warning("the source could not be checked: %s", error)
            self._refusal = str(error)
            return False
        return True

    def _look(self, store: StoreWriter) -> None:
        """Compare the source with what replication needs of it."""
        stored = store.tables(self._source.name)
        compared = tuple(Compared(table.relation.qualified_name, str(table.resync)) for table in stored if table.resync)
        if self._monitor.change(lambda health: replace(health, compared=compared)).compared != compared:
            self._monitor.changed.set()
        oids = {table.relation.oid for table in stored}
        slot, named, deciding = (
            slot_of(self._source, store),
            tables_named(store, self._source.tag),
            deciding_in(store, self._source.tag),
        )
        name = self._source.name
        computed = tuple(refresh_states(store, name).values())
        kept = (*sampling_findings(store, name), *refresh_findings(computed))
        conn = self._ask()
        found = look(conn, self._source, slot, oids, named, deciding)
        findings = (*found.findings, *kept)
        self._log_findings(findings)
        before = self._monitor.change(
            lambda health: replace(
                health,
                findings=findings,
                slot=found.slot,
                triggers=found.triggers,
                looked_at=time.time(),
                computed=computed,
            )
        )
        if before.findings != findings:
            self._monitor.changed.set()
        quiet = time.monotonic() - self._beat_at >= self._source.heartbeat_seconds
        if before.state is ReplicationState.STREAMING and quiet:
            self._beat_at = time.monotonic()
            conn.execute(ping_statement(conn.info.server_version))

    def _ask(self) -> psycopg.Connection:
        """Ask the source how far its log goes."""
        if self._conn is None:
            self._conn = connect_to_watch(self._source, application_name="headwater watch")
        now = time.time()
        log_end = self._conn.execute("select pg_current_wal_lsn()::text").fetchall()[0][0]
        self._monitor.flow.asked(parse_lsn(log_end), now)
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
