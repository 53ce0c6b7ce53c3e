"""The service config: its sections, checked and typed, with every default filled in.

The settings are declared where they are used. Whatever depends on several of them, or on the environment, is checked
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from headwater.api.auth.settings import ClientAuth, read_client_auth
from headwater.api.limits import HttpLimits, Network, StreamLimits
from headwater.api.studio.tokens import LONGEST_NAME, AdminToken, Role
from headwater.api.upload.settings import read_upload
from headwater.cli.databases import read_sources, read_storage
from headwater.config import ConfigSource
from headwater.config.document import ConfigError, ConfigIssue, ConfigNode, redacted
from headwater.config.origin import FoundConfig, find_config, find_sync_base64
from headwater.config.reader import KNOWN_TO_ALL, MAKE_ONE, ConfigFindings, Section
from headwater.errors import HeadwaterError
from headwater.pipeline.settings import SparkSettings
from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import UploadSettings
from headwater.storage.address import StoreAddress
from headwater.sync.request import BodyLimits, RequestLimits
from headwater.telemetry.trace_choice import TraceSettings

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - as the PowerSync service
Port = Annotated[int | None, Meta(ge=1, le=65535)]


@dataclass(frozen=True, slots=True)
class SyncConfigText:
    """The sync config: a file, or inline text. The file is read on demand, so that processes that do not need it run
    without it."""

    path: Path | None = None
    content: str | None = field(default=None, repr=False)
    exit_on_error: Annotated[bool, Meta()] = True
    """Whether errors in it stop a replicator at its start. Otherwise it is ignored then."""
    allow_missing: Annotated[bool, Meta()] = False
    """Whether it may be decided by columns that the source lacks, which a migration will add."""

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
class ApiParameters:
    """`api.parameters`: what devices may have. With None, `max_data_fetch_concurrency` is what suits the store."""

    requests: RequestLimits = field(default_factory=RequestLimits)
    streams: Annotated[StreamLimits, Meta(extra={"key": ""})] = field(default_factory=StreamLimits)
    body: Annotated[BodyLimits, Meta(extra={"key": ""})] = field(default_factory=BodyLimits)
    max_data_fetch_concurrency: Annotated[int | None, Meta(ge=1, le=1000)] = None
    chunk_cache_mb: Annotated[int, Meta(ge=0)] = 64  # of each process, in MiB
    checkpoint_request_retention_minutes: Annotated[int, Meta(ge=1)] = 60


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """`api`: the admin tokens, how many processes serve devices (None: what suits the machine), the address of the
    admin API if it is not that of the endpoint, and limits."""

    tokens: tuple[AdminToken, ...] = ()
    workers: Annotated[int | None, Meta(ge=1, le=256)] = None
    admin_port: Port = None
    admin_host: Annotated[str | None, Meta()] = None
    parameters: ApiParameters = ApiParameters()
    http: HttpLimits = field(default_factory=HttpLimits)


@dataclass(frozen=True, slots=True)
class Logging:
    """`level` is one of Python's level names, `format` is text or json."""

    level: str = "INFO"
    format: str = "text"


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """The settings of a process. `probes` says whether the endpoint answers probes, `upload` what devices may write,
    `traces` how changes are traced, if they are. If some of the sources are from lists, these are read again every
    `reread_seconds`, and `unread_lists` says of which lists that was not possible. `remove_after_seconds` is how long a
    source that is not among the `sources` any more keeps its rows. `warnings` are for the author of the config."""

    sources: tuple[SourceSettings, ...]
    storage: StoreAddress
    auth: ClientAuth
    sync_config: SyncConfigText | None
    host: str = _EVERY_ADDRESS
    port: int = 8080
    api: ApiConfig = ApiConfig()
    spark: SparkSettings = field(default_factory=SparkSettings)
    logging: Logging = Logging()
    prometheus_port: int | None = None
    metrics_host: str = "127.0.0.1"
    traces: TraceSettings | None = None
    probes: bool = True
    upload: UploadSettings | None = None
    reread_seconds: float = 0.0
    unread_lists: tuple[str, ...] = ()
    remove_after_seconds: float = 3600.0
    warnings: tuple[str, ...] = ()

    def source(self) -> SourceSettings:
        """The only source. Raises ConfigError when none is configured, or several and none was chosen."""
        if not self.sources:
            if self.unread_lists:
                what, where = "no source is known", "replication.connections_from"
                raise HeadwaterError(what, where, self.unread_lists[0], code="HW_7011")
            fix = "add one: replication: {connections: [{type: postgresql, uri: …}]}"
            raise _missing("no source is configured", "replication.connections", fix)
        if len(self.sources) > 1:
            names = ", ".join(source.name for source in self.sources)
            raise _missing("several sources are configured", "--source", f"choose one of: {names}")
        return self.sources[0]

    def by_source(self) -> list[ServiceConfig]:
        """This config for each of its sources alone. Raises ConfigError when there is none."""
        return [replace(self, sources=(source,)) for source in self.chosen(())]

    def chosen(self, names: Sequence[str]) -> tuple[SourceSettings, ...]:
        """The sources with these names, a tag standing for all its shards; all sources if there are no names. Raises
        ConfigError when there is no such source, or none at all."""
        if not self.sources:
            self.source()  # raises
        known = ", ".join(source.name for source in self.sources)
        unknown = [name for name in names if not any(each.is_called(name) for each in self.sources)]
        if unknown:
            raise _missing(f"there is no source {unknown[0]}", "--source", f"use one of: {known}")
        return tuple(each for each in self.sources if not names or any(map(each.is_called, names)))

    def uploads(self) -> UploadSettings:
        """What devices may write. Raises ConfigError when that is not configured."""
        if self.upload is None:
            fix = "add what devices may write: upload: {role: app_user, tables: {todos: {}}}"
            raise _missing("uploads are not configured", "upload", fix)
        return self.upload

    def sync_text(self) -> str:
        """The sync config's YAML. Raises ConfigError when there is none."""
        if self.sync_config is None:
            raise _missing("no sync config is given", "sync_config", "name its file: sync_config: {path: sync.yaml}")
        return self.sync_config.read()


def _missing(what: str, key: str, fix: str) -> ConfigError:
    return ConfigError("service config", [ConfigIssue(what, key, fix=fix)])


@dataclass(frozen=True, slots=True)
class ConfigReview:
    """A service config and what was found in it. `keys` are all that it gives, as paths, in the order of the file.
    `config` has the default of whatever `errors` speak of."""

    origin: str
    config: ServiceConfig
    keys: tuple[str, ...]
    errors: tuple[ConfigIssue, ...]
    warnings: tuple[ConfigIssue, ...]

    @property
    def right(self) -> tuple[str, ...]:
        """The keys that no error and no warning speaks of. A type that is wrong makes its whole section so."""
        named = [*(each.key for each in self.errors), *(each.key for each in self.warnings)]
        named += [each.key.removesuffix(".type") for each in self.errors if each.key.endswith(".type")]
        return tuple(
            key
            for key in self.keys
            if not any(key == each or key.startswith((f"{each}.", f"{each}[")) for each in named)
        )


def load_config(
    source: ConfigSource, environment: Mapping[str, str], directory: Path, *, lists_too: bool = True
) -> ServiceConfig:
    """Read the service config. `directory` is the working directory. Without `lists_too`, connections that are in lists
    are left out, and no database is asked for them. Raises ConfigError with every error."""
    review = review_config(source, environment, directory, lists_too=lists_too)
    if review.errors:
        raise ConfigError(review.origin, sorted(review.errors, key=_position))
    return review.config


def review_config(
    source: ConfigSource, environment: Mapping[str, str], directory: Path, *, lists_too: bool = True
) -> ConfigReview:
    """Read the service config and all that is wrong with it, by the arguments of `load_config`. Raises ConfigError when
    it can't be read, or is no mapping."""
    found = find_config(source, environment, directory)
    config, findings = _read(found, find_sync_base64(source, environment), environment, lists_too=lists_too)
    config = replace(config, warnings=tuple(map(str, findings.warnings)))
    return ConfigReview(
        found.origin, config, tuple(_keys(found.root, "")), tuple(findings.errors), tuple(findings.warnings)
    )


def _position(issue: ConfigIssue) -> tuple[int, int]:
    return (issue.mark.line, issue.mark.column) if issue.mark else (0, 0)


def _keys(item: ConfigNode, path: str) -> Iterator[str]:
    match item.value:
        case dict(values):
            for name, value in values.items():
                yield from _keys(value, f"{path}.{name}" if path else name)
        case list(items) if any(isinstance(each.value, dict) for each in items):
            for number, each in enumerate(items):
                yield from _keys(each, f"{path}[{number}]")
        case _:
            yield path


def _read(
    found: FoundConfig, sync_text: str | None, environment: Mapping[str, str], *, lists_too: bool
) -> tuple[ServiceConfig, ConfigFindings]:
    """The config of a tree: what has errors has its default. `sync_text` is the sync config if it was given by
    itself."""
    if not isinstance(found.root.value, dict):
        issue = ConfigIssue(f"must be a mapping, not {found.root.kind}", mark=found.root.mark)
        raise ConfigError(found.origin, [issue])
    findings = ConfigFindings()
    root = Section(found.root.value, "", found.root.mark, findings)
    replication = root.section("replication")
    remove_after = replication.integer("remove_after_minutes", 60, 0)
    reread_seconds = float(replication.integer("reread_seconds", 60, 1, 86_400))
    read = read_sources(replication, found.directory, environment, lists_too=lists_too)
    sources = read.sources
    storage = read_storage(root.section("storage"), found.directory)
    port = root.integer("port", 8080, 0, 65535)
    with root.section("metrics") as metrics:
        metrics_host = metrics.text("host") or "127.0.0.1"
    right, unread = len(findings.errors), read.unread
    upload = read_upload(root, sources, listed=read.listed and not unread)
    if unread and len(findings.errors) > right:  # probably, it names a source that is not known
        unread = (*unread, f"[HW_7011] no upload is taken meanwhile, for {findings.errors[right]}")
        del findings.errors[right:]
        upload = None
    config = ServiceConfig(
        sources=sources,
        reread_seconds=reread_seconds if read.listed else 0.0,
        unread_lists=unread,
        remove_after_seconds=60.0 * remove_after,
        storage=storage,
        auth=read_client_auth(root, [source.host for source in sources]),
        sync_config=_sync_config(root, found.directory, sync_text),
        host=root.text("host") or _EVERY_ADDRESS,
        port=port,
        api=_api(root, port),
        spark=_spark(root, storage),
        logging=_logging(root, environment),
        prometheus_port=_prometheus_port(root),
        metrics_host=metrics_host,
        traces=_traces(root, environment),
        probes=_answers_probes(root),
        upload=upload,
    )
    _warn_unsupported(root)
    root.warn_unknown()
    return config, findings


def _sync_config(root: Section, directory: Path, text: str | None) -> SyncConfigText | None:
    if "sync_config" in root and "sync_rules" in root:
        root.error("is the old name of sync_config, which is also given", "sync_rules", fix="remove one of them")
    name = "sync_rules" if "sync_rules" in root and "sync_config" not in root else "sync_config"
    with root.section(name) as section:
        path, content = section.text("path"), section.text("content")
        found = section.read(SyncConfigText())
    if text is not None:
        return replace(found, content=text)
    if path is not None:
        return replace(found, path=directory / path)
    return replace(found, content=content) if content is not None else None


def _api(root: Section, port: int) -> ApiConfig:
    with root.section("api") as section:
        with section.section("parameters") as limits:
            requests = limits.read(RequestLimits())
            # after a deploy, a device still knows the buckets of the old sync config
            known = max(BodyLimits().known_buckets, 2 * requests.max_buckets)
            parameters = limits.read(ApiParameters(requests, body=BodyLimits(known_buckets=known)))
            limits.integer("bucket_count_cache_ttl_minutes", 60)
            limits.no_effect("bucket sizes are updated with every change", "bucket_count_cache_ttl_minutes")
        config = section.read(ApiConfig(_admin_tokens(section), parameters=parameters))
        if config.admin_port == port:
            what = "is the same as `port`, which serves the admin API by default"
            section.error(what, "admin_port", fix="name another one, or remove it")
        return replace(config, http=_http(section, parameters.streams.streams))


def _http(api: Section, streams: int) -> HttpLimits:
    """By default there is room for twice as many connections as streams, even from one address: all may come through a
    load balancer that `trusted_proxies` does not name."""
    default = HttpLimits(trusted_proxies=tuple(_networks(api, "trusted_proxies")))
    with api.section("http") as section:
        return section.read(
            replace(
                default,
                max_connections=max(default.max_connections, 2 * streams),
                max_connections_per_address=max(default.max_connections_per_address, 2 * streams),
            )
        )


def _networks(section: Section, key: str) -> Iterator[Network]:
    for text in section.texts(key):
        try:
            yield ip_network(text, strict=False)
        except ValueError:
            section.error(f"{redacted(text)} is neither an IP address nor a network", key, fix="write 10.0.0.0/8")


_SHORTEST_TOKEN = 16


def _admin_tokens(section: Section) -> tuple[AdminToken, ...]:
    """The admin tokens: each a text, or a mapping with its role and name."""
    tokens = tuple(map(_admin_token, section.texts_or_sections("tokens", "token")))
    if len({token.text for token in tokens}) < len(set(tokens)):
        what = "the same token is given twice, with different roles or names"
        section.error(what, "tokens", fix=f"give each operator another one; {MAKE_ONE}")
    return tokens


def _admin_token(section: Section) -> AdminToken:
    """One of them. An empty one, as from an empty environment variable, is an error: it would match requests without a
    token."""
    token, name = section.text("token") or "", section.text("name") or ""
    role = Role(section.choice("role", Role.EDIT.value, [each.value for each in Role]))
    if not token.strip():
        section.error("an empty token would open the admin API to everybody", fix="set it, or remove it")
    elif token != token.strip():
        what = "a token begins or ends with white space, which no request can send"
        section.error(what, fix="remove the white space")
    elif len(token) < _SHORTEST_TOKEN:
        what = f"a token has under {_SHORTEST_TOKEN} characters, so that it can be guessed"
        section.error(what, fix=MAKE_ONE, code=KNOWN_TO_ALL)
    if len(name) > LONGEST_NAME or not name.isprintable():
        section.error(f"must be text that can be printed, of at most {LONGEST_NAME} characters", "name")
    section.refuse_example("", token)
    section.refuse_unknown()
    return AdminToken(token, role, name)


def _spark(root: Section, storage: StoreAddress) -> SparkSettings:
    with root.section("spark") as section:
        config = section.read(SparkSettings())
        if not config.local and storage.one_machine:
            what = (
                f"{redacted(config.master)} runs tasks on other machines, which can't reach the embedded store's files"
            )
            fix = "use local[*], or storage of type postgresql"
            section.error(f"{what} on this one", "master", fix=fix)
        return config


_LEVELS = {
    "silly": "DEBUG", "debug": "DEBUG", "verbose": "DEBUG", "http": "INFO", "info": "INFO",
    "warn": "WARNING", "warning": "WARNING", "error": "ERROR",
}  # fmt: skip


def _logging(root: Section, environment: Mapping[str, str]) -> Logging:
    production = environment.get("NODE_ENV") == "production"
    with root.section("system") as system, system.section("logging") as section:
        level = section.choice("level", "info", _LEVELS)
        form = section.choice("format", "json" if production else "text", ("text", "json"))
    for prefix in ("PS_LOG_", "HEADWATER_LOG_"):
        level = _from_environment(root, environment, f"{prefix}LEVEL", level, tuple(_LEVELS))
        form = _from_environment(root, environment, f"{prefix}FORMAT", form, ("text", "json"))
    return Logging(_LEVELS[level], form)


def _from_environment(
    root: Section, environment: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]
) -> str:
    value = (environment.get(name) or default).lower()
    if value in allowed:
        return value
    issue = ConfigIssue(f"environment variable {name} must be one of {', '.join(allowed)}", fix="correct or unset it")
    root.findings.errors.append(issue)
    return default


def _prometheus_port(root: Section) -> int | None:
    with root.section("telemetry") as section:
        if not section.boolean("disable_telemetry_sharing", default=True):
            section.no_effect("no telemetry is sent", "disable_telemetry_sharing")
        section.no_effect("no telemetry is sent", "internal_service_endpoint")
        return section.integer("prometheus_port", None, 0, 65535)


_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"


def _traces(root: Section, environment: Mapping[str, str]) -> TraceSettings | None:
    """None when neither the config nor OpenTelemetry's variables give an endpoint, or these turn traces off."""
    with root.section("traces") as section:
        settings = section.read(TraceSettings(section.text("endpoint")))
        if settings.endpoint is not None and not settings.endpoint.startswith(("http://", "https://")):
            section.error("is not an HTTP URL", "endpoint", fix="write it like http://collector:4318")
        disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        if disabled or environment.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
            return None
        if not settings.endpoint and not any(environment.get(name) for name in _ENDPOINTS):
            return None
        protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _PROTOCOL)
        if protocol != _PROTOCOL:
            section.warn(f"traces are sent as {_PROTOCOL}, whatever the environment says")
        return settings


def _answers_probes(root: Section) -> bool:
    """Whether the endpoint answers probes. As in the PowerSync service, a config that mentions probes has to enable
    them."""
    with root.section("healthcheck") as healthcheck, healthcheck.section("probes") as probes:
        given = "probes" in healthcheck
        over_http = probes.boolean("use_http", default=False)
        if probes.boolean("use_filesystem", default=False):
            probes.no_effect("probes are answered over HTTP only, with use_http", "use_filesystem")
        legacy = probes.boolean("use_legacy", default=False)
        if legacy:
            probes.warn("probes are answered over HTTP; no files are written", "use_legacy")
        return not given or over_http or legacy


def _warn_unsupported(root: Section) -> None:
    """Report keys of PowerSync's config that have no counterpart here."""
    root.no_effect("errors are only logged", "metadata")
    root.no_effect("sync queries can't read it", "parameters")
    root.no_effect("it says what kind of deployment this is, to PowerSync's command line", "_type")
    root.no_effect("the version is that of what is installed (`headwater --version`)", "version_label")
    with root.section("migrations") as migrations:
        if migrations.boolean("disable_auto_migration", default=False):
            migrations.no_effect("a store is upgraded when it is opened", "disable_auto_migration")
