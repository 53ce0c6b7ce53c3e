"""Reads a list of connections from a database that knows them, such as the table of an app's tenants."""

from __future__ import annotations

from dataclasses import replace

import psycopg

from headwater.source.connect import SourceRefusedError, SourceSettings, connect, source_errors

_CONNECT_SECONDS = 5
_LIMITS = "set statement_timeout = '10s'; set lock_timeout = '5s'; set default_transaction_read_only = on"


def registered(database: SourceSettings, query: str) -> list[dict[str, bool | int | str | None]]:
    """What a query gives, by the names of its columns. It may not write, and gets 10 seconds. Raises
    SourceUnreachableError or SourceRefusedError."""
    hasty = replace(database, connect_timeout=_CONNECT_SECONDS)
    with connect(hasty, application_name="headwater connections") as conn, source_errors(database):
        conn.execute(_LIMITS)
        try:
            cursor = conn.execute(query.encode())
        except (psycopg.ProgrammingError, psycopg.InternalError) as error:
            raise _refused(database, error.diag.message_primary or "an error") from error
        if cursor.description is None:
            raise _refused(database, "it gives no rows")
        names = [column.name for column in cursor.description]
        return [dict(zip(names, map(_plain, row), strict=True)) for row in cursor]


def _refused(database: SourceSettings, why: str) -> SourceRefusedError:
    return SourceRefusedError(f"the query for connections fails: {why}", database.address, "correct the query")


def _plain(value: object) -> bool | int | str | None:
    return value if value is None or isinstance(value, bool | int | str) else str(value)
