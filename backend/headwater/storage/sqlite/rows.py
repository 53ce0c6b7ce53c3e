"""Bulk reading of the embedded store's current rows, beside its writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw

from headwater.storage.contract.parts import CurrentRow, PlacedRow, Places
from headwater.storage.shared.loading import batched
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, sqlite_errors

BATCH_ROWS = 5_000


def read_rows(directory: Path, table: int, first: int, end: int, room: int) -> Iterator[list[PlacedRow]]:
    """The rows at places [first, end), as of one moment. Empty when the table is gone."""
    path = directory / "store.db"
    with contextlib.closing(open_reader(path)) as connection, sqlite_errors(path):
        if not connection.execute("select 1 from sqlite_master where name = ?", (f"rows_{table:d}",)).fetchall():
            return
        sql = f"select id, row_id, layout, line, members, subkey from rows_{table:d} where id >= ? and id < ?"
        rows = connection.execute(sql, (first, end))
        yield from batched((PlacedRow(row[0], CurrentRow(*row[1:])) for row in rows), BATCH_ROWS, room)


def find_row(directory: Path, table: int, row_id: str) -> CurrentRow | None:
    """See the contract."""
    path = directory / "store.db"
    with contextlib.closing(open_reader(path)) as connection, sqlite_errors(path):
        if not connection.execute("select 1 from sqlite_master where name = ?", (f"rows_{table:d}",)).fetchall():
            return None
        sql = f"select row_id, layout, line, members, subkey from rows_{table:d} where row_id = ?"
        row = connection.execute(sql, (row_id,)).fetchone()
        return None if row is None else CurrentRow._make(row)


def place_ranges(connection: apsw.Connection, table: int, rows: int) -> Places:
    """See the contract. Unused places make a range hold fewer rows than asked for."""
    sql = f"select min(id), max(id), count(*) from rows_{table:d}"
    low, high, found = connection.execute(sql).fetchall()[0]
    count = as_int(found)
    if not count:
        return Places((), 0)
    first, last = as_int(low), as_int(high)
    width = max(1, (last - first + 1) * rows // count)
    return Places(tuple((start, start + width) for start in range(first, last + 1, width)), count)
