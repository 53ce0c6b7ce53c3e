"""What a table's content depends on apart from its rows, as text that a store keeps beside them.

Some changes count only together. A column's catalog row is written anew by an ALTER TYPE … USING that leaves name and
type as they are, but also by SET DEFAULT, SET STATISTICS, GRANT and the like, which change no value; rows lie elsewhere
after such an ALTER TYPE, but also after TRUNCATE and VACUUM FULL, of which the stream says what there is to say. Where
values change without a word in the stream, it is either both, or something else that is seen by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import orjson


class LeafShape(NamedTuple):
    """`what` a table that holds rows is, as a digest, and `where` its rows lie (`relfilenode`)."""

    what: str
    where: int


@dataclass(frozen=True, slots=True)
class Shape:
    """`definition` is a digest of what counts by itself, `columns` one of who wrote the columns' catalog rows. `leaves`
    are the tables that hold the rows, by oid. `pinned` says that it counts by itself where rows lie, since the stream
    does not have every TRUNCATE."""

    definition: str
    columns: str
    leaves: Mapping[int, LeafShape]
    pinned: bool

    def encoded(self) -> str:
        """As text; equal shapes have equal texts."""
        parts = {
            "definition": self.definition,
            "columns": self.columns,
            "leaves": {str(oid): list(leaf) for oid, leaf in sorted(self.leaves.items())},
            "pinned": self.pinned,
        }
        return orjson.dumps(parts).decode()


def followed_on(then: str, now: str) -> bool:
    """Whether rows that were stored under one shape can be followed by the stream under another."""
    if then == now:
        return True
    before, after = _decoded(then), _decoded(now)
    if before is None or after is None or not _alike(before, after):
        return False
    if _tables(before) != _tables(after):
        return False
    moved = before.leaves != after.leaves
    return not moved or (not after.pinned and before.columns == after.columns)


def attached(then: str, now: str) -> frozenset[int]:
    """The oids of the leaves that came, where nothing else is different; none otherwise."""
    before, after = _decoded(then), _decoded(now)
    if before is None or after is None or not _alike(before, after):
        return frozenset()
    stayed = before.leaves.items() <= after.leaves.items()
    return frozenset(after.leaves.keys() - before.leaves.keys()) if stayed else frozenset()


def files(shape: str) -> frozenset[int]:
    """Where rows lay (`relfilenode`) when a shape was seen; nothing where that is not told."""
    known = _decoded(shape)
    return frozenset() if known is None else frozenset(leaf.where for leaf in known.leaves.values())


def leaf_oids(shape: str) -> frozenset[int]:
    """The tables that held the rows when a shape was seen; nothing where that is not told."""
    known = _decoded(shape)
    return frozenset() if known is None else frozenset(known.leaves)


def same_columns(then: str, now: str) -> bool:
    """Whether nobody wrote the columns' catalog rows between two shapes."""
    before, after = _decoded(then), _decoded(now)
    return before is not None and after is not None and before.columns == after.columns


def _alike(before: Shape, after: Shape) -> bool:
    return before.definition == after.definition and before.pinned == after.pinned


def _tables(shape: Shape) -> dict[int, str]:
    return {oid: leaf.what for oid, leaf in shape.leaves.items()}


def _decoded(text: str) -> Shape | None:
    """None for what is not the text of a shape, as with a store that an earlier version has written."""
    try:
        parts = orjson.loads(text)
        leaves = {int(oid): LeafShape(what, where) for oid, (what, where) in parts["leaves"].items()}
        return Shape(parts["definition"], parts["columns"], leaves, parts["pinned"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None


def digest(*parts: object) -> str:
    """Of anything whose representation says all there is to it."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()
