"""Plans bound to one source table: turn the cells of a row into its entries in buckets and lookups.

Several plans can be in use at once, while one version of the sync config replaces another. Each converts values in its
own way; row sides that they share are evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from headwater.decode.copytext import split_line
from headwater.decode.types import TypeCatalog, values_of
from headwater.decode.values import converters, row_converter
from headwater.decode.wire import DecodeError
from headwater.errors import HeadwaterError
from headwater.oplog.change import Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import OP_LIMIT, ROW_LIMIT, is_stub
from headwater.oplog.transform import (
    BucketMembership,
    PlainWrite,
    TableTransform,
    decode_memberships,
    expected_memberships,
    oversized_ops,
    plain_write,
)
from headwater.storage.contract.parts import CurrentRow
from headwater_rules.evaluate.joins import JoinedRows
from headwater_rules.evaluate.rows import PlainEntry, RowProgram, TableProgram, bind_table
from headwater_rules.plan import BucketDefinition, SyncPlan, Value, shard_of
from headwater_rules.results import LookupEntry, Put, RowResult
from headwater_rules.schema import ValueKind
from headwater_rules.versions import check_names, definitions_of, without

Cells = Sequence[str | None]

ReadJoined = Callable[[Sequence[str]], JoinedRows]
"""Reads the outputs of lookups by their keys, for rows that are evaluated with rows of other tables."""


@dataclass(frozen=True, slots=True)
class BoundTable:
    """The plans in use, bound to one table. `definitions` are the names of the bucket definitions that get rows of it;
    `has_clock` says whether the plans compare with the current time, so that rows are evaluated `at` one; `has_joins`
    whether rows are evaluated with rows of other tables, so that it has to be `knowing` these; `exclusive` that no
    other table, of this source or another, has rows in these buckets. `closed` are the row sides that get none, since
    the table lacks a column that decides."""

    transform: TableTransform
    has_lookups: bool
    has_clock: bool
    has_joins: bool
    definitions: tuple[str, ...]
    exclusive: bool
    closed: frozenset[str] = frozenset()

    def at(self, now: int) -> BoundTable:
        """The same at a time, in microseconds since 1970 UTC. Plans that don't depend on the time stay as they are."""
        return replace(self, transform=self.transform.at(now)) if self.has_clock else self

    def knowing(self, read: ReadJoined, rows: Iterable[tuple[Cells, str]]) -> BoundTable:
        """The same with the rows that joins find for these rows, each its cells and id. `read` may leave out keys: what
        depends on these is not evaluated."""
        if not self.has_joins:
            return self
        return self.joined_to(read(self.join_keys(rows)))

    def join_keys(self, rows: Iterable[tuple[Cells, str]]) -> list[str]:
        """The keys by which joins find other rows for these rows, each its cells and id."""
        found = (key for cells, row_id in rows for key in self.transform.join_keys(cells, row_id))
        return list(dict.fromkeys(found)) if self.has_joins else []

    def joined_to(self, found: JoinedRows) -> BoundTable:
        """The same with the rows that joins find."""
        return replace(self, transform=self.transform.knowing(found)) if self.has_joins else self

    def memberships(self, cells: Cells, row_id: str) -> set[BucketMembership]:
        """Where the rules place a row with these cells."""
        return expected_memberships(self.transform.evaluate(cells, row_id).puts, self.transform.keys)


def current_cells(layouts: Sequence[Relation], row: CurrentRow) -> tuple[str | None, ...]:
    """The cells of a stored row in the order of the last layout. A column that the row's own layout does not have, or
    has with another type, is null."""
    cells = split_line(row.line, len(layouts[row.layout].columns))
    if row.layout == len(layouts) - 1:
        return cells
    there = dict(zip(((column.name, column.type_oid) for column in layouts[row.layout].columns), cells, strict=True))
    return tuple(there.get((column.name, column.type_oid)) for column in layouts[-1].columns)


def only_renamed(before: Relation, after: Relation) -> bool:
    """Whether two layouts seem to differ only in the names of columns: a column that is gone has a new name in the same
    place."""
    old, new = ({column.name for column in layout.columns} for layout in (before, after))
    return len(before.columns) == len(after.columns) and all(
        was.type_oid == now.type_oid and (was.name == now.name or (was.name not in new and now.name not in old))
        for was, now in zip(before.columns, after.columns, strict=True)
    )


def distinct(plans: Sequence[SyncPlan]) -> tuple[SyncPlan, ...]:
    """The plans, each without the row sides that an earlier one has. Raises SyncConfigError when two different row
    sides share a name."""
    known: dict[str, str] = {}
    kept = []
    for plan in plans:
        check_names(plan, known)
        kept.append(without(plan, known.keys()))
        known |= definitions_of(plan)
    return tuple(kept)


def bind(
    plans: Sequence[SyncPlan],
    source: str,
    relation: Relation,
    types: TypeCatalog,
    table_id: int,
    keys: StoreKeys,
) -> BoundTable | None:
    """Bind plans that are `distinct` to a table of the source with this name. None when none of them uses the table."""
    columns = [column.name for column in relation.columns]
    parts: list[_Part] = []
    buckets: list[BucketDefinition] = []
    for plan in plans:
        program = bind_table(plan, source, relation.schema, relation.name, columns)
        if program is not None:
            convert = row_converter(relation.columns, types, plan.options)
            parts.append(_Part(program, program, convert, len(buckets), plan))
        buckets += plan.buckets
    if not parts:
        return None
    fed = [buckets[part.offset + position] for part in parts for position in part.bound.definitions]
    return BoundTable(
        transform=_transform(parts, [bucket.name for bucket in buckets], relation, types, table_id, keys),
        has_lookups=any(part.bound.has_lookups for part in parts),
        has_clock=any(part.bound.has_clock for part in parts),
        has_joins=any(part.bound.has_joins for part in parts),
        definitions=tuple(definition.name for definition in fed),
        exclusive=not shard_of(source)
        and all(s.table.exact and s.table == d.sources[0].table for d in fed for s in d.sources),
        closed=frozenset().union(*(part.bound.closed for part in parts)),
    )


def _transform(
    parts: Sequence[_Part],
    names: Sequence[str],
    relation: Relation,
    types: TypeCatalog,
    table_id: int,
    keys: StoreKeys,
) -> TableTransform:
    first = parts[0]
    if len(parts) > 1 or first.offset:
        return TableTransform(table_id, keys, list, _Union(parts), names)
    plain = _plain_write(first, relation, types, table_id, keys)
    return TableTransform(table_id, keys, first.convert, first.program, names, plain)


def oversized_row(table: str, row_id: str, size: int) -> str:
    """The log line for a row over the limit."""
    where = f"{table}, row {row_id}, {size:,} bytes of {ROW_LIMIT:,} allowed"
    fix = "make it smaller in the source; `headwater store stats` lists such rows"
    return str(HeadwaterError("row exceeds the size limit and was not synced", where, fix, code="HW_2401"))


def oversized_ops_of(table: str, row_id: str, memberships: str) -> list[str]:
    """The log lines for the ops over the limit in a row's stored memberships."""
    what = "data that the rules select from a row exceeds the size limit and was not synced to a bucket"
    fix = "select fewer columns, or make the row smaller in the source; `headwater store stats` lists such rows"
    where = f"{table}, row {row_id}, {{:,}} bytes of {OP_LIMIT:,} allowed"
    sizes = [op.size for op in oversized_ops(memberships)]
    return [str(HeadwaterError(what, where.format(size), fix, code="HW_2402")) for size in sizes]


def bind_layouts(
    plans: Sequence[SyncPlan],
    source: str,
    layouts: Sequence[Relation],
    types: TypeCatalog,
    table_id: int,
    keys: StoreKeys,
) -> list[BoundTable | None]:
    """`bind` for each layout of a table."""
    return [bind(plans, source, layout, types, table_id, keys) for layout in layouts]


@dataclass(frozen=True, slots=True)
class Times:
    """What stored rows are judged by whose buckets depend on the time: `now` is the time at which rows were evaluated
    last, `flips` when each has to be again, by id, in microseconds since 1970. `joined` is what joins find."""

    now: int = 0
    flips: Mapping[str, int] = field(default_factory=dict)
    joined: JoinedRows = field(default_factory=dict)


def stands(bound: BoundTable | None, cells: Cells, row: CurrentRow, times: Times) -> bool:
    """Whether a stored row is in exactly the buckets that the rules give it with these cells, with the same data; and
    where that depends on the time, whether it is evaluated again before it changes. A row that is due is not judged: it
    is about to be evaluated."""
    there = set(decode_memberships(row.members, row.row_id))
    bound = bound and bound.joined_to(times.joined)
    if bound is None or not bound.has_clock:
        return (set() if bound is None else bound.memberships(cells, row.row_id)) == there
    due = times.flips.get(row.row_id)
    if due is not None and due <= times.now:
        return True
    puts, _, _, flip = bound.at(times.now).transform.evaluate(cells, row.row_id)
    in_time = flip is None or (due is not None and due <= flip)
    return in_time and expected_memberships(puts, bound.transform.keys) == there


def in_right_buckets(
    layouts: Sequence[Relation], bounds: Sequence[BoundTable | None], row: CurrentRow, times: Times
) -> bool:
    """Whether a stored row `stands` as it is.

    A row from before columns were added, which are null in it, may be as its own layout gives it: a device shows a
    missing column as null, too. Raises DecodeError when the row can't be read.
    """
    if stands(bounds[-1], current_cells(layouts, row), row, times):
        return True
    own = layouts[row.layout]
    if (own.schema, own.name) != (layouts[-1].schema, layouts[-1].name):
        return False
    now = {(column.name, column.type_oid) for column in layouts[-1].columns}
    if row.layout == len(layouts) - 1 or not all((column.name, column.type_oid) in now for column in own.columns):
        return False
    if _closed(bounds[row.layout]) != _closed(bounds[-1]):  # a deciding column was added: all rows are evaluated again
        return False
    return stands(bounds[row.layout], split_line(row.line, len(own.columns)), row, times)


def join_keys(
    layouts: Sequence[Relation], bounds: Sequence[BoundTable | None], rows: Iterable[CurrentRow]
) -> list[str]:
    """The keys by which joins find other rows for stored rows, by their own layout and by the last. Rows that can't be
    read are left out."""
    found: dict[str, None] = {}
    for row in rows:
        for number in {row.layout, len(layouts) - 1}:
            bound = bounds[number]
            if bound is None or not bound.has_joins or is_stub(row.line):
                continue
            try:
                cells = current_cells(layouts[: number + 1], row)
            except DecodeError:
                continue
            found |= dict.fromkeys(bound.join_keys([(cells, row.row_id)]))
    return list(found)


def has_right_lookups(
    layouts: Sequence[Relation], bounds: Sequence[BoundTable | None], row: CurrentRow, times: Times
) -> bool:
    """Whether a row in an earlier layout has the same lookups by that layout as by the last one. Raises DecodeError
    when the row can't be read."""
    now, own = (bound and bound.joined_to(times.joined) for bound in (bounds[-1], bounds[row.layout]))
    if row.layout == len(layouts) - 1 or not any(bound is not None and bound.has_lookups for bound in (now, own)):
        return True
    cells = split_line(row.line, len(layouts[row.layout].columns))
    return _lookups(own, cells, row.row_id) == _lookups(now, current_cells(layouts, row), row.row_id)


def _closed(bound: BoundTable | None) -> frozenset[str]:
    return frozenset() if bound is None else bound.closed


def _lookups(bound: BoundTable | None, cells: Cells, row_id: str) -> set[LookupEntry]:
    return set() if bound is None else set(bound.transform.evaluate(cells, row_id).lookups)


@dataclass(frozen=True, slots=True)
class _Part:
    """One plan, bound, and what evaluates rows by it. `offset` is where its bucket definitions begin among those of all
    plans."""

    bound: TableProgram
    program: RowProgram
    convert: Callable[[Cells], list[Value]]
    offset: int
    plan: SyncPlan


def _plain_write(
    part: _Part, relation: Relation, types: TypeCatalog, table_id: int, keys: StoreKeys
) -> PlainWrite | None:
    """Code for the rows of a table whose only entry consists of columns, none of them a blob: those are left out of
    the data. None where `id` is another column than the one that identifies rows, so that no row would be left."""
    entry, plan = part.bound.plain, part.plan
    if entry is None or not _by_row_id(entry, relation):
        return None
    selected = [relation.columns[position].type_oid for position in entry.columns.values()]
    if any(values_of(oid, types).kind is ValueKind.BLOB for oid in selected):
        return None
    functions = converters(relation.columns, types, plan.options)
    return plain_write(entry, functions, table_id, keys, plan.buckets[entry.definition].name)


def _by_row_id(entry: PlainEntry, relation: Relation) -> bool:
    """Whether the object ids of an entry are, as far as one can tell, the row ids."""
    position = entry.columns.get("id")
    keys = [number for number, column in enumerate(relation.columns) if column.key]
    by_key = relation.identity in {ReplicaIdentity.DEFAULT, ReplicaIdentity.INDEX}
    return position is None or (by_key and keys == [position])


@dataclass(frozen=True, slots=True)
class _Union:
    """Several programs as one. Takes cells that are not converted yet, since each plan converts in its own way."""

    parts: Sequence[_Part]

    def evaluate(self, values: Sequence[Value], row_id: str) -> RowResult:
        cells = cast("Cells", values)
        puts: list[Put] = []
        lookups: list[LookupEntry] = []
        errors: list[str] = []
        flips: list[int] = []
        for part in self.parts:
            result = part.program.evaluate(part.convert(cells), row_id)
            puts += [put._replace(definition=put.definition + part.offset) for put in result.puts]
            lookups += result.lookups
            errors += result.errors
            if result.flip is not None:
                flips.append(result.flip)
        return RowResult(puts, lookups, errors, min(flips, default=None))

    def at(self, now: int) -> RowProgram:
        return _Union([replace(part, program=part.program.at(now)) for part in self.parts])

    def join_keys(self, values: Sequence[Value], row_id: str) -> list[str]:
        cells = cast("Cells", values)
        parts = (part for part in self.parts if part.bound.has_joins)
        return [key for part in parts for key in part.program.join_keys(part.convert(cells), row_id)]

    def knowing(self, found: JoinedRows) -> RowProgram:
        return _Union([replace(part, program=part.program.knowing(found)) for part in self.parts])
