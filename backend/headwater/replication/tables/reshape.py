"""Changes of another shape of a table, brought to the layout in which its rows are kept.

After a table was altered, the stream still brings changes from before. What they lack is filled in by the comparison
with the source that follows. Generated columns that the stream never brings are made room for, and filled in at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwater.oplog.change import UNCHANGED, Cell, Cells, Delete, Insert, Relation, RowChange, Update
from headwater.oplog.row_id import IdentityKind, RowIdentity


@dataclass(frozen=True, slots=True)
class Reshape:
    """From the columns of one relation to those of another: `places` says where each of the latter is found, and
    `absent` what a changed row has where it is nowhere. `whole` tells that only room is made for generated columns.
    Where the identity is that of the partitions, `old_is_key` says what is made of an old row, whatever the stream
    says."""

    relation: Relation
    places: tuple[int | None, ...]
    absent: tuple[Cell, ...]
    whole: bool
    old_is_key: bool | None = None

    def change(self, change: RowChange) -> RowChange:
        """The same change over the other columns. A value that is not there is null in a new row, and left as it is
        in a changed one."""
        match change:
            case Insert(new=new):
                return Insert(self.relation, self._row(new))
            case Update(old=old, old_is_key=is_key, new=new):
                before = None if old is None else self._row(old)
                found = zip(self.places, self.absent, strict=True)
                cells = tuple(absent if place is None else new[place] for place, absent in found)
                return Update(self.relation, before, self._keyed(is_key), cells)
            case Delete(old=old, old_is_key=is_key):
                return Delete(self.relation, self._row(old), self._keyed(is_key))

    def _keyed(self, told: bool) -> bool:
        return told if self.old_is_key is None else self.old_is_key

    def _row(self, cells: Cells) -> Cells:
        return tuple(None if place is None else cells[place] for place in self.places)


def reshape(streamed: Relation, kept: Relation) -> Reshape | None:
    """What brings changes of `streamed` to `kept`; None where its rows can't be told apart by what it has."""
    at = {(column.name, column.type_oid): place for place, column in enumerate(streamed.columns)}
    places = tuple(at.get((column.name, column.type_oid)) for column in kept.columns)
    absent = tuple(UNCHANGED if column.generated is None else None for column in kept.columns)
    identity = RowIdentity.of(kept)
    old_is_key = identity.kind is IdentityKind.KEY if kept.by_leaf else None
    found = Reshape(kept, places, absent, streamed == as_streamed(kept), old_is_key)
    if identity.kind is IdentityKind.KEY:
        return found if all(places[i] is not None for i in identity.columns) else None
    needed = [place for place, value in zip(places, absent, strict=True) if place is not None or value is UNCHANGED]
    same = identity.kind is RowIdentity.of(streamed).kind and None not in needed
    return found if same and len(needed) == len(streamed.columns) else None


def as_streamed(relation: Relation) -> Relation:
    """The relation as the stream describes it: without the generated columns that it does not bring."""
    columns = tuple(column for column in relation.columns if column.generated is None)
    return relation if len(columns) == len(relation.columns) else replace(relation, columns=columns)


def as_kept(streamed: Relation, kept: Relation) -> Relation:
    """What the stream says of a table, with the identity by which its rows are kept where the partitions decide it."""
    if not kept.by_leaf:
        return streamed
    key = {column.name for column in kept.columns if column.key}
    columns = tuple(replace(column, key=column.name in key) for column in streamed.columns)
    return replace(streamed, identity=kept.identity, columns=columns, by_leaf=True)
