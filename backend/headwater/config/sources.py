"""Reads `replication.connections`: the address and login of the source."""

from __future__ import annotations

from dataclasses import replace

from headwater.config.document import Item
from headwater.config.errors import ConfigError, ConfigIssue, shown
from headwater.config.postgres_server import read_server, read_uri
from headwater.config.section import Findings, Section
from headwater.source.connect import SourceSettings


def read_sources(replication: Section) -> tuple[SourceSettings, ...]:
    """The configured sources, at most one."""
    connections = replication.sections("connections")
    batch_mb = replication.integer("batch_mb", 64, 4, 4096)
    replication.warn_unknown()
    if len(connections) > 1:
        replication.error(
            f"{len(connections)} sources are configured, but this version supports only one",
            "connections",
            fix="run a separate service, with its own storage path, for each",
        )
    return tuple(settings for section in connections if (settings := _source(section, batch_mb)) is not None)


def with_login(settings: SourceSettings, uri: str) -> SourceSettings:
    """The source with the login of the URI, and its host, port and database where it gives them. Raises ConfigError."""
    findings = Findings()
    address = read_uri(Section({"uri": Item(uri, None)}, "", None, findings))
    if address is not None and not address.user:
        findings.errors.append(ConfigIssue("has no user", "uri", fix="write postgresql://user:password@host/database"))
    if address is None or findings.errors:
        raise ConfigError("--admin-uri", findings.errors)
    return replace(
        settings,
        host=address.host or settings.host,
        port=address.port or settings.port,
        database=address.database or settings.database,
        user=address.user,
        password=address.password,
    )


def source_of(uri: str, *, password: str = "", sslmode: str | None = None, cacert: str | None = None) -> SourceSettings:
    """The source at a URI, which needs host, database and user. `cacert` is PEM text. Raises ConfigError."""
    findings = Findings()
    given = {"uri": uri, "password": password, "sslmode": sslmode, "cacert": cacert}
    section = Section({key: Item(value, None) for key, value in given.items() if value}, "", None, findings)
    settings = _source(section, 64)
    if settings is None or findings.errors:
        raise ConfigError("--uri", findings.errors)
    return settings


def _source(section: Section, batch_mb: int) -> SourceSettings | None:
    kind = section.text("type") or "postgresql"
    if kind != "postgresql":
        section.error(f"a source of type {shown(kind)} is not supported", "type", fix="use postgresql")
        return None
    server = read_server(section)
    publications = section.texts("publications") if "publications" in section else ("headwater",)
    if not publications:
        section.error("must name at least one", "publications", fix="remove it to use headwater")
    settings = SourceSettings(
        host=server.host,
        port=server.port,
        database=server.database,
        user=server.user,
        password=server.password,
        tag=section.text("tag") or "default",
        sslmode=server.sslmode,
        cacert=server.cacert,
        client_certificate=server.client_certificate,
        client_private_key=server.client_private_key,
        connect_timeout=server.connect_timeout,
        publications=publications,
        slot_prefix=section.text("slot_name_prefix") or "headwater_",
        poison_changes=section.choice("poison_changes", "skip", ("skip", "stop")),
        batch_bytes=batch_mb << 20,
        debug_api=section.boolean("debug_api", default=False),
        heartbeat_seconds=section.integer("heartbeat_interval_seconds", 60, 5, 60),
    )
    section.text("id")
    section.no_effect("a source is identified by its tag", "id")
    section.no_effect("each task that reads the source opens one connection", "max_pool_size")
    section.no_effect(
        f"a source that does not answer for {settings.silence_seconds:.0f} s counts as lost, and is reconnected",
        "snapshot_socket_timeout",
    )
    section.warn_unknown()
    return settings
