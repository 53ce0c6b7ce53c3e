"""`/api/admin/v1/diagnostics`, `schema`, `validate` and `reprocess`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby

from msgspec import UNSET, UnsetType

from headwater.api.admin.errors import DeployBusyError, NothingServedError
from headwater.api.admin.published.shapes import (
    Column,
    ConnectionSchema,
    ConnectionSlot,
    DatabaseSchema,
    Diagnostics,
    DiagnosticsAsked,
    Err,
    ReplicationStatus,
    Reprocessed,
    RulesStatus,
    Schema,
    Table,
    TableStatus,
    ValidateAsked,
    iso,
    rule_errors,
)
from headwater.api.admin.published.source import SeenSource, look
from headwater.api.admin.settings import AdminSettings
from headwater.api.admin.versions import in_state
from headwater.insight.diff import of_source
from headwater.oplog.lsn import format_lsn
from headwater.oplog.op import OpId
from headwater.replication.health.standing import Standing, Standings
from headwater.replication.own_slot import slot_of
from headwater.replication.requests import RequestKind
from headwater.source.catalog.schema import SeenTable, read_overview, see_schema
from headwater.storage.backend import Store
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater.storage.open import open_backend
from headwater_rules.compiler.compile import compile_config, findings_in
from headwater_rules.errors import Code, RuleError, RuleErrors
from headwater_rules.schema import ValueKind

_BITS = {ValueKind.BLOB: 1, ValueKind.TEXT: 2, ValueKind.JSON: 2, ValueKind.INTEGER: 4, ValueKind.REAL: 8}
_LATE, _TOO_LATE = 300.0, 900.0
_EPOCH_2000 = 946_684_800


class DiagnosticsDesk:
    """Reports the state of everything, in the words of the published service."""

    def __init__(self, settings: AdminSettings, reader: StoreReader) -> None:
        self._settings = settings
        self._reader = reader
        self._standings = Standings(reader, settings.sources)

    def diagnostics(self, asked: DiagnosticsAsked) -> Diagnostics:
        """Report the state of the source, the active sync config and the one that is being processed."""
        if not self._settings.sources:
            return Diagnostics(())
        with self._settings.store() as store:
            seen = look(self._settings.source, slot_of(self._settings.source, store))
            active, next_ = in_state(store, VersionState.ACTIVE), in_state(store, VersionState.PROCESSING)
            content = asked.sync_rules_content
            return Diagnostics(
                (seen.connection(),),
                UNSET if active is None else self._status(store, active, seen, content=content),
                UNSET if next_ is None else self._status(store, next_, seen, content=content),
            )

    def schema(self) -> DatabaseSchema:
        """List the tables of the source that the role has any right to."""
        told = tuple(
            ConnectionSchema(source.tag, source.tag, tuple(_schemas(read_overview(source))))
            for source in self._settings.sources
        )
        return DatabaseSchema(told, "default", "public")

    def validate(self, asked: ValidateAsked) -> RulesStatus:
        """Find everything that is wrong with a sync config and the tables that it names. Stores nothing."""
        seen = look(self._settings.source, "")
        try:
            compiled = compile_config(asked.sync_rules)
        except RuleErrors as errors:
            return RulesStatus((), tuple(rule_errors(errors.findings)))
        tag = self._settings.source.tag
        tables = seen.statuses(compiled.plan)
        findings, note = self._compared(asked.sync_rules)
        found = [*_of_tables(tables), *rule_errors(findings), *([Err("warning", note)] if note else [])]
        connection = ReplicationStatus(tag, tag, "", initial_replication_done=False, tables=tables)
        return RulesStatus((connection,), tuple(dict.fromkeys(found)))

    def reprocess(self) -> Reprocessed:
        """Compare all tables with the source, and send devices what differs."""
        slot = reprocess(self._settings)
        return Reprocessed((ConnectionSlot(self._settings.source.tag, self._settings.source.tag, slot),))

    def _compared(self, text: str) -> tuple[Sequence[RuleError], str]:
        """The findings in a sync config that compiles, compared with the source's tables, and a note if they can't be
        read. What a table lacks to be replicated is among its own errors."""
        seen = see_schema(self._settings.sources)
        found = findings_in(text, seen.schema)
        return [each for each in found if each.code is not Code.NOT_SENT], "" if seen.schema else seen.note

    def _status(self, store: Store, version: ConfigVersion, seen: SeenSource, *, content: bool) -> RulesStatus:
        text = version.yaml if content else UNSET
        try:
            compiled = compile_config(version.yaml)
        except RuleErrors as error:
            return RulesStatus((), tuple(rule_errors(error.findings)), text)
        active = version.state is VersionState.ACTIVE
        standing = next(each for each in self._standings.find() if each.source == seen.settings.tag)
        connection = self._connection(store, seen, standing, seen.statuses(compiled.plan), active=active)
        errors = [*_of_tables(connection.tables), *_of_replication(standing), *rule_errors(compiled.warnings)]
        errors += rule_errors(of_source(self._compared(version.yaml)[0]))
        if active:
            errors += [*_of_budget(connection), *_of_lag(connection)]
        return RulesStatus((connection,), tuple(dict.fromkeys(errors)), text)

    def _connection(
        self,
        store: Store,
        seen: SeenSource,
        standing: Standing,
        tables: tuple[TableStatus, ...],
        *,
        active: bool,
    ) -> ReplicationStatus:
        tag = seen.settings.tag
        slot = slot_of(seen.settings, store)
        told = ReplicationStatus(tag, tag, slot, initial_replication_done=active, tables=tables)
        state, checkpoint = store.source_state(tag), self._reader.newest()
        if state is not None:
            told = replace(told, last_lsn=format_lsn(state.lsn))
        if standing.at is not None:
            told = replace(told, last_keepalive_ts=iso(standing.at))
        if checkpoint is not None:
            told = replace(told, last_checkpoint_ts=self._committed(checkpoint.checkpoint.op_id))
        if seen.slot is not None:
            limits = UNSET if seen.slot.limit is None else seen.slot.limit
            left = UNSET if seen.slot.left is None else seen.slot.left
            told = replace(
                told,
                replication_lag_bytes=seen.slot.behind if standing.lag_bytes is None else standing.lag_bytes,
                wal_status=seen.slot.wal_status,
                safe_wal_size=left,
                max_slot_wal_keep_size=limits,
            )
        return told

    def _committed(self, op_id: int) -> str | UnsetType:
        """When the source committed the newest flushed transaction. Not known for bulk work."""
        flushes = open_backend(self._settings.storage).read_flushes(OpId(op_id - 1), OpId(op_id))
        if not flushes or not flushes[-1].committed_us:
            return UNSET
        return iso(_EPOCH_2000 + flushes[-1].committed_us / 1e6)


def reprocess(settings: AdminSettings) -> str:
    """Ask the replicator to compare all tables. Returns the slot. Raises NothingServedError or DeployBusyError."""
    with settings.store() as store:
        if in_state(store, VersionState.PROCESSING) is not None:
            raise DeployBusyError("Busy processing sync config", fix="wait until it is served")
        if in_state(store, VersionState.ACTIVE) is None:
            raise NothingServedError("No active sync config", fix="deploy one")
        store.submit(RequestKind.RESYNC, settings.source.tag, '{"tables":[]}')
        return slot_of(settings.source, store)


def _schemas(tables: list[SeenTable]) -> Iterator[Schema]:
    for name, found in groupby(tables, key=lambda table: table.schema):
        yield Schema(name, tuple(Table(table.name, _columns(table)) for table in found))


def _columns(table: SeenTable) -> tuple[Column, ...]:
    return tuple(
        Column(column.name, _BITS[column.kind], column.type, column.type, column.type_name) for column in table.columns
    )


# errors of a version as a whole


def _of_tables(tables: tuple[TableStatus, ...]) -> list[Err]:
    return [error for table in tables for error in table.errors]


def _of_replication(standing: Standing) -> list[Err]:
    if standing.cause is None:
        return []
    return [Err("fatal", str(standing.cause), ts=iso(standing.cause.at))]


def _of_budget(told: ReplicationStatus) -> list[Err]:
    left, limit = told.safe_wal_size, told.max_slot_wal_keep_size
    if isinstance(left, UnsetType) or isinstance(limit, UnsetType) or told.wal_status == "lost" or 2 * left > limit:
        return []
    share = 100 * left // max(1, limit)
    return [Err("warning", f"{share} % of the WAL that the slot may keep (max_slot_wal_keep_size) is left")]


def _of_lag(told: ReplicationStatus) -> list[Err]:
    known = [each for each in (told.last_checkpoint_ts, told.last_keepalive_ts) if not isinstance(each, UnsetType)]
    if not known:
        return [Err("warning", "No checkpoint found, cannot calculate replication lag")]
    seconds = time.time() - datetime.fromisoformat(max(known)).timestamp()
    if seconds <= _LATE:
        return []
    level = "fatal" if seconds > _TOO_LATE else "warning"
    return [Err(level, f"No replicated commit in more than {seconds:.0f}s")]
