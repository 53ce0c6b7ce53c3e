"""Fills a database with the demo's tables and sample data, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources

import psycopg

FEWEST_ROWS = 1000

TABLES = ("users", "lists", "list_members", "todos", "activity", "announcements")


def is_filled(conn: psycopg.Connection) -> bool:
    """Whether an earlier run left its tables here."""
    row = conn.execute("select to_regclass('public.todos') is not null").fetchone()
    return row is not None and bool(row[0])


def fill(conn: psycopg.Connection, rows: int, keep_on: Callable[[], bool] = lambda: True) -> bool:
    """Make the tables, with about `rows` rows in all, in one transaction.

    Stops between two statements, with nothing done and False, when `keep_on` says so.
    """
    try:
        with conn.transaction():
            conn.execute("select set_config('demo.rows', %s, true)", [str(max(rows, FEWEST_ROWS))])
            for statement in _statements():
                if not keep_on():
                    raise _StoppedError
                conn.execute(statement)
    except _StoppedError:
        return False
    conn.execute("analyze")  # the snapshot's bar shows what the statistics say is to come
    return True


class _StoppedError(Exception):
    """Undoes what was done so far."""


def row_count(conn: psycopg.Connection) -> int:
    """How many rows the tables have together."""
    query = " + ".join(f"(select count(*) from {table})" for table in TABLES)
    row = conn.execute(f"select {query}".encode()).fetchone()
    return 0 if row is None else int(row[0])


def _statements() -> Iterator[bytes]:
    for name in ("schema.sql", "sample.sql"):
        text = resources.files(__package__).joinpath(name).read_bytes()
        yield from text.split(b";\n\n")
