"""Gives the embedded store's data to be checked. See `storage.contract.verify.VerifyReader`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater.storage.contract.verify import BucketHead, StoredSegment, cut_keys
from headwater.storage.shared.loading import BATCH_BYTES, batched
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.runs import AFTER
from headwater_rules.results import LookupEntry

_BATCH_ROWS = 2_000

_HEAD = "select id, cast(name as blob), definition, checksum, count, clear_op, last_op from buckets"

_SEGMENTS = f"""
select s.first_op, s.last_op, s.sealed, coalesce(b.size, 0), coalesce(b.checksum, 0), b.bodies
from segments s left join segment_blobs b on b.id = s.blob and b.bucket = s.bucket
where {AFTER} order by s.first_op
"""

# As bytes: a damaged line may no longer be text
_HOT = "select id, cast(line as blob) from ops where bucket = ? and id > ? and id <= ? order by id"

_ROWS = """
select id, cast(row_id as blob), layout, cast(line as blob), cast(members as blob), subkey from rows_{0:d}
where id >= ? and id < ? order by id
"""

_LONE = """
select distinct row_id from lookups l where table_id = ?1
and not exists (select 1 from rows_{0:d} r where r.row_id = l.row_id)
"""


@contextlib.contextmanager
def open_verify(address: SqliteAddress) -> Iterator[SqliteVerify]:
    """See `Backend.open_verify`."""
    path = Path(address.directory) / "store.db"
    with contextlib.closing(open_reader(path)) as connection, sqlite_errors(path):
        verify = SqliteVerify(connection)
        verify.renew()
        yield verify


class SqliteVerify:
    """Answers within one read transaction."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection

    def renew(self) -> None:
        self.release()
        self._db.execute("begin")

    def release(self) -> None:
        if self._db.in_transaction:
            self._db.execute("rollback")

    def heads(self, first: int, end: int) -> Iterator[BucketHead]:
        for row in self._db.execute(f"{_HEAD} where id >= ? and id <= ? order by id", (first, end - 1)):
            yield _head(row)

    def head(self, key: int) -> BucketHead | None:
        row = self._db.execute(f"{_HEAD} where id = ?", (key,)).fetchone()
        return None if row is None else _head(row)

    def cut(self, ops: int) -> list[tuple[int, int]]:
        rows = self._db.execute("select id, count from buckets order by id")
        return cut_keys(((as_int(key), as_int(count)) for key, count in rows), ops)

    def retired(self) -> frozenset[int]:
        return frozenset(as_int(row[0]) for row in self._db.execute("select id from retired_buckets"))

    def tables(self) -> list[int]:
        rows = self._db.execute("select id from tables where state = 'active' order by id")
        return [as_int(row[0]) for row in rows]

    def segments(self, bucket: int, after: int) -> Iterator[StoredSegment]:
        for first, last, sealed, size, checksum, bodies in self._db.execute(_SEGMENTS, (bucket, after)):
            numbers = as_int(size), as_int(checksum)
            yield StoredSegment(
                as_int(first), as_int(last), bool(sealed), *numbers, bodies if isinstance(bodies, bytes) else None
            )

    def hot(self, bucket: int, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        for op_id, line in self._db.execute(_HOT, (bucket, after, upto)):
            yield as_int(op_id), line if isinstance(line, bytes) else b""

    def rows(self, table: int, first: int, end: int) -> Iterator[list[PlacedRow]]:
        if not self._db.execute("select 1 from sqlite_master where name = ?", (f"rows_{table:d}",)).fetchall():
            return
        rows = self._db.execute(_ROWS.format(table), (first, end))
        yield from batched(map(_row, rows), _BATCH_ROWS, BATCH_BYTES)

    def lookups(self, table: int, row_ids: Sequence[str]) -> dict[str, set[LookupEntry]]:
        found: dict[str, set[LookupEntry]] = {}
        sql = "select row_id, cast(key as blob), cast(output as blob) from lookups where table_id = ? and row_id = ?"
        for row_id, key, output in self._db.executemany(sql, [(table, row_id) for row_id in row_ids]):
            found.setdefault(str(row_id), set()).add(LookupEntry(_text(key), _text(output)))
        return found

    def lone_lookups(self, table: int) -> list[str]:
        if not self._db.execute("select 1 from sqlite_master where name = ?", (f"rows_{table:d}",)).fetchall():
            return []
        return [str(row[0]) for row in self._db.execute(_LONE.format(table), (table,))]


def _head(row: Sequence[apsw.SQLiteValue]) -> BucketHead:
    key, name, definition, *numbers = row
    checksum, count, clear_op, last_op = (as_int(number) for number in numbers)
    return BucketHead(as_int(key), _text(name), str(definition), checksum, count, clear_op, last_op)


def _row(row: Sequence[apsw.SQLiteValue]) -> PlacedRow:
    place, row_id, layout, line, members, subkey = row
    return PlacedRow(
        as_int(place),
        CurrentRow(_text(row_id), as_int(layout), _text(line), _text(members), None if subkey is None else str(subkey)),
    )


def _text(value: apsw.SQLiteValue) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
