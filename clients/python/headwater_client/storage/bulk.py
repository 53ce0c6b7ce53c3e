"""A large download: operations are appended without indexes, which are built in one go before they are needed.

Without the indexes it would take too long to find what an operation replaces. So all are kept until then: the newest
row of a key counts, and rows that were removed are noted beside. Which way a file is in is told by its indexes, so a
device that was killed goes on as it was. Checksums do not mind: a replaced row counts as much as one that is there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

INDEXES: Final = {
    "ps_oplog_key": "CREATE INDEX ps_oplog_key ON ps_oplog (bucket, key)",
    "ps_oplog_row": "CREATE INDEX ps_oplog_row ON ps_oplog (row_type, row_id)",
    "ps_oplog_opid": "CREATE INDEX ps_oplog_opid ON ps_oplog (bucket, op_id)",
}
_LARGE: Final = 20_000
_MANY_TIMES: Final = 4
"""A download is large if it brings so many operations, and so many times what is there."""

# Operations of a bucket are appended in their order, so the greatest rowid of a key is the newest
_REPLACED: Final = """
INSERT OR IGNORE INTO temp.headwater_doomed
SELECT op.rowid FROM (
  SELECT bucket, key, max(rowid) AS newest FROM ps_oplog GROUP BY bucket, key HAVING count(*) > 1
) AS twice JOIN ps_oplog AS op ON op.bucket = twice.bucket AND op.key = twice.key AND op.rowid < twice.newest
"""
_REMOVED: Final = """
INSERT OR IGNORE INTO temp.headwater_doomed
SELECT op.rowid FROM headwater_removed AS removed
JOIN ps_oplog AS op ON op.bucket = removed.bucket AND op.key = removed.key AND op.op_id < removed.upto
"""


def prepare(connection: sqlite3.Connection) -> None:
    """Make what this works with and is gone with the connection."""
    connection.execute("CREATE TEMP TABLE headwater_doomed(id INTEGER PRIMARY KEY)")


def active(connection: sqlite3.Connection) -> bool:
    """Whether a large download is under way."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'ps_oplog_key'").fetchone()
    return found is None


def begin_if_large(connection: sqlite3.Connection, incoming: int) -> None:
    """Prepare for so many operations, if that is worth it. To be called within a transaction."""
    if incoming < _LARGE or active(connection):
        return
    (present,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM ps_oplog").fetchone()
    if incoming < present * _MANY_TIMES:
        return
    for name in INDEXES:
        connection.execute(f"DROP INDEX {name}")


def note_removed(connection: sqlite3.Connection, bucket: int, removed: Iterable[tuple[str, int]]) -> None:
    """Rows with these keys that come before the operation of that number are no more."""
    connection.executemany(
        "INSERT INTO headwater_removed(bucket, key, upto) VALUES (?, ?, ?)",
        [(bucket, key, number) for key, number in removed],
    )


def settle(connection: sqlite3.Connection) -> None:
    """End a large download: drop what was replaced, and build the indexes. To be called within a transaction."""
    if not active(connection):
        return
    connection.execute(INDEXES["ps_oplog_key"])
    connection.execute(_REPLACED)
    connection.execute(_REMOVED)
    sums = connection.execute(
        "SELECT bucket, sum(hash) FROM ps_oplog WHERE rowid IN (SELECT id FROM temp.headwater_doomed) GROUP BY bucket"
    ).fetchall()
    connection.execute("DELETE FROM ps_oplog WHERE rowid IN (SELECT id FROM temp.headwater_doomed)")
    connection.executemany(
        "UPDATE ps_buckets SET add_checksum = (add_checksum + :total) & 4294967295,"
        " op_checksum = (op_checksum - :total) & 4294967295 WHERE id = :bucket",
        [{"bucket": bucket, "total": total} for bucket, total in sums],
    )
    connection.execute("DELETE FROM temp.headwater_doomed")
    connection.execute("DELETE FROM headwater_removed")
    connection.execute(INDEXES["ps_oplog_row"])
    connection.execute(INDEXES["ps_oplog_opid"])
