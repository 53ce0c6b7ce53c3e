"""Reads single rows from the source, for TOASTed values that the stream left out and the store does not have."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import orjson
import psycopg
from psycopg import errors, sql

from headwater.decode.copytext import split_line
from headwater.errors import HeadwaterError
from headwater.oplog.change import Cell, Relation
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import SharedConnection, SourceSettings, source_errors
from headwater.source.head import ping_statement
from headwater.source.rows.copy import copied_lines
from headwater.source.rows.generated import LOCK_TIMEOUT, GeneratedValues
from headwater.source.slot import end_of_log

_KEYS_AT_ONCE = 100
_OTHER_TABLE = (
    errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidTextRepresentation, errors.LockNotAvailable
)  # fmt: skip
_VISIBLE_SECONDS = 1.0
_VISIBLE_PAUSE = 0.005


@dataclass(frozen=True, slots=True)
class Fetched:
    """Present rows of the source. `seen` is a position not before any commit that they show."""

    rows: list[tuple[str | None, ...]]
    seen: Lsn


@dataclass(frozen=True, slots=True)
class Names:
    """Schema and name of tables by oid, None for a table that is gone. `seen` is a position not before any commit that
    gave them these names."""

    by_oid: Mapping[int, tuple[str | None, str | None]]
    seen: Lsn


# The position is read after the statement's snapshot was taken
_NAMES = """
select t::int8, n.nspname, c.relname, pg_current_wal_insert_lsn()::text
from unnest(%s::oid[]) t left join pg_class c on c.oid = t left join pg_namespace n on n.oid = c.relnamespace
"""


def own_rows(relation: Relation) -> sql.Composed:
    """A condition for reading a table by its name: only its own rows, or those of its partitions. Rows of a table that
    inherits from it are another table's in the stream."""
    return sql.SQL("({0} = tableoid or exists (select from pg_class where oid = {0} and relkind = 'p'))").format(
        sql.Literal(relation.oid)
    )


class RowFetcher:
    """Fetches rows by key over one connection, opened when first needed. `generated` computes generated columns over
    another, so that neither waits for the other."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self.generated = GeneratedValues(settings)
        self._shared = SharedConnection(settings, application_name="headwater fetch", setup=LOCK_TIMEOUT)

    def fetch(self, relation: Relation, keys: Sequence[Sequence[Cell]], files: Collection[int] = ()) -> Fetched | None:
        """The rows that have these keys now. None when another table has the relation's name, when its columns changed,
        when its rows are not in `files` any more, or when it is locked for longer than a second.

        Each of `keys` has all of the relation's columns, of which those of its identity count. Writes a message to the
        source's log after the position that is returned, so that even an idle stream passes it.
        """
        rows: list[tuple[str | None, ...]] = []
        with source_errors(self._settings):
            try:
                with self._shared.use() as conn:
                    for first in range(0, len(keys), _KEYS_AT_ONCE):
                        found = _rows(conn, relation, keys[first : first + _KEYS_AT_ONCE], files)
                        if found is None:
                            return None
                        rows += found
                    position = end_of_log(conn)
                    conn.execute(ping_statement(conn.info.server_version))
            except _OTHER_TABLE:
                return None
        return Fetched(rows, position)

    def names(self, oids: Collection[int]) -> Names:
        """The present names of these tables."""
        with source_errors(self._settings), self._shared.use() as conn:
            rows = conn.execute(_NAMES, [list(oids)]).fetchall()
        return Names({oid: (schema, name) for oid, schema, name, _ in rows}, parse_lsn(rows[0][3]))

    def wait_until_visible(self, xids: Sequence[int]) -> bool:
        """Wait until these transactions are visible to other sessions. False when that takes longer than a second.

        A commit is in the stream a moment before it is visible. One that waits for a synchronous standby is not visible
        until then, and that standby may be this stream.
        """
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while self._unseen(xids):
            if time.monotonic() > deadline:
                return False
            time.sleep(_VISIBLE_PAUSE)
        return True

    def _unseen(self, xids: Sequence[int]) -> bool:
        with source_errors(self._settings), self._shared.use() as conn:
            return any_unseen(conn, xids)

    def close(self) -> None:
        self.generated.close()
        self._shared.close()


def any_unseen(conn: psycopg.Connection, xids: Collection[int]) -> bool:
    """Whether one of these transactions, which the stream has brought, is not visible to other sessions yet."""
    query = (  # a transaction holds the lock on its own id until it is visible
        "select exists (select from pg_locks where locktype = 'transactionid' and granted"
        " and transactionid = any(%s::text[]::xid[]))"
    )
    return conn.execute(query, [list(map(str, xids))]).fetchall() == [(True,)]


def _rows(
    conn: psycopg.Connection, relation: Relation, keys: Sequence[Sequence[Cell]], files: Collection[int]
) -> list[tuple[str | None, ...]] | None:
    """None when another table has the name, or the rows were rewritten. The statement that reads the rows has to tell,
    since tables can be renamed between two statements."""
    places = [place for place, column in enumerate(relation.columns) if column.key]
    names = [sql.SQL("t.") + sql.Identifier(column.name) for column in relation.columns]
    query = sql.SQL(
        "copy (select c.oid, (select relfilenode from pg_class where oid = t.tableoid), {columns}"
        " from {table} t"  # locked first, so from then on it keeps its name
        " right join (select oid from pg_class where oid = {name}::regclass) c"
        " on ({key}) in ({keys}) and {own}) to stdout"
    ).format(
        columns=sql.SQL(", ").join(names),
        name=sql.Literal(sql.Identifier(relation.schema, relation.name).as_string(conn)),
        table=sql.Identifier(relation.schema, relation.name),
        own=own_rows(relation),
        key=sql.SQL(", ").join(names[place] for place in places),
        keys=sql.SQL(", ").join(
            sql.SQL("({})").format(sql.SQL(", ").join(sql.Literal(key[place]) for place in places)) for key in keys
        ),
    )
    found = [split_line(line, len(relation.columns) + 2) for line in copied_lines(conn, query)]
    there = [row for row in found if row[2 + places[0]] is not None]
    if any(row[0] != str(relation.oid) for row in found):
        return None
    if files and not {int(row[1] or 0) for row in there} <= set(files):
        return None
    return [row[2:] for row in there]


def has_row(conn: psycopg.Connection, table: PublishedTable, row_id: str) -> bool:
    """Whether a row with this id is published. Raises HW_2501."""
    relation = table.relation
    identity = RowIdentity.of(relation)
    if identity.kind is not IdentityKind.KEY:
        raise HeadwaterError(
            "rows of this table have no key", table.qualified_name, "forget them by --contains", code="HW_2501"
        )
    values = _key_values(table, row_id, len(identity.columns))
    conditions = [
        sql.SQL("{} is null" if value is None else "{} = {}").format(
            sql.Identifier(relation.columns[column].name), sql.Literal(value)
        )
        for column, value in zip(identity.columns, values, strict=True)
    ]
    try:
        return _exists(conn, table, sql.SQL(" and ").join(conditions))
    except errors.DataError:
        raise HeadwaterError(
            "this is not a key of the table: its type is another",
            table.qualified_name,
            "write the key as the source has it",
            code="HW_2501",
        ) from None


def _key_values(table: PublishedTable, row_id: str, columns: int) -> Sequence[str | None]:
    if columns == 1:
        return [row_id]
    try:
        values = orjson.loads(row_id)
    except orjson.JSONDecodeError:
        values = None
    if not isinstance(values, list) or len(values) != columns or not all(isinstance(v, str | None) for v in values):
        raise HeadwaterError(
            f"the key of this table has {columns} columns",
            table.qualified_name,
            """say --id '["first","second"]'""",
            code="HW_2501",
        )
    return values


def has_text(conn: psycopg.Connection, table: PublishedTable, texts: Sequence[str]) -> bool:
    """Whether a published row has any of `texts` in one of its values. Reads the whole table."""
    wanted = [text for text in texts if "\0" not in text]
    conditions = [
        sql.SQL("strpos({}::text, {}) > 0").format(sql.Identifier(column.name), sql.Literal(text))
        for column in table.relation.columns
        for text in wanted
    ]
    return bool(conditions) and _exists(conn, table, sql.SQL(" or ").join(conditions))


def _exists(conn: psycopg.Connection, table: PublishedTable, condition: sql.Composable) -> bool:
    row_filter = sql.SQL("(" + (table.row_filter or "true") + ")")
    query = sql.SQL("select exists (select 1 from {} where {} and {} and ({}))").format(
        sql.Identifier(table.relation.schema, table.relation.name), own_rows(table.relation), row_filter, condition
    )
    return bool(conn.execute(query).fetchall()[0][0])
