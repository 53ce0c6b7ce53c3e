"""The demo's database: its tables and sample data, always the same; what devices may write, and the policies that
decide on each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import resources
from typing import Final

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


ROLE: Final = "headwater_demo"

UPLOAD: Final[dict[str, object]] = {
    "role": ROLE,
    "tables": {
        "lists": {"columns": ["owner_id", "name", "created_at"]},
        # who shares a list is added and removed, not changed
        "list_members": {"columns": ["list_id", "user_id", "role"], "operations": ["insert", "delete"]},
        "todos": {
            "columns": ["list_id", "title", "notes", "done", "created_at", "completed_at"],
            "conflict": {"function": "demo.keep_titles"},
        },
    },
}
"""What devices may write, as the service config has it."""


def make_policies(conn: psycopg.Connection) -> None:
    """Make the role, the policies, and the record of what wrote lately, or have them as they should be."""
    with conn.transaction():
        conn.execute("set local client_min_messages = warning")  # what was not there to be dropped is no news
        for name in ("upload.sql", "writes.sql"):
            conn.execute(resources.files(__package__).joinpath(name).read_bytes())
