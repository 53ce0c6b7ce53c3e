"""Searches the source for a row or a text."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import psycopg
from psycopg import errors, sql

from headwater.errors import HeadwaterError
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.source.catalog.published import PublishedTable
from headwater.source.rows.fetch import own_rows


class NotAKeyError(HeadwaterError):
    """A text is not a valid key of a table."""

    code = "HW_2501"


def has_row(conn: psycopg.Connection, table: PublishedTable, row_id: str) -> bool:
    """Whether a row with this id is published. Raises NotAKeyError."""
    relation = table.relation
    identity = RowIdentity.of(relation)
    if identity.kind is not IdentityKind.KEY:
        raise NotAKeyError("rows of this table have no key", table.qualified_name, "forget them by --contains")
    values = _key_values(table, row_id, len(identity.columns))
    conditions = [
        sql.SQL("{} is not distinct from {}").format(sql.Identifier(relation.columns[column].name), sql.Literal(value))
        if value is None
        else sql.SQL("{} = {}").format(sql.Identifier(relation.columns[column].name), sql.Literal(value))
        for column, value in zip(identity.columns, values, strict=True)
    ]
    try:
        return _exists(conn, table, sql.SQL(" and ").join(conditions))
    except errors.DataError:
        raise NotAKeyError(
            "this is not a key of the table: its type is another",
            table.qualified_name,
            "write the key as the source has it",
        ) from None


def _key_values(table: PublishedTable, row_id: str, columns: int) -> Sequence[str | None]:
    if columns == 1:
        return [row_id]
    try:
        values = orjson.loads(row_id)
    except orjson.JSONDecodeError:
        values = None
    if not isinstance(values, list) or len(values) != columns or not all(isinstance(v, str | None) for v in values):
        raise NotAKeyError(
            f"the key of this table has {columns} columns", table.qualified_name, """say --id '["first","second"]'"""
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
