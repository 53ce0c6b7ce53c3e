"""Creates stores in Postgres and upgrades older ones: runs the numbered scripts in `migrations` that a store lacks.

A change of the tables is a new script, and FORMAT is its number. Released scripts are never changed.
"""

from __future__ import annotations

import secrets
from importlib import resources

import psycopg
from psycopg import sql

from headwater.failpoints import failpoint
from headwater.storage.address import PostgresAddress
from headwater.storage.postgres.connection import FORMAT, found_format
from headwater.storage.shared.common import op_floor
from headwater.storage.shared.formats import FORMAT_KEY, GIVEN_BY_KEY, own_version

_SCRIPTS = resources.files(__package__).joinpath("migrations")

# Two processes that start at once must not both create the schema
_LOCK = "select pg_advisory_xact_lock(hashtextextended('headwater migrate ' || %s, 0))"


def migrate(connection: psycopg.Connection, address: PostgresAddress) -> None:
    """Create the schema and its tables, or upgrade them to this format, in one transaction.

    Raises StoreError for a format that this version does not read.
    """
    if found_format(connection, address) == FORMAT:
        return
    with connection.transaction():
        connection.execute(_LOCK, [address.schema])
        found = found_format(connection, address)
        if found == 0:
            _create_schema(connection, address)
        for number in range(found + 1, FORMAT + 1):
            connection.execute(_SCRIPTS.joinpath(f"{number:03d}.sql").read_bytes())
            failpoint("migrate.after_step")
        _begin(connection)
        failpoint("migrate.before_commit")


def _create_schema(connection: psycopg.Connection, address: PostgresAddress) -> None:
    # "if not exists" requires the privilege to create even when the schema exists
    known = connection.execute("select 1 from pg_namespace where nspname = %s", [address.schema]).fetchone()
    if known is None:
        connection.execute(sql.SQL("create schema {}").format(sql.Identifier(address.schema)))


def _begin(connection: psycopg.Connection) -> None:
    """Insert the initial values that are missing."""
    for key, value in ((FORMAT_KEY, str(FORMAT)), (GIVEN_BY_KEY, own_version())):
        keep = "insert into meta values (%s, %s) on conflict (key) do update set value = excluded.value"
        connection.execute(keep, [key, value])
    connection.execute("insert into meta values ('secret', %s) on conflict do nothing", [secrets.token_bytes(16).hex()])
    now = connection.execute("select extract(epoch from clock_timestamp())").fetchall()[0][0]
    connection.execute("insert into state (id, next_op) values (1, %s) on conflict do nothing", [op_floor(float(now))])
    connection.execute("insert into inbox values (1, 0) on conflict do nothing")
    connection.execute("insert into write_state values (1, 0) on conflict do nothing")
