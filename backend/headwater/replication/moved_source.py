"""Whether another database holds the data that a source was followed in: after a move, a dump or an upgrade it does.
After a mistake in the config it does not, and devices would lose all that they have, or get somebody else's rows.

Some rows of the store are looked up in the other database, by their keys. This decides only whether to follow it: then
every table is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import orjson
import psycopg
from psycopg import sql

from headwater.bulk.bound_table import current_cells
from headwater.decode.copytext import split_line
from headwater.decode.wire import DecodeError
from headwater.oplog.change import Relation
from headwater.oplog.limits import is_stub
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.replication.requests import RequestKind
from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import SourceSettings
from headwater.source.readiness.finding import Reading, unreadable
from headwater.source.rows.probe import ProbeBusyError, ProbeFailedError, SourceProbe
from headwater.source.slot import database_oid, system_identity
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import Request, StoredTable
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import SyncPlan

SAMPLE = 100
_PLACES = 5
_BATCH_BYTES = 1 << 18
_ENOUGH = 20
"""So many rows of one table tell something about it alone."""
_FIRST_OWN = 10_000
"""Types with a lower oid have the same one in every cluster."""


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """One database of one cluster. A copy of it is another one."""

    system_id: str
    oid: int

    @classmethod
    def of(cls, conn: psycopg.Connection) -> DatabaseIdentity:
        return cls(system_identity(conn).system_id, database_oid(conn))

    def encoded(self) -> str:
        """As the payload of a request to follow it."""
        return orjson.dumps({"system_id": self.system_id, "database": self.oid}).decode()


def accepted(store: StoreWriter, source: str, database: DatabaseIdentity) -> list[Request]:
    """The open requests to follow that database, made by `headwater source move`."""
    wanted = orjson.loads(database.encoded())
    requests = store.open_requests(source)
    return [r for r in requests if r.kind == RequestKind.MOVE and orjson.loads(r.payload or "{}") == wanted]


@dataclass(frozen=True, slots=True)
class SeenTable:
    """How a table of which the store has rows looks in another database: what keeps it from being followed, why it
    can't be looked into now, or how many of its `sampled` rows are `equal` there, and how many have only other values.
    Rows without a key can't be looked up, so none of them is sampled."""

    name: str
    problem: str = ""
    busy: str = ""
    sampled: int = 0
    equal: int = 0
    altered: int = 0

    @property
    def doubtful(self) -> str:
        """Why it does not seem to be the same table; empty when it does."""
        other = self.sampled >= _ENOUGH and 2 * self.equal < self.sampled
        return self.told if self.problem or self.busy or other else ""

    @property
    def told(self) -> str:
        """What was found, in words."""
        if self.problem or self.busy:
            return f"{self.name} {self.problem or self.busy}"
        if not self.sampled:
            return f"the rows of {self.name} have no key to look them up by"
        lacking = self.sampled - self.equal - self.altered
        counts = {"have other values": self.altered, "are not there": lacking}
        parts = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
        return f"of {self.sampled} rows of {self.name}, {parts}" if parts else f"{self.name}: no difference"


def doubts(seen: Sequence[SeenTable]) -> list[str]:
    """Why the other database does not seem to hold the same data. Empty when it does."""
    found = [table.doubtful for table in seen if table.doubtful]
    sampled, equal = sum(table.sampled for table in seen), sum(table.equal for table in seen)
    if not found and (2 * equal < sampled or not sampled):
        found = [table.told for table in seen if table.equal < table.sampled or not sampled]
    return found


def renumbered(stored: Sequence[StoredTable], there: Mapping[tuple[str, str], Relation]) -> list[StoredTable]:
    """The stored tables that another database has, by schema and name, with the oids that they and the types of their
    columns have there."""
    types: dict[int, int] = {}
    for table in stored:
        now = there.get((table.relation.schema, table.relation.name))
        known = {} if now is None else {column.name: column.type_oid for column in now.columns}
        for column in table.relation.columns:
            if min(column.type_oid, known.get(column.name, 0)) >= _FIRST_OWN:
                types.setdefault(column.type_oid, known[column.name])
    found = []
    for table in stored:
        now = there.get((table.relation.schema, table.relation.name))
        if now is not None:
            layouts = tuple(_renumbered(layout, now.oid, types) for layout in table.layouts)
            found.append(replace(table, layouts=layouts))
    return found


def _renumbered(layout: Relation, oid: int, types: Mapping[int, int]) -> Relation:
    # A type that no column has any more could by chance have the oid of another one there
    columns = tuple(
        column if column.type_oid < _FIRST_OWN else replace(column, type_oid=types.get(column.type_oid, 0))
        for column in layout.columns
    )
    return replace(layout, oid=oid, columns=columns)


def look(
    conn: psycopg.Connection,
    source: SourceSettings,
    store: StoreWriter,
    plans: Sequence[SyncPlan],
) -> list[SeenTable]:
    """How the tables that the store has rows of look in the database that `conn` and `source` lead to. Raises
    PublicationError and KeyNotSentError."""
    wanted = {(t.relation.schema, t.relation.name): t for t in wanted_tables(conn, source, plans)}
    stored = store.tables(source.name)
    there = {table.id: table for table in renumbered(stored, {name: t.relation for name, t in wanted.items()})}
    barred = unreadable(conn, [Reading.of(table) for table in wanted.values()])
    probe = SourceProbe(source)
    seen = []
    try:
        for table in stored:
            if (bounds := store.place_bounds(table.id)) is None:
                continue
            name = (table.relation.schema, table.relation.name)
            if (found := wanted.get(name)) is None:
                seen.append(SeenTable(".".join(name), _absence(conn, name)))
            elif found.relation.oid in barred:
                problem = "; ".join(finding.what for finding in barred[found.relation.oid])
                seen.append(SeenTable(".".join(name), f"can't be read: {problem}"))
            elif found.locked:
                seen.append(SeenTable(".".join(name), busy="is locked now"))
            else:
                rows = list(_sampled(store, table.id, *bounds))
                seen.append(_compared(conn, probe, there[table.id], found, rows))
    finally:
        probe.close()
    return seen


def _absence(conn: psycopg.Connection, name: tuple[str, str]) -> str:
    exists = "select from pg_class c join pg_namespace n on n.oid = relnamespace where (nspname, relname) = (%s, %s)"
    return "is not there" if conn.execute(exists, name).fetchone() is None else "is not published"


def _sampled(store: StoreWriter, table: int, first: int, last: int) -> Iterator[CurrentRow]:
    """Up to SAMPLE rows from several places of a stored table, which has rows from its `first` place to its `last`."""
    backend, step = open_store(store.address), (last - first) // _PLACES + 1
    for start in range(first, last + 1, step):
        batches = backend.read_rows(table, start, min(start + step, last + 1), _BATCH_BYTES)
        yield from islice((placed.row for batch in batches for placed in batch), SAMPLE // _PLACES)


def _compared(
    conn: psycopg.Connection,
    probe: SourceProbe,
    stored: StoredTable,
    found: PublishedTable,
    rows: Sequence[CurrentRow],
) -> SeenTable:
    seen = SeenTable(found.qualified_name)
    identity, now = RowIdentity.of(stored.relation), RowIdentity.of(found.relation)
    key = [stored.relation.columns[i].name for i in identity.columns]
    if identity.kind is not IdentityKind.KEY or key != [found.relation.columns[i].name for i in now.columns]:
        return seen if _has_rows(conn, found) else replace(seen, sampled=len(rows))
    try:
        there = _rows_there(probe, stored, found, [row.row_id for row in rows])
    except (ProbeBusyError, ProbeFailedError) as error:
        return replace(seen, busy=f"can't be looked into now: {str(error) or 'it is locked'}")
    equal = sum(_equal(stored, row, there[row.row_id]) for row in rows if row.row_id in there)
    altered = sum(row.row_id in there for row in rows) - equal
    return replace(seen, sampled=len(rows), equal=equal, altered=altered)


def differing(
    source: SourceSettings, store: StoreWriter, stored: StoredTable, found: PublishedTable, row_ids: Sequence[str]
) -> int:
    """How many of these rows of a table with a key differ now. `stored` has the oids of the other database."""
    backend, probe = open_store(store.address), SourceProbe(source)
    try:
        rows = {row_id: backend.find_row(stored.id, row_id) for row_id in row_ids}
        there = _rows_there(probe, stored, found, row_ids) if row_ids else {}
    finally:
        probe.close()
    return sum(
        row_id in there if row is None else row_id not in there or not _equal(stored, row, there[row_id])
        for row_id, row in rows.items()
    )


def _rows_there(
    probe: SourceProbe, stored: StoredTable, found: PublishedTable, row_ids: Sequence[str]
) -> dict[str, dict[str, str | None]]:
    """The values of those rows that the database has, by row id and column."""
    single = len(RowIdentity.of(stored.relation).columns) == 1
    keys = [[row_id] if single else [str(value) for value in orjson.loads(row_id)] for row_id in row_ids]
    identity, names = RowIdentity.of(found.relation), [column.name for column in found.relation.columns]
    there = {}
    for line in probe.rows(found, keys):
        cells = split_line(line, len(names))
        there[identity.key(cells)] = dict(zip(names, cells, strict=True))
    return there


def _has_rows(conn: psycopg.Connection, table: PublishedTable) -> bool:
    name = sql.Identifier(table.relation.schema, table.relation.name)
    ((exists,),) = conn.execute(sql.SQL("select exists (select from {})").format(name)).fetchall()
    return bool(exists)


def _equal(stored: StoredTable, row: CurrentRow, there: Mapping[str, str | None]) -> bool:
    """Whether a stored row has the same values, in the columns that both have."""
    if is_stub(row.line):
        return True
    try:
        cells = current_cells(stored.layouts, row)
    except DecodeError:
        return False
    known = zip((column.name for column in stored.relation.columns), cells, strict=True)
    return all(there[name] == cell for name, cell in known if name in there)
