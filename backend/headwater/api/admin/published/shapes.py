"""The bodies and answers of the published paths. Field names are those of the published service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec import UNSET, Struct, UnsetType

from headwater_rules.errors import RuleError, Severity


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the text of the sync config."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Err:
    """An error. `level` is warning or fatal."""

    level: str
    message: str
    location: Location | UnsetType = UNSET
    ts: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """The connection to the source. The URI never contains credentials."""

    id: str
    uri: str
    postgres_uri: str
    connected: bool
    errors: tuple[Err, ...]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table that the sync config names. `pattern` is the wildcard that matched it, if one did."""

    schema: str
    name: str
    replication_id: tuple[str, ...]
    data_queries: bool
    parameter_queries: bool
    errors: tuple[Err, ...]
    pattern: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
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


@dataclass(frozen=True, slots=True)
class RulesStatus:
    """A version of the sync config. `errors` are those of tables, replication, its text and the slot's WAL limit."""

    connections: tuple[ReplicationStatus, ...]
    errors: tuple[Err, ...]
    content: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class DiagnosticsAsked:
    """Whether to include the text of the sync config."""

    sync_rules_content: bool = False


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """The source, the active version of the sync config and the one that is being processed."""

    connections: tuple[ConnectionStatus, ...]
    active_sync_rules: RulesStatus | UnsetType = UNSET
    deploying_sync_rules: RulesStatus | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class ValidateAsked:
    """The text of a sync config."""

    sync_rules: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `sqlite_type` is blob 1, text 2, integer 4 or real 8."""

    name: str
    sqlite_type: int
    type: str
    internal_type: str
    pg_type: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the source."""

    name: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema of the source."""

    name: str
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class ConnectionSchema:
    """All schemas of a source."""

    id: str
    tag: str
    schemas: tuple[Schema, ...]


class DatabaseSchema(Struct, frozen=True, rename="camel"):
    """All sources, and the source and schema of tables that a sync config names without them."""

    connections: tuple[ConnectionSchema, ...]
    default_connection_tag: str
    default_schema: str


@dataclass(frozen=True, slots=True)
class ConnectionSlot:
    """A source and its slot."""

    id: str
    tag: str
    slot_name: str


@dataclass(frozen=True, slots=True)
class Reprocessed:
    """The sources whose tables will be compared."""

    connections: tuple[ConnectionSlot, ...]


@dataclass(frozen=True, slots=True)
class Sql:
    """A statement, and the values of its parameters $1, $2 and so on."""

    query: str
    args: tuple[str | float | bool, ...] = ()


@dataclass(frozen=True, slots=True)
class SqlAsked:
    """A statement for a source."""

    sql: Sql
    connection_id: str | None = None


@dataclass(frozen=True, slots=True)
class SqlResults:
    """Rows. `truncated` means that there are more."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """Rows, or why there are none."""

    success: bool
    results: SqlResults
    error: str | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class SlotName:
    """The replication slot of the source."""

    slot_name: str


@dataclass(frozen=True, slots=True)
class BucketDefinitionTold:
    """A bucket definition, the streams that it belongs to and the tables that it reads."""

    name: str
    streams: tuple[str, ...]
    source_tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """Whether a sync config is valid, the tables that it reads and those that devices get."""

    valid: bool
    errors: tuple[str, ...] | UnsetType = UNSET
    bucket_definitions: tuple[BucketDefinitionTold, ...] | UnsetType = UNSET
    source_tables: tuple[Mapping[str, str], ...] | UnsetType = UNSET
    data_tables: tuple[str, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class CurrentRules:
    """A version of the sync config, the tables that it reads and those that devices get."""

    slot_name: str
    content: str
    valid: bool
    errors: tuple[str, ...] | UnsetType = UNSET
    bucket_definitions: tuple[BucketDefinitionTold, ...] | UnsetType = UNSET
    source_tables: tuple[Mapping[str, str], ...] | UnsetType = UNSET
    data_tables: tuple[str, ...] | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Current:
    """The active version, and the one that is being processed, if any."""

    current: CurrentRules
    next: CurrentRules | None


def iso(seconds: float) -> str:
    """A time in seconds since 1970, in ISO 8601."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rule_errors(found: Sequence[RuleError]) -> list[Err]:
    """Errors of a sync config, in the published shape."""
    return [
        Err(
            "fatal" if each.severity is Severity.FATAL else "warning",
            f"[{each.code.value}] {each.message}",
            Location(each.span.start, each.span.end) if each.span else UNSET,
        )
        for each in found
    ]
