"""Creates embedded stores and upgrades older ones: runs the numbered scripts in `migrations` that a store lacks.

A change of the tables is a new script, and FORMAT is its number. Released scripts are never changed.
"""

from __future__ import annotations

import secrets
import time
from importlib import resources
from pathlib import Path

import apsw

from headwater.failpoints import failpoint
from headwater.storage.shared.common import op_floor
from headwater.storage.shared.formats import FORMAT_KEY, GIVEN_BY_KEY, own_version
from headwater.storage.sqlite.connection import FORMAT, found_format, immediate

_SCRIPTS = resources.files(__package__).joinpath("migrations")


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Create the tables, or upgrade them to this format, in one transaction. Raises StoreError for a format that
    this version does not read."""
    if found_format(connection, path) == FORMAT:
        return
    with immediate(connection):
        found = found_format(connection, path)
        for number in range(found + 1, FORMAT + 1):
            connection.execute(_SCRIPTS.joinpath(f"{number:03d}.sql").read_text(encoding="utf-8"))
            failpoint("migrate.after_step")
        kept = [(FORMAT_KEY, FORMAT), (GIVEN_BY_KEY, own_version())]
        connection.executemany("insert or replace into meta values (?, ?)", kept)
        connection.execute("insert or ignore into meta values ('secret', ?)", (secrets.token_bytes(16),))
        connection.execute("insert or ignore into state (id, next_op) values (1, ?)", (op_floor(time.time()),))
        failpoint("migrate.before_commit")
