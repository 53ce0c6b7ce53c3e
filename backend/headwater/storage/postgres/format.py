"""The format of a store in Postgres."""

from __future__ import annotations

import psycopg

from headwater.storage.address import PostgresAddress
from headwater.storage.shared.formats import NOTED, noted_format

FORMAT = 1


def found_format(connection: psycopg.Connection, address: PostgresAddress) -> int:
    """The store's format, 0 if there are no tables. Raises StoreError for a format that this version does not
    read."""
    # A query, because to_regclass may use a catalog snapshot from before the lock was taken
    there = "select 1 from pg_tables where schemaname = %s and tablename = 'meta'"
    if connection.execute(there, [address.schema]).fetchone() is None:
        return 0
    noted: dict[str, str] = dict(
        connection.execute("select key, value from meta where key in (%s, %s, %s)", NOTED).fetchall()
    )
    return noted_format(noted, FORMAT, str(address))
