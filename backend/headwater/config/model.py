"""The service config as the rest of the program uses it: checked, typed, with every default filled in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headwater.api.auth.addresses import AddressRules
from headwater.api.auth.claims import TrustedIssuer
from headwater.api.auth.keys import Key, KeyAddress
from headwater.api.http.limits import HttpLimits
from headwater.config.errors import ConfigError, ConfigIssue
from headwater.pipeline.settings import SparkSettings
from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import UploadSettings
from headwater.storage.address import StoreAddress
from headwater.telemetry.trace_choice import TraceSettings
from headwater_rules.evaluate.limits import MOST_BUCKETS, MOST_RESULTS


@dataclass(frozen=True, slots=True)
class ClientAuth:
    """Which user tokens are accepted: those signed with one of `keys`, or with a key published at one of `addresses`,
    for one of `audience`, or by one of `issuers`, whose tokens may come without one. `rules` decide which hosts may be
    asked for keys."""

    keys: tuple[Key, ...] = field(default=(), repr=False)
    audience: frozenset[str] = frozenset()
    addresses: tuple[KeyAddress, ...] = field(default=(), repr=False)
    rules: AddressRules = field(default_factory=AddressRules)
    issuers: tuple[TrustedIssuer, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncConfigText:
    """The sync config: a file, or inline text. The file is read on demand, so that processes that do not need it run
    without it. With `exit_on_error`, errors in it stop a replicator at its start; otherwise the config is ignored. With
    `allow_missing`, it may be decided by columns that the source lacks, which a migration will add."""

    path: Path | None = None
    content: str | None = field(default=None, repr=False)
    exit_on_error: bool = True
    allow_missing: bool = False

    @property
    def origin(self) -> str:
        """A name for messages."""
        return str(self.path) if self.path is not None else "the sync config in the service config"

    @property
    def checked_by(self) -> str:
        """How to see all that is wrong with it, as a remedy."""
        if self.path is None:
            return "save it as a file, and see `headwater rules check FILE`"
        return f"see `headwater rules check {self.path}`"

    def read(self) -> str:
        """The YAML text. Raises ConfigError when the file cannot be read."""
        if self.path is None:
            return self.content or ""
        try:
            return self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            reason = "it is not UTF-8 text"
        except OSError as error:
            reason = error.strerror or type(error).__name__
        issue = ConfigIssue(f"the sync config can't be read: {reason}", "sync_config.path", fix="correct the path")
        raise ConfigError(str(self.path), [issue])


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Limits of the endpoint, the admin tokens, and the address of the admin API if it is not that of the endpoint.
    `chunk_cache_mb` is the size of the chunk cache of each process, in MiB. A stream from which its device reads
    nothing for `stalled_stream_seconds` is cut off. None of `workers` and of
    `max_data_fetch_concurrency` stands for what suits the machine and the store."""

    tokens: tuple[str, ...] = field(default=(), repr=False)
    workers: int | None = None
    max_concurrent_connections: int = 200
    max_data_fetch_concurrency: int | None = None
    max_buckets_per_connection: int = MOST_BUCKETS
    max_parameter_query_results: int = MOST_RESULTS
    max_subscriptions_per_connection: int = 1000
    max_known_buckets_per_connection: int = 20_000
    chunk_cache_mb: int = 64
    max_streams_per_user: int = 50
    stalled_stream_seconds: int = 60
    checkpoint_request_retention_minutes: int = 60
    http: HttpLimits = field(default_factory=HttpLimits)
    admin_port: int | None = None
    admin_host: str | None = None


@dataclass(frozen=True, slots=True)
class Logging:
    """`level` is one of Python's level names, `format` is text or json."""

    level: str = "INFO"
    format: str = "text"


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The settings of a process. `probes` says whether the endpoint answers probes, `upload` what devices may write,
    `traces` how changes are traced, if they are;
    `warnings` are for the author of the config."""

    sources: tuple[SourceSettings, ...]
    storage: StoreAddress
    auth: ClientAuth
    sync_config: SyncConfigText | None
    host: str = "0.0.0.0"  # noqa: S104 - the published service listens on every address too
    port: int = 8080
    api: ApiConfig = ApiConfig()
    spark: SparkSettings = field(default_factory=SparkSettings)
    logging: Logging = Logging()
    prometheus_port: int | None = None
    metrics_host: str = "127.0.0.1"
    traces: TraceSettings | None = None
    probes: bool = True
    upload: UploadSettings | None = None
    warnings: tuple[str, ...] = ()

    def source(self) -> SourceSettings:
        """The source. Raises ConfigError when none is configured."""
        if not self.sources:
            raise ConfigError(
                "service config", [ConfigIssue("no source is configured", "replication.connections", fix=_ADD_SOURCE)]
            )
        return self.sources[0]

    def uploads(self) -> UploadSettings:
        """What devices may write. Raises ConfigError when that is not configured."""
        if self.upload is None:
            raise ConfigError("service config", [ConfigIssue("uploads are not configured", "upload", fix=_ADD_UPLOAD)])
        return self.upload

    def sync_text(self) -> str:
        """The sync config's YAML. Raises ConfigError when there is none."""
        if self.sync_config is None:
            raise ConfigError(
                "service config", [ConfigIssue("no sync config is given", "sync_config", fix=_ADD_SYNC_CONFIG)]
            )
        return self.sync_config.read()


_ADD_SOURCE = "add one: replication: {connections: [{type: postgresql, uri: …}]}"
_ADD_UPLOAD = "add what devices may write: upload: {role: app_user, tables: {todos: {}}}"
_ADD_SYNC_CONFIG = "name its file: sync_config: {path: sync.yaml}"
