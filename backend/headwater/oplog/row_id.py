"""Identity of source rows: the source key as text, and the subkey that keeps rows apart on a device.

https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-REPLICA-IDENTITY
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import orjson

from headwater.oplog.change import Cell, Relation, ReplicaIdentity


class IdentityKind(Enum):
    """How rows of a table are told apart."""

    KEY = "key"
    FULL = "full"  # by content: equal rows are counted copies
    NOTHING = "nothing"  # not at all: a random id each


@dataclass(frozen=True, slots=True)
class RowIdentity:
    """Identity of a relation's rows. `columns` are the positions of the key, empty unless `kind` is KEY."""

    kind: IdentityKind
    columns: tuple[int, ...]

    @classmethod
    def of(cls, relation: Relation) -> RowIdentity:
        """A table without any key column acts as NOTHING: Postgres refuses its updates and deletes."""
        if relation.identity is ReplicaIdentity.FULL:
            return cls(IdentityKind.FULL, ())
        keys = tuple(i for i, column in enumerate(relation.columns) if column.key)
        if relation.identity is ReplicaIdentity.NOTHING or not keys:
            return cls(IdentityKind.NOTHING, ())
        return cls(IdentityKind.KEY, keys)

    def key(self, cells: Sequence[Cell]) -> str:
        """Row id of a keyed row: the value of a single key column, else a JSON array of the values."""
        if len(self.columns) == 1:
            value = cells[self.columns[0]]
            return value if isinstance(value, str) else ""
        return orjson.dumps([cells[i] for i in self.columns]).decode()


def content_id(line: str) -> str:
    """Row id of the first copy of a row known by its content, given as its COPY text."""
    return str(uuid.UUID(bytes=hashlib.blake2b(line.encode(), digest_size=16).digest()))


def copy_id(content: str, copy: int) -> str:
    """Row id of copy number `copy` (from 1) of identical rows."""
    return content if copy == 1 else f"{content}#{copy}"


def copy_number(row_id: str) -> int:
    """The inverse of `copy_id`."""
    _, mark, number = row_id.partition("#")
    return int(number) if mark else 1


def random_id() -> str:
    """Row id for a row that nothing identifies."""
    return str(uuid.uuid4())


def subkey_origin(table_id: int, row_id: str) -> str:
    """What a row that gets another id, or another generation of its table, keeps its subkeys by."""
    return f"{table_id}/{row_id}"


def row_subkey(origin: str | None, table_id: int, row_id: str, object_id: str, salt: bytes) -> str:
    """What tells source rows with one object id apart on a device: by the `subkey_origin` of the row if it has one,
    else by its table and id. Never shows a key that the rules did not select: the row id goes in as a keyed hash, or
    not at all where it is the object id anyway."""
    if origin is not None:
        table, _, row_id = origin.partition("/")
        table_id = int(table)
    if row_id == object_id:
        return str(table_id)
    digest = hashlib.blake2b(row_id.encode(), digest_size=12, key=salt).digest()
    return f"{table_id}.{base64.urlsafe_b64encode(digest).decode()}"
