"""Gives the data of a store in Postgres to be checked. See `storage.contract.verify.VerifyReader`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, LiteralString

import psycopg
from psycopg import errors, sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import PlacedRow
from headwater.storage.contract.verify import BucketHead, DamageError, StoredSegment, cut_keys
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.rows import COLUMNS, batched
from headwater.storage.postgres.tables import rows_table, stored_id
from headwater.storage.shared.loading import BATCH_BYTES
from headwater_rules.results import LookupEntry

_FETCHED = 500
_BATCH_ROWS = 2_000
_names = count()

_BEGIN = """
begin transaction isolation level repeatable read read only;
set local idle_in_transaction_session_timeout = '1h'
"""

_HEAD: LiteralString = "select id, name, definition, checksum, count, clear_op, last_op from buckets"

_SEGMENTS = """
select s.first_op, s.last_op, s.sealed, coalesce(g.size, 0), coalesce(g.checksum, 0), g.bodies
from segments s left join segment_blobs g on g.id = s.blob and g.bucket = s.bucket
where s.bucket = %s and s.last_op > %s order by s.last_op
"""

# As bytes: a damaged line may no longer be text
_HOT = (
    "select id, convert_to(line, getdatabaseencoding()) from ops where bucket = %s and id > %s and id <= %s order by id"
)

_ROWS = "select {} from {} where place >= {} and place < {} order by place"

_LONE = """
select distinct row_id from lookups l where table_id = %s
and not exists (select from {} r where r.row_id = l.row_id)
"""


@contextlib.contextmanager
def open_verify(address: PostgresAddress) -> Iterator[PostgresVerify]:
    """See `Backend.open_verify`."""
    with contextlib.closing(PostgresVerify(address)) as verify, postgres_errors(address):
        yield verify


class PostgresVerify:
    """Answers within one read transaction, or within the next one after Postgres itself has found damage."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._db = self._begin()

    def _begin(self) -> psycopg.Connection:
        connection = connect(self._address, "audit")
        with postgres_errors(self._address):
            connection.execute(_BEGIN)
        return connection

    def close(self) -> None:
        self._db.close()

    def renew(self) -> None:
        if self._db.closed:
            self._db = self._begin()
        else:
            self.release()
            self._db.execute(_BEGIN)

    def release(self) -> None:
        if self._db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self._db.execute("rollback")

    def heads(self, first: int, end: int) -> Iterator[BucketHead]:
        query = sql.SQL(_HEAD + " where id >= %s and id <= %s order by id")
        for row in self._fetched(query, [first, end - 1]):
            yield BucketHead(*row)

    def head(self, key: int) -> BucketHead | None:
        row = self._db.execute(_HEAD + " where id = %s", [key]).fetchone()
        return None if row is None else BucketHead(*row)

    def cut(self, ops: int) -> list[tuple[int, int]]:
        return cut_keys(self._fetched(sql.SQL("select id, count from buckets order by id"), []), ops)

    def retired(self) -> frozenset[int]:
        return frozenset(row[0] for row in self._db.execute("select id from retired_buckets"))

    def tables(self) -> list[int]:
        return [row[0] for row in self._db.execute("select id from tables where state = 'active' order by id")]

    def segments(self, bucket: int, after: int) -> Iterator[StoredSegment]:
        with self._damage("its segments can't be read"):
            for row in self._fetched(sql.SQL(_SEGMENTS), [bucket, after], 4):
                yield StoredSegment(*row)

    def hot(self, bucket: int, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        with self._damage("its ops can't be read"):
            yield from self._fetched(sql.SQL(_HOT), [bucket, after, upto])

    def rows(self, table: int, first: int, end: int) -> Iterator[list[PlacedRow]]:
        if not self._has_rows(table):
            return
        with self._db.cursor(f"verify_{next(_names)}", binary=True) as cursor:
            cursor.itersize = _BATCH_ROWS
            cursor.execute(sql.SQL(_ROWS).format(COLUMNS, rows_table(table), first, end))
            yield from batched(self._db, table, cursor, _BATCH_ROWS, BATCH_BYTES)

    def lookups(self, table: int, row_ids: Sequence[str]) -> dict[str, set[LookupEntry]]:
        full_ids = {stored_id(row_id)[0]: row_id for row_id in row_ids}
        found: dict[str, set[LookupEntry]] = {}
        query = "select row_id, key, output from lookups where table_id = %s and row_id = any(%s)"
        for row_id, key, output in self._db.execute(query, [table, list(full_ids)]):
            found.setdefault(full_ids[row_id], set()).add(LookupEntry(key, output))
        return found

    def lone_lookups(self, table: int) -> list[str]:
        if not self._has_rows(table):
            return []
        query = sql.SQL(_LONE).format(rows_table(table))
        return [row[0] for row in self._db.execute(query, [table])]

    def _has_rows(self, table: int) -> bool:
        """Whether the table exists; it may be swept at any time."""
        with contextlib.suppress(errors.UndefinedTable):
            return self._db.execute("select to_regclass(%s)", [f"rows_{table:d}"]).fetchall() != [(None,)]
        return False

    def _fetched(self, query: sql.SQL, bindings: Sequence[object], at_once: int = _FETCHED) -> Iterator[Any]:
        """Rows of a large result, fetched as they are consumed."""
        with self._db.cursor(f"verify_{next(_names)}", binary=True) as cursor:
            cursor.itersize = at_once
            yield from cursor.execute(query, bindings)

    @contextlib.contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        """Raise DamageError when Postgres finds a page or a compressed value damaged, and begin a new transaction."""
        try:
            yield
        except (errors.DataCorrupted, errors.CharacterNotInRepertoire, errors.UntranslatableCharacter) as error:
            self._db.close()
            self._db = self._begin()
            raise DamageError(what) from error
