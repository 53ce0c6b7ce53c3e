"""Writing rows into a table: as COPY text if there are many, as array parameters of one statement if there are few."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import psycopg
from psycopg import sql

from headwater.storage.contract.parts import CurrentRow
from headwater.storage.postgres.cursor import stored_id
from headwater.storage.shared.common import batched
from headwater.storage.shared.segments import Run

_SENT_AT_ONCE = 1 << 20  # characters

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def escaped(value: str) -> str:
    """One cell of COPY text."""
    # Most values need no escaping, and checking is cheaper than translating
    if "\\" in value or "\t" in value or "\n" in value or "\r" in value:
        return value.translate(_ESCAPES)
    return value


def copy_lines(connection: psycopg.Connection, statement: bytes | sql.Composed, lines: Iterable[str]) -> None:
    """Send lines of COPY text, without line ends, to `copy … from stdin`."""
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for batch in batched(lines, len, sys.maxsize, _SENT_AT_ONCE):
            copy.write("\n".join((*batch, "")))


def row_line(row: CurrentRow) -> str:
    """A current row as COPY text: row_id, layout, line, members, subkey, long_id."""
    row_id, layout, line, members, subkey = row
    key, long_id = stored_id(row_id)
    # A row's own COPY text contains tabs and backslashes, but no line end
    line = line.replace("\\", "\\\\").replace("\t", "\\t")
    return "\t".join((escaped(key), str(layout), line, escaped(members), _cell(subkey), _cell(long_id)))


def _cell(value: str | None) -> str:
    return "\\N" if value is None else escaped(value)


ROW_COLUMNS = sql.SQL("(row_id, layout, line, members, subkey, long_id)")


def columns(rows: Sequence[Sequence[object]], width: int) -> list[list[object]]:
    """Rows transposed into `width` arrays, for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


INSERT_RUN = (
    "with kept as (insert into segment_blobs (bucket, size, checksum, bodies) values (%s, %s, %s, %b) returning id)"
    " insert into segments (bucket, first_op, last_op, blob) select %s, %s, %s, id from kept"
)
"""Stores a run, given its `run_values`. The totals of its bucket are the caller's."""


def run_values(run: Run) -> tuple[object, ...]:
    """The parameters of INSERT_RUN."""
    return run.bucket, run.size, run.checksum, run.bodies, run.bucket, run.first, run.last


def rows_table(table: int) -> sql.Identifier:
    """The table of a generation's current rows."""
    return sql.Identifier(f"rows_{table:d}")
