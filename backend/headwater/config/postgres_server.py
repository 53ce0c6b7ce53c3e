"""Reads the address and login of a Postgres server, for sources and for storage."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from headwater.config.errors import shown
from headwater.config.section import GIVE_ANOTHER, Section
from headwater.source.connect import known_pooler

NO_HOSTNAME, NO_DATABASE, NO_USERNAME = "PSYNC_S1106", "PSYNC_S1105", "PSYNC_S1107"
"""A setting of the database's address or login is missing or is a URI."""

_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535
_SSL_MODES = ("verify-full", "verify-ca", "require", "disable")
_AUTHORITY_END = re.compile(r"[/?#]")
_ESCAPE = "write @ in the password as %40, / as %2F, : as %3A, ? as %3F, # as %23, or set it apart, as password"


@dataclass(frozen=True, slots=True)
class UriParts:
    """The parts of a URI, empty where missing."""

    host: str = ""
    port: int | None = None
    database: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    connect_timeout: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """A database and a login. Certificates and keys are PEM text; `connect_timeout` is in seconds."""

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    sslmode: str
    connect_timeout: int
    cacert: str | None = field(default=None, repr=False)
    client_certificate: str | None = field(default=None, repr=False)
    client_private_key: str | None = field(default=None, repr=False)


def read_server(section: Section) -> Server:
    """Read the server. Separate keys take precedence over the parts of the URI. Errors are added to the findings."""
    given = read_uri(section)
    address = given or UriParts()
    host = section.text("hostname") or address.host
    database = section.text("database") or address.database
    user = section.text("username") or address.user
    for key, value, code in (
        ("hostname", host, NO_HOSTNAME),
        ("database", database, NO_DATABASE),
        ("username", user, NO_USERNAME),
    ):
        if not value and given is not None:  # else it is the URI that has to be mended
            section.error(f"neither {key} nor uri gives it", key, fix=f"add {key}", code=code)
        elif "://" in value:
            section.error("is a URI", key, fix="write it as uri", code=code)
    port = section.integer("port", address.port or 5432, _LOWEST_PORT, _HIGHEST_PORT, code="PSYNC_S1110")
    if (pooler := known_pooler(host, port, user)) is not None:
        what = f"is {pooler.name}, which passes on neither replication nor settings of a session"
        section.error(what, "hostname" if "hostname" in section else "uri", fix=f"use {pooler.direct}")
    sslmode = section.choice("sslmode", "verify-full", _SSL_MODES)
    cacert = _pem(section, "cacert")
    password = section.text("password") or ""
    section.refuse_example("password", password, fix=GIVE_ANOTHER)
    _warn_unverified(section, sslmode, cacert)
    _refuse_unsupported(section)
    return Server(
        host=host,
        port=port,
        database=database,
        user=user,
        password=password or address.password,
        sslmode=sslmode,
        connect_timeout=_connect_timeout(section, address),
        cacert=cacert,
        client_certificate=_pem(section, "client_certificate"),
        client_private_key=_pem(section, "client_private_key"),
    )


def _pem(section: Section, key: str) -> str | None:
    """PEM text. In environment variables, its line ends often are the two characters \\n, or blanks."""
    text = section.text(key)
    return text and _ON_ONE_LINE.sub(
        lambda block: "\n".join((block[1], *block[2].split(), block[3], "")),
        text.replace("\\r", "").replace("\\n", "\n"),
    )


_ON_ONE_LINE = re.compile("(-----BEGIN [^-\n]+-----)([^-\n]*)(-----END [^-\n]+-----)")


def read_uri(section: Section) -> UriParts | None:
    """The parts of `uri`, all empty where there is none; None if it is wrong, which is reported."""
    uri = section.text("uri")
    if uri is None:
        return UriParts()
    if not uri.startswith(("postgresql://", "postgres://")):
        section.error("must begin with postgresql://", "uri", code="PSYNC_S1109")
        return None
    authority, rest = (*_AUTHORITY_END.split(uri.partition("://")[2], maxsplit=1), "")[:2]
    if "@" in rest or authority.count("@") > 1:  # part of the password would be read as host or database
        section.error("has an @ or another special character that is not escaped", "uri", fix=_ESCAPE)
        return None
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        section.error("can't be read", "uri", fix=f"{_ESCAPE}; and the port as a number")
        return None
    if port is not None and "port" not in section and not _LOWEST_PORT <= port <= _HIGHEST_PORT:
        what = f"its port must be a number from {_LOWEST_PORT} to {_HIGHEST_PORT}"
        section.error(what, "uri", code="PSYNC_S1110")
    section.refuse_example("uri", unquote(parts.password or ""), fix=GIVE_ANOTHER)
    given = parse_qs(parts.query, keep_blank_values=True)
    timeout = given.pop("connect_timeout", [""])[0]
    if given:
        what = f"its parameters {', '.join(map(shown, given))} are not read; sslmode and others are keys beside uri"
        section.warn(what, "uri")
    return UriParts(
        unquote(parts.hostname or ""),
        port,
        unquote(parts.path.lstrip("/")),
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        timeout,
    )


def _warn_unverified(section: Section, sslmode: str, cacert: str | None) -> None:
    if cacert:
        return
    if sslmode == "require":
        section.warn(
            "require encrypts, but anybody who gets between can answer as the database: use verify-full, with cacert "
            "if the authority is the hosting company's own",
            "sslmode",
        )
    elif sslmode == "verify-ca":
        section.warn(
            "verify-ca without cacert is content with any host that has a certificate: use verify-full", "sslmode"
        )


def _connect_timeout(section: Section, address: UriParts) -> int:
    """Seconds. Anything but a positive number counts as not given, as in the published service."""
    default = int(address.connect_timeout) if address.connect_timeout.isdecimal() else 0
    return section.integer("connect_timeout", default, 0, 3600) or 20


def _refuse_unsupported(section: Section) -> None:
    """Report unsupported security settings as errors: ignoring them would give a false sense of safety."""
    if section.texts("reject_ip_ranges"):
        section.error("is not supported by this version", "reject_ip_ranges", fix="restrict the network instead")
    if "tls_servername" in section:
        section.error("is not supported by this version", "tls_servername", fix="use the certificate's host name")
