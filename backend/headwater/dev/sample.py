"""Fills a database with the demo's tables and sample data, always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources

import psycopg

FEWEST_ROWS = 1000

TABLES = ("users", "lists", "list_members", "todos", "activity", "announcements")


def is_filled(conn: psycopg.Connection) -> bool:
    """Whether an earlier run created the tables."""
    row = conn.execute("select to_regclass('public.todos') is not null").fetchone()
    return row is not None and bool(row[0])


def fill(conn: psycopg.Connection, rows: int, keep_running: Callable[[], bool] = lambda: True) -> bool:
    """Create the tables, with about `rows` rows in total, in one transaction.

    Stops between two statements, undoing everything and returning False, when `keep_running` returns False.
    """
    try:
        with conn.transaction():
            conn.execute("select set_config('demo.rows', %s, true)", [str(max(rows, FEWEST_ROWS))])
            for statement in _statements():
                if not keep_running():
                    raise _StoppedError
                conn.execute(statement)
    except _StoppedError:
        return False
    conn.execute("analyze")  # the snapshot's progress bar uses the statistics
    return True


class _StoppedError(Exception):
    """Rolls the transaction back."""


def row_count(conn: psycopg.Connection) -> int:
    """The total number of rows in the tables."""
    query = " + ".join(f"(select count(*) from {table})" for table in TABLES)
    row = conn.execute(f"select {query}".encode()).fetchone()
    return 0 if row is None else int(row[0])


def _statements() -> Iterator[bytes]:
    for name in ("schema.sql", "sample.sql"):
        text = resources.files(__package__).joinpath(name).read_bytes()
        yield from text.split(b";\n\n")
