"""Watches whether the source's tables are still what they were when their rows were read.

A Relation message is only a hint: dropping a column and adding one of the same name and type sends the same message
again. The catalog decides, by the shape that was stored with the rows; see `source.catalog.shape`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from headwater.errors import HeadwaterError, machine_errors
from headwater.replication.intervals import PollIntervals
from headwater.source.catalog.publications import PublicationError
from headwater.source.catalog.published import (
    KeyNotSentError,
    PublishedTable,
    locked_throughout,
    published_tables,
    unsent_key_error,
)
from headwater.source.connect import SourceSettings, connect_to_watch
from headwater.source.readiness.finding import Reading, unreadable
from headwater.storage.contract.reason import Cause
from headwater.storage.contract.store import StoredTable
from headwater.telemetry.log_facts import thread_beside
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 3.0
_BRIEFLY = 0.5  # seconds for which a new table may be locked without being left for later


def wanted_tables(conn: psycopg.Connection, source: SourceSettings, plans: Sequence[SyncPlan]) -> list[PublishedTable]:
    """The published tables that any of the plans reads. Raises KeyNotSentError."""
    patterns = [pattern for plan in plans for pattern in plan.tables()]
    wanted = [
        table
        for table in published_tables(conn, source.publications)
        if any(p.matches(source.tag, table.relation.schema, table.relation.name) for p in patterns)
    ]
    for table in wanted:
        if table.unsent_key:
            raise unsent_key_error(table)
    return wanted


def readable_tables(
    conn: psycopg.Connection, source: SourceSettings, plans: Sequence[SyncPlan], stored: Collection[int]
) -> list[PublishedTable]:
    """`wanted_tables`, without new ones (those not in `stored`, by oid) that we have no right to read, or that are
    locked. Once the right is granted or the lock released, such a table appears as a new one."""
    wanted = wanted_tables(conn, source, plans)
    new = [table for table in wanted if table.relation.oid not in stored]
    barred = {*unreadable(conn, [Reading.of(table) for table in new]), *out_of_reach(conn, new)}
    return [table for table in wanted if table.relation.oid not in barred]


def out_of_reach(conn: psycopg.Connection, tables: Sequence[PublishedTable]) -> frozenset[int]:
    """The oids of those tables that can't be read now since they, or partitions of them, are locked."""
    leaves = {leaf.oid for table in tables for leaf in table.leaves}
    locked = locked_throughout(conn, leaves, _BRIEFLY)
    return frozenset(t.relation.oid for t in tables if t.locked or locked.intersection(leaf.oid for leaf in t.leaves))


@dataclass(frozen=True, slots=True)
class Expected:
    """What the catalog should say: the shape of each table that `plans` read, by oid."""

    plans: tuple[SyncPlan, ...]
    shapes: Mapping[int, str]

    @classmethod
    def of(cls, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> Expected:
        """The shapes in the store. A table whose ids are lost has to be created again, so no shape is as expected."""
        return cls(
            tuple(plans),
            {table.relation.oid: "" if table.has(Cause.IDS_LOST) else table.fingerprint for table in stored},
        )

    def met_by(self, now: Sequence[PublishedTable]) -> bool:
        """Whether the catalog says so. Locked tables, whose shape can't be read, don't count."""
        locked = {table.relation.oid for table in now if table.locked}
        shapes = {table.relation.oid: table.shape for table in now if not table.locked}
        return shapes | {oid: shape for oid, shape in self.shapes.items() if oid in locked} == self.shapes


class SchemaWatch:
    """Compares stored tables with the catalog from a thread of its own: on a hint, and regularly, since most changes of
    a table show in the stream only with its next row."""

    def __init__(
        self, source: SourceSettings, plans: Sequence[SyncPlan], stored: Sequence[StoredTable], intervals: PollIntervals
    ) -> None:
        self._source = source
        self._intervals = intervals
        # What the last look expected, and found instead: the present tables, or why they can't be followed
        self._found: tuple[Expected, Sequence[PublishedTable] | HeadwaterError] | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._expected = Expected.of(plans, stored)
        self._thread = thread_beside(self._poll, "schema")
        self._thread.start()

    @property
    def plans(self) -> tuple[SyncPlan, ...]:
        """The plans whose tables are watched."""
        return self._expected.plans

    def renew(self, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> None:
        """Watch other tables from here on."""
        expected = Expected.of(plans, stored)
        if expected != self._expected:
            self._expected = expected
            self._wake.set()  # the last look was for the former tables

    def hint(self) -> None:
        """Have the thread look soon, since something may have changed."""
        self._wake.set()

    def take(self) -> Sequence[PublishedTable] | None:
        """The source's tables, if the last look found that they differ from the stored ones. Each result is returned
        once. Raises PublicationError and KeyNotSentError."""
        last, self._found = self._found, None
        if last is None or last[0] is not self._expected:
            return None
        if isinstance(last[1], HeadwaterError):
            raise last[1]
        return last[1]

    def _poll(self) -> None:
        conn: psycopg.Connection | None = None
        logged = False
        intervals, wait = self._intervals, 0.0
        while not self._closing.wait(intervals.min_interval if wait else 0.0):
            hinted = self._wake.wait(wait)
            wait = min(intervals.catalog, intervals.recheck) if hinted else intervals.catalog
            self._wake.clear()
            if self._closing.is_set():
                break
            try:
                with machine_errors():
                    conn = conn or connect_to_watch(self._source, application_name="headwater schema")
                    self._look(conn)
                logged = False
            except (psycopg.Error, HeadwaterError) as error:  # such as a lock on the catalog; logged once
                level = logging.DEBUG if logged else logging.WARNING
                _log.log(level, "changes of tables are not seen: the catalog could not be read: %s", error)
                logged = True
                if conn is not None:
                    conn.close()
                    conn = None
        if conn is not None:
            conn.close()

    def _look(self, conn: psycopg.Connection) -> None:
        expected = self._expected
        try:
            tables = readable_tables(conn, self._source, expected.plans, expected.shapes.keys())
            if expected.met_by(tables):
                return
        except (PublicationError, KeyNotSentError) as error:  # raised now, not when the stream meets it
            self._found = expected, error
            return
        self._found = expected, tables

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
