"""The format of an embedded store."""

from __future__ import annotations

from pathlib import Path

import apsw

from headwater.storage.shared.formats import NOTED, noted_format

FORMAT = 1


def found_format(connection: apsw.Connection, path: Path) -> int:
    """The store's format, 0 if there are no tables. Raises StoreError for a format that this version does not
    read."""
    if not connection.execute("select 1 from sqlite_master where name = 'meta'").fetchall():
        return 0
    query = "select key, value from meta where key in (?, ?, ?)"
    noted = {str(key): str(value) for key, value in connection.execute(query, NOTED)}
    return noted_format(noted, FORMAT, str(path))
