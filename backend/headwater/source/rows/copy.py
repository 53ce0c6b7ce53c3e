"""Reads the rows of a table by COPY, a range of pages at a time, as they were at an exported snapshot.

https://www.postgresql.org/docs/current/sql-copy.html
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import pq, sql

from headwater.decode.copytext import readable_lines
from headwater.decode.pgoutput import LeftOut
from headwater.errors import HeadwaterError
from headwater.source.catalog.published import PublishedTable, fingerprint_of
from headwater.source.catalog.read import Leaf
from headwater.source.connect import SourceSettings, connect, plan_once, text_as_it_is
from headwater.source.slot import READERS

_log = logging.getLogger(__name__)

BATCH_ROWS = 5_000
_LOCK_TIMEOUT = "set lock_timeout = '10s'"  # all other tables of the job wait meanwhile


class TableChangedError(HeadwaterError):
    """A table was rewritten, truncated or altered while it was read, so what was read is useless."""

    code = "HW_2301"


class PartitionError(HeadwaterError):
    """A task could not read its range."""

    code = "HW_5101"


@dataclass(frozen=True, slots=True)
class PageRange:
    """A range of pages of one leaf of a table: from `first` up to `end`, or without end for None."""

    table: PublishedTable
    leaf: Leaf
    first: int
    end: int | None


def read_lines(
    source: SourceSettings, snapshot: str, pages: PageRange, left_out: Callable[[str], None] = _log.error
) -> Iterator[list[str]]:
    """The rows of the pages as COPY text, in batches. Rows with text that is not UTF-8 are left out and reported to
    `left_out`. Raises TableChangedError when the table changed since the snapshot or meanwhile: after a rewrite or a
    TRUNCATE, the snapshot would show no rows, or rows in other ranges."""
    with connect(source, application_name=READERS) as conn:
        conn.execute(_LOCK_TIMEOUT)
        plan_once(conn)
        # Before the read, too: columns could be renamed and renamed back meanwhile
        _check_unchanged(conn, source, pages)
        conn.execute("begin transaction isolation level repeatable read read only")
        conn.execute(sql.SQL("set transaction snapshot {}").format(snapshot))
        try:
            with text_as_it_is(conn):
                yield from _copy(conn, pages, source.batch_bytes, left_out)
            _check_name(conn, pages)
        except (PartitionError, psycopg.Error):
            with contextlib.suppress(psycopg.Error):  # the first error is the one to raise
                conn.rollback()
                _check_unchanged(conn, source, pages)
            raise
        conn.execute("commit")  # to read the present catalog
        _check_unchanged(conn, source, pages)


def _check_name(conn: psycopg.Connection, pages: PageRange) -> None:
    """Raise TableChangedError unless the name that was read is this table's, now and at the time of the snapshot: under
    another name, other rules may apply. The table is locked until the transaction ends, so it keeps its name."""
    leaf, root = pages.leaf, pages.table.relation
    name = sql.Identifier(leaf.schema, leaf.name).as_string(conn)
    if conn.execute("select %s::regclass::oid::int8", [name]).fetchall() != [(leaf.oid,)]:  # shows the present
        raise TableChangedError("another table has the name of one that is read", name, "it is read again")
    rows = conn.execute(  # shows the snapshot
        "select c.oid::int8, n.nspname, c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where c.oid = any(%s::oid[])",
        [[leaf.oid, root.oid]],
    ).fetchall()
    if set(rows) != {(leaf.oid, leaf.schema, leaf.name), (root.oid, root.schema, root.name)}:
        raise TableChangedError("a table had another name when the snapshot was taken", name, "it is read again")


def _check_unchanged(conn: psycopg.Connection, source: SourceSettings, pages: PageRange) -> None:
    seen = pages.table
    if fingerprint_of(conn, source.publications, seen.relation.oid) != seen.fingerprint:
        raise TableChangedError(
            "a table was altered, rewritten or truncated during the snapshot", seen.qualified_name, "it is read again"
        )


def _copy(
    conn: psycopg.Connection, pages: PageRange, batch_bytes: int, left_out: Callable[[str], None]
) -> Iterator[list[str]]:
    def unreadable(cells: tuple[str, ...]) -> None:
        left_out(str(LeftOut.of(pages.table.relation, cells)))

    query = copy_query(pages).as_bytes(conn)
    return copied_batches(conn, query, batch_bytes, unreadable, lambda result, message: _unread(message, pages))


def copied_batches(
    conn: psycopg.Connection,
    query: bytes,
    batch_bytes: int,
    left_out: Callable[[tuple[str, ...]], None],
    failed: Callable[[pq.abc.PGresult, bytes], Exception],
) -> Iterator[list[str]]:
    """The lines of a COPY in batches. Calls `left_out` with the cells of one that is not UTF-8. Raises what `failed`
    makes of an error of the server: of its result and message."""
    pgconn = conn.pgconn
    result = pgconn.exec_(query)
    if result.status != pq.ExecStatus.COPY_OUT:
        raise failed(result, result.error_message)
    # libpq returns one line a call; psycopg's Copy object would double the time for each
    get, lines, length = pgconn.get_copy_data, list[str](), 0
    while True:
        size, data = get(0)
        if size <= 0:
            break
        try:
            lines.append(str(data[: size - 1], "utf-8"))
        except UnicodeDecodeError:
            left_out(tuple(bytes(data[: size - 1]).decode(errors="surrogateescape").split("\t")))
            continue
        length += size
        data = memoryview(b"")  # a large row is not kept twice while it is worked on
        if len(lines) >= BATCH_ROWS or length >= batch_bytes:
            yield lines
            lines, length = [], 0
    result = pgconn.get_result() or result
    message = pgconn.error_message
    while pgconn.get_result() is not None:
        pass  # else the connection does not accept another command
    if size == -2 or result.status != pq.ExecStatus.COMMAND_OK:
        raise failed(result, message)
    yield lines


def copied_lines(conn: psycopg.Connection, query: sql.Composed) -> list[str]:
    """All lines of a COPY, but those that are not UTF-8."""
    text = query.as_bytes(conn)
    with text_as_it_is(conn), conn.cursor() as cursor, cursor.copy(text) as copy:
        return readable_lines(b"".join(bytes(data) for data in copy))


def _unread(message: bytes, pages: PageRange) -> PartitionError:
    fix = "`headwater source status` lists missing rights; it is tried again"
    first = message.decode(errors="replace").strip().split("\n")[0] or "the connection broke"
    return PartitionError(first, pages.table.qualified_name, fix)


def copy_query(pages: PageRange) -> sql.Composed:
    """The COPY statement for the pages: the columns and rows that are published."""
    published, leaf = pages.table, pages.leaf
    conditions = [sql.SQL("ctid >= {}").format(sql.Literal(f"({pages.first},0)"))]
    if pages.end is not None:
        conditions.append(sql.SQL("ctid < {}").format(sql.Literal(f"({pages.end},0)")))
    if published.row_filter is not None:
        conditions.append(sql.SQL("(" + published.row_filter + ")"))  # type: ignore[arg-type]  # from pg_get_expr
    return sql.SQL("copy (select {} from only {} where {}) to stdout").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in published.relation.columns),
        sql.Identifier(leaf.schema, leaf.name),
        sql.SQL(" and ").join(conditions),
    )
