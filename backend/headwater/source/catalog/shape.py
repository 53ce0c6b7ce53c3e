"""The shape of a table: what its content depends on apart from its rows, as text that a store keeps with them.

Some changes count only together. ALTER TYPE … USING can change values without changing a column's name and type. It
rewrites the column's catalog row, but so do SET DEFAULT, SET STATISTICS and GRANT, which change no value. It also moves
the rows to another file, but so do TRUNCATE and VACUUM FULL, which the stream covers. So only both together mean that
values may have changed unseen. Every other unseen change shows by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import orjson


class LeafShape(NamedTuple):
    """A table that holds rows: `what` is a digest of its definition, `where` the file of its rows (`relfilenode`)."""

    what: str
    where: int


@dataclass(frozen=True, slots=True)
class Shape:
    """`definition` is a digest of what counts by itself, `columns` of the versions (xmin) of the columns' catalog rows.
    `leaves` are the tables that hold the rows, by oid. `pinned`: another file counts by itself, since the stream does
    not have every TRUNCATE. `streamed` is a digest of what decides which changes the stream has, and of what changes
    the text of values by itself; empty in shapes that earlier versions wrote."""

    definition: str
    columns: str
    leaves: Mapping[int, LeafShape]
    pinned: bool
    streamed: str = ""

    def encoded(self) -> str:
        """As text; equal shapes have equal texts."""
        parts = {
            "definition": self.definition,
            "columns": self.columns,
            "leaves": {str(oid): list(leaf) for oid, leaf in sorted(self.leaves.items())},
            "pinned": self.pinned,
            "streamed": self.streamed,
        }
        return orjson.dumps(parts).decode()


def followed_on(then: str, now: str) -> bool:
    """Whether the stream continues rows that were stored under the shape `then`, if the table has the shape `now`."""
    if then == now:
        return True
    before, after = _decoded(then), _decoded(now)
    if before is None or after is None or not _alike(before, after):
        return False
    if _tables(before) != _tables(after):
        return False
    moved = before.leaves != after.leaves
    return not moved or (not after.pinned and before.columns == after.columns)


def all_streamed(then: str, now: str) -> bool:
    """Whether the stream has told of all that happened to rows between two shapes: the publications are as they were,
    no row was rewritten, and no partition was away. Else a value that the stream leaves out may differ from the stored
    one."""
    before, after = _decoded(then), _decoded(now)
    if before is None or after is None or not before.streamed or before.streamed != after.streamed:
        return False
    return before.leaves.items() <= after.leaves.items()


def attached(then: str, now: str) -> frozenset[int]:
    """The oids of leaves that are new, if nothing else changed; else none."""
    before, after = _decoded(then), _decoded(now)
    if before is None or after is None or not _alike(before, after):
        return frozenset()
    stayed = before.leaves.items() <= after.leaves.items()
    return frozenset(after.leaves.keys() - before.leaves.keys()) if stayed else frozenset()


def files(shape: str) -> frozenset[int]:
    """The files (`relfilenode`) in which rows were at the time of a shape; none for a shape of an earlier version."""
    known = _decoded(shape)
    return frozenset() if known is None else frozenset(leaf.where for leaf in known.leaves.values())


def leaf_oids(shape: str) -> frozenset[int]:
    """The oids of the tables that held the rows at the time of a shape; none for a shape of an earlier version."""
    known = _decoded(shape)
    return frozenset() if known is None else frozenset(known.leaves)


def _alike(before: Shape, after: Shape) -> bool:
    return before.definition == after.definition and before.pinned == after.pinned


def _tables(shape: Shape) -> dict[int, str]:
    return {oid: leaf.what for oid, leaf in shape.leaves.items()}


def _decoded(text: str) -> Shape | None:
    """None for a text of another format, as earlier versions wrote it."""
    try:
        parts = orjson.loads(text)
        leaves = {int(oid): LeafShape(what, where) for oid, (what, where) in parts["leaves"].items()}
        return Shape(parts["definition"], parts["columns"], leaves, parts["pinned"], parts.get("streamed", ""))
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None


def digest(*parts: object) -> str:
    """A digest of values, by their `repr`."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def digest_sql(text: str) -> str:
    """The SQL of a digest of a text, which is one expression. Owners of tables choose such texts, and two with the same
    MD5 can be made."""
    return f"encode(sha256(convert_to({text}, getdatabaseencoding()::name)), 'hex')"
