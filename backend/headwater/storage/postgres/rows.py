"""Reading current rows of a Postgres store in bulk, beside its writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from psycopg import errors, sql

from headwater.storage.address import PostgresAddress
from headwater.storage.parts import CurrentRow, PlacedRow, Places
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.tables import rows_table

BATCH_ROWS = 5_000

_ROWS = """
declare placed no scroll cursor for
select place, coalesce(long_id, row_id), layout, line, members, subkey from {} where place >= {} and place < {}
"""


def read_rows(address: PostgresAddress, table: int, first: int, end: int) -> Iterator[list[PlacedRow]]:
    """The rows at places [first, end), as of one moment. None when the table is no more."""
    with contextlib.closing(connect(address, "bulk work")) as connection, postgres_errors(address):
        # Whoever evaluates rules over a batch takes his time before he asks for the next
        connection.execute("set idle_in_transaction_session_timeout = 0; begin read only")
        try:
            connection.execute(sql.SQL(_ROWS).format(rows_table(table), first, end))
        except errors.UndefinedTable:
            return
        while rows := connection.execute(f"fetch {BATCH_ROWS} from placed", binary=True).fetchall():
            yield [PlacedRow(row[0], CurrentRow(*row[1:])) for row in rows]


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
