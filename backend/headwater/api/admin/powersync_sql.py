"""`/api/admin/v1/execute-sql`: reads from the source, if its connection allows that."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import closing

import orjson
import psycopg
from msgspec import UNSET, Struct, UnsetType
from psycopg.types.string import TextLoader

from headwater.api.admin.route import AdminSettings
from headwater.errors import HeadwaterError
from headwater.source.connect import SourceSettings, connect, source_errors

MOST_ROWS = 1_000
MOST_CHARACTERS = 4_000_000
SECONDS = 10
_AS_TEXT = ("json", "jsonb", "date", "time", "timetz", "timestamp", "timestamptz", "interval")
"""Types with values that Python lacks, such as infinity, JSON nested thousands of levels deep, and numbers in it."""


class Sql(Struct, frozen=True):
    """A statement, and the values of its parameters $1, $2 and so on."""

    query: str
    args: tuple[str | float | bool, ...] = ()


class SqlRequest(Struct, frozen=True):
    """A statement for a source."""

    sql: Sql
    connection_id: str | None = None


class SqlResults(Struct, frozen=True):
    """Rows. `truncated` means that there are more."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    truncated: bool = False


class SqlResponse(Struct, frozen=True):
    """Rows, or why there are none."""

    success: bool
    results: SqlResults
    error: str | UnsetType = UNSET


class SqlHandler:
    """Runs one read-only SELECT, and returns at most MOST_ROWS rows."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def execute(self, request: SqlRequest) -> SqlResponse:
        """Run a SELECT on a source, by default the first, if `debug_api` of its connection allows it."""
        try:
            source = self._settings.source_of(request.connection_id)
            if not source.debug_api:
                return _failed("SQL querying is not enabled")
            with source_errors(source):
                return SqlResponse(success=True, results=_rows(source, request))
        except HeadwaterError as error:
            return _failed(error.what)


def _rows(source: SourceSettings, request: SqlRequest) -> SqlResults:
    """Run the statement within another, which can only be a SELECT or VALUES then, and stream its rows."""
    with connect(source, application_name="headwater sql") as conn:
        conn.execute(f"set statement_timeout = '{SECONDS}s'; set lock_timeout = '2s'")
        with conn.transaction(force_rollback=True):
            conn.execute("set transaction read only")
            query = request.sql.query.rstrip("; \t\r\n")
            _refuse_changes(conn, query)
            inner = f"(\n{query}\n) as q"
            arguments = [_value(each) for each in request.sql.args]
            limit = f"limit ${len(arguments) + 1}::bigint"
            cursor = psycopg.RawCursor(conn)
            for name in _AS_TEXT:
                cursor.adapters.register_loader(name, TextLoader)
            cursor.execute(f"select * from {inner} {limit}".encode(), [*arguments, 0])
            columns = tuple(column.name for column in cursor.description or ())
            bounded = f"{_bounded(inner, len(columns))} {limit}".encode()
            return _fetched(columns, cursor.stream(bounded, [*arguments, MOST_ROWS + 1]))


def _bounded(inner: str, width: int) -> str:
    """A query for whether a row is small enough, and for its values if it is: a row comes over the wire as a whole."""
    names = [f"c{number}" for number in range(width)]
    # format, and not a cast to text, gives what is sent: the cast drops the blanks of a char(n)
    sizes = " + ".join(["0", *(f"octet_length(format('%s', q.{name}))::bigint" for name in names)])
    values = ", ".join(["size.fits", *(f"case when size.fits then q.{name} end" for name in names)])
    named = f"{inner} ({', '.join(names)})" if names else inner
    return (
        f"select {values} from {named}"
        f" cross join lateral (select {sizes} <= {MOST_CHARACTERS} as fits offset 0) as size"
    )


_HARMLESS = (
    *("bernoulli", "clock_timestamp", "gen_random_uuid", "random", "random_normal", "system", "timeofday"),
    *("uuidv4", "uuidv7", "pg_current_wal_flush_lsn", "pg_current_wal_insert_lsn", "pg_current_wal_lsn"),
    *("pg_database_size", "pg_indexes_size", "pg_is_in_recovery", "pg_last_wal_receive_lsn", "pg_last_wal_replay_lsn"),
    *("pg_last_xact_replay_timestamp", "pg_relation_size", "pg_table_size", "pg_tablespace_size"),
    "pg_total_relation_size",
)
"""Functions of Postgres that are volatile, but only report something."""

_RUNNING = ("connectby_text", "connectby_text_serial", "crosstab", "crosstab_hash", "xpath_table")
"""Functions in C of Postgres's extensions that run a text as SQL, and yet are said to be stable."""

_CHANGING = """
with word (name) as (select lower(each::name::text)::name from unnest($1::text[]) each)
select proname from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = pronamespace
where (provolatile = 'v' or prosrc = any ($4::text[]))
  and prorettype <> all (array['trigger', 'event_trigger']::regtype[])
  and (lower(proname::text)::name in (select name from word)
    or proname ~ $5 and position(replace(proname::text, '"', '""') in $3) > 0)
  and (pg_function_is_visible(p.oid) or lower(nspname::text)::name in (select name from word) or nspname ~ $5)
  and not (nspname = 'pg_catalog' and proname::text = any ($2::text[]))
union all
select oprname from pg_catalog.pg_operator o
  join pg_catalog.pg_namespace n on n.oid = oprnamespace join pg_catalog.pg_proc p on p.oid = oprcode
where provolatile = 'v' and position(oprname::text in $3) > 0
  and (pg_operator_is_visible(o.oid) or lower(nspname::text)::name in (select name from word) or nspname ~ $5)
limit 1
"""
_WORD = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z_\x80-\U0010ffff0-9$]*")
_QUOTED = "[^[:alnum:]_$]|^[0-9$]"  # has to be quoted, if it is not only a letter beyond ASCII
_ESCAPED_NAME = re.compile(r'u&"', re.IGNORECASE)


def _refuse_changes(conn: psycopg.Connection, query: str) -> None:
    """Raise HW_6210 when the query names a function that may do more than read, which a read-only transaction
    does not prevent: functions that drop slots, end sessions, run a text as SQL or wait are all volatile. Wherever the
    name stands counts, in a text or comment too, since SQL has more ways to call a function than by parentheses."""
    if _ESCAPED_NAME.search(query):
        raise HeadwaterError('it has a name with escapes (U&"…")', code="HW_6210")
    request = [list(set(_WORD.findall(query))), list(_HARMLESS), query, list(_RUNNING), _QUOTED]
    found = psycopg.RawCursor(conn).execute(_CHANGING.encode(), request).fetchone()
    if found is not None:
        raise HeadwaterError(
            f"it names {found[0]}, which may do more than read; pass a text as one of args", code="HW_6210"
        )


def _fetched(columns: tuple[str, ...], streamed: Iterator[tuple[object, ...]]) -> SqlResults:
    rows: list[tuple[object, ...]] = []
    size = 0
    with closing(streamed):  # type: ignore[type-var]  # a generator
        for fits, *row in streamed:
            values = tuple(map(_json_value, row))
            size += sum(len(each) for each in values if isinstance(each, str))
            if not fits or len(rows) == MOST_ROWS or size > MOST_CHARACTERS:
                return SqlResults(columns, tuple(rows), truncated=True)
            rows.append(values)
    return SqlResults(columns, tuple(rows))


def _value(given: str | float | bool) -> str | bool | float | int:
    """The parameter, as an integer if it is a whole number: JSON does not distinguish them."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _json_value(value: object) -> str | float | bool | None:
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


def _failed(why: str) -> SqlResponse:
    return SqlResponse(success=False, results=SqlResults((), ()), error=why)
