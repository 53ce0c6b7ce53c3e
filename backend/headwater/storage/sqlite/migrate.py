"""The format of the embedded store, and how a store of an older one is brought up to date."""

from __future__ import annotations

import secrets
import time
from importlib import resources
from pathlib import Path

import apsw

from headwater.failpoints import passing
from headwater.storage.common import op_floor
from headwater.storage.contract import StoreError
from headwater.storage.sqlite.connection import immediate

FORMAT = 2


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Make the tables, or bring them to this format: all of it or nothing. Raises StoreError for a newer format."""
    if _format(connection) == FORMAT:
        return
    with immediate(connection):
        found = _format(connection)
        if found > FORMAT:
            raise StoreError(
                f"the store has format {found}, this version knows {FORMAT}",
                str(path),
                "use the version of headwater that wrote it, or move it away to build a new one",
            )
        for number in range(found + 1, FORMAT + 1):
            script = resources.files(__package__).joinpath("migrations", f"{number:03d}.sql")
            connection.execute(script.read_text(encoding="utf-8"))
            passing("migrate.after_step")
        connection.execute("insert or replace into meta values ('format', ?)", (FORMAT,))
        connection.execute("insert or ignore into meta values ('salt', ?)", (secrets.token_bytes(16),))
        connection.execute("insert or ignore into state (id, next_op) values (1, ?)", (op_floor(time.time()),))
        passing("migrate.before_commit")


def _format(connection: apsw.Connection) -> int:
    if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchall():
        return 0
    found = connection.execute("select value from meta where key = 'format'").fetchone()
    return 0 if found is None else int(str(found[0]))
