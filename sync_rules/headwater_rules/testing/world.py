"""The rows of a test database, the buckets and lookups that they produce, and why a client has a row or lacks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import orjson

from headwater_rules.describe.why import Why
from headwater_rules.describe.wording import columns_of
from headwater_rules.errors import did_you_mean
from headwater_rules.evaluate.rows import TableProgram, bind_table
from headwater_rules.plan import COMPUTED, RowSource, Star, SyncPlan, TablePattern, Value, tag_of
from headwater_rules.results import Put, SourceRow, SyncRequest


class _Table(NamedTuple):
    """A table of a source, which is called by its tag or, for a shard, `tag/shard`."""

    source: str
    schema: str
    name: str

    def matches(self, pattern: TablePattern) -> bool:
        return pattern.matches(tag_of(self.source), self.schema, self.name)


def _table_of(row: SourceRow) -> _Table:
    return _Table(row.source, row.schema, row.table)


class World:
    """Source rows. A change removes what the row produced before and adds what it produces now, as in the store."""

    def __init__(self, plan: SyncPlan, default_schema: str) -> None:
        self.plan = plan
        self._default_schema = default_schema
        self._programs: dict[tuple[_Table, tuple[str, ...]], TableProgram] = {}
        self._rows: dict[int, SourceRow] = {}
        self._ids: Counter[tuple[_Table, Value]] = Counter()
        self._buckets: dict[str, dict[int, list[Put]]] = {}
        self._lookups: dict[str, Counter[str]] = {}
        self._made = 0
        self._now: int | None = None

    @property
    def errors(self) -> list[str]:
        """Expressions that fail on a current row."""
        return [f"{row.table} {row.row_id}: {error}" for row in self._rows.values() for error in row.result.errors]

    def insert(self, table: str, columns: Mapping[str, Value]) -> None:
        """Insert a row. A table is named as in rules; a shard's, `tag/shard.schema.table`. Raises ValueError for a
        table that the rules do not read, for an `id` that exists already, and for an unused column that seems to be a
        misspelling of one that is read."""
        named = self._name(table)
        read = self._columns_read(named)
        if read is not None:
            _refuse_mistyped(table, columns.keys() - read - {"id"}, read - columns.keys())
        key = columns.get("id")
        if key is not None and self._ids[named, key]:
            raise ValueError(f"`{table}` has a row with the id {key!r} already")
        self._made += 1
        row_id = str(key) if key is not None else f"{named.name}-{self._made}"
        self._put(self._made, self._evaluated(named, columns, row_id))
        self._settle()

    def update(self, table: str, where: Mapping[str, Value], changes: Mapping[str, Value]) -> None:
        """Update rows. Raises ValueError when no row matches `where`, and for a column that is unused and seems to be a
        misspelling of one that is read."""
        read = self._columns_read(self._name(table))
        for number, row in self._like(table, where):
            if read is not None:
                _refuse_mistyped(table, changes.keys() - read - row.columns.keys(), read)
            columns = {**row.columns, **changes}
            key = columns.get("id")
            row_id = str(key) if key is not None else row.row_id
            self._take(number)
            self._put(number, self._evaluated(_table_of(row), columns, row_id))
        self._settle()

    def delete(self, table: str, where: Mapping[str, Value]) -> None:
        """Delete rows. Raises ValueError when no row matches `where`."""
        for number, _ in self._like(table, where):
            self._take(number)
        self._settle()

    def set_time(self, now: int) -> None:
        """Evaluate all rows at a time, in microseconds since 1970."""
        self._now = now
        for number, row in list(self._rows.items()):
            self._take(number)
            self._put(number, self._evaluated(_table_of(row), row.columns, row.row_id))
        self._settle()

    def rows(self) -> Sequence[SourceRow]:
        return [self._rows[number] for number in sorted(self._rows)]

    def read(self, keys: Sequence[str]) -> dict[str, list[str]]:
        """A `LookupReader`."""
        return {key: list(self._lookups[key]) for key in keys if key in self._lookups}

    def puts(self, bucket: str) -> Iterator[Put]:
        for puts in self._buckets.get(bucket, {}).values():
            yield from puts

    def _name(self, table: str) -> _Table:
        qualifier, _, name = table.rpartition(".")
        computed = next((each for each in self.plan.computed if each.name == table), None)
        if computed is not None:
            return _Table(computed.tag, COMPUTED, name)
        source, dot, schema = qualifier.partition(".")
        if not dot:
            source, schema = "", qualifier or self._default_schema
        patterns = self.plan.tables()
        found = _Table(source or self._source(table, schema, name), schema, name)
        if not any(found.matches(pattern) for pattern in patterns):
            hint = did_you_mean(name, [pattern.name for pattern in patterns])
            raise ValueError(f"the sync config reads no table `{table}`" + (f"; {hint}" if hint else ""))
        return found

    def _source(self, table: str, schema: str, name: str) -> str:
        """The source that is meant where none is named: `default`, or the only one that has such a table."""
        tags = [each.tag for each in self.plan.tables() if each.matches(each.tag, schema, name)]
        if not tags or any(each.matches("default", schema, name) for each in self.plan.tables()):
            return "default"
        if len(set(tags)) > 1 or tags[0].endswith("%"):
            shown = ", ".join(f"`{tag}`" for tag in dict.fromkeys(tags))
            raise ValueError(f"`{table}` may be of several sources ({shown}); write `tag.{schema}.{name}`")
        return tags[0]

    def _columns_read(self, table: _Table) -> frozenset[str] | None:
        """The columns of a table that some query reads; None when one reads all."""
        sources = [source for bucket in self.plan.buckets for source in bucket.sources]
        sources = [each for each in sources if table.matches(each.table)]
        if any(isinstance(item, Star) for source in sources for item in source.projection):
            return None
        exprs = [expr for source in sources for expr in source.deciding()]
        exprs += [expr for source in sources for expr in source.selected()]
        lookups = (each for each in self.plan.lookups if table.matches(each.table))
        exprs += [expr for lookup in lookups for expr in lookup.exprs()]
        return frozenset(columns_of(exprs))

    def _deciding(self, table: _Table) -> list[str]:
        """The columns of a table that decide who gets its rows."""
        found = (exprs for pattern, exprs in self.plan.deciding() if table.matches(pattern))
        return columns_of([expr for exprs in found for expr in exprs])

    def _of(self, table: _Table) -> Iterator[tuple[int, SourceRow]]:
        return ((number, row) for number, row in self._rows.items() if _table_of(row) == table)

    def _like(self, table: str, where: Mapping[str, Value]) -> list[tuple[int, SourceRow]]:
        found = [(number, row) for number, row in self._of(self._name(table)) if like(row.columns, where)]
        if not found:
            raise ValueError(f"`{table}` has no row with {dict(where)}")
        return found

    def _evaluated(self, table: _Table, columns: Mapping[str, Value], row_id: str) -> SourceRow:
        left_out = [name for name in self._deciding(table) if name not in columns]
        columns = {**columns, **dict.fromkeys(left_out)}  # null, as in a table that has them
        names = tuple(columns)
        program = self._programs.get((table, names))
        if program is None:
            program = bind_table(self.plan, table.source, table.schema, table.name, names)
            assert program is not None  # the plan reads the table
            self._programs[table, names] = program
        values = list(columns.values())
        joined = {key: list(self._lookups.get(key, ())) for key in program.join_keys(values, row_id)}
        result = program.evaluate(values, row_id, self._now, joined)
        return SourceRow(table.schema, table.name, columns, row_id, result, table.source, self._now, joined)

    def _settle(self) -> None:
        """Evaluate rows again until each is as the rows that it is joined to are now."""
        changed = bool(self.plan.joins)
        while changed:
            changed = False
            for number, row in list(self._rows.items()):
                if any(set(self._lookups.get(key, ())) != set(found) for key, found in row.joined.items()):
                    # evaluated while it is there: it may be joined to itself
                    evaluated = self._evaluated(_table_of(row), row.columns, row.row_id)
                    self._take(number)
                    self._put(number, evaluated)
                    changed = True

    def _put(self, number: int, row: SourceRow) -> None:
        self._rows[number] = row
        self._ids[_table_of(row), row.columns.get("id")] += 1
        for put in row.result.puts:
            self._buckets.setdefault(put.bucket, {}).setdefault(number, []).append(put)
        for entry in row.result.lookups:
            self._lookups.setdefault(entry.key, Counter())[entry.output] += 1

    def _take(self, number: int) -> None:
        row = self._rows.pop(number)
        self._ids[_table_of(row), row.columns.get("id")] -= 1
        for put in row.result.puts:
            self._buckets[put.bucket].pop(number, None)
        for entry in row.result.lookups:
            outputs = self._lookups[entry.key]
            outputs[entry.output] -= 1
            if not outputs[entry.output]:
                del outputs[entry.output]


def _refuse_mistyped(table: str, names: Set[str], known: Set[str]) -> None:
    """Raise ValueError for a column that seems to be a misspelling. Other unused columns are allowed, such as secrets
    that must not reach devices."""
    for name in sorted(names):
        hint = did_you_mean(name, known)
        if hint:
            raise ValueError(f"the sync config reads no column `{name}` of `{table}`; {hint}")


def like(row: Mapping[str, Value], wanted: Mapping[str, Value]) -> bool:
    """Whether the row has the wanted values; a missing column is null."""
    return all(row.get(name) == value for name, value in wanted.items())


_MOST_ROWS = 3


class Reasons:
    """Explains one client's view."""

    def __init__(self, world: World, request: SyncRequest) -> None:
        self._world = world
        self._plan = world.plan
        self._why = Why(world.plan, request, world.read)

    def of_present(self, table: str, object_id: str) -> Iterator[str]:
        """Each bucket that contains the row, and why the client has the bucket."""
        for bucket in self._why.resolution.buckets:
            if any(put.table == table and put.id == object_id for put in self._world.puts(bucket.name)):
                stream = self._why.stream_of(bucket.definition)
                asked = any("sub" in reason for reason in bucket.reasons)
                why = "subscribed to" if asked else "a default"
                yield f"stream `{stream.name}` ({why}): in bucket {self._why.short(bucket.name, bucket.definition)}"

    def of_missing(self, table: str, wanted: dict[str, Value]) -> Iterator[str]:
        """For each row that may be meant, why the client does not get it; or that there is no such row."""
        sources = [
            (position, source)
            for position, bucket in enumerate(self._plan.buckets)
            for source in bucket.sources
            if source.output_table in (table, None)
        ]
        rows = [row for row in self._world.rows() if self._may_be_meant(row, table, wanted)]
        if not rows:
            yield "no inserted row matches this"
        for row in rows[:_MOST_ROWS]:
            for position, source in sources:
                if _table_of(row).matches(source.table):
                    yield f"stream `{self._why.stream_of(position).name}`: {self._of_row(row, position, source)}"

    def _may_be_meant(self, row: SourceRow, table: str, row_wanted: dict[str, Value]) -> bool:
        wanted = {"id": row_wanted["id"]} if "id" in row_wanted else row_wanted
        if any(put.table == table and like(_data(put), wanted) for put in row.result.puts):
            return True
        feeds = any(
            source.output_table == table or (source.output_table is None and row.table == table)
            for bucket in self._plan.buckets
            for source in bucket.sources
            if _table_of(row).matches(source.table)
        )
        named = {name: value for name, value in wanted.items() if name in row.columns}
        as_device = {**row.columns, "id": str(row.columns.get("id", row.row_id))}
        return feeds and bool(named) and like(as_device, named)

    def _of_row(self, row: SourceRow, position: int, source: RowSource) -> str:
        why = self._why.of_row(row, position, source)
        if why:
            return why
        puts = [put for put in row.result.puts if put.definition == position]
        needed = ", ".join(self._why.short(put.bucket, position) for put in puts)
        return f"the row is in bucket {needed}, which the client has, but with other values"


def _data(put: Put) -> dict[str, Value]:
    return {**orjson.loads(put.data), "id": put.id}
