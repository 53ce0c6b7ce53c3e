"""Reads the addresses and logins of databases: `replication.connections`, and `storage`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from psycopg.conninfo import make_conninfo

from headwater.config.document import ConfigError, ConfigIssue, ConfigNode, Mark, parse_json, redacted
from headwater.config.origin import from_file
from headwater.config.reader import GIVE_ANOTHER, ConfigFindings, Section
from headwater.errors import HeadwaterError
from headwater.insight.words import count
from headwater.source.connect import SourceSettings, known_pooler, shared_publications
from headwater.source.registry import registered
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.compaction import LEASE

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


def read_server(section: Section) -> SourceSettings:
    """The address and login of a server, for sources and for storage. Separate keys take precedence over the parts of
    the URI. Errors are added to the findings."""
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
    return SourceSettings(
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
        what = f"its parameters {', '.join(map(redacted, given))} are not read; sslmode and others are keys beside uri"
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
    """Seconds. Anything but a positive number counts as not given, as in the PowerSync service."""
    default = int(address.connect_timeout) if address.connect_timeout.isdecimal() else 0
    return section.integer("connect_timeout", default, 0, 3600) or 20


def _refuse_unsupported(section: Section) -> None:
    """Report unsupported security settings as errors: ignoring them would give a false sense of safety."""
    if section.texts("reject_ip_ranges"):
        section.error("is not supported by this version", "reject_ip_ranges", fix="restrict the network instead")
    if "tls_servername" in section:
        section.error("is not supported by this version", "tls_servername", fix="use the certificate's host name")


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")


@dataclass(frozen=True, slots=True)
class ReadSources:
    """The configured sources, each with a name of its own. `listed`: some are from lists, which are to be read again
    and again. `unread` says why lists, or rows of them, could not be read: then not all sources are known."""

    sources: tuple[SourceSettings, ...]
    listed: bool
    unread: tuple[str, ...]


def read_sources(
    replication: Section, directory: Path, environment: Mapping[str, str], *, lists_too: bool = True
) -> ReadSources:
    """The sources of `connections` and, with `lists_too`, of the lists in `connections_from`. Paths are relative to
    `directory`."""
    batch_mb = replication.integer("batch_mb", 64, 4, 4096)
    sources: list[SourceSettings] = []
    for section in replication.sections("connections"):
        if (settings := _another(section, sources, batch_mb)) is not None:
            sources.append(settings)
    lists, unread = replication.sections("connections_from"), []
    replication.warn_unknown()
    for section in lists if lists_too else ():
        with section:
            place, rows = _listed(section, directory, environment)
            defaults = section.section("defaults").values
        if isinstance(rows, str):
            wrong, rows = [rows], []
        else:
            wrong = [] if rows else ["it is empty, which counts as a mistake"]
        warnings: list[tuple[int, ConfigIssue]] = []
        for number, (row, mark) in enumerate(rows, 1):
            findings = ConfigFindings()
            item = Section({**defaults, **row}, f"row {number}", mark, findings)
            settings = _another(item, sources, batch_mb)
            item.refuse_unknown()
            if findings.errors:
                wrong.append(str(replace(findings.errors[0], mark=None, code="")))
            elif settings is not None:
                sources.append(settings)
                warnings += [(number, each) for each in findings.warnings]
        for warning in _told_once(warnings):
            section.warn(f"{place}: {warning}")
        more = [f"{len(wrong) - _ROWS_TOLD} more rows have errors"] if len(wrong) > _ROWS_TOLD else []
        unread += [f"[HW_7011] {section.path}, {place}: {why}" for why in [*wrong[:_ROWS_TOLD], *more]]
    return ReadSources(tuple(sources), bool(lists), tuple(unread))


def _told_once(warnings: Iterable[tuple[int, ConfigIssue]]) -> Iterator[str]:
    """The warnings of rows, by their numbers, each once: all rows may have one from the same defaults."""
    rows: dict[tuple[str, str], list[int]] = {}
    for number, each in warnings:
        rows.setdefault((each.key.partition(".")[2], each.what), []).append(number)
    for (key, what), (first, *others) in rows.items():
        alike = f" (and {count(len(others), 'more row')} alike)" if others else ""
        yield f"row {first}.{key}: {what}{alike}"


def _another(section: Section, sources: Iterable[SourceSettings], batch_mb: int) -> SourceSettings | None:
    """A connection beside these. Errors are added to the findings of its section."""
    if (settings := _source(section, batch_mb)) is not None:
        for other in sources:
            _refuse_alike(section, settings, other)
    return settings


_ROWS_TOLD = 5
_Row = tuple[dict[str, ConfigNode], Mark | None]


def _listed(section: Section, directory: Path, environment: Mapping[str, str]) -> tuple[str, list[_Row] | str]:
    """Where a list of connections is, and its rows, or why it can't be read."""
    file, query = section.text("file"), section.text("query")
    if (file is None) == (query is None):
        section.error("must give either a file, or a uri and a query", fix="write file: tenants.yaml")
        return "nothing", "it says neither file nor query"
    place = redacted(file or "the query")
    try:
        if file is not None:
            root = from_file(directory / file, environment).root
        else:
            errors = len(section.findings.errors)
            database = read_server(section)
            if len(section.findings.errors) > errors:
                return place, "its database is not given rightly"
            place = database.address
            root = parse_json(json.dumps(registered(database, query or "")), place)
    except ConfigError as error:
        return place, error.issues[0].what
    except HeadwaterError as error:
        return place, str(error)
    if not isinstance(root.value, list) or not all(isinstance(item.value, dict) for item in root.value):
        return place, f"must be a list of mappings, not {root.kind}"
    return place, [(item.value, item.mark) for item in root.value if isinstance(item.value, dict)]


def _refuse_alike(section: Section, source: SourceSettings, other: SourceSettings) -> None:
    """Report a source that can't be told from another one."""
    if source.name == other.name:
        fix = "give each connection a tag, by which rules name its tables; or shards of one tag each a shard"
        section.error(f"another connection is called {other.name}, too", "tag", fix=fix)
    elif source.tag == other.tag and None in (source.shard, other.shard):
        section.error(f"another connection has the tag {other.tag}, too", "shard", fix="give both a shard")
    elif source.address == other.address and (both := shared_publications(source, other)):
        fix = "name different publications, or follow it once: rules may read all of its tables"
        section.error(f"is the database of {other.name}, which has {', '.join(both)}, too", "publications", fix=fix)


def with_login(settings: SourceSettings, uri: str) -> SourceSettings:
    """The source with the login of the URI, and its host, port and database where it gives them. Raises ConfigError."""
    found, address = _at(settings, uri, "--admin-uri")
    if not address.user:
        issue = ConfigIssue("has no user", "uri", fix="write postgresql://user:password@host/database")
        raise ConfigError("--admin-uri", [issue])
    return replace(found, user=address.user, password=address.password)


def refuse_address(uri: str) -> None:
    """Raise ConfigError when the URI of an administrator names a host, port or database: several sources have one
    each."""
    address = read_uri(Section({"uri": ConfigNode(uri, None)}, "", None, ConfigFindings()))
    if address is not None and (address.host or address.port or address.database):
        what = "names a host or database, and several sources are to be prepared"
        fix = "give the login only, postgresql://user:password@, or choose one with --source"
        raise ConfigError("--admin-uri", [ConfigIssue(what, "uri", fix=fix)])


def moved_to(settings: SourceSettings, uri: str) -> SourceSettings:
    """The source at the host of the URI, with its port, database and login where it gives them. Raises ConfigError."""
    found, address = _at(settings, uri, "--to")
    return found if not address.user else replace(found, user=address.user, password=address.password)


def _at(settings: SourceSettings, uri: str, option: str) -> tuple[SourceSettings, UriParts]:
    findings = ConfigFindings()
    address = read_uri(Section({"uri": ConfigNode(uri, None)}, "", None, findings))
    if address is None or findings.errors:
        raise ConfigError(option, findings.errors)
    host, port = address.host or settings.host, address.port or settings.port
    return replace(settings, host=host, port=port, database=address.database or settings.database), address


def source_of(
    uri: str, *, password: str = "", sslmode: str | None = None, cacert: str | None = None, tag: str | None = None
) -> SourceSettings:
    """The source at a URI, which needs host, database and user. `cacert` is PEM text. Raises ConfigError."""
    findings = ConfigFindings()
    given = {"uri": uri, "password": password, "sslmode": sslmode, "cacert": cacert, "tag": tag}
    section = Section({key: ConfigNode(value, None) for key, value in given.items() if value}, "", None, findings)
    settings = _source(section, 64)
    if settings is None or findings.errors:
        raise ConfigError("--uri", findings.errors)
    return settings


def _source(section: Section, batch_mb: int) -> SourceSettings | None:
    kind = section.text("type") or "postgresql"
    if kind != "postgresql":
        section.error(f"a source of type {redacted(kind)} is not supported", "type", fix="use postgresql")
        return None
    settings = section.read(replace(read_server(section), memory_bytes=batch_mb << 20))
    for key, name in (("tag", settings.tag), ("shard", settings.shard)):
        if name is not None and not _PLAIN_NAME.fullmatch(name):
            section.error("must be at most 40 letters, digits, _ and -", key)
    if settings.name == LEASE:
        section.error(f"{LEASE} is what the service calls work on the store itself", "tag", fix="choose another tag")
    if not settings.publications:
        section.error("must name at least one", "publications", fix="remove it to use headwater")
    section.text("id")
    section.no_effect("a source is identified by its tag", "id")
    section.no_effect("each task that reads the source opens one connection", "max_pool_size")
    section.no_effect(
        f"a source that does not answer for {settings.silence_seconds:.0f} s counts as lost, and is reconnected",
        "snapshot_socket_timeout",
    )
    section.warn_unknown()
    return settings


DEFAULT_DIRECTORY = "headwater-data"
DEFAULT_SCHEMA = "headwater"

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


def read_storage(section: Section, directory: Path) -> StoreAddress:
    """The address of the store; paths are relative to `directory`."""
    kind = section.text("type") or "sqlite"
    section.no_effect("connections are opened on demand", "max_pool_size")
    section.no_effect("the store has all rows itself, in files or in Postgres", "object_storage")
    section.no_effect("a store has one format, to which it is upgraded when opened", "default_storage_version")
    with section.section("batch_limits") as limits:
        what = "batches end with a transaction of the source, whatever its size"
        limits.no_effect(what, "max_estimated_size", "max_record_count", "max_current_data_batch_size")
    match kind:
        case "sqlite":
            address: StoreAddress = _sqlite(section, directory)
        case "postgresql":
            address = _postgres(section)
        case _:
            section.error(f"{redacted(kind)} storage is not supported", "type", fix=_EITHER)
            return SqliteAddress(str(directory / DEFAULT_DIRECTORY))
    section.warn_unknown()
    return address


_EITHER = (
    f"use the embedded store: storage: {{type: sqlite, path: ./{DEFAULT_DIRECTORY}}}, or a database:"
    " storage: {type: postgresql, uri: …}"
)


def _sqlite(section: Section, directory: Path) -> SqliteAddress:
    named = section.text("path") or DEFAULT_DIRECTORY
    if "://" in named:
        section.error("is a URI, and the embedded store is a directory", "path", fix=_EITHER)
    path = directory / named
    if path.exists() and not path.is_dir():
        section.error(f"{path} is a file", "path", fix="set a directory: the store consists of several files")
    return SqliteAddress(str(path))


def _postgres(section: Section) -> PostgresAddress:
    server = read_server(section)
    schema = section.text("schema") or DEFAULT_SCHEMA
    if not _SCHEMA.fullmatch(schema):
        section.error(
            "must consist of at most 63 lower-case letters, digits and _, begin with a letter, and not with pg_",
            "schema",
            fix=f"remove it to use {DEFAULT_SCHEMA}",
        )
    pem = {
        "sslrootcert": server.cacert,
        "sslcert": server.client_certificate,
        "sslkey": server.client_private_key,
    }
    given = () if server.sslmode == "disable" else tuple((name, text) for name, text in pem.items() if text)
    conninfo = make_conninfo(
        "",
        host=server.host,
        port=server.port,
        dbname=server.database,
        user=server.user,
        sslmode=server.sslmode,
        connect_timeout=max(2, server.connect_timeout),  # libpq treats 1 as 2
        password=server.password or None,
    )
    return PostgresAddress(conninfo, schema, server.address, given)
