"""Applies one write under its table's rule: checks that it is allowed, resolves conflicts, and finds out why no row
was changed."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from headwater.source.upload import statements
from headwater.source.upload.entries import Write, WriteKind
from headwater.source.upload.errors import (
    BadEntry,
    ChangedMeanwhile,
    PolicyRefused,
    RowGone,
    WriteNotAllowed,
)
from headwater.source.upload.json_text import Json, read_json, write_json
from headwater.source.upload.settings import Conflict, Operation, TableRule
from headwater.source.upload.shape import TableShape, check_function
from headwater.source.upload.statements import Statement, Values

_NEEDED = {
    WriteKind.PUT: Operation.INSERT,
    WriteKind.PATCH: Operation.UPDATE,
    WriteKind.DELETE: Operation.DELETE,
}


def rule_for(tables: Mapping[str, TableRule], write: Write) -> TableRule:
    """The rule of the write's table. Raises WriteNotAllowed when the table or the operation is not allowed."""
    rule = tables.get(write.table)
    if rule is None:
        raise WriteNotAllowed("upload.tables does not have the table", statements.shown(write.table))
    if _NEEDED[write.kind] not in rule.operations:
        raise WriteNotAllowed(f"upload.tables does not allow {write.kind.value}", rule.qualified_name)
    return rule


async def apply_write(conn: psycopg.AsyncConnection, shape: TableShape, write: Write) -> None:
    """Write to the row, or do nothing when the conflict policy says so. Raises Refused, or psycopg.Error."""
    values: Values | None = statements.allowed_values(shape, write.row_id, write.data)
    old: Values | None = None
    match shape.rule.conflict:
        case Conflict.LAST_WRITE_WINS:
            pass
        case Conflict.REJECT_CHANGED:
            old = write.old
            if old is None and write.kind is not WriteKind.PUT:
                raise BadEntry("the entry has no previous values to compare", shape.rule.qualified_name, _TRACK)
        case Conflict.FUNCTION:
            values = await _decided(conn, shape, write)
    if values is None:
        return
    match write.kind:
        case WriteKind.PUT:
            await _put(conn, shape, write, values)
        case WriteKind.PATCH if values:
            changed = await _execute(conn, statements.update(shape, write.row_id, values, old))
            await _check_found(conn, shape, write, old, found=changed > 0)
        case WriteKind.PATCH:
            pass
        case WriteKind.DELETE:
            changed = await _execute(conn, statements.delete(shape, write.row_id, old))
            await _check_found(conn, shape, write, old, found=changed > 0)


_TRACK = "set trackPrevious (trackPreviousValues) for the table in the client's schema"


async def _put(conn: psycopg.AsyncConnection, shape: TableShape, write: Write, values: Values) -> None:
    if shape.rule.conflict is Conflict.REJECT_CHANGED:
        made = await _execute(conn, statements.insert(shape, write.row_id, values, on_conflict="nothing"))
        if not made:
            raise ChangedMeanwhile("a row with this id exists already", shape.rule.qualified_name)
        return
    how = "update" if Operation.UPDATE in shape.rule.operations else "fail"
    await _execute(conn, statements.insert(shape, write.row_id, values, on_conflict=how))


async def _check_found(
    conn: psycopg.AsyncConnection, shape: TableShape, write: Write, old: Values | None, *, found: bool
) -> None:
    """If no row was changed (not `found`), raise the reason: it is gone (RowGone), it differs from `old`
    (ChangedMeanwhile), or the user may not change it (PolicyRefused). A row that is gone may also be fine."""
    if found:
        return
    where = shape.rule.qualified_name
    look = statements.look(shape, write.row_id, old)
    row = await (await conn.execute(look.query, look.parameters)).fetchone()
    if row is None:
        if write.kind is WriteKind.DELETE or shape.rule.skip_gone:
            return
        raise RowGone("the row is gone, or this user can't see it", where)
    if not row[0]:
        raise ChangedMeanwhile("the row was changed since the device read it", where)
    raise PolicyRefused(f"row-level security or a trigger prevented this {write.kind.value}", where)


async def _decided(conn: psycopg.AsyncConnection, shape: TableShape, write: Write) -> Values | None:
    """Call the table's conflict function. Returns the values to write, or None to write nothing."""
    given = [write.table, write.kind.value, write.row_id, write_json(write.data), _json_or_null(write.old)]
    asked = statements.call(check_function(shape.rule), given)
    row = await (await conn.execute(asked.query, asked.parameters)).fetchone()
    if row is None or row[0] is None:
        return None
    answer = read_json(row[0])
    if not isinstance(answer, Mapping):
        raise BadEntry("the conflict function returned neither an object nor null", shape.rule.qualified_name)
    return {name: value for name, value in answer.items() if name not in (*shape.key, "id")}


def _json_or_null(values: Mapping[str, Json] | None) -> str | None:
    return None if values is None else write_json(values)


async def _execute(conn: psycopg.AsyncConnection, statement: Statement) -> int:
    return (await conn.execute(statement.query, statement.parameters)).rowcount
