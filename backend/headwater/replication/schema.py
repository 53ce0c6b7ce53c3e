"""Whether the source's tables still are what they were when their rows were read.

A Relation message is only a hint: dropping a column and adding one of the same name and type sends the same message
again. The catalog decides, by the shape that was stored with the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from headwater.replication.errors import SchemaChangedError
from headwater.source.catalog import PublishedTable, published_tables
from headwater.source.connect import SourceSettings, connect, connection_error
from headwater.storage.contract import StoredTable
from headwater_rules.plan import SyncPlan


def wanted_tables(conn: psycopg.Connection, source: SourceSettings, plans: Sequence[SyncPlan]) -> list[PublishedTable]:
    """The published tables that any of the plans reads."""
    patterns = [pattern for plan in plans for pattern in plan.tables()]
    return [
        table
        for table in published_tables(conn, source.publications)
        if any(p.matches(source.tag, table.relation.schema, table.relation.name) for p in patterns)
    ]


class SchemaWatch:
    """Compares stored tables with the catalog, over a connection of its own made when first needed."""

    def __init__(self, source: SourceSettings, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> None:
        self._source = source
        self._conn: psycopg.Connection | None = None
        self.renew(plans, stored)

    def renew(self, plans: Sequence[SyncPlan], stored: Sequence[StoredTable]) -> None:
        """Watch other tables from here on."""
        self._plans = tuple(plans)
        self._shapes = {table.relation.oid: table.fingerprint for table in stored}

    def check(self) -> None:
        """Raises SchemaChangedError when a table that the rules read came, went or changed its shape."""
        try:
            if self._conn is None:
                self._conn = connect(self._source, application_name="headwater schema")
            now = {table.relation.oid: table for table in wanted_tables(self._conn, self._source, self._plans)}
        except psycopg.Error as error:
            self.close()
            raise connection_error(self._source, error) from error
        for oid, table in now.items():
            if self._shapes.get(oid) != table.shape:
                raise SchemaChangedError("a table is new or changed", table.qualified_name, "its rows are read again")
        if len(now) < len(self._shapes):
            raise SchemaChangedError("a table is gone or no longer published", self._source.address, "rows are removed")

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
