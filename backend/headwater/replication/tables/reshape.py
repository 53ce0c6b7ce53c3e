"""Converts changes from the columns that the stream has to those of the stored layout.

After a table was altered, the stream still brings changes from before. The comparison that follows brings the values
that they lack. Generated columns, which the stream never brings, get a place here and are computed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwater.oplog.change import UNCHANGED, Cell, Cells, Delete, Insert, Relation, RowChange, Update
from headwater.oplog.row_id import IdentityKind, RowIdentity


@dataclass(frozen=True, slots=True)
class Reshape:
    """Converts from the columns of one relation to those of `relation`. `places` has the former position of each
    column, None for a new one, for which a changed row gets the cell in `absent`. `whole`: only generated columns are
    added. `old_is_key`, where it is set, replaces what the stream says of an old row, since the partitions decide the
    identity."""

    relation: Relation
    places: tuple[int | None, ...]
    absent: tuple[Cell, ...]
    whole: bool
    old_is_key: bool | None = None

    def change(self, change: RowChange) -> RowChange:
        """The same change over the other columns. A missing value is null in an inserted row, and UNCHANGED in an
        updated one."""
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
    """Converts changes of `streamed` to `kept`. None where `streamed` does not identify the rows of `kept`."""
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
    """The streamed relation, with the identity of the stored one where the partitions decide it."""
    if not kept.by_leaf:
        return streamed
    key = {column.name for column in kept.columns if column.key}
    columns = tuple(replace(column, key=column.name in key) for column in streamed.columns)
    return replace(streamed, identity=kept.identity, columns=columns, by_leaf=True)
