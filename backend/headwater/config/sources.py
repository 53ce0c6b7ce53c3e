"""`replication.connections`: where the source is and how to log in there."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from headwater.config.document import Item
from headwater.config.errors import ConfigError, ConfigIssue
from headwater.config.section import Findings, Section
from headwater.source.connect import SourceSettings

_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535
_SSL_MODES = ("verify-full", "verify-ca", "disable")


class _Address(NamedTuple):
    """What a URI says; empty where it says nothing."""

    host: str = ""
    port: int | None = None
    database: str = ""
    user: str = ""
    password: str = ""
    connect_timeout: str = ""


def read_sources(replication: Section) -> tuple[SourceSettings, ...]:
    """The configured sources; one at most."""
    connections = replication.sections("connections")
    replication.warn_unknown()
    if len(connections) > 1:
        replication.error(
            f"{len(connections)} sources are configured, and this version follows one",
            "connections",
            fix="run one service, with its own storage path, for each",
        )
    return tuple(settings for section in connections if (settings := _source(section)) is not None)


def with_login(settings: SourceSettings, uri: str) -> SourceSettings:
    """The same source with another login: host, port and database of `settings`, unless the URI names its own.

    Raises ConfigError.
    """
    findings = Findings()
    address = _address(Section({"uri": Item(uri, None)}, "", None, findings))
    if not findings.errors and not address.user:
        findings.errors.append(
            ConfigIssue("names no user", "uri", fix="write postgresql://user:password@host/database")
        )
    if findings.errors:
        raise ConfigError("--admin-uri", findings.errors)
    return replace(
        settings,
        host=address.host or settings.host,
        port=address.port or settings.port,
        database=address.database or settings.database,
        user=address.user,
        password=address.password,
    )


def _source(section: Section) -> SourceSettings | None:
    kind = section.text("type") or "postgresql"
    if kind != "postgresql":
        section.error(f"a source of type {kind} is not supported", "type", fix="use postgresql")
        return None
    address = _address(section)
    host = section.text("hostname") or address.host
    database = section.text("database") or address.database
    user = section.text("username") or address.user
    for key, value, code in (
        ("hostname", host, "PSYNC_S1106"),
        ("database", database, "PSYNC_S1105"),
        ("username", user, "PSYNC_S1107"),
    ):
        if not value:
            section.error(f"neither {key} nor uri says which one", key, fix=f"add {key}", code=code)
    publications = section.texts("publications") if "publications" in section else ("headwater",)
    if not publications:
        section.error("must name at least one", "publications", fix="remove it to use headwater")
    sslmode = section.choice("sslmode", "verify-full", _SSL_MODES)
    cacert = section.text("cacert")
    if sslmode == "verify-ca" and not cacert:
        section.error("verify-ca needs it", "cacert", fix="add the PEM text, or use verify-full", code="PSYNC_S1104")
    settings = SourceSettings(
        host=host,
        port=section.integer("port", address.port or 5432, _LOWEST_PORT, _HIGHEST_PORT, code="PSYNC_S1110"),
        database=database,
        user=user,
        password=section.text("password") or address.password,
        tag=section.text("tag") or "default",
        id=section.text("id") or "default",
        sslmode=sslmode,
        cacert=cacert,
        client_certificate=section.text("client_certificate"),
        client_private_key=section.text("client_private_key"),
        connect_timeout=_connect_timeout(section, address),
        publications=publications,
        slot_prefix=section.text("slot_name_prefix") or "headwater_",
        heartbeat_seconds=section.integer("heartbeat_interval_seconds", 60, 5, 60),
    )
    _refuse_unsupported(section)
    section.ignore("debug_api", "max_pool_size", "snapshot_socket_timeout")
    section.warn_unknown()
    return settings


def _address(section: Section) -> _Address:
    uri = section.text("uri")
    if uri is None:
        return _Address()
    if not uri.startswith(("postgresql://", "postgres://")):
        section.error("must begin with postgresql://", "uri", code="PSYNC_S1109")
        return _Address()
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        section.error(
            "can't be read", "uri", fix="write special characters of the password as %XX, and the port as a number"
        )
        return _Address()
    if port is not None and "port" not in section and not _LOWEST_PORT <= port <= _HIGHEST_PORT:
        what = f"its port must be a number from {_LOWEST_PORT} to {_HIGHEST_PORT}"
        section.error(what, "uri", code="PSYNC_S1110")
    timeout = parse_qs(parts.query).get("connect_timeout", [""])[0]
    return _Address(
        unquote(parts.hostname or ""),
        port,
        unquote(parts.path.lstrip("/")),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        timeout,
    )


def _connect_timeout(section: Section, address: _Address) -> int:
    """Seconds; what is no positive number counts as not given, as in the published service."""
    default = int(address.connect_timeout) if address.connect_timeout.isdecimal() else 0
    return section.integer("connect_timeout", default, 0, 3600) or 20


def _refuse_unsupported(section: Section) -> None:
    """What would be a promise of safety must not be passed over in silence."""
    if section.texts("reject_ip_ranges"):
        section.error("is not supported by this version", "reject_ip_ranges", fix="guard the network instead")
    if "tls_servername" in section:
        section.error("is not supported by this version", "tls_servername", fix="use the certificate's host name")
