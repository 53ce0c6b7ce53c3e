"""PowerSync's admin paths, with its requests and responses."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby

from msgspec import UNSET, Struct, UnsetType, structs

from headwater.api.admin.powersync_source import (
    ConnectionStatus,
    Location,
    SeenSource,
    StatusMessage,
    TableStatus,
    look_at,
)
from headwater.api.admin.powersync_sql import SqlHandler
from headwater.api.admin.route import (
    DEPLOY_BUSY,
    DEPLOY_CLOSED,
    INVALID_RULES,
    NOT_FOUND,
    NOTHING_SERVED,
    AdminRoute,
    AdminSettings,
)
from headwater.api.admin.rules import SyncConfigRequest
from headwater.api.admin.versions import Deploying, compared_rules, deploy, in_state
from headwater.api.errors import ApiError
from headwater.api.studio.tokens import Operator
from headwater.errors import HeadwaterError
from headwater.insight.diff import of_source
from headwater.oplog.lsn import format_lsn
from headwater.oplog.op import OpId
from headwater.replication.own_slot import slot_of
from headwater.replication.requests import RequestKind
from headwater.replication.status import SourceStatus, SourceStatuses
from headwater.source.catalog.schema import (
    SeenTable,
    read_overview,
    see_schema,
)
from headwater.source.connect import SourceSettings, of_each
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.compiler.compile import compile_config, findings_in
from headwater_rules.errors import RuleCode, RuleError, Severity, SyncConfigError
from headwater_rules.plan import SyncPlan
from headwater_rules.schema import SourceSchema, ValueKind


class ReplicationStatus(Struct, frozen=True):
    """The state of replication under a version of the sync config."""

    id: str
    tag: str
    slot_name: str
    initial_replication_done: bool
    tables: tuple[TableStatus, ...]
    last_lsn: str | UnsetType = UNSET
    last_keepalive_ts: str | UnsetType = UNSET
    last_checkpoint_ts: str | UnsetType = UNSET
    replication_lag_bytes: int | UnsetType = UNSET
    wal_status: str | UnsetType = UNSET
    safe_wal_size: int | UnsetType = UNSET
    max_slot_wal_keep_size: int | UnsetType = UNSET


class RulesStatus(Struct, frozen=True):
    """A version of the sync config. `errors` are those of tables, replication, its text and the slot's WAL limit."""

    connections: tuple[ReplicationStatus, ...]
    errors: tuple[StatusMessage, ...]
    content: str | UnsetType = UNSET


class DiagnosticsRequest(Struct, frozen=True):
    """Whether to include the text of the sync config."""

    sync_rules_content: bool = False


class Diagnostics(Struct, frozen=True):
    """The sources, the active version of the sync config and the one that is being processed."""

    connections: tuple[ConnectionStatus, ...]
    active_sync_rules: RulesStatus | UnsetType = UNSET
    deploying_sync_rules: RulesStatus | UnsetType = UNSET


class ValidateRulesRequest(Struct, frozen=True):
    """The text of a sync config."""

    sync_rules: str


class ColumnResponse(Struct, frozen=True):
    """A column. `sqlite_type` is blob 1, text 2, integer 4 or real 8."""

    name: str
    sqlite_type: int
    type: str
    internal_type: str
    pg_type: str


class TableResponse(Struct, frozen=True):
    """A table of the source."""

    name: str
    columns: tuple[ColumnResponse, ...]


class SchemaResponse(Struct, frozen=True):
    """A schema of the source."""

    name: str
    tables: tuple[TableResponse, ...]


class ConnectionSchema(Struct, frozen=True):
    """All schemas of a source."""

    id: str
    tag: str
    schemas: tuple[SchemaResponse, ...]


class DatabaseSchema(Struct, frozen=True, rename="camel"):
    """All sources, and the source and schema of tables that a sync config names without them."""

    connections: tuple[ConnectionSchema, ...]
    default_connection_tag: str
    default_schema: str


class ConnectionSlot(Struct, frozen=True):
    """A source and its slot."""

    id: str
    tag: str
    slot_name: str


class ReprocessRequest(Struct, frozen=True):
    """The connection whose tables to compare; all if none is named."""

    connection_id: str | None = None


class Reprocessed(Struct, frozen=True):
    """The sources whose tables will be compared."""

    connections: tuple[ConnectionSlot, ...]


class SlotName(Struct, frozen=True):
    """The replication slot of the source."""

    slot_name: str


class BucketDefinitionResponse(Struct, frozen=True):
    """A bucket definition, the streams that it belongs to and the tables that it reads."""

    name: str
    streams: tuple[str, ...]
    source_tables: tuple[str, ...]


class SyncRulesResponse(Struct, frozen=True):
    """Whether a sync config is valid, the tables that it reads and those that devices get."""

    valid: bool
    errors: tuple[str, ...] | UnsetType = UNSET
    bucket_definitions: tuple[BucketDefinitionResponse, ...] | UnsetType = UNSET
    source_tables: tuple[Mapping[str, str], ...] | UnsetType = UNSET
    data_tables: tuple[str, ...] | UnsetType = UNSET


class CurrentRulesResponse(SyncRulesResponse, frozen=True, kw_only=True):
    """A version of the sync config, the tables that it reads and those that devices get."""

    slot_name: str
    content: str


class CurrentResponse(Struct, frozen=True):
    """The active version, and the one that is being processed, if any."""

    current: CurrentRulesResponse
    next: CurrentRulesResponse | None


def iso(seconds: float) -> str:
    """A time in seconds since 1970, in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rule_errors(found: Sequence[RuleError]) -> list[StatusMessage]:
    """Errors of a sync config, as PowerSync does."""
    return [
        StatusMessage(
            "fatal" if each.severity is Severity.FATAL else "warning",
            f"[{each.code.value}] {each.message}",
            Location(each.span.start, each.span.end) if each.span else UNSET,
        )
        for each in found
    ]


_log = logging.getLogger(__name__)

_BITS = {ValueKind.BLOB: 1, ValueKind.TEXT: 2, ValueKind.JSON: 2, ValueKind.INTEGER: 4, ValueKind.REAL: 8}
_LATE, _TOO_LATE = 300.0, 900.0
_RECENT_OPS = 1_000
_EPOCH_2000 = 946_684_800


class PowerSyncHandler:
    """Reports the state of everything, and deploys sync configs, in the words of the PowerSync service."""

    def __init__(self, settings: AdminSettings, reader: StoreReader) -> None:
        self._settings = settings
        self._reader = reader
        self._standings = SourceStatuses(reader, settings.sources)

    def diagnostics(self, request: DiagnosticsRequest) -> Diagnostics:
        """Report the state of the sources, the active sync config and the one that is being processed."""
        if not self._settings.sources:
            return Diagnostics(())
        with self._settings.store() as store:
            seen = look_at([(source, slot_of(source, store)) for source in self._settings.sources])
            active, next_ = in_state(store, VersionState.ACTIVE), in_state(store, VersionState.PROCESSING)
            content = request.sync_rules_content
            return Diagnostics(
                tuple(each.connection() for each in seen),
                UNSET if active is None else self._status(store, active, seen, content=content),
                UNSET if next_ is None else self._status(store, next_, seen, content=content),
            )

    def schema(self) -> DatabaseSchema:
        """List the tables of the sources that the role has any right to.

        Of several sources, one that does not answer has none."""
        return DatabaseSchema(tuple(of_each(self._settings.sources, self._schema)), "default", "public")

    def _schema(self, source: SourceSettings) -> ConnectionSchema:
        try:
            schemas = tuple(_schemas(read_overview(source)))
        except HeadwaterError as error:
            if len(self._settings.sources) == 1:
                raise
            _log.warning("the schema lacks the source %s: %s", source.name, error)
            schemas = ()
        return ConnectionSchema(source.name, source.tag, schemas)

    def validate(self, request: ValidateRulesRequest) -> RulesStatus:
        """Find everything that is wrong with a sync config and the tables that it names. Stores nothing."""
        sources = self._settings.sources or (self._settings.source,)
        findings, note = self._compared(request.sync_rules)
        try:
            compiled = compile_config(request.sync_rules)
        except SyncConfigError:  # what is wrong with its columns is said at once all the same
            return RulesStatus((), tuple(rule_errors(findings)))
        seen = look_at([(source, "") for source in sources])
        connections = tuple(
            ReplicationStatus(
                each.settings.name,
                each.settings.tag,
                "",
                initial_replication_done=False,
                tables=each.statuses(compiled.plan),
            )
            for each in seen
        )
        found = [
            error
            for each, connection in zip(seen, connections, strict=True)
            for error in self._named(each.settings, _of_tables(connection.tables))
        ]
        found += [*rule_errors(findings), *([StatusMessage("warning", note)] if note else [])]
        return RulesStatus(connections, tuple(dict.fromkeys(found)))

    def reprocess(self, request: ReprocessRequest) -> Reprocessed:
        """Compare all tables with their source, or those of one connection, and send devices what differs."""
        return Reprocessed(self._resync(request.connection_id))

    def deploy(self, request: SyncConfigRequest, operator: Operator) -> SlotName:
        """Deploy a sync config. Refused when the service config names one."""
        if self._settings.from_file:
            raise ApiError(
                "Sync config API disabled: the service config names the sync config",
                fix="change that file, or use /api/headwater/v1/deploy",
                code=DEPLOY_CLOSED,
            )
        seen = see_schema(self._settings.sources, request.content)
        checked = compared_rules(request.content, seen.schema)
        with self._settings.store() as store:
            deploy(store, Deploying(request.content, operator.name), seen.note, checked)
            return SlotName(slot_of(self._settings.source, store))

    def check(self, request: SyncConfigRequest) -> SyncRulesResponse:
        """Check a sync config, and list the tables that it reads and those that devices get."""
        return _checked(request.content, see_schema(self._settings.sources, request.content).schema)

    def resync(self) -> SlotName:
        """Compare all tables with their sources, and send devices what differs. Names the slot of the first source."""
        return SlotName(self._resync()[0].slot_name)

    def current(self) -> CurrentResponse:
        """Show the active sync config, and the one that is being processed."""
        with self._settings.store() as store:
            active, following = in_state(store, VersionState.ACTIVE), in_state(store, VersionState.PROCESSING)
            if active is None:
                raise ApiError("No active sync config", fix="deploy one", code=NOTHING_SERVED)
            return CurrentResponse(
                self._rules(store, active), None if following is None else self._rules(store, following)
            )

    def _rules(self, store: StoreWriter, version: ConfigVersion) -> CurrentRulesResponse:
        slot, checked = slot_of(self._settings.source, store), structs.asdict(_checked(version.yaml, None))
        return CurrentRulesResponse(slot_name=slot, content=version.yaml, **checked)

    def _resync(self, connection: str | None = None) -> tuple[ConnectionSlot, ...]:
        """Ask the replicators to compare all tables, of all sources or of one. Returns their slots. Raises PSYNC_S4104,
        PSYNC_S4106 or HW_6202."""
        sources = self._settings.sources if connection is None else [self._settings.source_of(connection)]
        with self._settings.store() as store:
            if in_state(store, VersionState.PROCESSING) is not None:
                raise ApiError("Busy processing sync config", fix="wait until it is served", code=DEPLOY_BUSY)
            if in_state(store, VersionState.ACTIVE) is None:
                raise ApiError("No active sync config", fix="deploy one", code=NOTHING_SERVED)
            for source in sources or [self._settings.source]:
                store.submit(RequestKind.RESYNC, source.name, '{"tables":[]}')
            return tuple(ConnectionSlot(each.name, each.tag, slot_of(each, store)) for each in sources)

    def _compared(self, text: str) -> tuple[Sequence[RuleError], str]:
        """The findings in a sync config, compared with the source's tables, and a note if they can't be read. What a
        table lacks to be replicated is among its own errors."""
        seen = see_schema(self._settings.sources, text)
        found = findings_in(text, seen.schema)
        return [each for each in found if each.code is not RuleCode.NOT_SENT], "" if seen.schema else seen.note

    def _status(
        self, store: StoreWriter, version: ConfigVersion, seen: Sequence[SeenSource], *, content: bool
    ) -> RulesStatus:
        text = version.yaml if content else UNSET
        try:
            compiled = compile_config(version.yaml)
        except SyncConfigError as error:
            return RulesStatus((), tuple(rule_errors(error.findings)), text)
        active = version.state is VersionState.ACTIVE
        standings = {each.source: each for each in self._standings.find()}
        connections, errors = list[ReplicationStatus](), list[StatusMessage]()
        for each in seen:
            standing = standings[each.settings.name]
            connection = self._connection(store, each, standing, each.statuses(compiled.plan), active=active)
            connections.append(connection)
            found = [*_of_tables(connection.tables), *_of_replication(standing)]
            if active:
                found += [*_of_budget(connection), *_of_lag(connection)]
            errors += self._named(each.settings, found)
        errors += [*rule_errors(compiled.warnings), *rule_errors(of_source(self._compared(version.yaml)[0]))]
        return RulesStatus(tuple(connections), tuple(dict.fromkeys(errors)), text)

    def _named(self, source: SourceSettings, errors: Sequence[StatusMessage]) -> list[StatusMessage]:
        """The errors of a source, which is named where there are several."""
        if len(self._settings.sources) == 1:
            return list(errors)
        return [structs.replace(each, message=f"{source.name}: {each.message}") for each in errors]

    def _connection(
        self,
        store: StoreWriter,
        seen: SeenSource,
        standing: SourceStatus,
        tables: tuple[TableStatus, ...],
        *,
        active: bool,
    ) -> ReplicationStatus:
        source, slot, lag = seen.settings, seen.slot, standing.lag_bytes
        state, newest = store.source_state(source.name), self._reader.newest()
        return ReplicationStatus(
            source.name,
            source.tag,
            slot_of(seen.settings, store),
            initial_replication_done=active and state is not None,
            tables=tables,
            last_lsn=UNSET if state is None else format_lsn(state.lsn),
            last_keepalive_ts=UNSET if standing.at is None else iso(standing.at),
            last_checkpoint_ts=UNSET if newest is None else self._committed(newest.checkpoint.op_id, source.name),
            replication_lag_bytes=UNSET if slot is None else slot.behind if lag is None else lag,
            wal_status=UNSET if slot is None else slot.wal_status,
            safe_wal_size=UNSET if slot is None or slot.left is None else slot.left,
            max_slot_wal_keep_size=UNSET if slot is None or slot.limit is None else slot.limit,
        )

    def _committed(self, op_id: int, source: str) -> str | UnsetType:
        """When the source committed its newest flushed transaction. Not known for bulk work, nor where others have
        written much since."""
        flushes = open_store(self._settings.storage).read_flushes(OpId(max(0, op_id - _RECENT_OPS)), OpId(op_id))
        own = [each for each in flushes if each.source == source]
        if not own or not own[-1].committed_us:
            return UNSET
        return iso(_EPOCH_2000 + own[-1].committed_us / 1e6)


def _schemas(tables: list[SeenTable]) -> Iterator[SchemaResponse]:
    for name, found in groupby(tables, key=lambda table: table.schema):
        yield SchemaResponse(name, tuple(TableResponse(table.name, _columns(table)) for table in found))


def _columns(table: SeenTable) -> tuple[ColumnResponse, ...]:
    return tuple(
        ColumnResponse(column.name, _BITS[column.kind], column.type, column.type, column.type_name)
        for column in table.columns
    )


# errors of a version as a whole


def _of_tables(tables: tuple[TableStatus, ...]) -> list[StatusMessage]:
    return [error for table in tables for error in table.errors]


def _of_replication(standing: SourceStatus) -> list[StatusMessage]:
    if standing.cause is None:
        return []
    return [StatusMessage("fatal", str(standing.cause), ts=iso(standing.cause.at))]


def _of_budget(status: ReplicationStatus) -> list[StatusMessage]:
    left, limit = status.safe_wal_size, status.max_slot_wal_keep_size
    if isinstance(left, UnsetType) or isinstance(limit, UnsetType) or status.wal_status == "lost" or 2 * left > limit:
        return []
    share = 100 * left // max(1, limit)
    return [StatusMessage("warning", f"{share} % of the WAL that the slot may keep (max_slot_wal_keep_size) is left")]


def _of_lag(status: ReplicationStatus) -> list[StatusMessage]:
    known = [each for each in (status.last_checkpoint_ts, status.last_keepalive_ts) if not isinstance(each, UnsetType)]
    if not known:
        return [StatusMessage("warning", "No checkpoint found, cannot calculate replication lag")]
    seconds = time.time() - datetime.fromisoformat(max(known)).timestamp()
    if seconds <= _LATE:
        return []
    level = "fatal" if seconds > _TOO_LATE else "warning"
    return [StatusMessage(level, f"No replicated commit in more than {seconds:.0f}s")]


def _checked(text: str, schema: SourceSchema | None) -> SyncRulesResponse:
    try:
        plan = compile_config(text, schema=schema).plan
    except SyncConfigError as errors:
        return SyncRulesResponse(valid=False, errors=tuple(str(error) for error in errors.errors))
    tables = [{"connectionTag": each.tag, "schema": each.schema, "name": each.name} for each in plan.tables()]
    return SyncRulesResponse(True, UNSET, _definitions(plan), tuple(tables), _outputs(plan))


def _definitions(plan: SyncPlan) -> tuple[BucketDefinitionResponse, ...]:
    definitions = []
    for position, bucket in enumerate(plan.buckets):
        used = (s.name for s in plan.streams if any(position in variant.buckets for variant in s.variants))
        read = dict.fromkeys(f"{source.table.schema}.{source.table.name}" for source in bucket.sources)
        definitions.append(BucketDefinitionResponse(bucket.name, tuple(dict.fromkeys(used)), tuple(read)))
    return tuple(definitions)


def _outputs(plan: SyncPlan) -> tuple[str, ...]:
    """The names of tables on devices, without duplicates."""
    names = (source.output_table or source.table.name for bucket in plan.buckets for source in bucket.sources)
    return tuple(dict.fromkeys(names))


_ADMIN, _RULES = "/api/admin/v1", "/api/sync-rules/v1"


def powersync_routes(settings: AdminSettings, reader: StoreReader) -> Iterator[AdminRoute]:
    handler, sql = PowerSyncHandler(settings, reader), SqlHandler(settings)
    again = (DEPLOY_BUSY, NOTHING_SERVED)
    yield AdminRoute("POST", f"{_ADMIN}/diagnostics", handler.diagnostics, reads=True)
    yield AdminRoute("POST", f"{_ADMIN}/schema", handler.schema, reads=True)
    yield AdminRoute("POST", f"{_ADMIN}/validate", handler.validate, reads=True, compiles=True)
    yield AdminRoute("POST", f"{_ADMIN}/reprocess", handler.reprocess, (*again, NOT_FOUND))
    yield AdminRoute("POST", f"{_ADMIN}/execute-sql", sql.execute)  # not all that a statement calls can be checked
    yield AdminRoute("POST", f"{_RULES}/deploy", handler.deploy, (DEPLOY_CLOSED, INVALID_RULES), yaml="content")
    yield AdminRoute(
        *("POST", f"{_RULES}/validate", handler.check),
        bare=True,
        pretty=True,
        yaml="content",
        reads=True,
        compiles=True,
    )
    yield AdminRoute("POST", f"{_RULES}/reprocess", handler.resync, again)
    yield AdminRoute("GET", f"{_RULES}/current", handler.current, (NOTHING_SERVED,), pretty=True)
