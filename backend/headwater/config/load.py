"""Builds the typed config from a config's tree: applies defaults, checks values, and rejects keys of the published
config that are not supported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headwater.config.client_auth import read_client_auth
from headwater.config.errors import ConfigError, ConfigIssue, shown
from headwater.config.given import ConfigSource
from headwater.config.http import read_http
from headwater.config.model import (
    ApiConfig,
    Logging,
    ServiceConfig,
    SyncConfigText,
)
from headwater.config.origin import Found, find_config, find_sync_base64
from headwater.config.section import KNOWN_TO_ALL, MAKE_ONE, Findings, Section
from headwater.config.sources import read_sources
from headwater.config.storage import read_storage
from headwater.config.traces import read_traces
from headwater.config.upload import read_upload
from headwater.pipeline.settings import SparkSettings
from headwater.storage.address import StoreAddress

_LEVELS = {
    "silly": "DEBUG", "debug": "DEBUG", "verbose": "DEBUG", "http": "INFO", "info": "INFO",
    "warn": "WARNING", "warning": "WARNING", "error": "ERROR",
}  # fmt: skip
_LIMIT = 2**31 - 1
_MOST_WORKERS = 256


def load_config(source: ConfigSource, environment: Mapping[str, str], directory: Path) -> ServiceConfig:
    """Read the service config. `directory` is the working directory. Raises ConfigError with every error."""
    found = find_config(source, environment, directory)
    config, findings = read_config(found, find_sync_base64(source, environment), environment)
    if findings.errors:
        raise ConfigError(found.origin, sorted(findings.errors, key=_position))
    return config


def read_config(found: Found, sync_text: str | None, environment: Mapping[str, str]) -> tuple[ServiceConfig, Findings]:
    """The config of a tree, with all that is wrong with it: what has errors has its default. `sync_text` is the sync
    config if it was given by itself. Raises ConfigError when the tree is no mapping."""
    if not isinstance(found.root.value, dict):
        issue = ConfigIssue(f"must be a mapping, not {found.root.kind}", mark=found.root.mark)
        raise ConfigError(found.origin, [issue])
    findings = Findings()
    root = Section(found.root.value, "", found.root.mark, findings)
    sources = read_sources(root.section("replication"))
    storage = read_storage(root.section("storage"), found.directory)
    port = root.integer("port", 8080, 0, 65535)
    config = ServiceConfig(
        sources=sources,
        storage=storage,
        auth=read_client_auth(root, sources),
        sync_config=_sync_config(root, found.directory, sync_text),
        host=root.text("host") or "0.0.0.0",  # noqa: S104 - the published service listens on every address too
        port=port,
        api=_api(root.section("api"), port),
        spark=_spark(root, storage),
        logging=_logging(root, environment),
        prometheus_port=_prometheus_port(root.section("telemetry")),
        metrics_host=_metrics_host(root.section("metrics")),
        traces=read_traces(root.section("traces"), environment),
        probes=_answers_probes(root),
        upload=read_upload(root, sources),
    )
    _warn_unsupported(root)
    root.warn_unknown()
    return replace(config, warnings=tuple(map(str, findings.warnings))), findings


def _position(issue: ConfigIssue) -> tuple[int, int]:
    return (issue.mark.line, issue.mark.column) if issue.mark else (0, 0)


def _sync_config(root: Section, directory: Path, text: str | None) -> SyncConfigText | None:
    if "sync_config" in root and "sync_rules" in root:
        root.error("is the old name of sync_config, which is also given", "sync_rules", fix="remove one of them")
    name = "sync_rules" if "sync_rules" in root and "sync_config" not in root else "sync_config"
    section = root.section(name)
    path, content = section.text("path"), section.text("content")
    found = SyncConfigText(
        exit_on_error=section.boolean("exit_on_error", default=True),
        allow_missing=section.boolean("allow_missing", default=False),
    )
    section.warn_unknown()
    if text is not None:
        return replace(found, content=text)
    if path is not None:
        return replace(found, path=directory / path)
    return replace(found, content=content) if content is not None else None


def _api(section: Section, port: int) -> ApiConfig:
    limits = section.section("parameters")
    defaults = ApiConfig()
    streams = limits.integer("max_concurrent_connections", defaults.max_concurrent_connections, 1, _LIMIT)
    buckets = limits.integer("max_buckets_per_connection", defaults.max_buckets_per_connection, 1, _LIMIT)
    config = ApiConfig(
        tokens=_admin_tokens(section),
        workers=_given(section, "workers", _MOST_WORKERS),
        max_concurrent_connections=streams,
        max_data_fetch_concurrency=_given(limits, "max_data_fetch_concurrency", 1000),
        max_buckets_per_connection=buckets,
        max_parameter_query_results=limits.integer(
            "max_parameter_query_results", defaults.max_parameter_query_results, 1, _LIMIT
        ),
        max_subscriptions_per_connection=limits.integer(
            "max_subscriptions_per_connection", defaults.max_subscriptions_per_connection, 1, _LIMIT
        ),
        max_known_buckets_per_connection=limits.integer(
            # after a deploy, a device still knows the buckets of the old sync config
            "max_known_buckets_per_connection",
            max(defaults.max_known_buckets_per_connection, 2 * buckets),
            1,
            _LIMIT,
        ),
        chunk_cache_mb=limits.integer("chunk_cache_mb", defaults.chunk_cache_mb, 0, _LIMIT),
        max_streams_per_user=limits.integer("max_streams_per_user", defaults.max_streams_per_user, 1, _LIMIT),
        stalled_stream_seconds=limits.integer("stalled_stream_seconds", defaults.stalled_stream_seconds, 1, _LIMIT),
        checkpoint_request_retention_minutes=limits.integer(
            "checkpoint_request_retention_minutes", defaults.checkpoint_request_retention_minutes, 1, _LIMIT
        ),
        http=read_http(section, streams),
        admin_port=section.integer("admin_port", 0, 1, 65535) if "admin_port" in section else None,
        admin_host=section.text("admin_host"),
    )
    if config.admin_port == port:
        section.error("is the same as `port`, which serves the admin API by default", "admin_port", fix=_OTHER_PORT)
    limits.integer("bucket_count_cache_ttl_minutes", 60, 1, _LIMIT)
    limits.no_effect("bucket sizes are updated with every change", "bucket_count_cache_ttl_minutes")
    limits.warn_unknown()
    section.warn_unknown()
    return config


def _given(section: Section, key: str, most: int) -> int | None:
    """A number from 1 on, None if it is not given."""
    return section.integer(key, 1, 1, most) if key in section else None


_SHORTEST_TOKEN = 16
_SET_IT = "set it, or remove it"
_OTHER_PORT = "name another one, or remove it"


def _admin_tokens(section: Section) -> tuple[str, ...]:
    """The admin tokens. An empty one, as from an empty environment variable, is an error: it would match requests
    without a token."""
    tokens = section.texts("tokens")
    if any(not token.strip() for token in tokens):
        section.error("an empty token would open the admin API to everybody", "tokens", fix=_SET_IT)
    elif any(token != token.strip() for token in tokens):
        what = "a token begins or ends with white space, which no request can send"
        section.error(what, "tokens", fix="remove the white space")
    elif any(len(token) < _SHORTEST_TOKEN for token in tokens):
        what = f"a token has under {_SHORTEST_TOKEN} characters, so that it can be guessed"
        section.error(what, "tokens", fix=MAKE_ONE, code=KNOWN_TO_ALL)
    section.refuse_example("tokens", *tokens)
    return tokens


def _spark(root: Section, storage: StoreAddress) -> SparkSettings:
    section = root.section("spark")
    defaults = SparkSettings()
    config = SparkSettings(
        section.text("master") or defaults.master,
        section.pairs("conf"),
        section.integer("idle_minutes", int(defaults.idle_minutes), 0, _LIMIT),
    )
    section.warn_unknown()
    if not config.local and storage.one_machine:
        section.error(
            f"{shown(config.master)} runs tasks on other machines, which can't reach the embedded store's files on"
            " this one",
            "master",
            fix="use local[*], or storage of type postgresql",
        )
    return config


def _logging(root: Section, environment: Mapping[str, str]) -> Logging:
    system = root.section("system")
    section = system.section("logging")
    production = environment.get("NODE_ENV") == "production"
    level = section.choice("level", "info", _LEVELS)
    form = section.choice("format", "json" if production else "text", ("text", "json"))
    for prefix in ("PS_LOG_", "HEADWATER_LOG_"):
        level = _from_environment(root, environment, f"{prefix}LEVEL", level, tuple(_LEVELS))
        form = _from_environment(root, environment, f"{prefix}FORMAT", form, ("text", "json"))
    section.warn_unknown()
    system.warn_unknown()
    return Logging(_LEVELS[level], form)


def _prometheus_port(section: Section) -> int | None:
    if not section.boolean("disable_telemetry_sharing", default=True):
        section.no_effect("no telemetry is sent", "disable_telemetry_sharing")
    section.no_effect("no telemetry is sent", "internal_service_endpoint")
    port = section.integer("prometheus_port", 0, 0, 65535) if "prometheus_port" in section else None
    section.warn_unknown()
    return port


def _metrics_host(section: Section) -> str:
    host = section.text("host") or "127.0.0.1"
    section.warn_unknown()
    return host


def _from_environment(
    root: Section, environment: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]
) -> str:
    value = (environment.get(name) or default).lower()
    if value in allowed:
        return value
    issue = ConfigIssue(f"environment variable {name} must be one of {', '.join(allowed)}", fix="correct or unset it")
    root.findings.errors.append(issue)
    return default


def _warn_unsupported(root: Section) -> None:
    """Report keys of the published config that have no counterpart here."""
    root.no_effect("errors are only logged", "metadata")
    root.no_effect("sync queries can't read it", "parameters")
    root.no_effect("it tells the published command what kind of deployment this is", "_type")
    root.no_effect("the version is that of what is installed (`headwater --version`)", "version_label")
    migrations = root.section("migrations")
    if migrations.boolean("disable_auto_migration", default=False):
        migrations.no_effect("a store is upgraded when it is opened", "disable_auto_migration")
    migrations.warn_unknown()


def _answers_probes(root: Section) -> bool:
    """Whether the endpoint answers probes. As in the published service, a config that mentions probes has to enable
    them."""
    healthcheck = root.section("healthcheck")
    given = "probes" in healthcheck
    probes = healthcheck.section("probes")
    over_http = probes.boolean("use_http", default=False)
    if probes.boolean("use_filesystem", default=False):
        probes.no_effect("probes are answered over HTTP only, with use_http", "use_filesystem")
    legacy = probes.boolean("use_legacy", default=False)
    if legacy:
        probes.warn("probes are answered over HTTP; no files are written", "use_legacy")
    probes.warn_unknown()
    healthcheck.warn_unknown()
    return not given or over_http or legacy
