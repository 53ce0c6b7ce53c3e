"""Changes of another shape of a table, brought to the layout in which its rows are kept.

After a table was altered, the stream still brings changes from before. What they lack is filled in by the comparison
with the source that follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwater.oplog.change import UNCHANGED, Cell, Cells, Delete, Insert, Relation, RowChange, Update
from headwater.oplog.row_id import IdentityKind, RowIdentity


@dataclass(frozen=True, slots=True)
class Reshape:
    """From the columns of one relation to those of another: `places` says where each of the latter is found."""

    relation: Relation
    places: tuple[int | None, ...]

    def change(self, change: RowChange) -> RowChange:
        """The same change over the other columns. A value that is not there is null in a new row, and left as it is
        in a changed one."""
        match change:
            case Insert(new=new):
                return Insert(self.relation, self._cells(new, None))
            case Update(old=old, new=new):
                before = None if old is None else self._cells(old, None)
                return replace(change, relation=self.relation, old=before, new=self._cells(new, UNCHANGED))
            case Delete(old=old):
                return replace(change, relation=self.relation, old=self._cells(old, None))

    def _cells(self, cells: Cells, absent: Cell) -> Cells:
        return tuple(absent if place is None else cells[place] for place in self.places)


def reshape(streamed: Relation, kept: Relation) -> Reshape | None:
    """What brings changes of `streamed` to `kept`; None where its rows can't be told apart by what it has."""
    at = {(column.name, column.type_oid): place for place, column in enumerate(streamed.columns)}
    places = tuple(at.get((column.name, column.type_oid)) for column in kept.columns)
    identity = RowIdentity.of(kept)
    if identity.kind is IdentityKind.KEY:
        found = all(places[i] is not None for i in identity.columns)
        return Reshape(kept, places) if found else None
    same = identity.kind is RowIdentity.of(streamed).kind and None not in places
    return Reshape(kept, places) if same and len(places) == len(streamed.columns) else None
