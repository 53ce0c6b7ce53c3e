"""Writes of a device into the demo's database: whether this user may, and then the SQL. All of a batch, or nothing.

Who owns a list may do anything with it; who shares it may work on its to-dos, rename it, and leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never
from uuid import UUID

import psycopg
from psycopg import errors, sql

from headwater.dev.writes import (
    BusyError,
    ForbiddenWriteError,
    InvalidWriteError,
    StaleWriteError,
    Write,
    WriteKind,
)


def apply_batch(conn: psycopg.Connection, user: UUID, writes: Sequence[Write]) -> None:
    """Do all writes for `user` in one transaction. Raises an ApiError that says what the device should do."""
    try:
        with conn.transaction():
            for write in writes:
                _check(conn, user, write)
                _execute(conn, write)
    except errors.ForeignKeyViolation:
        raise StaleWriteError("what it belongs to is not there any more") from None
    except errors.UniqueViolation:
        raise StaleWriteError("it is there already") from None
    except (errors.IntegrityError, psycopg.DataError):
        raise InvalidWriteError("a value is missing or not allowed") from None
    except psycopg.OperationalError:
        raise BusyError("the database did not take the change now") from None


def _check(conn: psycopg.Connection, user: UUID, write: Write) -> None:
    match write.table:
        case "lists":
            _check_list(conn, user, write)
        case "list_members":
            _check_member(conn, user, write)
        case _:
            _check_todo(conn, user, write)


def _check_list(conn: psycopg.Connection, user: UUID, write: Write) -> None:
    if "owner_id" in write.values and write.uuid("owner_id") != user:
        raise ForbiddenWriteError("a list belongs to the person who makes it")
    if _column(conn, "lists", "id", write.id) is None:
        if write.kind is WriteKind.PATCH:
            raise StaleWriteError("the list is not there any more")
        return
    if write.kind is WriteKind.PATCH and "owner_id" not in write.values:
        _check_access(conn, user, write.id)
    else:
        _check_owner(conn, user, write.id)


def _check_member(conn: psycopg.Connection, user: UUID, write: Write) -> None:
    seat = conn.execute("select list_id, user_id, role from list_members where id = %s", [write.id]).fetchone()
    if write.kind is WriteKind.DELETE:
        if seat is None:
            return  # gone already, as when an answer was lost and the batch is sent again
        held_list, person, role = seat
        if role == "owner":
            raise ForbiddenWriteError("the owner of a list stays in it")
        if person != user:
            _check_owner(conn, user, held_list)
        return
    if write.kind is WriteKind.PATCH or (seat is not None and seat[0] != write.uuid("list_id")):
        raise InvalidWriteError("who shares a list is added and removed, not changed")
    list_id = write.uuid("list_id")
    if list_id is None:
        raise InvalidWriteError("list_members.list_id is missing")
    _check_owner(conn, user, list_id)
    if (write.values.get("role") == "owner") != (write.uuid("user_id") == user):
        raise ForbiddenWriteError("a list has one owner, and the others are members")


def _check_todo(conn: psycopg.Connection, user: UUID, write: Write) -> None:
    held_list = _column(conn, "todos", "list_id", write.id)
    if held_list is not None:
        _check_access(conn, user, held_list)
    elif write.kind is WriteKind.PATCH:
        raise StaleWriteError("the to-do is not there any more")
    if write.kind is WriteKind.DELETE:
        return
    target = write.uuid("list_id")
    if target is not None and target != held_list:
        _check_access(conn, user, target)


def _check_access(conn: psycopg.Connection, user: UUID, list_id: UUID) -> None:
    member = conn.execute("select from list_members where list_id = %s and user_id = %s", [list_id, user]).fetchone()
    if member is None:
        _check_owner(conn, user, list_id)


def _check_owner(conn: psycopg.Connection, user: UUID, list_id: UUID) -> None:
    owner = _column(conn, "lists", "owner_id", list_id)
    if owner is None:
        raise StaleWriteError("the list is not there any more")
    if owner != user:
        raise ForbiddenWriteError("the list belongs to somebody else")


def _column(conn: psycopg.Connection, table: str, column: str, row_id: UUID) -> UUID | None:
    query = sql.SQL("select {} from {} where id = %s").format(sql.Identifier(column), sql.Identifier(table))
    row = conn.execute(query, [row_id]).fetchone()
    return None if row is None else row[0]


def _execute(conn: psycopg.Connection, write: Write) -> None:
    table, columns = sql.Identifier(write.table), [sql.Identifier(name) for name in write.values]
    match write.kind:
        case WriteKind.PUT:
            conn.execute(_put(table, columns), [write.id, *write.values.values()])
        case WriteKind.PATCH if columns:
            assignments = sql.SQL(", ").join(sql.SQL("{} = %s").format(column) for column in columns)
            query = sql.SQL("update {} set {} where id = %s").format(table, assignments)
            conn.execute(query, [*write.values.values(), write.id])
        case WriteKind.PATCH:
            pass
        case WriteKind.DELETE:
            conn.execute(sql.SQL("delete from {} where id = %s").format(table), [write.id])
        case _:
            assert_never(write.kind)


def _put(table: sql.Identifier, columns: Sequence[sql.Identifier]) -> sql.Composed:
    # Sent again after an answer was lost, the same row must be no error
    updates = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(column) for column in columns)
    then = sql.SQL("do update set {}").format(updates) if columns else sql.SQL("do nothing")
    names = sql.SQL(", ").join([sql.Identifier("id"), *columns])
    values = sql.SQL(", ").join([sql.Placeholder()] * (len(columns) + 1))
    return sql.SQL("insert into {} ({}) values ({}) on conflict (id) {}").format(table, names, values, then)
