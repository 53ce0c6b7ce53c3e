"""What bulk jobs are made of: steps between flushes of the stream, and work in threads beside it."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from headwater.bulk.bound_table import distinct
from headwater.bulk.contract import BulkProgress, JobKind
from headwater.decode.types import TypeCatalog
from headwater.errors import HeadwaterError
from headwater.replication.stream.flush_builder import FlushBuilder
from headwater.replication.tables.changes import flushed
from headwater.replication.tables.live import LiveContext
from headwater.replication.tables.schema_watch import SchemaWatch, readable_tables
from headwater.replication.versions import Peers
from headwater.source.catalog.published import PublishedTable, load_types, locked_tables
from headwater.source.catalog.shape import leaf_oids
from headwater.source.connect import SharedConnection, SourceSettings
from headwater.storage.contract.parts import BulkRecord, Places
from headwater.storage.contract.store import Lease, StoredTable
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.writer import StoreWriter
from headwater.telemetry.log_facts import thread_beside
from headwater_rules.plan import SyncPlan

if TYPE_CHECKING:
    from headwater.pipeline.jobs import BulkJobs

_log = logging.getLogger(__name__)

_ROWS_A_TASK = 250_000

Result = TypeVar("Result")

Steps = Generator[None, None, Result]
"""Yields where the stream may go on, and returns the result."""


def types_of(connection: SharedConnection, tables: Sequence[StoredTable]) -> TypeCatalog:
    """The present types of the tables' columns, from the source."""
    with connection.use() as conn:
        return load_types(conn, {c.type_oid for table in tables for layout in table.layouts for c in layout.columns})


def live_context(
    source: SourceSettings,
    store: StoreWriter,
    connection: SharedConnection,
    plans: Sequence[SyncPlan],
    stored: Sequence[StoredTable],
) -> LiveContext:
    """What live tables are built from."""
    return LiveContext(source.name, distinct(plans), types_of(connection, stored), store.keys(), source.batch_bytes)


@dataclass(frozen=True, slots=True)
class JobContext:
    """What jobs work with while one source is followed, which is among `peers`. `stream` is the flush that the stream
    is writing. Methods that take tables or plans read the source's catalog, and raise its errors."""

    source: SourceSettings
    store: StoreWriter
    lease: Lease
    bulk: BulkJobs
    stream: FlushBuilder
    schema: SchemaWatch
    progress: Callable[[BulkProgress], None]
    connection: SharedConnection
    peers: Peers

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def tag(self) -> str:
        return self.source.tag

    def published(self, plans: Sequence[SyncPlan]) -> dict[int, PublishedTable]:
        """By oid, the published tables that the plans read and that can be read; without those whose definition can't
        be read since they are locked. Raises KeyNotSentError."""
        with self.connection.use() as conn:
            tables = readable_tables(conn, self.source, plans, self.stored().keys())
        return {table.relation.oid: table for table in tables if not table.locked}

    def locked(self, tables: Sequence[StoredTable]) -> frozenset[int]:
        """The oids of those tables that can't be read since they, or partitions of them, are locked."""
        leaves = {table.relation.oid: leaf_oids(table.fingerprint) | {table.relation.oid} for table in tables}
        with self.connection.use() as conn:
            locked = locked_tables(conn, frozenset[int]().union(*leaves.values()))
        return frozenset(oid for oid, own in leaves.items() if own & locked)

    def stored(self) -> dict[int, StoredTable]:
        """The tables in the store that the source streams, by oid."""
        return {table.relation.oid: table for table in self.store.tables(self.name)}

    def all_stored(self) -> dict[int, StoredTable]:
        """The same, and the computed tables."""
        return {table.relation.oid: table for table in self.store.all_tables(self.name)}

    def places(self, table: int) -> Places:
        """Ranges of a table's current rows, one for a task."""
        return self.store.place_ranges(table, _ROWS_A_TASK)

    def follow(self, plans: Sequence[SyncPlan]) -> None:
        """Follow the stream by these plans, and by the tables as stored now. Between flushes only."""
        stored = list(self.all_stored().values())
        self.stream.renew(self.live_context(plans, stored), stored)
        self.schema.renew(plans, [table for table in stored if not table.computed])

    def live_context(self, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> LiveContext:
        return live_context(self.source, self.store, self.connection, plans, stored)

    @contextmanager
    def flushed(self) -> Iterator[Flush]:
        """A flush beside those of the stream; see `changes.flushed`."""
        with flushed(self.store, self.lease, self.name, self.stream.position) as flush:
            self.stream.time.begin(flush)
            yield flush

    @contextmanager
    def staging(self) -> Iterator[None]:
        """Discards at the end what a job has staged. An error of that does not hide the one that ended the job."""
        try:
            yield
        except BaseException:
            try:
                self.store.discard_staged(self.lease)
            except (HeadwaterError, OSError) as error:
                _log.warning("what was staged is discarded at the next start: %s", error)
            raise
        self.store.discard_staged(self.lease)

    def record(
        self, kind: JobKind, started: float, application: str = "", *, tasks: int = 0, rows: int = 0, ops: int = 0
    ) -> None:
        """Store what a job did that has ended now."""
        self.store.note_job(BulkRecord(kind, self.name, application, tasks, rows, ops, started, time.time()))


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a finished job leaves to the scheduler. `follow`: the stream has to be followed by other plans or tables
    now. `changed`: oids of tables that a comparison could not finish, since they changed meanwhile; None when the job
    was no comparison. `equal`: oids of tables that the comparison made equal to the source. `result` answers the
    request that asked for the job; None when there is no answer, or not yet."""

    follow: bool = False
    changed: frozenset[int] | None = None
    equal: Collection[int] = ()
    result: dict[str, object] | None = None


class Job(ABC):
    """Bulk work in small steps. All methods are called between flushes: `step` until it returns an outcome, or `close`
    to cut the job short. Failed attempts are counted under `kind`."""

    kind: JobKind

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._closed = threading.Event()  # ends the work in threads
        self._progress = BulkProgress(0, 0, 0, 0)
        self.steps = self._until_closed()

    def step(self) -> JobOutcome | None:
        """Do a bit of the work. Returns the outcome when all is done."""
        try:
            next(self.steps)
        except StopIteration as end:
            outcome: JobOutcome = end.value
            return outcome
        return None

    def close(self) -> None:
        """Release everything. Does nothing after the last step."""
        self.steps.close()

    def tables_changed(self, oids: frozenset[int]) -> bool:
        """The catalog describes these tables differently now. Returns whether the job goes on; otherwise it is closed
        and started again later."""
        del oids
        return False

    @abstractmethod
    def describe(self) -> str:
        """How far the job is, for a person."""

    @abstractmethod
    def _run(self) -> Steps[JobOutcome]:
        """The whole job. Releases what it holds when it is closed in between."""

    def _until_closed(self) -> Steps[JobOutcome]:
        try:
            return (yield from self._run())
        finally:
            self._closed.set()

    def _report(self, progress: BulkProgress) -> None:
        self._progress = progress
        self._context.progress(progress)


class Background(Generic[Result]):
    """Runs a function once, in a thread, while the job that waits for it is stepped between flushes."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._work = work
        self._future: Future[Result] = Future()
        thread_beside(self._run, name).start()

    @property
    def done(self) -> bool:
        return self._future.done()

    def result(self) -> Result:
        """What the function returned; raises what it raised. Waits for the end."""
        return self._future.result()

    def steps(self) -> Steps[Result]:
        """Wait for the end, then `result`."""
        while not self.done:
            yield
        return self.result()

    def discard(self, dispose: Callable[[Result], object]) -> None:
        """Have `dispose` called with the result, now or as soon as there is one. Not called after an error. An error of
        its own is logged."""

        def release(done: Future[Result]) -> None:
            if done.exception() is not None:
                return
            try:
                dispose(done.result())
            except Exception:  # noqa: BLE001 - the future would tell it to the log of the standard library
                _log.warning("what a job does not need any more was not released", exc_info=True)

        self._future.add_done_callback(release)

    def _run(self) -> None:
        try:
            self._future.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is read
            self._future.set_exception(error)
