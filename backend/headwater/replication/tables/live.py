"""Live tables: a stored table generation with everything that is needed to turn its changes into ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.bulk.bound_table import BoundTable, bind_layouts, current_cells, in_right_buckets
from headwater.decode.types import TypeCatalog
from headwater.oplog.change import Relation
from headwater.oplog.keys import StoreKeys
from headwater.oplog.row_id import RowIdentity
from headwater.replication.tables.reshape import Reshape, as_streamed, reshape
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import SyncPlan

FullCells = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class LiveTable:
    """One table that the rules use, ready for changes. Rows are written in the last of `layouts`."""

    id: int
    layouts: tuple[Relation, ...]
    identity: RowIdentity
    bound: BoundTable
    earlier: tuple[BoundTable | None, ...]  # `bound` of each layout before the last
    streamed: Relation  # as the stream describes it
    widen: Reshape | None  # adds places for `computed` to streamed changes; None where none are missing
    computed: tuple[int, ...]  # generated columns that the stream does not bring
    inputs: tuple[int, ...]  # columns that these are computed from

    @property
    def relation(self) -> Relation:
        return self.layouts[-1]

    @property
    def name(self) -> str:
        """Schema and name, for people."""
        return f"{self.relation.schema}.{self.relation.name}"

    @property
    def layout(self) -> int:
        return len(self.layouts) - 1

    def in_right_buckets(self, row: CurrentRow) -> bool:
        """Whether the row is in the buckets that the rules give it. Raises DecodeError."""
        return in_right_buckets(self.layouts, (*self.earlier, self.bound), row)

    def cells(self, row: CurrentRow) -> FullCells:
        """The cells of a stored row in the order of `relation`."""
        return current_cells(self.layouts, row)


@dataclass(frozen=True, slots=True)
class LiveContext:
    """What live tables are built from. `plans` are those in use, made `bulk.bound_table.distinct`; `piece` is how many
    bytes of rows are pending, loaded or written at once."""

    tag: str
    plans: tuple[SyncPlan, ...]
    types: TypeCatalog
    keys: StoreKeys
    piece: int

    def tables(self, stored: Sequence[StoredTable], known: Iterable[LiveTable] = ()) -> dict[int, LiveTable]:
        """By oid, those of the stored tables that the rules use. Tables in `known`, of the same context, are reused:
        binding one to the rules takes about a millisecond."""
        there = {(table.id, table.layouts): table for table in known}
        live = [there.get((table.id, table.layouts)) or self.table(table.id, table.layouts) for table in stored]
        return {table.relation.oid: table for table in live if table is not None}

    def table(self, table_id: int, layouts: tuple[Relation, ...]) -> LiveTable | None:
        """None when the rules do not use the table."""
        *earlier, bound = bind_layouts(self.plans, self.tag, layouts, self.types, table_id, self.keys)
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
        return any(pattern.matches(self.tag, relation.schema, relation.name) for pattern in patterns)
