"""Reads `storage`: the address of the store."""

from __future__ import annotations

import re
from pathlib import Path

from psycopg.conninfo import make_conninfo

from headwater.config.errors import shown
from headwater.config.postgres_server import Server, read_server
from headwater.config.section import Section
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress

DEFAULT_DIRECTORY = "headwater-data"
DEFAULT_SCHEMA = "headwater"

_SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")


def read_storage(section: Section, directory: Path) -> StoreAddress:
    """The address of the store; paths are relative to `directory`."""
    kind = section.text("type") or "sqlite"
    section.no_effect("connections are opened on demand", "max_pool_size")
    section.no_effect("the store has all rows itself, in files or in Postgres", "object_storage")
    section.no_effect("a store has one format, to which it is upgraded when opened", "default_storage_version")
    limits = section.section("batch_limits")
    limits.no_effect(
        "batches end with a transaction of the source, whatever its size",
        "max_estimated_size", "max_record_count", "max_current_data_batch_size",
    )  # fmt: skip
    limits.warn_unknown()
    match kind:
        case "sqlite":
            address: StoreAddress = _sqlite(section, directory)
        case "postgresql":
            address = _postgres(section)
        case _:
            section.error(f"{shown(kind)} storage is not supported", "type", fix=_EITHER)
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
    place = f"{server.host}:{server.port}/{server.database}"
    pem = {
        "sslrootcert": server.cacert,
        "sslcert": server.client_certificate,
        "sslkey": server.client_private_key,
    }
    given = () if server.sslmode == "disable" else tuple((name, text) for name, text in pem.items() if text)
    return PostgresAddress(_conninfo(server), schema, place, given)


def _conninfo(server: Server) -> str:
    login = {"password": server.password} if server.password else {}
    return make_conninfo(
        "",
        host=server.host,
        port=server.port,
        dbname=server.database,
        user=server.user,
        sslmode=server.sslmode,
        connect_timeout=max(2, server.connect_timeout),  # libpq treats 1 as 2
        **login,
    )
