"""The ids of source rows, and the subkeys that distinguish rows on a device.

https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-REPLICA-IDENTITY
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import orjson

from headwater.oplog.change import Cell, Relation, ReplicaIdentity, parts
from headwater.oplog.keys import StoreKeys


class IdentityKind(Enum):
    """How rows of a table are identified."""

    KEY = "key"
    FULL = "full"  # by content; equal rows are numbered copies
    NOTHING = "nothing"  # not at all; each row gets a random id


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """The identity of a relation's rows. `columns` are the positions of the key's columns, empty unless `kind` is
    KEY."""

    kind: IdentityKind
    columns: tuple[int, ...]

    @classmethod
    def of(cls, relation: Relation) -> RowIdentity:
        """A table without key columns counts as NOTHING: Postgres refuses its updates and deletes."""
        if relation.identity is ReplicaIdentity.FULL:
            return cls(IdentityKind.FULL, ())
        keys = tuple(i for i, column in enumerate(relation.columns) if column.key)
        if relation.identity is ReplicaIdentity.NOTHING or not keys:
            return cls(IdentityKind.NOTHING, ())
        return cls(IdentityKind.KEY, keys)

    def key(self, cells: Sequence[Cell]) -> str:
        """The row id: the value of a single key column, else a JSON array of the values."""
        if len(self.columns) == 1:
            value = cells[self.columns[0]]
            return value if isinstance(value, str) else ""
        return orjson.dumps([cells[i] for i in self.columns]).decode()


def content_id(line: str) -> str:
    """The id of a row's content, given as its COPY text. It is the row id of the first copy of such a row."""
    content = Content()
    for part in parts(line):
        content.add(part.encode())
    return content.id()


class Content:
    """Makes the content id of a row of which the COPY text comes in parts."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, part: bytes) -> None:
        """Take in the next part of the text."""
        self._digest.update(part)

    def id(self) -> str:
        """The id of what was added."""
        return str(uuid.UUID(bytes=self._digest.digest()))


def copy_id(content: str, copy: int) -> str:
    """The row id of copy number `copy` (from 1) of equal rows."""
    return content if copy == 1 else f"{content}#{copy}"


def content_of(row_id: str) -> str:
    """The content id of which `copy_id` made a row id."""
    return row_id.partition("#")[0]


def copy_number(row_id: str) -> int:
    """The inverse of `copy_id`."""
    _, mark, number = row_id.partition("#")
    return int(number) if mark else 1


def random_id() -> str:
    """A row id for a row of a table without identity."""
    return str(uuid.uuid4())


def subkey_origin(table_id: int, row_id: str) -> str:
    """Where a row's subkeys come from. Stored with a row that gets another id or generation, so that its subkeys
    stay."""
    return f"{table_id}/{row_id}"


def row_subkey(origin: str | None, table_id: int, row_id: str, object_id: str, keys: StoreKeys) -> str:
    """Distinguishes source rows with the same object id on a device: by the `subkey_origin` of the row if it has one,
    else by its table and id. It does not reveal a key that the rules did not select: the row id is hashed, or
    left out where it is the object id."""
    if origin is not None:
        table, _, row_id = origin.partition("/")
        table_id = int(table)
    if row_id == object_id:
        return str(table_id)
    return f"{table_id}.{keys.subkey(row_id)}"
