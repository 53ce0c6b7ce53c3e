"""Stores the operations of buckets, and knows up to where each bucket is there and what it adds up to.

In a large download, operations are appended without indexes, which are built in one go before they are needed. Without
the indexes it would take too long to find what an operation replaces. So all are kept until then: the newest row of a
key counts, and rows that were removed are noted beside. The indexes of a file say which way it is in, so a device that
was killed goes on as it was. Checksums do not mind: a replaced row counts as much as one that is there.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from headwater_client.protocol.lines import BucketChecksum, Data, Op
from headwater_client.protocol.session import op_number

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


def prepare_bulk(connection: sqlite3.Connection) -> None:
    """Make what this works with and is gone with the connection."""
    connection.execute("CREATE TEMP TABLE headwater_doomed(id INTEGER PRIMARY KEY)")


def is_bulk(connection: sqlite3.Connection) -> bool:
    """Whether a large download is under way."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'ps_oplog_key'").fetchone()
    return found is None


def begin_bulk_if_large(connection: sqlite3.Connection, incoming: int) -> None:
    """Prepare for so many operations, if that is worth it. To be called within a transaction."""
    if incoming < _LARGE or is_bulk(connection):
        return
    (present,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM ps_oplog").fetchone()
    if incoming < present * _MANY_TIMES:
        return
    for name in INDEXES:
        connection.execute(f"DROP INDEX {name}")


def end_bulk(connection: sqlite3.Connection) -> None:
    """End a large download: drop what was replaced, and build the indexes. To be called within a transaction."""
    if not is_bulk(connection):
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


_MASK: Final = 2**32 - 1
_AT_ONCE: Final = 100
_INSERT: Final = "INSERT INTO ps_oplog(bucket, op_id, key, row_type, row_id, data, hash) VALUES (?, ?, ?, ?, ?, ?, ?)"
_INSERT_MANY: Final = _INSERT + ", (?, ?, ?, ?, ?, ?, ?)" * (_AT_ONCE - 1)

# Which escapes are whole pairs of surrogates, and which are halves, only reading all escapes in their order shows
_ESCAPE: Final = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


@dataclass(frozen=True)
class StoredBucket:
    """A bucket on the device. Sums are of 32 bits: `added` of what is gone, `ops` of what is there."""

    name: str
    last_op: int
    added: int
    ops: int
    count_at_last: int
    count_since_last: int

    @property
    def checksum(self) -> int:
        return (self.added + self.ops) & _MASK


@dataclass
class _Bucket:
    """A bucket that is being written to."""

    id: int
    last_op: int
    added: int
    ops: int
    fresh: bool = False
    received: int = 0
    cleared: bool = False
    present: dict[str, Op] = field(default_factory=dict)
    gone: dict[str, Op] = field(default_factory=dict)

    def take(self, op: Op) -> bool:
        """Fold one operation in; whether it empties the bucket. One that is there already is passed over."""
        number = op_number(op.op_id)
        if number <= self.last_op:
            return False
        self.last_op = number
        self.received += 1
        if op.op == "CLEAR":
            self.present.clear()
            self.gone.clear()
            self.added, self.ops = op.checksum, 0
            return True
        if op.op == "MOVE":
            self.added += op.checksum
            return False
        key = _key(op)
        before = self.present.pop(key, None)
        if before is not None:
            self.ops -= before.checksum
            self.added += before.checksum
        if op.op == "PUT":
            self.present[key] = op
            self.ops += op.checksum
        else:
            self.added += op.checksum
        self.gone[key] = op
        return False


def save(connection: sqlite3.Connection, chunk: Data) -> None:
    """Store operations; to be called within a transaction. Raises `ProtocolError` for one without a number."""
    bucket = _open(connection, chunk.bucket)
    for op in chunk.data:
        if bucket.take(op):
            bucket.cleared = True
    if bucket.cleared and not bucket.fresh:
        _clear(connection, bucket.id)
    _mark_removed(connection, bucket)
    if not bucket.fresh and not bucket.cleared:
        _drop_replaced(connection, bucket)
    _insert(connection, bucket)
    connection.execute(
        "UPDATE ps_buckets SET last_op = ?, add_checksum = ?, op_checksum = ?,"
        " count_since_last = count_since_last + ?, last_applied_op = iif(?, 0, last_applied_op) WHERE id = ?",
        (bucket.last_op, bucket.added & _MASK, bucket.ops & _MASK, bucket.received, bucket.cleared, bucket.id),
    )


def _insert(connection: sqlite3.Connection, bucket: _Bucket) -> None:
    rows = [
        (bucket.id, int(op.op_id), key, op.object_type, op.object_id, _readable(op.data), op.checksum & _MASK)
        for key, op in bucket.present.items()
    ]
    # One statement for many rows, since the driver lets go of the interpreter for each statement, and would have to
    # wait for it as often while another thread is busy
    whole = len(rows) - len(rows) % _AT_ONCE
    for start in range(0, whole, _AT_ONCE):
        connection.execute(_INSERT_MANY, list(chain.from_iterable(rows[start : start + _AT_ONCE])))
    connection.executemany(_INSERT, rows[whole:])


def _open(connection: sqlite3.Connection, name: str) -> _Bucket:
    connection.execute("INSERT INTO ps_buckets(name) VALUES (?) ON CONFLICT(name) DO NOTHING", (name,))
    row = connection.execute(
        "SELECT id, last_op, add_checksum, op_checksum, last_op = 0 FROM ps_buckets WHERE name = ?", (name,)
    ).fetchone()
    return _Bucket(*row)


def _mark_removed(connection: sqlite3.Connection, bucket: _Bucket) -> None:
    """The next checkpoint is to look at rows that were removed. Before the first nothing shows that could go."""
    removed = [(op.object_type, op.object_id) for op in bucket.gone.values() if op.op == "REMOVE"]
    if removed and connection.execute("SELECT 1 FROM ps_sync_state LIMIT 1").fetchone() is not None:
        connection.executemany("INSERT OR IGNORE INTO ps_updated_rows(row_type, row_id) VALUES (?, ?)", removed)


def _drop_replaced(connection: sqlite3.Connection, bucket: _Bucket) -> None:
    """Remove the rows that newer operations replace or remove."""
    if is_bulk(connection):
        connection.executemany(
            "INSERT INTO headwater_removed(bucket, key, upto) VALUES (?, ?, ?)",
            [(bucket.id, key, int(op.op_id)) for key, op in bucket.gone.items() if op.op == "REMOVE"],
        )
        return
    replaced = connection.execute(
        "DELETE FROM ps_oplog WHERE bucket = ? AND key IN (SELECT value FROM json_each(?)) RETURNING hash",
        (bucket.id, json.dumps(list(bucket.gone))),
    )
    moved = sum(value for (value,) in replaced.fetchall())
    bucket.ops -= moved
    bucket.added += moved


def _clear(connection: sqlite3.Connection, bucket: int) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO ps_updated_rows(row_type, row_id) SELECT row_type, row_id FROM ps_oplog"
        " WHERE bucket = ? AND row_type IS NOT NULL AND row_id IS NOT NULL",
        (bucket,),
    )
    connection.execute("DELETE FROM ps_oplog WHERE bucket = ?", (bucket,))
    connection.execute("DELETE FROM headwater_removed WHERE bucket = ?", (bucket,))


def drop(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """Remove buckets; their rows go with the next checkpoint. To be called within a transaction."""
    for name in names:
        row = connection.execute("SELECT id FROM ps_buckets WHERE name = ?", (name,)).fetchone()
        if row is not None:
            _clear(connection, row[0])
            connection.execute("DELETE FROM ps_buckets WHERE id = ?", row)


def begin(connection: sqlite3.Connection, wanted: Mapping[str, BucketChecksum], removed: Iterable[str] | None) -> None:
    """Drop what a checkpoint no more has: `removed`, or with None every bucket that it does not name."""
    if removed is None:
        removed = [each.name for each in stored(connection) if each.name not in wanted]
    drop(connection, removed)
    # A server that compacted a bucket has fewer operations than were counted here: progress starts over
    for each in stored(connection):
        if each.name in wanted and wanted[each.name].count < each.count_at_last + each.count_since_last:
            connection.execute(
                "UPDATE ps_buckets SET count_at_last = 0, count_since_last = 0 WHERE name = ?", (each.name,)
            )


def stored(connection: sqlite3.Connection) -> list[StoredBucket]:
    rows = connection.execute(
        "SELECT name, last_op, add_checksum, op_checksum, count_at_last, count_since_last FROM ps_buckets ORDER BY name"
    )
    return [StoredBucket(*row) for row in rows.fetchall()]


def positions(connection: sqlite3.Connection) -> dict[str, int]:
    """Up to where each bucket is there."""
    return {each.name: each.last_op for each in stored(connection)}


def mismatched(connection: sqlite3.Connection, wanted: Mapping[str, BucketChecksum]) -> tuple[str, ...]:
    """The buckets that do not add up to what they should."""
    present = {each.name: each.checksum for each in stored(connection)}
    return tuple(name for name, each in wanted.items() if present.get(name, 0) != each.checksum & _MASK)


def _readable(data: str | None) -> str | None:
    """The row without halves of surrogate pairs: JSON can escape one, but Python cannot read the text it stands for."""
    if data is None or ("\\ud" not in data and "\\uD" not in data):
        return data
    return _ESCAPE.sub(lambda escape: "\\ufffd" if escape[1] else escape[0], data)


def _key(op: Op) -> str:
    if op.object_type is None or op.object_id is None:
        return ""
    return f"{op.object_type}/{op.object_id}/{'null' if op.subkey is None else op.subkey}"
