"""Live tables: a stored table generation with everything that is needed to turn its changes into ops.

After a table was altered, the stream still brings changes from before. These are converted from the columns that the
stream has to those of the stored layout; the comparison that follows brings the values that they lack. Generated
columns, which the stream never brings, get a position here and are computed at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from headwater.bulk.bound_table import BoundTable, Times, bind_layouts, current_cells, in_right_buckets
from headwater.decode.types import TypeCatalog
from headwater.decode.wire import DecodeError
from headwater.oplog.change import UNCHANGED, Cell, Cells, Delete, FullCells, Insert, Relation, RowChange, Update
from headwater.oplog.keys import StoreKeys
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.source.rows.generated import GeneratedValues, NotComputedError, NotComputedLockedError
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan, tag_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reshape:
    """Converts from the columns of one relation to those of `relation`. `places` has the streamed position of each
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

    def _keyed(self, streamed: bool) -> bool:
        return streamed if self.old_is_key is None else self.old_is_key

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


@dataclass(frozen=True, slots=True)
class LiveTable:
    """One table that the rules use, ready for changes. Rows are written in the last of `layouts`."""

    id: int
    layouts: tuple[Relation, ...]
    identity: RowIdentity
    bound: BoundTable
    earlier: tuple[BoundTable | None, ...]  # `bound` of each layout before the last
    streamed: Relation  # as the stream describes it
    widen: Reshape | None  # adds positions for `computed` to streamed changes; None where none are missing
    computed: tuple[int, ...]  # generated columns that the stream does not bring
    inputs: tuple[int, ...]  # columns that these are computed from

    @property
    def relation(self) -> Relation:
        return self.layouts[-1]

    @property
    def name(self) -> str:
        """Schema and name, for people."""
        return self.relation.qualified_name

    @property
    def layout(self) -> int:
        return len(self.layouts) - 1

    def in_right_buckets(self, row: CurrentRow, times: Times) -> bool:
        """Whether the row is in the buckets that the rules give it. Raises DecodeError."""
        return in_right_buckets(self.layouts, (*self.earlier, self.bound), row, times)

    def cells(self, row: CurrentRow) -> FullCells:
        """The cells of a stored row in the order of `relation`. Raises DecodeError."""
        return current_cells(self.layouts, row)

    def intact_cells(self, row: CurrentRow) -> FullCells | None:
        """`cells`, or None for a row that was damaged in the store: the source has to say what it is."""
        try:
            return current_cells(self.layouts, row)
        except DecodeError:
            return None


@dataclass(frozen=True, slots=True)
class LiveContext:
    """What live tables are built from. `plans` are those in use, made `bulk.bound_table.distinct`; `batch_bytes` is how
    many bytes of rows are pending, loaded or written at once."""

    source: str
    plans: tuple[SyncPlan, ...]
    types: TypeCatalog
    keys: StoreKeys
    batch_bytes: int

    def tables(self, stored: Sequence[StoredTable], known: Iterable[LiveTable] = ()) -> dict[int, LiveTable]:
        """By oid, those of the stored tables that the rules use. Tables in `known`, of the same context, are reused:
        binding one to the rules takes about a millisecond."""
        there = {(table.id, table.layouts): table for table in known}
        live = [there.get((table.id, table.layouts)) or self.table(table.id, table.layouts) for table in stored]
        return {table.relation.oid: table for table in live if table is not None}

    def table(self, table_id: int, layouts: tuple[Relation, ...]) -> LiveTable | None:
        """None when the rules do not use the table."""
        *earlier, bound = bind_layouts(self.plans, self.source, layouts, self.types, table_id, self.keys)
        if bound is None:
            return None
        relation = layouts[-1]
        streamed = as_streamed(relation)
        needed = {name for column in relation.columns if column.generated for name in column.generated.inputs}
        return LiveTable(
            table_id,
            layouts,
            RowIdentity.of(relation),
            bound,
            tuple(earlier),
            streamed,
            None if streamed is relation and not relation.by_leaf else reshape(streamed, relation),
            tuple(place for place, column in enumerate(relation.columns) if column.generated),
            tuple(place for place, column in enumerate(relation.columns) if column.name in needed),
        )

    def reads(self, relation: Relation) -> bool:
        """Whether any plan in use reads the table."""
        patterns = [pattern for plan in self.plans for pattern in plan.tables()]
        return any(pattern.matches(tag_of(self.source), relation.schema, relation.name) for pattern in patterns)


Fetch = Callable[[LiveTable, Sequence[Sequence[Cell]]], list[FullCells | None]]
"""Reads rows from the source by their keys, None for one that is gone. The flush then waits for the stream to pass the
position that was read."""

Fill = Callable[[LiveTable, Sequence[FullCells]], list[FullCells | None]]
"""Rows with the values that Postgres computes for generated columns; None for one that is gone from the source."""


@dataclass(frozen=True, slots=True)
class Filler:
    """Completes rows of a table. Reads the whole row where Postgres refuses to compute: that is slow, and the values
    may be newer than the stream, for which `fetch` makes the flush wait."""

    values: GeneratedValues
    fetch: Fetch

    def fill(self, table: LiveTable, rows: Sequence[FullCells]) -> list[FullCells | None]:
        """See `Fill`. Raises NotComputedError where rows can't be read by key, NotComputedLockedError while the table
        is locked."""
        if not rows or not table.computed:
            return list(rows)
        try:
            computed = self.values.compute(table.relation, rows)
        except NotComputedLockedError:
            raise
        except NotComputedError as error:
            if table.identity.kind is not IdentityKind.KEY:
                raise
            _log.warning("%s; its rows are read from the source instead", error)
            return [
                None if found is None else _with(row, table.computed, [found[place] for place in table.computed])
                for row, found in zip(rows, self.fetch(table, rows), strict=True)
            ]
        return [_with(row, table.computed, values) for row, values in zip(rows, computed, strict=True)]


def filled(fill: Fill, table: LiveTable, rows: Iterable[Cells | None]) -> list[FullCells | None]:
    """The rows with generated columns computed; None stays None. No other value may be missing."""
    wanted = list(rows)
    found = iter(fill(table, [cast(FullCells, row) for row in wanted if row is not None]))
    return [None if row is None else next(found) for row in wanted]


def _with(row: FullCells, places: Sequence[int], values: Sequence[str | None]) -> FullCells:
    cells = list(row)
    for place, value in zip(places, values, strict=True):
        cells[place] = value
    return tuple(cells)
