"""Finding and erasing values in a store in Postgres. See `storage.contract.forget`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import psycopg
from psycopg import errors, sql

from headwater.storage.address import PostgresAddress
from headwater.storage.contract.forget import (
    FoundOp,
    FoundText,
    Searched,
    SearchedFile,
    UnerasedError,
    found_in_segment,
)
from headwater.storage.contract.store import Lease
from headwater.storage.postgres.connection import connect, postgres_errors
from headwater.storage.postgres.control import lease as leases
from headwater.storage.postgres.tables import rows_table, stored_id
from headwater.storage.shared.control.erasures import ERASURES
from headwater.storage.shared.packing import unpacked
from headwater.storage.shared.values import as_int

_FETCH = 500
_READ_BYTES = 64 << 20
_PATIENCE = 300.0  # seconds to wait for the lock on a table that is to be rewritten

_SEGMENTS = """
select coalesce(b.id, 0), coalesce(s.first_op, 0), coalesce(s.sealed, false), x.bodies from segment_blobs x
left join segments s on s.blob = x.id left join buckets b on b.id = x.bucket
"""

# Every column that can hold text, except ops, which are searched separately, and the tables that bulk tasks write
_TEXT_COLUMNS = """
select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
    and a.atttypid = 'text'::regtype and c.relname <> 'ops' and c.relname not like 'stage\\_%'
order by c.relname, a.attnum
"""

_UNPUBLISHED = """
select exists (select 1 from tables where state = 'staged') or exists (select 1 from staged_segments)
    or exists (select 1 from staged_parts) or exists (select 1 from staged_buckets) or exists (
        select 1 from pg_class where relnamespace = current_schema()::regnamespace and relname like 'stage\\_%')
"""

_RELATIONS = """
with kept as (
    select oid, relname, reltoastrelid from pg_class
    where relnamespace = current_schema()::regnamespace and relkind = 'r'
), heaps as (
    select oid, relname::text from kept
    union all select reltoastrelid, relname || ' (large values)' from kept where reltoastrelid <> 0
)
select oid, relname from heaps
union all select i.indexrelid, c.relname::text from heaps h join pg_index i on i.indrelid = h.oid
    join pg_class c on c.oid = i.indexrelid
order by 2
"""


class PostgresForget:
    """See `storage.contract.forget.ForgetStore`."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._db = connect(address, "forget")
        with postgres_errors(address):
            self._db.execute("set enable_seqscan = on")

    # searching

    def ops(self, hints: Sequence[str], searched: Searched) -> Iterator[FoundOp]:
        with postgres_errors(self._address):
            searched.ops += self._number("select count(*) from ops")
            hot = (
                "select coalesce(b.id, 0), o.id, o.line from ops o left join buckets b on b.id = o.bucket"
                f" where {_has('o.line', hints)}"
            )
            for bucket, op_id, line in self._fetched(hot, list(hints)):
                yield FoundOp(as_int(bucket), as_int(op_id), str(line))
            for bucket, first, sealed, bodies in self._fetched(_SEGMENTS, []):
                assert isinstance(bodies, bytes)
                content = unpacked(bodies)
                searched.segments += 1
                searched.segment_bytes += len(content)
                for op_id, op in found_in_segment(content, hints, as_int(first), bool(sealed)):
                    yield FoundOp(as_int(bucket), op_id, op)

    def _fetched(self, query: str, parameters: Sequence[str]) -> Iterator[tuple[object, ...]]:
        """Rows of a query whose result may not fit in memory."""
        with self._db.transaction(), psycopg.ServerCursor(self._db, "found") as found:
            found.itersize = _FETCH
            yield from found.execute(query.encode(), parameters, binary=True)

    def texts(self, hints: Sequence[str], searched: Searched) -> list[FoundText]:
        found: list[FoundText] = []
        with postgres_errors(self._address):
            for table, column in self._text_columns():
                erasure = ERASURES.get((table, column))
                condition = erasure.condition if erasure else "false"
                counts = f"select count(*), count(*) filter (where {condition})"
                query = f"{counts} from {{table}} where {_has('{column}', hints)}"
                names = {"table": sql.Identifier(table), "column": sql.Identifier(column)}
                statement = sql.SQL(query).format(**names)
                try:
                    count, erasable = self._db.execute(statement, list(hints)).fetchall()[0]
                except errors.UndefinedTable:
                    continue  # swept away meanwhile
                searched.texts += 1
                if count:
                    found.append(FoundText(table, column, count, erasable))
        return found

    def _text_columns(self) -> list[tuple[str, str]]:
        return [(str(table), str(column)) for table, column in self._db.execute(_TEXT_COLUMNS).fetchall()]

    def rows(self, table: int, row_id: str) -> int:
        query = sql.SQL("select count(*) from {} where row_id = %s").format(rows_table(table))
        with postgres_errors(self._address):
            try:
                return int(self._db.execute(query, [stored_id(row_id)[0]]).fetchall()[0][0])
            except errors.UndefinedTable:
                return 0  # swept meanwhile

    def named_buckets(self, hints: Sequence[str]) -> list[int]:
        with postgres_errors(self._address):
            query = f"select id from buckets where {_has('name', hints)}"
            return [row[0] for row in self._db.execute(query.encode(), list(hints)).fetchall()]

    def unpublished(self) -> bool:
        with postgres_errors(self._address):
            return bool(self._db.execute(_UNPUBLISHED).fetchall()[0][0])

    def size(self) -> int:
        query = (
            "select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from pg_class"
            " where relnamespace = current_schema()::regnamespace and relkind = 'r'"
        )
        with postgres_errors(self._address):
            return self._number(query)

    # erasing

    def erase_texts(self, lease: Lease, hints: Sequence[str]) -> int:
        erased = 0
        for (_, column), erasure in ERASURES.items():
            statement = f"{erasure.statement} where {_has(column, hints)} and {erasure.condition}"
            with postgres_errors(self._address), leases.holding(self._db, lease):
                erased += self._db.execute(statement.encode(), list(hints)).rowcount
        return erased

    def drop_bucket(self, lease: Lease, bucket: int) -> None:
        with postgres_errors(self._address), leases.holding(self._db, lease):
            # Holds the store's lock first, as a flush does
            self._db.execute("update state set retired = retired + 1")
            for statement in (
                "delete from segment_blobs where id in (select blob from segments where bucket = %s)",
                "delete from segments where bucket = %s",
                "delete from ops where bucket = %s",
                "delete from buckets where id = %s",
            ):
                self._db.execute(statement.encode(), [bucket])

    def rewrite(self, say: Callable[[str], None]) -> None:
        query = (
            "select relname from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'"
            " and relname not like 'stage\\_%' order by relname"
        )
        with postgres_errors(self._address):
            tables = [str(row[0]) for row in self._db.execute(query).fetchall()]
            say(f"rewriting {len(tables)} tables: each is locked while it is rewritten")
            self._db.execute("set lock_timeout = '5s'")
            for table in tables:
                self._rewrite(table)
            self._db.execute("reset lock_timeout")

    def _rewrite(self, table: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._db.execute(sql.SQL("vacuum (full) {}").format(sql.Identifier(table)))
            except errors.LockNotAvailable:
                if time.monotonic() > deadline:
                    raise UnerasedError(
                        "a table can't be rewritten: other sessions have been using it for too long",
                        f"{self._address}, table {table}",
                        "stop the processes that use the store, and run it again",
                    ) from None
                continue
            except errors.UndefinedTable:
                return  # swept away meanwhile
            return

    def search_files(self, hints: Sequence[str]) -> list[SearchedFile]:
        """Search the server's files, if the role may read them."""
        with postgres_errors(self._address):
            try:
                self._db.execute("checkpoint")
                return [self._search(oid, str(name), hints) for oid, name in self._db.execute(_RELATIONS).fetchall()]
            except errors.InsufficientPrivilege:
                return []

    def _search(self, relation: int, name: str, hints: Sequence[str]) -> SearchedFile:
        row = self._db.execute("select pg_relation_filepath(%s::oid), pg_relation_size(%s::oid)", [relation, relation])
        path, size = row.fetchall()[0]
        overlap = max(len(hint.encode()) for hint in hints) if hints else 0
        found, number = False, 0
        while path is not None and not found:
            file = path if not number else f"{path}.{number}"
            offset, tail = 0, b""
            while data := self._read(file, offset):
                content = tail + data
                found = found or any(hint.encode() in content for hint in hints)
                offset, tail = offset + len(data), content[-overlap:]
            if not offset:
                break
            number += 1
        return SearchedFile(name, int(size or 0), found)

    def _read(self, file: str, offset: int) -> bytes:
        query = "select pg_read_binary_file(%s, %s, %s, true)"
        row = self._db.execute(query, [file, offset, _READ_BYTES], binary=True).fetchall()[0]
        return bytes(row[0] or b"")

    def _number(self, query: str) -> int:
        return int(self._db.execute(query.encode()).fetchall()[0][0])

    def close(self) -> None:
        self._db.close()


def _has(column: str, hints: Sequence[str]) -> str:
    """A condition with the hints as its parameters."""
    return "(" + " or ".join(f"strpos({column}, %s) > 0" for _ in hints) + ")"
