"""Reading current rows of a Postgres store in bulk, beside its writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import psycopg
from psycopg import errors, sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import CurrentRow, PlacedRow, Places
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.tables import rows_table

BATCH_ROWS = 5_000

LINE_APART = 8_000
"""Bytes of a line beyond which it is read by itself, when there is room for it."""

COLUMNS = sql.SQL(
    "place, coalesce(long_id, row_id), layout, case when octet_length(line) <= {} then line end, members, subkey,"
    " octet_length(line)"
).format(LINE_APART)

_ROWS = """
declare placed no scroll cursor for select {} from {} where place >= {} and place < {}
"""

_Found = tuple[int, str, int, str | None, str, str | None, int]
"""What COLUMNS gives."""


def batched(
    connection: psycopg.Connection, table: int, rows: Iterable[_Found], count: int, room: int
) -> Iterator[list[PlacedRow]]:
    """As `storage.shared.loading.batched`, of rows that were found in the transaction that the connection is in."""
    batch, left = list[_Found](), room
    for row in rows:
        if batch and left < row[6]:
            yield _whole(connection, table, batch)
            batch, left = [], room
        batch.append(row)
        left -= row[6]
        if len(batch) >= count:
            yield _whole(connection, table, batch)
            batch, left = [], room
    if batch:
        yield _whole(connection, table, batch)


def _whole(connection: psycopg.Connection, table: int, rows: Sequence[_Found]) -> list[PlacedRow]:
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
    """The rows at places [first, end), as of one moment. None when the table is no more."""
    with contextlib.closing(connect(address, "bulk work")) as connection, postgres_errors(address):
        # Whoever evaluates rules over a batch takes his time before he asks for the next
        connection.execute("set idle_in_transaction_session_timeout = 0")
        connection.execute("begin isolation level repeatable read read only")
        try:
            connection.execute(sql.SQL(_ROWS).format(COLUMNS, rows_table(table), first, end))
        except errors.UndefinedTable:
            return
        fetch = f"fetch {BATCH_ROWS} from placed"
        found = iter(lambda: connection.execute(fetch, binary=True).fetchall(), [])
        yield from batched(connection, table, chain.from_iterable(found), BATCH_ROWS, room)


def place_ranges(connection: psycopg.Connection, table: int, rows: int) -> Places:
    """See the contract."""
    # Places have gaps of any size: each time that a row was put again one was given up
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
