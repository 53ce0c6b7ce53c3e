"""Creates embedded stores and upgrades older formats."""

from __future__ import annotations

import secrets
import time
from importlib import resources
from pathlib import Path

import apsw

from headwater.failpoints import passing
from headwater.storage.shared.common import op_floor
from headwater.storage.shared.formats import FORMAT_KEY, GIVEN_BY_KEY, own_version
from headwater.storage.sqlite.connection import immediate
from headwater.storage.sqlite.format import FORMAT, found_format


def migrate(connection: apsw.Connection, path: Path) -> None:
    """Create the tables, or upgrade them to this format, in one transaction. Raises StoreError for a newer format."""
    if found_format(connection, path) == FORMAT:
        return
    with immediate(connection):
        found = found_format(connection, path)
        for number in range(found + 1, FORMAT + 1):
            script = resources.files(__package__).joinpath("migrations", f"{number:03d}.sql")
            connection.execute(script.read_text(encoding="utf-8"))
            passing("migrate.after_step")
        kept = [(FORMAT_KEY, FORMAT), (GIVEN_BY_KEY, own_version())]
        connection.executemany("insert or replace into meta values (?, ?)", kept)
        connection.execute("insert or ignore into meta values ('salt', ?)", (secrets.token_bytes(16),))
        connection.execute("insert or ignore into state (id, next_op) values (1, ?)", (op_floor(time.time()),))
        passing("migrate.before_commit")
