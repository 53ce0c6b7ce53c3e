"""`/api/admin/v1/execute-sql`: reads from the source, if its connection allows that."""

from __future__ import annotations

import math

import orjson
import psycopg
from psycopg import RawServerCursor

from headwater.api.admin.published.shapes import SqlAnswer, SqlAsked, SqlResults
from headwater.api.admin.settings import AdminSettings
from headwater.errors import HeadwaterError
from headwater.source.connect import SourceSettings, connect, source_errors

MOST_ROWS = 1_000
MOST_CHARACTERS = 4_000_000
SECONDS = 10
_AT_ONCE = 100


class SqlDesk:
    """Runs one read-only SELECT, and returns at most MOST_ROWS rows."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def execute(self, asked: SqlAsked) -> SqlAnswer:
        """Run a SELECT on the source, if `debug_api` of its connection allows it."""
        source = self._settings.source
        if not source.debug_api:
            return _failed("SQL querying is not enabled")
        if asked.connection_id not in {None, source.tag}:
            return _failed(f"there is no connection {asked.connection_id}")
        try:
            with source_errors(source):
                return SqlAnswer(success=True, results=_rows(source, asked))
        except HeadwaterError as error:
            return _failed(error.what)


def _rows(source: SourceSettings, asked: SqlAsked) -> SqlResults:
    """Run the statement through a cursor. DECLARE CURSOR accepts a single SELECT or VALUES and nothing else, and only
    fetched rows take memory."""
    with connect(source, application_name="headwater sql") as conn:
        conn.execute(f"set statement_timeout = '{SECONDS}s'; set lock_timeout = '2s'")
        with conn.transaction(force_rollback=True):
            conn.execute("set transaction read only")
            with RawServerCursor(conn, "headwater_sql", scrollable=False) as cursor:
                cursor.execute(asked.sql.query.encode(), [_value(each) for each in asked.sql.args])
                return _fetched(cursor)


def _fetched(cursor: psycopg.RawServerCursor[tuple[object, ...]]) -> SqlResults:
    columns = tuple(column.name for column in cursor.description or ())
    rows: list[tuple[object, ...]] = []
    size = 0
    while batch := cursor.fetchmany(_AT_ONCE):
        for row in batch:
            told = tuple(map(_told, row))
            size += sum(len(each) for each in told if isinstance(each, str))
            if len(rows) == MOST_ROWS or size > MOST_CHARACTERS:
                return SqlResults(columns, tuple(rows), truncated=True)
            rows.append(told)
    return SqlResults(columns, tuple(rows))


def _value(given: str | float | bool) -> str | bool | float | int:
    """The parameter, as an integer if it is a whole number: JSON does not tell them apart."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _told(value: object) -> str | float | bool | None:
    if value is None or isinstance(value, str | bool):
        return value
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case int() if abs(value) <= 2**53:
            return value
        case bytes():
            return value.hex()
        case dict() | list():
            return orjson.dumps(value, default=str).decode()
        case _:
            return str(value)


def _failed(why: str) -> SqlAnswer:
    return SqlAnswer(success=False, results=SqlResults((), ()), error=why)
