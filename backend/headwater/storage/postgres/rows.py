"""Bulk reading of current rows of a store in Postgres, beside its writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import psycopg
from psycopg import errors, sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import CurrentRow, PlacedRow, Places
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.tables import rows_table, stored_id

BATCH_ROWS = 5_000

LINE_APART = 8_000
"""Size in bytes above which a line is fetched separately, once there is room for it."""

COLUMNS = sql.SQL(
    "place, coalesce(long_id, row_id), layout, case when octet_length(line) <= {} then line end, members, subkey,"
    " octet_length(line)"
).format(LINE_APART)

_ROWS = """
declare placed no scroll cursor for select {} from {} where place >= {} and place < {}
"""

_Found = tuple[int, str, int, str | None, str, str | None, int]
"""A row of COLUMNS."""


def batched(
    connection: psycopg.Connection, table: int, rows: Iterable[_Found], count: int, room: int
) -> Iterator[list[PlacedRow]]:
    """Like `storage.shared.loading.batched`, for rows found in the connection's current transaction."""
    batch, left = list[_Found](), room
    for row in rows:
        if batch and left < row[6]:
            yield _with_lines(connection, table, batch)
            batch, left = [], room
        batch.append(row)
        left -= row[6]
        if len(batch) >= count:
            yield _with_lines(connection, table, batch)
            batch, left = [], room
    if batch:
        yield _with_lines(connection, table, batch)


def _with_lines(connection: psycopg.Connection, table: int, rows: Sequence[_Found]) -> list[PlacedRow]:
    apart = [row[0] for row in rows if row[3] is None]
    lines: dict[int, str] = {}
    if apart:
        query = sql.SQL("select place, line from {} where place = any(%s)").format(rows_table(table))
        lines = dict(connection.execute(query, [apart], binary=True).fetchall())
    return [
        PlacedRow(place, CurrentRow(row_id, layout, lines[place] if line is None else line, members, subkey))
        for place, row_id, layout, line, members, subkey, _ in rows
    ]


def read_rows(address: PostgresAddress, table: int, first: int, end: int, room: int) -> Iterator[list[PlacedRow]]:
    """The rows at places [first, end), as of one moment. Empty when the table is gone."""
    with contextlib.closing(connect(address, "bulk work")) as connection, postgres_errors(address):
        # Evaluating rules over a batch may take long before the next one is fetched
        connection.execute("set idle_in_transaction_session_timeout = 0")
        connection.execute("begin isolation level repeatable read read only")
        try:
            connection.execute(sql.SQL(_ROWS).format(COLUMNS, rows_table(table), first, end))
        except errors.UndefinedTable:
            return
        fetch = f"fetch {BATCH_ROWS} from placed"
        found = iter(lambda: connection.execute(fetch, binary=True).fetchall(), [])
        yield from batched(connection, table, chain.from_iterable(found), BATCH_ROWS, room)


def find_row(address: PostgresAddress, table: int, row_id: str) -> CurrentRow | None:
    """See the contract."""
    query = sql.SQL("select layout, line, members, subkey from {} where row_id = %s").format(rows_table(table))
    with contextlib.closing(connect(address, "looking")) as connection, postgres_errors(address):
        try:
            row = connection.execute(query, [stored_id(row_id)[0]]).fetchone()
        except errors.UndefinedTable:
            return None
    return None if row is None else CurrentRow(row_id, *row)


def place_ranges(connection: psycopg.Connection, table: int, rows: int) -> Places:
    """See the contract."""
    # Places have gaps of any size: every update of a row uses up one
    query = sql.SQL(
        "select place, number from (select place, row_number() over w as number, lead(place) over w as next"
        " from {} window w as (order by place)) r where number %% %s = 1 or %s = 1 or next is null order by place"
    )
    found = connection.execute(query.format(rows_table(table)), [rows, rows]).fetchall()
    if not found:
        return Places((), 0)
    last, count = found[-1]
    starts = [place for place, number in found if number % rows == 1 or rows == 1]
    return Places(tuple(zip(starts, [*starts[1:], last + 1], strict=True)), count)
