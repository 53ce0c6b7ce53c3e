"""The messages of the stream as data: relations, and changes of their rows.

Cells are the text that Postgres printed. Current rows are stored as that text too. So a value is converted only once,
for the rules, and a row can be compared with the source byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeGuard, TypeVar, final

from headwater.oplog.lsn import Lsn


class Unchanged(Enum):
    """The marker pgoutput sends in place of a TOASTed value that the UPDATE did not touch."""

    UNCHANGED = "u"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED

Cell = str | None | Unchanged
Cells = tuple[Cell, ...]
FullCells = tuple[str | None, ...]
_C = TypeVar("_C")


class LargeCells(tuple[Cell, ...]):
    """Cells of a row that is so large that each copy of it counts."""

    __slots__ = ()


def is_full(cells: Cells) -> TypeGuard[FullCells]:
    """Whether all values are there."""
    return UNCHANGED not in cells


def fill_unchanged(new: tuple[_C, ...], old: Sequence[_C]) -> tuple[_C, ...]:
    """`new`, with the values that it lacks taken from `old`, if there is one."""
    if UNCHANGED not in new or not old:
        return new
    return tuple([old[i] if cell is UNCHANGED else cell for i, cell in enumerate(new)])


def parts(text: str) -> Iterator[str]:
    """The text in parts of which a copy does not count."""
    for start in range(0, len(text), _PART):
        yield text[start : start + _PART]


_PART = 1 << 20


class ReplicaIdentity(Enum):
    """`pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True)
class Generated:
    """How Postgres computes a stored generated column: an SQL expression over the columns that `inputs` names."""

    expression: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a relation, in the order of the stream and COPY. `key` marks the replica identity's columns.
    `generated` is set when only COPY has the column, so that streamed rows have to be completed."""

    name: str
    type_oid: int
    type_modifier: int
    key: bool
    generated: Generated | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """The definition of a table, from a Relation message of pgoutput or, in the same form, from the catalog. `by_leaf`:
    the identity is that of the partitions, which the message does not have."""

    oid: int
    schema: str
    name: str
    identity: ReplicaIdentity
    columns: tuple[Column, ...]
    by_leaf: bool = False

    @property
    def computed(self) -> bool:
        """Whether it is a computed table, which has no schema. Its oid, which is no oid of Postgres, is negative."""
        return not self.schema

    @property
    def qualified_name(self) -> str:
        """Schema and name, for people."""
        return f"{self.schema}.{self.name}" if self.schema else self.name


# Changes of rows are not frozen only because a frozen one takes twice as long to make, and there is one for each row


@final
@dataclass(slots=True)
class Insert:
    relation: Relation
    new: Cells


@final
@dataclass(slots=True)
class Update:
    """`old` is absent when the identity did not change; `old_is_key` says it holds key columns only."""

    relation: Relation
    old: Cells | None
    old_is_key: bool
    new: Cells


@final
@dataclass(slots=True)
class Delete:
    """`old` holds the whole row for FULL, else the key columns and None elsewhere."""

    relation: Relation
    old: Cells
    old_is_key: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """`final_lsn` is where the commit record starts; `committed_us` counts from 2000-01-01, as Postgres does."""

    final_lsn: Lsn
    committed_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn` is the position that a restart may resume from."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_us: int


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """A Type message: the name of a type that is not built in."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class OriginMessage:
    lsn: Lsn
    name: str


RowChange = Insert | Update | Delete
Change = RowChange | Truncate | LogicalMessage
Message = Change | Begin | Commit | Relation | TypeInfo | OriginMessage
