"""Evaluates the store's rows under a sync config that is not deployed.

Rows are read beside the writer and evaluated as replication would. Nothing is written, and the source is only asked
about its own types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import psycopg

from headwater.decode.copytext import split_line
from headwater.decode.types import TypeCatalog
from headwater.decode.values import RowConverter, row_converter
from headwater.errors import HeadwaterError
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import is_stub
from headwater.oplog.op import put_body
from headwater.oplog.row_id import row_subkey
from headwater.source.catalog.published import load_types
from headwater.source.clock import wall_clock
from headwater.source.connect import SourceSettings, connect
from headwater.storage.contract.parts import CurrentRow, JoinedLookup
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.evaluate.joins import JoinedRows
from headwater_rules.evaluate.rows import TableProgram, bind_table
from headwater_rules.plan import SyncPlan, TablePattern, tag_of
from headwater_rules.results import Put, RowResult, SourceRow
from headwater_rules.versions import definitions_of, of_tag

_ANY_KEYS = StoreKeys(b"")  # for the length of what they make
_FULL_DIGEST = 0xFFFFFFFF  # a checksum of ten digits, as most have
_ID_BYTES = len('{"op_id":"1234567890123456",') + 1  # and the comma between two ops
_CONNECT_SECONDS = 5
_PAGE = 2_000


@dataclass(frozen=True, slots=True)
class Pages:
    """Ranges of places of a table to read; `of` is the number of ranges of the whole table."""

    table: StoredTable
    ranges: Sequence[tuple[int, int]]
    of: int

    @property
    def factor(self) -> float:
        """The number of rows of the table that each row read represents."""
        return self.of / len(self.ranges) if self.ranges else 1.0


def _shown(pattern: TablePattern) -> str:
    return pattern.name if pattern.computed else f"{pattern.schema}.{pattern.name}"


def table_name(table: StoredTable) -> str:
    """The source's name of a stored table."""
    return table.relation.qualified_name


Watch = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Called with what is read and the number of pages; returns a context manager that gives a function to call after each
page."""


def unwatched(_what: str, _pages: int) -> AbstractContextManager[Callable[[], None]]:
    """A `Watch` that reports nothing."""
    return nullcontext(lambda: None)


@dataclass
class CurrentRows:
    """The stored rows of `sources`, for evaluation; with `names` (a tag stands for all its shards), only rows of these
    are told, while lookups go through all. `notes` collects caveats about the results; `check` is called now and then
    and may raise, which ends the reading. Rows are evaluated at `now`, in microseconds since 1970, or at the time at
    which the service evaluated rows last if that is later."""

    store: StoreWriter
    sources: Sequence[SourceSettings]
    watch: Watch = unwatched
    names: Sequence[str] = ()
    notes: list[str] = field(default_factory=list)
    check: Callable[[], None] = lambda: None
    now: int = field(default_factory=wall_clock)
    _types: dict[str, TypeCatalog] = field(default_factory=dict)
    _asked: set[tuple[str, int]] = field(default_factory=set)
    _joins: dict[tuple[str, SyncPlan], _Joins] = field(default_factory=dict)

    def tables(self, plan: SyncPlan) -> list[StoredTable]:
        """The stored tables that a plan reads, of the sources whose rows are told."""
        return self._tables(plan, self._told())

    def lookup_tables(self, plan: SyncPlan) -> list[StoredTable]:
        """The stored tables that a plan reads, of all sources."""
        return self._tables(plan, self.sources)

    def missing(self, plan: SyncPlan) -> list[str]:
        """Tables that a plan names and that have no rows in the store; of several sources, each is named that lacks
        them."""
        stored = {source.name: self.store.all_tables(source.name) for source in self._told()}
        return [name for pattern in plan.tables() for name in self._missing(pattern, stored)]

    def _missing(self, pattern: TablePattern, stored: Mapping[str, Sequence[StoredTable]]) -> Iterator[str]:
        asked = [name for name in stored if pattern.of(tag_of(name))]
        lacking = [name for name in asked if not any(_reads((pattern,), table) for table in stored[name])]
        if not pattern.exact and len(lacking) < len(asked):  # a source need not have a table for each wildcard
            lacking = [name for name in lacking if not stored[name]]
        if not asked and not self.names:
            yield pattern.written
        elif len(self.sources) == 1:
            yield from [_shown(pattern)] * len(lacking)
        else:
            yield from (f"{_shown(pattern)} of source {name}" for name in lacking)

    def complete(self, plan: SyncPlan) -> set[str]:
        """The definitions of a plan that every source with such tables has completely in the store."""
        lacking: set[str] = set()
        there: set[str] = set()
        for source in self.sources:
            stored = self.store.complete_definitions(source.name)
            for name, digest in definitions_of(of_tag(plan, source.tag)).items():
                (there if stored.get(name) == digest else lacking).add(name)
        return there - lacking

    def title(self, table: StoredTable) -> str:
        """What to call a stored table: with its source, if there are several."""
        return table_name(table) if len(self.sources) == 1 else f"{table_name(table)} of source {table.source}"

    def _told(self) -> list[SourceSettings]:
        return [each for each in self.sources if not self.names or any(map(each.is_called, self.names))]

    def _tables(self, plan: SyncPlan, sources: Sequence[SourceSettings]) -> list[StoredTable]:
        patterns = plan.tables()
        return [table for each in sources for table in self.store.all_tables(each.name) if _reads(patterns, table)]

    def pages(self, table: StoredTable, rows: int, most: int | None = None) -> Pages:
        """Pages of about `rows` rows; at most `most` of them, spread evenly over the table."""
        ranges = self.store.place_ranges(table.id, rows).ranges
        if most is None or len(ranges) <= most:
            return Pages(table, ranges, len(ranges))
        return Pages(table, [ranges[number * len(ranges) // most] for number in range(most)], len(ranges))

    def scan(self, what: str, plan: SyncPlan, pages: Sequence[Pages]) -> Iterator[tuple[Pages, str, RowResult]]:
        """Row id and result of every row of the pages of several tables, watched as `what`."""
        with self.watch(what, sum(len(each.ranges) for each in pages)) as page_done:
            for each in pages:
                for row_id, result in self.results(plan, each, page_done):
                    yield each, row_id, result

    def results(self, plan: SyncPlan, pages: Pages, page_done: Callable[[], None]) -> Iterator[tuple[str, RowResult]]:
        """Row id and result of every row of the pages. The rows of one page are read at the same moment."""
        for row_id, (result,) in self.results_by((plan,), pages, page_done):
            yield row_id, result

    def results_by(
        self, plans: Sequence[SyncPlan], pages: Pages, page_done: Callable[[], None]
    ) -> Iterator[tuple[str, Sequence[RowResult]]]:
        """The same by several plans, all of which read the table: each row is read once."""
        if pages.table.resync:
            self._note(f"{self.title(pages.table)} is being compared with the source: some of its rows may be missing")
        layouts = [self._layouts(plan, pages.table) for plan in plans]
        for first, end in pages.ranges:
            for batch in open_store(self.store.address).read_rows(pages.table.id, first, end):
                self.check()
                for each in layouts:
                    each.prepare(row for _, row in batch)
                for _, row in batch:
                    if not is_stub(row.line):
                        yield row.row_id, [each.evaluate(row.layout, row.line, row.row_id) for each in layouts]
            page_done()

    def source_row(self, plan: SyncPlan, table: StoredTable, row: CurrentRow) -> SourceRow:
        """One row with its values, and what it gives."""
        return self._layouts(plan, table).source_row(row)

    def _layouts(self, plan: SyncPlan, table: StoredTable) -> _Layouts:
        now = max(self.now, self.store.tick(table.source)) if plan.reads_clock else None
        return _Layouts(plan, table, self._types_of(table), now, self._joined(plan, table.source))

    def _joined(self, plan: SyncPlan, source: str) -> _Joins | None:
        if not plan.joins:
            return None
        if (source, plan) not in self._joins:
            self._joins[source, plan] = _Joins(self, plan, source)
        return self._joins[source, plan]

    def _types_of(self, table: StoredTable) -> TypeCatalog:
        """The types of a table's columns; those defined in its source are loaded from it."""
        source = next(each for each in self.sources if each.name == table.source)
        types = self._types.get(source.name, TypeCatalog())
        oids = {column.type_oid for layout in table.layouts for column in layout.columns}
        missing = {oid for oid in types.missing(oids) if (source.name, oid) not in self._asked}
        if missing:
            self._asked |= {(source.name, oid) for oid in missing}
            try:
                with connect(replace(source, connect_timeout=_CONNECT_SECONDS)) as conn:
                    loaded = load_types(conn, missing)
                types = self._types[source.name] = TypeCatalog({**types.custom, **loaded.custom})
            except (HeadwaterError, psycopg.Error):
                who = "the source" if len(self.sources) == 1 else f"source {source.name}"
                where = f"columns of {table_name(table)}"
                self._note(f"{who} can't be asked about the types that it defines: such {where} are treated as text")
        return types

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _reads(patterns: Sequence[TablePattern], table: StoredTable) -> bool:
    tag, relation = tag_of(table.source), table.relation
    return any(pattern.matches(tag, relation.schema, relation.name) for pattern in patterns)


class _Joins:
    """What rows of a source are joined to under a plan."""

    def __init__(self, rows: CurrentRows, plan: SyncPlan, source: str) -> None:
        self._plan = plan
        self._rows = rows
        tables = rows.store.all_tables(source)
        complete = rows.store.complete_definitions(source)
        self._tables: dict[str, list[StoredTable]] = {}
        self._stored: dict[str, JoinedLookup] = {}
        self._lookups = {join.lookup.name: join.lookup for join in plan.joins}
        for lookup in self._lookups.values():
            self._tables[lookup.name] = own = [table for table in tables if _reads((lookup.table,), table)]
            if complete.get(lookup.name) == lookup.digest:
                self._stored[lookup.name] = JoinedLookup(tuple(table.id for table in own), alone=not lookup.outputs)
        self._scanned: dict[str, dict[str, list[str]]] = {}

    def read(self, keys: Sequence[str]) -> JoinedRows:
        """What lookups give under keys. Keys of a table that the store does not have are left out."""
        found = open_store(self._rows.store.address).read_joined(self._stored, keys)
        for key in keys:
            name = key.partition("[")[0]
            if name not in self._stored and self._tables.get(name):
                found[key] = self._scan(name).get(key, [])
        return found

    def _scan(self, name: str) -> dict[str, list[str]]:
        if name not in self._scanned:
            entries: dict[str, list[str]] = {}
            plan = replace(self._plan, buckets=(), lookups=(self._lookups[name],), streams=())
            for table in self._tables[name]:
                for _, result in self._rows.results(plan, self._rows.pages(table, _PAGE), lambda: None):
                    for key, output in result.lookups:
                        entries.setdefault(key, []).append(output)
            self._scanned[name] = entries
        return self._scanned[name]


class _Layouts:
    """A plan bound to the layouts in which rows of a table were written, each when first needed."""

    def __init__(
        self, plan: SyncPlan, table: StoredTable, types: TypeCatalog, now: int | None, joins: _Joins | None
    ) -> None:
        self._plan = plan
        self._table = table
        self._types = types
        self._now = now
        self._joins = joins
        self._found: JoinedRows = {}
        self._bound: dict[int, tuple[int, RowConverter, TableProgram]] = {}

    def prepare(self, rows: Iterable[CurrentRow]) -> None:
        """Read what these rows, which are evaluated next, are joined to."""
        if self._joins is None:
            return
        keys: dict[str, None] = {}
        for row in rows:
            if not is_stub(row.line):
                width, convert, program = self._layout(row.layout)
                keys |= dict.fromkeys(program.join_keys(convert(split_line(row.line, width)), row.row_id))
        self._found = self._joins.read(list(keys))

    def evaluate(self, layout: int, line: str, row_id: str) -> RowResult:
        width, convert, program = self._layout(layout)
        return program.evaluate(convert(split_line(line, width)), row_id, self._now, self._found)

    def _layout(self, layout: int) -> tuple[int, RowConverter, TableProgram]:
        bound = self._bound.get(layout)
        if bound is None:
            bound = self._bound[layout] = self._bind(layout)
        return bound

    def source_row(self, row: CurrentRow) -> SourceRow:
        relation = self._table.layouts[row.layout]
        self.prepare([row])
        width, convert, program = self._layout(row.layout)
        values = convert(split_line(row.line, width))
        columns = {column.name: value for column, value in zip(relation.columns, values, strict=True)}
        result = program.evaluate(values, row.row_id, self._now, self._found)
        source, now, found = self._table.source, self._now, self._found
        return SourceRow(relation.schema, relation.name, columns, row.row_id, result, source, now, found)

    def _bind(self, layout: int) -> tuple[int, RowConverter, TableProgram]:
        relation = self._table.layouts[layout]
        names = [column.name for column in relation.columns]
        program = bind_table(self._plan, self._table.source, relation.schema, relation.name, names)
        assert program is not None, "only tables that the plan reads are evaluated"
        return len(names), row_converter(relation.columns, self._types, self._plan.options), program


def op_size(put: Put, table: StoredTable, row_id: str) -> int:
    """Bytes that a device downloads for a row, uncompressed."""
    subkey = row_subkey(None, table.id, row_id, put.id, _ANY_KEYS)
    body = put_body(put.table, put.id, subkey, put.data, _FULL_DIGEST)
    return _ID_BYTES + (len(body) if body.isascii() else len(body.encode()))
