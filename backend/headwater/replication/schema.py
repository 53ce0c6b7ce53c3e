"""Whether the source's tables still are what they were when their rows were read.

A Relation message is only a hint: dropping a column and adding one of the same name and type sends the same message
again. The catalog decides, by the shape that was stored with the rows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from headwater.errors import HeadwaterError
from headwater.replication.errors import SchemaChangedError
from headwater.replication.pace import Pace
from headwater.source.catalog import PublicationUnusable, PublishedTable, published_tables, unsent_key_error
from headwater.source.connect import SourceSettings, connect, connection_error
from headwater.storage.contract import StoredTable
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 3.0


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


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the catalog is to say: the shape of each table that the plans read, by oid."""

    plans: tuple[SyncPlan, ...]
    shapes: Mapping[int, str]

    def compare(self, now: Sequence[PublishedTable]) -> SchemaChangedError | None:
        """What is different first."""
        for table in now:
            if self.shapes.get(table.relation.oid) != table.shape:
                return SchemaChangedError("a table is new or changed", table.qualified_name, "what differs is sent")
        if len(now) < len(self.shapes):
            return SchemaChangedError("a table is gone or no longer published", "", "its rows are removed")
        return None


class SchemaWatch:
    """Compares stored tables with the catalog: when asked to, and now and then from a thread of its own, since
    most changes of a table show in the stream with its next row only."""

    def __init__(
        self, source: SourceSettings, plans: Sequence[SyncPlan], stored: Sequence[StoredTable], pace: Pace
    ) -> None:
        self._source = source
        self._pace = pace
        self._conn: psycopg.Connection | None = None
        self._found: tuple[_Expected, HeadwaterError] | None = None
        self._closing = threading.Event()
        self._wake = threading.Event()
        self.renew(plans, stored)
        self._thread = threading.Thread(target=self._poll, name="schema", daemon=True)
        self._thread.start()

    def renew(self, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> None:
        """Watch other tables from here on."""
        self._expected = _Expected(tuple(plans), {table.relation.oid: table.fingerprint for table in stored})

    def check(self) -> None:
        """Raises SchemaChangedError when a table that the rules read came, went or changed its shape, and
        PublicationUnusable."""
        try:
            if self._conn is None:
                self._conn = connect(self._source, application_name="headwater schema")
            found = self._look(self._conn, self._expected)
        except psycopg.Error as error:
            self._disconnect()
            raise connection_error(self._source, error) from error
        if found is not None:
            raise found

    def hint(self) -> None:
        """Something may have changed: the thread looks soon."""
        self._wake.set()

    def raise_found(self) -> None:
        """Raises SchemaChangedError when the last look from the thread found one of these tables changed, and
        PublicationUnusable."""
        if self._found is not None and self._found[0] is self._expected:
            raise self._found[1]

    def _look(self, conn: psycopg.Connection, expected: _Expected) -> SchemaChangedError | None:
        return expected.compare(wanted_tables(conn, self._source, expected.plans))

    def _poll(self) -> None:
        conn: psycopg.Connection | None = None
        pace, wait = self._pace, self._pace.catalog
        while not self._closing.wait(pace.rest):
            hinted = self._wake.wait(wait)
            wait = min(pace.catalog, pace.again) if hinted else pace.catalog
            self._wake.clear()
            if self._closing.is_set():
                break
            expected = self._expected
            try:
                conn = conn or self._connect_patiently()
                found = self._look(conn, expected)
                if found is not None:
                    self._found = expected, found
            except PublicationUnusable as error:  # before the stream meets it, which can be long from now
                self._found = expected, error
            except (psycopg.Error, HeadwaterError) as error:  # the stream meets the same, and says so
                _log.debug("the catalog could not be read: %s", error)
                if conn is not None:
                    conn.close()
                    conn = None
        if conn is not None:
            conn.close()

    def _connect_patiently(self) -> psycopg.Connection:
        """A connection that rather gives up than waits for somebody's lock."""
        conn = connect(self._source, application_name="headwater schema poll")
        conn.execute("set lock_timeout = '2s'; set statement_timeout = '10s'")
        return conn

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def close(self) -> None:
        self._closing.set()
        self._wake.set()
        self._disconnect()
        self._thread.join(_CLOSE_SECONDS)
