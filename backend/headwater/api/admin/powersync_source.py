"""What PowerSync's admin paths say of the source and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
from msgspec import UNSET, Struct, UnsetType

from headwater.errors import HeadwaterError
from headwater.source.catalog.publications import PublicationError
from headwater.source.catalog.schema import (
    NamedTable,
    all_tables,
    identity_columns,
    lacking,
    readings,
    to_publish,
    unpublished,
)
from headwater.source.connect import SourceSettings, connect, of_each, source_errors
from headwater.source.readiness.checks import publication_findings, server_findings
from headwater.source.readiness.finding import Finding, unreadable
from headwater.source.readiness.health import SlotHealth, slot_health
from headwater_rules.plan import SyncPlan, TablePattern


class Location(Struct, frozen=True):
    """A place in the text of the sync config."""

    start_offset: int
    end_offset: int


class StatusMessage(Struct, frozen=True):
    """An error. `level` is warning or fatal."""

    level: str
    message: str
    location: Location | UnsetType = UNSET
    ts: str | UnsetType = UNSET


class ConnectionStatus(Struct, frozen=True):
    """The connection to the source. The URI never contains credentials."""

    id: str
    uri: str
    postgres_uri: str
    connected: bool
    errors: tuple[StatusMessage, ...]


class TableStatus(Struct, frozen=True):
    """A table that the sync config names. `pattern` is the wildcard that matched it, if one did."""

    schema: str
    name: str
    replication_id: tuple[str, ...]
    data_queries: bool
    parameter_queries: bool
    errors: tuple[StatusMessage, ...]
    pattern: str | UnsetType = UNSET


_RLS = "PSYNC_S1145"


@dataclass(frozen=True, slots=True)
class SeenSource:
    """The source as it was read once. `error` is set when it did not answer. `keys` are the replica identity columns of
    `tables`, and `trouble` the findings that keep a table from being replicated, both by oid."""

    settings: SourceSettings
    error: HeadwaterError | None = None
    findings: tuple[Finding, ...] = ()
    slot: SlotHealth | None = None
    tables: tuple[NamedTable, ...] = ()
    keys: dict[int, tuple[str, ...]] = field(default_factory=dict)
    trouble: dict[int, tuple[Finding, ...]] = field(default_factory=dict)

    def connection(self) -> ConnectionStatus:
        """The connection as PowerSync does."""
        uri = f"postgresql://{self.settings.address}"
        errors = (
            (StatusMessage("fatal", str(self.error)),) if self.error is not None else tuple(map(_err, self.findings))
        )
        return ConnectionStatus(self.settings.name, uri, uri, self.error is None, errors)

    def statuses(self, plan: SyncPlan) -> tuple[TableStatus, ...]:
        """The tables that a plan names."""
        patterns = [pattern for pattern in plan.tables() if pattern.of(self.settings.tag) and not pattern.computed]
        return tuple(status for pattern in patterns for status in self._of(pattern, plan))

    def _of(self, pattern: TablePattern, plan: SyncPlan) -> Iterator[TableStatus]:
        data = any(source.table == pattern for bucket in plan.buckets for source in bucket.sources)
        parameters = any(lookup.table == pattern for lookup in plan.lookups)
        found = [table for table in self.tables if pattern.matches(self.settings.tag, table.schema, table.name)]
        wild = UNSET if pattern.exact else pattern.name
        if not found and pattern.exact:
            missing = StatusMessage("warning", f'Table "{pattern.schema}"."{pattern.name}" not found.')
            errors = (StatusMessage("fatal", "connection failed"),) if self.error is not None else (missing,)
            yield TableStatus(pattern.schema, pattern.name, (), data, parameters, errors, wild)
        for table in found:
            trouble = tuple(map(_err, self.trouble.get(table.oid, ())))
            key = self.keys.get(table.oid, ())
            yield TableStatus(table.schema, table.name, key, data, parameters, trouble, wild)


def look_at(sources: Sequence[tuple[SourceSettings, str]]) -> tuple[SeenSource, ...]:
    """Read these sources, each with the name of its slot, all at once: some may not answer for long."""
    return tuple(of_each(sources, lambda each: look(*each)))


def look(settings: SourceSettings, slot: str) -> SeenSource:
    """Read the source. Errors of the source are returned in `error`, not raised."""
    try:
        with connect(settings, application_name="headwater admin") as conn, source_errors(settings):
            conn.execute("set lock_timeout = '2s'; set statement_timeout = '20s'")
            return _look(conn, settings, slot)
    except HeadwaterError as error:
        return SeenSource(settings, error)


def _look(conn: psycopg.Connection, settings: SourceSettings, slot: str) -> SeenSource:
    missing = publication_findings(conn, settings)
    tables = all_tables(conn)
    trouble = {} if missing else _trouble(conn, settings, tables)
    return SeenSource(
        settings,
        None,
        (*server_findings(conn, settings), *missing),
        slot_health(conn, slot) if slot else None,
        tuple(tables),
        identity_columns(conn, [table.oid for table in tables]),
        trouble,
    )


def _trouble(
    conn: psycopg.Connection, settings: SourceSettings, tables: Sequence[NamedTable]
) -> dict[int, tuple[Finding, ...]]:
    publishable = to_publish(tables)
    try:
        absent = {table.oid for table in lacking(conn, settings.publications, publishable)}
    except PublicationError as error:
        finding = Finding(error.code, error.what, error.fix)
        return {table.oid: (finding,) for table in publishable}
    barred = unreadable(conn, readings(conn, publishable))
    found: dict[int, tuple[Finding, ...]] = {}
    for table in publishable:
        own = list(barred.get(table.oid, ()))
        if table.keyless:
            what = f"{table.qualified_name} has no replication id columns"
            own.append(Finding("HW_2017", what, "add a primary key, or set another replica identity"))
        if table.oid in absent:
            own += unpublished(conn, settings, [table])
        if own:
            found[table.oid] = tuple(own)
    return found


def _err(finding: Finding) -> StatusMessage:
    level = "fatal" if finding.fatal and finding.code != _RLS else "warning"
    return StatusMessage(level, str(finding))
