"""The store in a Postgres database, version 14 or newer: several writers, one at a time per source, and any number of
readers, on any number of machines. Everything is in one schema."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from importlib import resources

import psycopg
from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.reader import ReplicatorStatus
from headwater.storage.contract.store import StoreBusyError, StoreError, StorePublishedError
from headwater.storage.contract.versions import OwnConfig
from headwater.storage.postgres import archive
from headwater.storage.postgres.bulk import open_part
from headwater.storage.postgres.connection import FORMAT, connect_bare, found_format, postgres_errors
from headwater.storage.postgres.cursor import OWN_TABLES, PostgresCursor, open_cursor
from headwater.storage.postgres.migrate import migrate
from headwater.storage.postgres.reader import PostgresReader
from headwater.storage.postgres.writer import PostgresWriter
from headwater.storage.shared.archive import Load
from headwater.storage.sql.compaction import CompactionStore
from headwater.storage.sql.cursor import TableGoneError
from headwater.storage.sql.forget import ForgetStore, UnerasedError
from headwater.storage.sql.parts import PartWriter
from headwater.storage.sql.stats import MissingRight
from headwater.storage.store import Store

_MADE = re.compile(r"^create table (?:if not exists )?(\w+)", re.MULTILINE)
_NUMBERED = re.compile(r"rows_\d+|stage_\d+_\d+_\w+_(rows|lookups|buckets|segments)")


@dataclass(frozen=True, slots=True)
class PostgresStore(Store):
    """See `storage.store.Store`."""

    address: PostgresAddress

    def _open(self, purpose: str) -> PostgresCursor:
        return open_cursor(self.address, purpose)

    def missing(self) -> StoreError:
        return StoreError("there is no store", str(self.address), "check database and schema")

    def _databases(self, purpose: str) -> list[PostgresCursor]:
        db = self._open(purpose)
        if not db.has_table("meta"):
            db.close()
            raise self.missing()
        return [db]

    def exists(self) -> bool:
        with closing(self._open("stats")) as db:
            return db.has_table("meta")

    def last_replicator_status(self, tag: str) -> ReplicatorStatus:
        """Nothing: the status is in the store."""
        return ReplicatorStatus()

    def raise_if_published(self, publications: Sequence[str]) -> None:
        _raise_if_published(self.address, publications)

    def missing_rights(self) -> list[MissingRight]:
        return _missing_rights(self.address)

    def older_format(self) -> int | None:
        with closing(self._open("stats")) as db, db.errors():
            found = found_format(db.connection, self.address)
        return None if found == FORMAT else found

    def open_writer(self) -> PostgresWriter:
        return PostgresWriter(self.address)

    def open_reader(self, own: OwnConfig | None = None) -> PostgresReader:
        with closing(self._open("store")) as db, db.errors():
            migrate(db.connection, self.address)
        return PostgresReader(self.address, own)

    def open_compaction(self) -> CompactionStore:
        db = self._open("compaction")
        return CompactionStore(db, db)

    def open_forget(self) -> ForgetStore:
        db = self._open("forget")
        return ForgetStore([db], PostgresFiles(db))

    def remove(self) -> None:
        with closing(self._open("store")) as db, db.errors():
            _remove(db.connection, self.address.schema)

    def open_part(self, table: int, number: int, attempt: str) -> PartWriter:
        return open_part(self.address, table, number, attempt)

    def check_empty(self) -> None:
        archive.check_empty(self.address)

    def load(self) -> AbstractContextManager[Load]:
        return archive.load(self.address)


# removal


def _remove(connection: psycopg.Connection, schema: str) -> None:
    """Remove the tables of a store that nobody uses, in one transaction, and its schema if that holds nothing else: it
    may be the schema of an application."""
    scripts = resources.files("headwater.storage.postgres").joinpath("migrations").iterdir()
    made = {name for script in scripts for name in _MADE.findall(script.read_text(encoding="utf-8"))}
    with connection.transaction():
        found = connection.execute("select tablename from pg_tables where schemaname = %s", [schema]).fetchall()
        for (name,) in found:
            if name in made or _NUMBERED.fullmatch(name):
                connection.execute(sql.SQL("drop table {} cascade").format(sql.Identifier(schema, name)))
        connection.execute(sql.SQL("drop function if exists {}()").format(sql.Identifier(schema, "refuse_write")))
        if schema != "public":
            with contextlib.suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
                connection.execute(sql.SQL("drop schema if exists {}").format(sql.Identifier(schema)))


# what a start needs of the store's database: that the source does not publish the store, and rights

_PUBLISHED = """
select pubname from pg_publication_tables where schemaname = %(schema)s and pubname = any(%(names)s)
union select pubname from pg_publication where puballtables and pubname = any(%(names)s)
"""
_RIGHTS = """
select current_user::text, has_database_privilege(current_database(), 'CREATE'),
       n.oid is not null,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false) and coalesce(has_schema_privilege(n.oid, 'CREATE'), false)
from (select) one left join pg_namespace n on n.nspname = %s
"""
_FOREIGN = """
select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relkind in ('r', 'p', 'S') and not pg_has_role(c.relowner, 'USAGE') order by 1
"""


def _raise_if_published(address: PostgresAddress, publications: Sequence[str]) -> None:
    """See `Store.raise_if_published`."""
    with connect_bare(address) as connection, postgres_errors(address):
        given = {"schema": address.schema, "names": list(publications)}
        names = [row[0] for row in connection.execute(_PUBLISHED, given)]
    if names:
        raise StorePublishedError(
            f"the publication {names[0]} publishes the store's own tables",
            str(address),
            "publish the app's tables by name, or its schema (`create publication … for tables in schema public`), or"
            " give the store a database of its own",
        )


def _missing_rights(address: PostgresAddress) -> list[MissingRight]:
    """See `Store.missing_rights`."""
    with connect_bare(address) as connection, postgres_errors(address):
        ((user, may_create, there, may_use),) = connection.execute(_RIGHTS, [address.schema]).fetchall()
        role, schema = sql.Identifier(user), sql.Identifier(address.schema)

        def written(statement: str, *names: sql.Identifier) -> tuple[str, ...]:
            return (sql.SQL(statement).format(*names).as_string(connection),)

        if not there:
            what = f"role {user} may not create the schema {address.schema} of the store"
            grant = written("CREATE SCHEMA {} AUTHORIZATION {}", schema, role)
            return [] if may_create else [MissingRight(what, grant)]
        if not may_use:
            what = f"role {user} may not create tables in the schema {address.schema} of the store"
            return [MissingRight(what, written("GRANT USAGE, CREATE ON SCHEMA {} TO {}", schema, role))]
        foreign = [str(row[0]) for row in connection.execute(_FOREIGN, [address.schema])]
        statements = [
            written("ALTER TABLE {} OWNER TO {}", sql.Identifier(address.schema, name), role)[0] for name in foreign
        ]
        what = f"role {user} does not own all tables of the store, and so can't upgrade them: {', '.join(foreign[:3])}"
        return [MissingRight(what, tuple(statements))] if foreign else []


_LONGEST_LOCK = 300.0  # seconds to wait for the lock on a table that is to be rewritten


class PostgresFiles:
    """See `storage.sql.forget.StoreFiles`."""

    def __init__(self, db: PostgresCursor) -> None:
        self._db = db

    def size(self) -> int:
        query = f"select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class where {OWN_TABLES}"
        return int(self._db.rows(query)[0][0])

    def staged(self) -> bool:
        return False  # it is in tables

    def rewrite(self, say: Callable[[str], None]) -> None:
        query = f"select relname from pg_class where {OWN_TABLES} and relname not like 'stage\\_%' order by relname"
        tables = [name for (name,) in self._db.rows(query)]
        say(f"rewriting {len(tables)} tables: each is locked while it is rewritten")
        self._db.script("set lock_timeout = '5s'")
        for table in tables:
            self._rewrite(table)
        self._db.script("reset lock_timeout")

    def _rewrite(self, table: str) -> None:
        deadline = time.monotonic() + _LONGEST_LOCK
        while True:
            try:
                self._db.script(f'vacuum (full) "{table}"')
            except StoreBusyError:
                if time.monotonic() > deadline:
                    raise UnerasedError(
                        "a table can't be rewritten: other sessions have been using it for too long",
                        f"{self._db.where}, table {table}",
                        "stop the processes that use the store, and run it again",
                    ) from None
                continue
            except TableGoneError:
                return  # swept away meanwhile
            return
