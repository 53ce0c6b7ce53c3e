"""How a database differs from what a store has of a source, before the source is moved there. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

import psycopg

from headwater.bulk.contract import CompareJob, CompareTable, Difference, Report
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.moved_source import SeenTable, differing, look, renumbered
from headwater.replication.tables.changes import Ids, ids_after
from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import PublishedTable, load_types
from headwater.source.connect import SourceSettings, connect
from headwater.storage.contract.store import StoredTable
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import SyncPlan

_RANGE = 50_000
_LOOKED_UP = 200
"""So many rows of a table that differ are looked up again, for they may have been written since."""


@dataclass(frozen=True, slots=True)
class MovedTable:
    """How a table of which the store has `rows` rows looks in the other database. `problem` keeps it from being
    followed there. `differ` counts the rows that devices are sent or lose, `note` says of what they can't be told."""

    name: str
    rows: int
    problem: str = ""
    differ: int = 0
    note: str = ""


def moved_tables(
    conn: psycopg.Connection,
    source: SourceSettings,
    store: StoreWriter,
    plans: Sequence[SyncPlan],
    bulk: BulkJobs,
    progress: Report,
) -> list[MovedTable]:
    """Every table that the store has, and those that only the database has to which `conn` and `source` lead. Rows that
    differ no more when they are looked up again do not count. Raises PublicationError, KeyNotSentError, and what
    `BulkJobs` raises."""
    published = {(t.relation.schema, t.relation.name): t for t in wanted_tables(conn, source, plans)}
    seen = {table.name: table for table in look(conn, source, store, plans)}
    known = store.tables(source.name)
    rows = {t.relation.qualified_name: store.place_ranges(t.id, _RANGE).rows for t in known}
    stored = renumbered(known, {name: table.relation for name, table in published.items()})
    pairs = [
        (table, published[table.relation.schema, table.relation.name])
        for table in stored
        if not _problem(seen, published[table.relation.schema, table.relation.name])
    ]
    lost = {now.qualified_name for table, now in pairs if ids_after(table, now.relation) is Ids.LOST}
    derived = {now.qualified_name for table, now in pairs if ids_after(table, now.relation) is Ids.DERIVED}
    compared = [pair for pair in pairs if pair[1].qualified_name not in lost | derived]
    differ = _differences(source, store, compared, bulk, progress)
    found = [MovedTable(table.name, rows[table.name], table.problem) for table in seen.values() if table.problem]
    for _, now in pairs:
        name = now.qualified_name
        if name in lost:
            found.append(
                MovedTable(name, rows[name], differ=rows[name], note="its rows get other ids: all are sent again")
            )
        elif name in derived:
            found.append(MovedTable(name, rows[name], note="its rows are identified otherwise: they were not compared"))
        else:
            found.append(MovedTable(name, rows[name], differ=differ[name]))
    new = [table for table in published.values() if table.qualified_name not in rows]
    found += [MovedTable(t.qualified_name, 0, note=f"new, with about {t.estimated_rows:,} rows") for t in new]
    return sorted(found, key=lambda table: table.name)


def _problem(seen: Mapping[str, SeenTable], table: PublishedTable) -> str:
    return seen[table.qualified_name].problem if table.qualified_name in seen else ""


def _differences(
    source: SourceSettings,
    store: StoreWriter,
    pairs: Sequence[tuple[StoredTable, PublishedTable]],
    bulk: BulkJobs,
    progress: Report,
) -> Counter[str]:
    """How many rows differ, by table."""
    tables = {
        stored.id: CompareTable(now, _in_form_of(stored, now), *store.place_ranges(stored.id, _RANGE))
        for stored, now in pairs
    }
    if not tables:
        return Counter()
    found: dict[int, list[Difference]] = {number: [] for number in tables}
    counts: Counter[int] = Counter()

    def take(differences: Sequence[Difference]) -> None:
        for each in differences:
            counts[each.table] += 1
            if len(found[each.table]) < _LOOKED_UP:
                found[each.table].append(each)

    with connect(source) as keeper, TemporaryDirectory(prefix="headwater-move-") as directory:
        keeper.execute("begin isolation level repeatable read read only")
        ((snapshot,),) = keeper.execute("select pg_export_snapshot()").fetchall()
        types = {c.type_oid for t in tables.values() for layout in t.stored.layouts for c in layout.columns}
        job = CompareJob(
            source=source,
            snapshot=snapshot,
            tables=tuple(tables.values()),
            plans=(),
            types=load_types(keeper, types),
            keys=store.keys(),
            store=store.address,
            directory=directory,
        )
        bulk.compare(job, progress, take)
    for number, differences in found.items():
        table = tables[number]
        if RowIdentity.of(table.stored.relation).kind is IdentityKind.KEY and counts[number] <= _LOOKED_UP:
            counts[number] = differing(source, store, table.stored, table.published, [d.key for d in differences])
    return Counter({tables[number].published.qualified_name: count for number, count in counts.items()})


def _in_form_of(stored: StoredTable, now: PublishedTable) -> StoredTable:
    """The stored table as if it were written in the form of the other database from now on."""
    if stored.relation == now.relation:
        return stored
    return replace(stored, layouts=(*stored.layouts, now.relation))
