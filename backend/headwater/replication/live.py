"""Live tables: a stored table generation together with everything that turns its changes into ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.decode.catalog import TypeCatalog
from headwater.decode.values import row_converter
from headwater.oplog.change import Relation
from headwater.oplog.row_id import RowIdentity
from headwater.oplog.transform import TableTransform
from headwater.storage.contract import StoredTable
from headwater_rules.plan import SyncPlan
from headwater_rules.rows import TableProgram, bind_table


@dataclass(frozen=True, slots=True)
class LiveTable:
    """One table that the rules use, ready for changes."""

    id: int
    relation: Relation
    layout: int
    identity: RowIdentity
    program: TableProgram
    transform: TableTransform
    definitions: tuple[str, ...]
    exclusive: bool  # no other table has rows in the buckets of these definitions


@dataclass(frozen=True, slots=True)
class LiveContext:
    """What live tables are built from."""

    tag: str
    plan: SyncPlan
    types: TypeCatalog
    salt: bytes

    def tables(self, stored: Sequence[StoredTable]) -> dict[int, LiveTable]:
        """By oid, those of the stored tables that the rules use."""
        live = {table.relation.oid: self.table(table.id, table.relation, len(table.layouts) - 1) for table in stored}
        return {oid: table for oid, table in live.items() if table is not None}

    def table(self, table_id: int, relation: Relation, layout: int) -> LiveTable | None:
        """None when the rules do not use the table."""
        names = [column.name for column in relation.columns]
        program = bind_table(self.plan, self.tag, relation.schema, relation.name, names)
        if program is None:
            return None
        convert = row_converter(relation.columns, self.types, self.plan.options)
        definitions = [self.plan.buckets[position] for position in program.definitions]
        return LiveTable(
            id=table_id,
            relation=relation,
            layout=layout,
            identity=RowIdentity.of(relation),
            program=program,
            transform=TableTransform(table_id, self.salt, convert, program, [b.name for b in self.plan.buckets]),
            definitions=tuple(definition.name for definition in definitions),
            exclusive=all(s.table.exact and s.table == d.sources[0].table for d in definitions for s in d.sources),
        )
