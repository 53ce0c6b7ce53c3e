"""Evaluates rows to bucket entries and lookup entries. The hot path of the whole service.

A plan is bound to one table's columns once. Plain columns are then picked by position; only real expressions go to
SQLite, as one prepared statement for as many of the sources as can share one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.binding import Bound, Layout, Row, RowStatement, key_of, run_together
from headwater_rules.evaluate.engine import engine
from headwater_rules.evaluate.joins import BoundJoin, JoinedRows, bind_joins, used_joins, with_joined, with_keys
from headwater_rules.evaluate.naming import as_text
from headwater_rules.plan import (
    JOIN,
    LookupDefinition,
    Output,
    RowSource,
    Star,
    SyncPlan,
    Value,
)
from headwater_rules.results import UNKNOWN, LookupEntry, Put, RowResult

_new = tuple.__new__
_PLAIN: Sequence[Row] = ((),)

_FEWEST = 4
"""Statements that are worth running as one: fewer are quicker one by one."""

Choice = tuple[int, ...]
"""Positions in a row; the first value that is not null is used."""


class TableProgram:
    """Evaluates the rows of one table under a sync config. Safe to use from several threads; not picklable, so bind the
    plan again in each process.

    `definitions` are the positions of the bucket definitions that the table feeds, `has_lookups` says whether it feeds
    lookups, `needs_columns` are the columns whose values are used (None: all of them). `has_clock` says whether the
    result depends on the time. `plain` is set when each row has one entry at most, which consists of columns alone.
    `closed` are the names of bucket definitions and lookups that get no row, since the table lacks a column that
    decides about it. `has_joins` says whether rows are evaluated with rows of other tables: those that `knowing` was
    told of. What depends on others, and on any without it, is left out.
    """

    __slots__ = (
        "_constants",
        "_entries",
        "_groups",
        "_joins",
        "_lookups",
        "_shard",
        "closed",
        "definitions",
        "has_clock",
        "has_joins",
        "has_lookups",
        "needs_columns",
        "plain",
    )

    def __init__(self, plan: SyncPlan, layout: Layout) -> None:
        sources = [
            (position, bucket.name, source)
            for position, bucket in enumerate(plan.buckets)
            for source in bucket.sources
            if layout.matches(source.table)
        ]
        lookups = [lookup for lookup in plan.lookups if layout.matches(lookup.table)]
        writers: dict[tuple[object, ...], _Writer] = {}
        joins = {join.name: join for join in plan.joins}
        closed = [name for _, name, source in sources if layout.lacking(with_keys(source.deciding(), joins))]
        closed += [lookup.name for lookup in lookups if layout.lacking(with_keys(lookup.exprs(), joins))]
        self.closed = frozenset(closed)
        self._entries = [_bind_entry(layout, writers, *source) for source in sources if source[1] not in self.closed]
        self._lookups = [_bind_lookup(layout, lookup) for lookup in lookups if lookup.name not in self.closed]
        self._joins = bind_joins(layout, plan)
        self.has_joins = bool(self._joins)
        self.definitions = tuple(dict.fromkeys(position for position, _, _ in sources))
        self.has_lookups = bool(lookups)
        self.needs_columns = layout.needed()
        self._constants = layout.constants()
        self.has_clock = layout.has_clock
        self._groups = run_together(_shared([*self._entries, *self._lookups]))
        only = self._entries[0] if len(self._entries) == 1 and not lookups else None
        self._shard = f"{layout.shard}/" if layout.shard else ""
        self.plain = None if only is None or self._shard or self._constants is not None else _plain(only)

    def at(self, now: int) -> RowProgram:
        """The program at a time, in microseconds since 1970 UTC."""
        return _At(self, now) if self.has_clock else self

    def knowing(self, found: JoinedRows) -> RowProgram:
        """The program with the rows that joins find."""
        return _At(self, None, found) if self.has_joins else self

    def join_keys(self, values: Sequence[Value], row_id: str) -> list[str]:
        """The keys of lookups, by which joins find the other rows of a row. One that fails is left out."""
        if not self._joins:
            return []
        row = Layout.row(values, self._shard + row_id, None, self._constants)
        keys: list[str] = []
        for join in self._joins:
            try:
                key = join.key(row)
            except EvaluationError:
                continue  # `evaluate` says it
            if key is not None:
                keys.append(key)
        return keys

    def evaluate(
        self, values: Sequence[Value], row_id: str, now: int | None = None, found: JoinedRows | None = None
    ) -> RowResult:
        """The result for one row. `values` are in the order of the bound columns; `row_id` is the row's identity. Never
        raises because of values: an entry that fails is left out and described in `errors`, as is one that is compared
        with the clock without `now`, which `at` gives. `found` is what `knowing` gives."""
        if self._shard:
            row_id = self._shard + row_id  # another shard may have the same
        row = Layout.row(values, row_id, now, self._constants)
        puts: list[Put] = []
        lookups: list[LookupEntry] = []
        errors: list[str] = []
        unknown: frozenset[str] = frozenset()
        if self._joins:
            row, unknown = with_joined(self._joins, row, found or {}, errors)
        known = [rows for group in self._groups for rows in group.rows(row)] if self._groups else ()
        written: _Writer | None = None
        data = ""
        for entry in self._entries:
            if unknown and not unknown.isdisjoint(entry.joins):
                continue
            try:
                if entry.statement is None:
                    bucket = entry.bucket(row)
                    if bucket is None:
                        continue
                    if entry.writer is not written:
                        data = entry.writer.data(row)
                        written = entry.writer
                    put = (entry.definition, bucket, entry.table, entry.writer.id(row, row_id), data)
                    puts.append(_new(Put, put))  # half the time of Put(…)
                    continue
                _computed(entry, _matches(entry, entry.statement, row, known), row, row_id, puts)
            except EvaluationError as error:
                errors.append(f"{entry.name}: {error}")
        self._add_lookups(row, known, unknown, lookups, errors)
        return _new(RowResult, (puts, lookups, errors, None))

    def _add_lookups(
        self,
        row: Row,
        known: Sequence[Sequence[Row] | None],
        unknown: frozenset[str],
        entries: list[LookupEntry],
        errors: list[str],
    ) -> None:
        for lookup in self._lookups:
            if not unknown.isdisjoint(lookup.joins):
                entries += _failed(lookup, row)
                continue
            try:
                _look_up(lookup, row, known, entries)
            except EvaluationError as error:
                errors.append(f"{lookup.name}: {error}")
                entries += _failed(lookup, row)


class RowProgram(Protocol):
    """Rules, bound to the columns of one table."""

    def evaluate(self, values: Sequence[Value], row_id: str) -> RowResult: ...

    def join_keys(self, values: Sequence[Value], row_id: str) -> list[str]:
        """The keys of lookups, by which joins find the other rows of a row."""

    def knowing(self, found: JoinedRows) -> RowProgram:
        """The same rules with the rows that joins find, for those that need them."""

    def at(self, now: int) -> RowProgram:
        """The same rules at a time, in microseconds since 1970 UTC, for those that depend on it."""


@dataclass(frozen=True, slots=True)
class _At:
    """A program at one time, if it depends on that, and with joined rows, if it depends on these."""

    program: TableProgram
    now: int | None
    found: JoinedRows | None = None

    def evaluate(self, values: Sequence[Value], row_id: str) -> RowResult:
        if self.now is None:
            return self.program.evaluate(values, row_id, None, self.found)
        sqlite = engine()
        sqlite.flip = None
        return self.program.evaluate(values, row_id, self.now, self.found)._replace(flip=sqlite.flip)

    def join_keys(self, values: Sequence[Value], row_id: str) -> list[str]:
        return self.program.join_keys(values, row_id)

    def at(self, now: int) -> RowProgram:
        return _At(self.program, now, self.found) if self.program.has_clock else self

    def knowing(self, found: JoinedRows) -> RowProgram:
        return _At(self.program, self.now, found) if self.program.has_joins else self


@dataclass(frozen=True, slots=True)
class PlainEntry:
    """An entry of a row that needs no expression: `params` are the positions of the columns that name its bucket,
    `columns` those of its data by name."""

    definition: int
    name: str
    table: str
    params: tuple[int, ...]
    columns: Mapping[str, int]


def bind_table(plan: SyncPlan, source: str, schema: str, table: str, columns: Sequence[str]) -> TableProgram | None:
    """The program for a source table whose rows have `columns`, in that order; None when the config does not read the
    table. `source` is the tag of its source, or for a shard `tag/shard`: `row_id()` begins with the shard then. Columns
    that the config selects and the table lacks are null; a bucket definition or lookup that they decide about gets no
    row of the table."""
    layout = Layout(source, schema, table, tuple(columns))
    if not any(layout.matches(pattern) for pattern in plan.tables()):
        return None
    return TableProgram(plan, layout)


@dataclass(slots=True)
class _Source:
    """`shared_at` is the position of its statement among those that are run together; None when it is run alone."""

    name: str
    statement: RowStatement | None
    joins: frozenset[str]
    shared_at: int | None = field(default=None, init=False)


@dataclass(slots=True)
class _Entry(_Source):
    definition: int
    table: str
    params: tuple[int, ...]
    bucket: Callable[[Row], str | None]
    repeats: bool
    writer: _Writer


@dataclass(slots=True)
class _Lookup(_Source):
    """`failed` gives the key by itself, of a lookup of rows that others are evaluated with."""

    key: Callable[[Row], str | None]
    output: Callable[[Row], str | None]
    failed: BoundJoin | None


def _plain(entry: _Entry) -> PlainEntry | None:
    columns = entry.writer.columns
    if entry.statement is not None or any(len(choice) > 1 for choice in columns.values()):
        return None
    positions = {name: choice[0] for name, choice in columns.items()}
    return PlainEntry(entry.definition, entry.name, entry.table, entry.params, positions)


def _shared(sources: Sequence[_Source]) -> list[RowStatement]:
    """The statements that are run together, if there are several. Tells their sources their positions."""
    sharing = [(source, source.statement) for source in sources if source.statement and source.statement.simple]
    if len(sharing) < _FEWEST:
        return []
    for position, (source, _) in enumerate(sharing):
        source.shared_at = position
    return [statement for _, statement in sharing]


def _matches(
    source: _Source, statement: RowStatement, row: Row, known: Sequence[Sequence[Row] | None]
) -> Sequence[Row]:
    """What `statement.rows` gives."""
    rows = None if source.shared_at is None else known[source.shared_at]
    return statement.rows(row) if rows is None else rows


def _computed(entry: _Entry, matches: Sequence[Row], row: Row, row_id: str, puts: list[Put]) -> None:
    buckets: set[str] = set()
    for computed in matches:
        full = row + computed
        bucket = entry.bucket(full)
        if bucket is None or bucket in buckets:
            continue
        if entry.repeats:
            buckets.add(bucket)
        data = entry.writer.data(full)
        if puts and puts[-1].data == data:
            data = puts[-1].data  # a large row may be in many buckets: share one text
        puts.append(Put(entry.definition, bucket, entry.table, entry.writer.id(full, row_id), data))


def _look_up(lookup: _Lookup, row: Row, known: Sequence[Sequence[Row] | None], entries: list[LookupEntry]) -> None:
    matches = _PLAIN if lookup.statement is None else _matches(lookup, lookup.statement, row, known)
    before = len(entries)
    for computed in matches:
        full = row + computed
        key = lookup.key(full)
        output = lookup.output(full) if key is not None else None
        if key is not None and output is not None:
            entry = LookupEntry(key, output)
            if len(matches) == 1 or entry not in entries[before:]:  # keys begin with the name of their lookup
                entries.append(entry)


def _failed(lookup: _Lookup, row: Row) -> Iterator[LookupEntry]:
    """What a row gives of which a lookup can't tell: others must not be evaluated as if it were not there."""
    try:
        key = None if lookup.failed is None else lookup.failed.key(row)
    except EvaluationError:
        return
    if key is not None:
        yield LookupEntry(key, UNKNOWN)


class _Writer:
    """Writes the data and the id of a row, given the positions of its selected values."""

    __slots__ = ("_has_blobs", "_id", "_select", "columns")

    def __init__(self, columns: Mapping[str, Choice]) -> None:
        self.columns = columns
        self._select = _selector(columns)
        self._id = columns.get("id", ())
        self._has_blobs = False

    def data(self, row: Row) -> str:
        values = self._select(row)
        if self._has_blobs:
            return _without_blobs(values)
        try:
            return orjson.dumps(values).decode()
        except TypeError:
            self._has_blobs = True
        return _without_blobs(values)

    def id(self, row: Row, row_id: str) -> str:
        for position in self._id:
            value = row[position]
            if type(value) is str:
                return value
            text = None if isinstance(value, bytes) else as_text(value)
            if text is not None:
                return text
        return row_id


def _without_blobs(values: dict[str, Value]) -> str:
    try:
        return orjson.dumps({name: value for name, value in values.items() if type(value) is not bytes}).decode()
    except TypeError:
        raise EvaluationError("a value has no JSON form") from None


def _selector(columns: Mapping[str, Choice]) -> Callable[[Row], dict[str, Value]]:
    """A function from a row to its selected values by name. Generated, because a dict display takes a third of the time
    of `dict(zip(…))`; only quoted names and numbers go into the code."""
    body = ", ".join(f"{name!r}: {_chosen(choice)}" for name, choice in columns.items())
    selector: Callable[[Row], dict[str, Value]] = eval(f"lambda row: {{{body}}}", {"__builtins__": {}})  # noqa: S307
    return selector


def _chosen(choice: Choice) -> str:
    first, *others = choice
    return f"row[{first}]" + (f" if row[{first}] is not None else {_chosen(tuple(others))}" if others else "")


def _columns(layout: Layout, bound: Bound, projection: Sequence[Output | Star]) -> dict[str, Choice]:
    """The position of the value of each selected column. A repeated name keeps the position of the first and the value
    of the last, except for columns that `*` leaves alone."""
    columns: dict[str, Choice] = {}
    for item in projection:
        if isinstance(item, Output):
            columns[item.name] = (bound.position(item.expr),)
            continue
        layout.need_all()
        for position, name in enumerate(layout.columns):
            if item.everything:
                columns[name] = (position,)
            elif not name.startswith("_"):
                columns[name] = (*columns.get(name, ()), position)
    return columns


def _bind_entry(
    layout: Layout, writers: dict[tuple[object, ...], _Writer], definition: int, name: str, source: RowSource
) -> _Entry:
    bound = Bound(layout, source.table, source.filters, source.each)
    params = tuple(bound.position(expr) for expr in source.params)
    columns = _columns(layout, bound, source.projection)
    table = layout.table if source.output_table is None else source.output_table
    writer = writers.setdefault(tuple(columns.items()), _Writer(columns))
    bucket, repeats = key_of(name, params), bool(source.each)
    joins = used_joins((*source.deciding(), *source.selected()))
    return _Entry(name, bound.statement(), joins, definition, table, params, bucket, repeats, writer)


def _bind_lookup(layout: Layout, lookup: LookupDefinition) -> _Lookup:
    bound = Bound(layout, lookup.table, lookup.filters, lookup.each)
    keys = tuple(bound.position(expr) for expr in lookup.keys)
    outputs = tuple(bound.position(expr) for expr in lookup.outputs)
    statement, key = bound.statement(), key_of(lookup.name, keys)
    failed = None
    if statement is not None and lookup.name.startswith(f"{JOIN}."):
        alone = Bound(layout, lookup.table, (), ())
        named = key_of(lookup.name, tuple(alone.position(expr) for expr in lookup.keys))
        failed = BoundJoin("", lookup.name, alone.statement(), named, (), ())
    return _Lookup(lookup.name, statement, used_joins(lookup.exprs()), key, key_of("", outputs), failed)
