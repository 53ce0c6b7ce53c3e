"""Checks that a device's file agrees with itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from headwater_client.storage import bulk, uploads
from headwater_client.storage.app_tables import synced_tables

_MASK = 2**32 - 1


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what it is, and whether it is as it should be (None: nothing can be wrong)."""

    name: str
    told: str
    fine: bool | None = None


def diagnose(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Look at the file in every way; a finding after the other."""
    (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
    yield Finding("SQLite", str(sound), sound == "ok")
    (size,) = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
    yield Finding("size", f"{size / 1e6:,.1f} MB")
    (count, ops) = connection.execute("SELECT (SELECT count(*) FROM ps_buckets), count(*) FROM ps_oplog").fetchone()
    yield Finding("buckets", f"{count:,} with {ops:,} rows")
    if bulk.active(connection):
        yield Finding("download", "a large download is under way, so sums and rows are not compared")
    else:
        yield from _compared(connection)
    waiting = uploads.waiting(connection)
    yield Finding("upload queue", f"{waiting:,} local writes wait" if waiting else "empty")
    confirmed = uploads.confirmed(connection)
    yield Finding("local writes", "confirmed by the server" if confirmed else "not confirmed: they hold back downloads")
    untyped = connection.execute("SELECT type, count(*) FROM ps_untyped GROUP BY type ORDER BY type").fetchall()
    for kind, number in untyped:
        yield Finding("rows without a table", f"{number:,} of {kind}: the schema does not have it")


def _compared(connection: sqlite3.Connection) -> Iterator[Finding]:
    wrong = [
        name
        for name, kept, real in connection.execute(
            "SELECT name, op_checksum, (SELECT coalesce(sum(hash), 0) FROM ps_oplog WHERE bucket = each.id)"
            " FROM ps_buckets AS each"
        ).fetchall()
        if kept != real & _MASK
    ]
    yield Finding("checksums", f"wrong in {', '.join(wrong)}" if wrong else "right", not wrong)
    orphans = connection.execute(
        "SELECT count(*) FROM ps_oplog WHERE bucket NOT IN (SELECT id FROM ps_buckets)"
    ).fetchone()[0]
    yield Finding("rows without a bucket", f"{orphans:,}", orphans == 0)
    if uploads.confirmed(connection):
        for kind, table in sorted(synced_tables(connection).items()):
            yield _table(connection, kind, table)


def _table(connection: sqlite3.Connection, kind: str, table: str) -> Finding:
    """A table against the newest operation of each of its rows that was applied."""
    different = connection.execute(
        f"""
        WITH newest AS (
          SELECT op.row_id AS id, iif(max(op.op_id), op.data, NULL) AS data FROM ps_oplog AS op
          JOIN ps_buckets AS bucket ON bucket.id = op.bucket AND op.op_id <= bucket.last_applied_op
          WHERE op.row_type = :kind GROUP BY op.row_id)
        SELECT (SELECT count(*) FROM newest LEFT JOIN "{table}" AS shown USING (id) WHERE shown.data IS NOT newest.data)
             + (SELECT count(*) FROM "{table}" WHERE id NOT IN (SELECT id FROM newest))
        """,
        {"kind": kind},
    ).fetchone()[0]
    return Finding(f"table {kind}", f"{different:,} rows differ" if different else "as downloaded", different == 0)
