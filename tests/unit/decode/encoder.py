"""A tiny pgoutput encoder, protocol 1: messages as a walsender would send them."""

from __future__ import annotations

import struct

from headwater.oplog.change import (
    UNCHANGED,
    Begin,
    Cell,
    Cells,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    Relation,
    Truncate,
    TypeInfo,
    Update,
)


def encode(message: Message) -> bytes:
    """The payload that decodes to this message."""
    match message:
        case Begin():
            return struct.pack(">cQqI", b"B", message.final_lsn, message.committed_us, message.xid)
        case Commit():
            return struct.pack(">cBQQq", b"C", 0, message.commit_lsn, message.end_lsn, message.committed_us)
        case Relation():
            return _relation(message)
        case TypeInfo():
            return b"Y" + _u32(message.oid) + _namespace(message.schema) + _string(message.name)
        case OriginMessage():
            return struct.pack(">cQ", b"O", message.lsn) + _string(message.name)
        case LogicalMessage():
            head = struct.pack(">cBQ", b"M", message.transactional, message.lsn)
            return head + _string(message.prefix) + _u32(len(message.content)) + message.content
        case Truncate():
            head = b"T" + _u32(len(message.relations)) + b"\0"
            return head + b"".join(_u32(relation.oid) for relation in message.relations)
        case Insert():
            return b"I" + _u32(message.relation.oid) + b"N" + cells(message.new)
        case Update():
            old = b"" if message.old is None else _old(message.old_is_key) + cells(message.old)
            return b"U" + _u32(message.relation.oid) + old + b"N" + cells(message.new)
        case Delete():
            return b"D" + _u32(message.relation.oid) + _old(message.old_is_key) + cells(message.old)


def cells(row: Cells) -> bytes:
    """The tuple part of a row message."""
    return struct.pack(">H", len(row)) + b"".join(_cell(cell) for cell in row)


def _relation(relation: Relation) -> bytes:
    head = b"R" + _u32(relation.oid) + _namespace(relation.schema) + _string(relation.name)
    columns = b"".join(
        bytes([column.key]) + _string(column.name) + struct.pack(">Ii", column.type_oid, column.type_modifier)
        for column in relation.columns
    )
    return head + relation.identity.value.encode() + struct.pack(">H", len(relation.columns)) + columns


def _cell(cell: Cell) -> bytes:
    if cell is None:
        return b"n"
    if cell is UNCHANGED:
        return b"u"
    text = cell.encode()
    return b"t" + _u32(len(text)) + text


def _old(is_key: bool) -> bytes:
    return b"K" if is_key else b"O"


def _namespace(schema: str) -> bytes:
    return _string("" if schema == "pg_catalog" else schema)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _u32(number: int) -> bytes:
    return struct.pack(">I", number)
