"""A strict reader of pgoutput messages: every read is checked, and errors name the position.

It decodes the rare messages, and finds out what is wrong with a row on which the generated code failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from headwater.errors import HeadwaterError
from headwater.oplog.change import Column, LogicalMessage, OriginMessage, Relation, ReplicaIdentity, TypeInfo
from headwater.oplog.lsn import Lsn

NULL, UNCHANGED_TOAST, TEXT, BINARY = b"nutb"
NEW, OLD_KEY, OLD_ROW = b"NKO"

_U8, _U16, _U32, _I32, _U64 = (Struct(f">{code}") for code in "BHIiQ")
_KEY_FLAG = 1
_TRANSACTIONAL_FLAG = 1

_NAMES: Final = {
    "B": "begin",
    "C": "commit",
    "D": "delete",
    "I": "insert",
    "M": "logical message",
    "O": "origin",
    "R": "relation",
    "T": "truncate",
    "U": "update",
    "Y": "type",
}
_SIZES: Final = {"B": 21, "C": 26}
_TUPLE_MARKS: Final = {"I": ("N",), "U": ("KON", "N"), "D": ("KO",)}


class ByteCursor:
    """Reads one message from its first field on. Reading past its end raises DecodeError."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.at = 1
        self.table = ""
        self.type = chr(payload[0]) if payload else ""

    def failure(self, problem: str, fix: str = "", at: int | None = None) -> DecodeError:
        position = self.at if at is None else at
        where = f"message type {self.type!r}, byte {position} of {len(self.payload)}{self.table}"
        return DecodeError(f"{_NAMES.get(self.type, 'replication')} message {problem}", where, fix)

    def number(self, layout: Struct) -> int:
        return int(layout.unpack(self.take(layout.size))[0])

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.payload):
            raise self.failure("ends too early", at=len(self.payload))
        taken = self.payload[self.at : end]
        self.at = end
        return taken

    def text(self, size: int) -> str:
        start = self.at
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise self.failure("has text that is not UTF-8", "pin client_encoding to UTF8", start) from None

    def string(self) -> str:
        end = self.payload.find(0, self.at)
        if end < 0:
            raise self.failure("ends inside a name", at=len(self.payload))
        text = self.text(end - self.at)
        self.at += 1
        return text

    def end(self) -> None:
        if self.at != len(self.payload):
            raise self.failure("has bytes left over")


def read_relation(payload: bytes) -> Relation:
    cursor = ByteCursor(payload)
    oid = cursor.number(_U32)
    schema = _namespace(cursor)
    name = cursor.string()
    at = cursor.at
    try:
        identity = ReplicaIdentity(chr(cursor.number(_U8)))
    except ValueError:
        raise cursor.failure("has an unknown replica identity", at=at) from None
    full = identity is ReplicaIdentity.FULL
    columns = tuple(_read_column(cursor, full) for _ in range(cursor.number(_U16)))
    cursor.end()
    return Relation(oid, schema, name, identity, columns)


def _read_column(cursor: ByteCursor, full: bool) -> Column:
    key = bool(cursor.number(_U8) & _KEY_FLAG) or full
    return Column(cursor.string(), cursor.number(_U32), cursor.number(_I32), key)


def read_type(payload: bytes) -> TypeInfo:
    cursor = ByteCursor(payload)
    info = TypeInfo(cursor.number(_U32), _namespace(cursor), cursor.string())
    cursor.end()
    return info


def read_origin(payload: bytes) -> OriginMessage:
    cursor = ByteCursor(payload)
    origin = OriginMessage(Lsn(cursor.number(_U64)), cursor.string())
    cursor.end()
    return origin


def read_logical_message(payload: bytes) -> LogicalMessage:
    cursor = ByteCursor(payload)
    transactional = bool(cursor.number(_U8) & _TRANSACTIONAL_FLAG)
    lsn = Lsn(cursor.number(_U64))
    prefix = cursor.string()
    content = cursor.take(cursor.number(_U32))
    cursor.end()
    return LogicalMessage(transactional, lsn, prefix, content)


def read_truncated_oids(payload: bytes) -> tuple[int, ...]:
    cursor = ByteCursor(payload)
    count = cursor.number(_U32)
    cursor.number(_U8)  # CASCADE and RESTART IDENTITY: Postgres lists every table it emptied
    if len(payload) - cursor.at != 4 * count:
        raise cursor.failure("does not have as many tables as it announces")
    return tuple(cursor.number(_U32) for _ in range(count))


def _namespace(cursor: ByteCursor) -> str:
    """pgoutput writes pg_catalog as an empty name."""
    return cursor.string() or "pg_catalog"


def explain(payload: bytes, relations: Mapping[int, Relation]) -> DecodeError:
    try:
        return _explain(payload, relations)
    except DecodeError as error:
        return error


def _explain(payload: bytes, relations: Mapping[int, Relation]) -> DecodeError:
    """Raises what it finds. Returns a general error when it finds nothing."""
    cursor = ByteCursor(payload)
    if not payload:
        raise cursor.failure("is empty", at=0)
    if cursor.type not in _NAMES:
        raise cursor.failure("has an unknown type", "start replication with proto_version 1", 0)
    if cursor.type in _TUPLE_MARKS:
        _explain_row(cursor, relations)
    if cursor.type == "T":
        _explain_truncate(cursor, relations)
    if cursor.type in _SIZES and len(payload) != _SIZES[cursor.type]:
        raise cursor.failure(f"should be {_SIZES[cursor.type]} bytes long", at=len(payload))
    return cursor.failure("is malformed")


def _explain_row(cursor: ByteCursor, relations: Mapping[int, Relation]) -> None:
    relation = relations.get(cursor.number(_U32))
    if relation is None:
        raise _unknown_relation(cursor)
    cursor.table = f", table {relation.qualified_name}"
    for marks in _TUPLE_MARKS[cursor.type]:
        mark = chr(cursor.number(_U8))
        if mark not in marks:
            raise cursor.failure("has no row where one should begin", at=cursor.at - 1)
        _explain_tuple(cursor, relation)
        if mark == "N":
            break
    cursor.end()


def _explain_tuple(cursor: ByteCursor, relation: Relation) -> None:
    start = cursor.at
    width = cursor.number(_U16)
    if width != len(relation.columns):
        raise cursor.failure(f"has {width} cells for {len(relation.columns)} columns", at=start)
    for number in range(1, width + 1):
        kind = cursor.number(_U8)
        if kind == TEXT:
            cursor.text(cursor.number(_U32))
        elif kind == BINARY:
            fix = "start replication without the binary option"
            raise cursor.failure(f"has a binary value in column {number}", fix, cursor.at - 1)
        elif kind not in (NULL, UNCHANGED_TOAST):
            raise cursor.failure(f"has an unknown kind of value in column {number}", at=cursor.at - 1)


def _explain_truncate(cursor: ByteCursor, relations: Mapping[int, Relation]) -> None:
    count = cursor.number(_U32)
    cursor.number(_U8)
    for _ in range(count):
        if cursor.number(_U32) not in relations:
            raise _unknown_relation(cursor)


def _unknown_relation(cursor: ByteCursor) -> DecodeError:
    fix = "restart the stream, so that the source describes its tables again"
    return cursor.failure("names a table that no relation message described", fix, cursor.at - 4)


class DecodeError(HeadwaterError):
    """A message, row line or value of the source can't be decoded. Names type and position, never a value.

    The kind is STOP, because going on would lose a change; a caller that may skip one has to decide so.
    """

    code = "HW_3001"
