"""Small reads of a table for the sampling audit: keys in their order, and rows by key.

They never wait long: a locked table is read some other time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import LiteralString

import psycopg
from psycopg import errors, sql

from headwater.decode.copytext import split_line
from headwater.oplog.change import Relation
from headwater.oplog.lsn import Lsn
from headwater.oplog.row_id import RowIdentity
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import SharedConnection, SourceSettings, connection_error
from headwater.source.head import ping_statement
from headwater.source.rows.copy import copied_lines
from headwater.source.slot import end_of_log

_SETTINGS = "set statement_timeout = '5s'; set lock_timeout = '500ms'; set default_transaction_read_only = on"

_INDEX: LiteralString = """
select array(
    select a.attname::text from unnest(i.indkey::int2[]) with ordinality k (number, position)
    join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
    where k.position <= i.indnkeyatts order by k.position)
from pg_index i where i.indrelid = %s and (i.indisreplident or i.indisprimary)
order by i.indisreplident desc limit 1
"""

Row = tuple[str | None, ...]


class ProbeBusyError(Exception):
    """The table is locked, or the read took too long; nothing is known."""


class ProbeFailedError(Exception):
    """The source refuses to read the table so, with an error that says why."""


class _NoSuchValueError(Exception):
    """A key is not a valid value of its column's type, so the source has no such row."""


class SourceProbe:
    """Reads over one connection, opened when first needed. Raises ProbeBusyError, ProbeFailedError, and what
    `connection_error` makes of a failed connection."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._shared = SharedConnection(settings, application_name="headwater audit", setup=_SETTINGS)

    def key_order(self, table: PublishedTable) -> tuple[int, ...] | None:
        """Positions of the key's columns in the order of its index; None when there is no index."""
        identity = RowIdentity.of(table.relation)
        with self._reading() as conn:
            rows = conn.execute(_INDEX, [table.relation.oid]).fetchall()
        positions = {column.name: i for i, column in enumerate(table.relation.columns)}
        order = tuple(positions[name] for name in rows[0][0] if name in positions) if rows else ()
        return order if set(order) == set(identity.columns) and order else None

    def keys_after(
        self, table: PublishedTable, order: Sequence[int], last: Sequence[str] | None, limit: int
    ) -> list[Row]:
        """The next keys after `last` (the first keys for None), as rows with null for all other columns."""
        columns = [sql.Identifier(table.relation.columns[i].name) for i in order]
        listed = sql.SQL(", ").join(columns)
        conditions = [] if last is None else [sql.SQL("({}) > ({})").format(listed, _literals(last))]
        query = sql.SQL("copy (select {} from {} where {} order by {} limit {}) to stdout").format(
            listed, _from(table), _where(table, conditions), listed, sql.Literal(limit)
        )
        try:
            return [_placed(split_line(line, len(columns)), order, table.relation) for line in self._copy(query)]
        except _NoSuchValueError as error:  # they came from there, so it is something else, such as the row filter
            raise _failed(error.__cause__) from error

    def rows(self, table: PublishedTable, keys: Sequence[Sequence[str]]) -> list[str]:
        """The COPY text of the rows with these keys. A key has the values of the key's columns in the table's order;
        one that is not valid for its column's type has no row."""
        relation = table.relation
        identity = RowIdentity.of(relation)
        listed = sql.SQL(", ").join(sql.Identifier(relation.columns[i].name) for i in identity.columns)
        wanted = sql.SQL(", ").join(sql.SQL("({})").format(_literals(key)) for key in keys)
        condition = sql.SQL("({}) in ({})").format(listed, wanted)
        query = sql.SQL("copy (select {} from {} where {}) to stdout").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns),
            _from(table),
            _where(table, [condition]),
        )
        try:
            return self._copy(query)
        except _NoSuchValueError:
            if len(keys) == 1:
                return []
            middle = len(keys) // 2
            return [*self.rows(table, keys[:middle]), *self.rows(table, keys[middle:])]

    def position(self) -> Lsn:
        """A position after everything that was read so far. Writes a record beyond it, so that even an idle stream
        passes it."""
        with self._reading() as conn:
            position = end_of_log(conn)
            conn.execute(ping_statement(conn.info.server_version))
        return position

    def _copy(self, query: sql.Composed) -> list[str]:
        with self._reading() as conn:
            try:
                return copied_lines(conn, query)
            except psycopg.DataError as error:
                raise _NoSuchValueError from error

    @contextmanager
    def _reading(self) -> Iterator[psycopg.Connection]:
        lost: bool | None = None
        try:
            with self._shared.use() as conn:
                try:
                    yield conn
                except (errors.QueryCanceled, errors.LockNotAvailable) as error:
                    raise ProbeBusyError from error
                except psycopg.Error:
                    lost = conn.closed
                    raise
        except psycopg.Error as error:
            if lost is None:  # it could not be set up
                lost = error.sqlstate is None
            raise (connection_error(self._settings, error) if lost else _failed(error)) from error

    def close(self) -> None:
        self._shared.close()


def _failed(error: BaseException | None) -> ProbeFailedError:
    """Without values: the message of a data error quotes them."""
    state = getattr(error, "sqlstate", None)
    told = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    what = state if told is None or isinstance(error, psycopg.DataError) else f"{state}: {told}"
    return ProbeFailedError(f"the source answers with {what}")


def _from(table: PublishedTable) -> sql.Composed:
    """The table without those that inherit from it, unless it is partitioned: the same rows as in the stream."""
    own = [leaf.oid for leaf in table.leaves] == [table.relation.oid]
    name = sql.Identifier(table.relation.schema, table.relation.name)
    return sql.SQL("only {}" if own else "{}").format(name)


def _where(table: PublishedTable, conditions: list[sql.Composed]) -> sql.Composed:
    if table.row_filter is not None:
        conditions.append(sql.SQL("(" + table.row_filter + ")").format())
    return sql.SQL(" and ").join(conditions or [sql.SQL("true").format()])


def _literals(values: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Literal, values))


def _placed(key: Row, order: Sequence[int], relation: Relation) -> Row:
    cells: list[str | None] = [None] * len(relation.columns)
    for position, value in zip(order, key, strict=True):
        cells[position] = value
    return tuple(cells)
