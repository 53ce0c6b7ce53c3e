"""The compiled form of a sync config: frozen, picklable data that every process evaluates in the same way.

A stream has three sides. The **row side** says which rows go into which bucket and which columns they have there; the
**lookup side** indexes rows of other tables so that a request can find them; the **request side** turns a user's claims
and parameters into bucket names. Only the row side of a variant is part of a bucket's name, so that a change of who
gets a bucket does not make devices download it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

SEMANTICS_VERSION = 2
"""Part of every digest. Raise it when the same rule begins to produce other rows."""

Value = None | int | float | str | bytes
"""The value types of SQLite, which rules use."""


def tag_of(source: str) -> str:
    """The tag of a source, by which rules name its tables. A source without shards is called by it; a shard is
    `tag/shard`."""
    return source.partition("/")[0]


def shard_of(source: str) -> str:
    """The shard that a source is; empty if its tag has none."""
    return source.partition("/")[2]


COMPUTED = ""
"""The schema of computed tables, which no table of Postgres can have."""


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A source table as named in a rule. A trailing `%` in tag, schema or name matches any suffix."""

    tag: str
    schema: str
    name: str

    def matches(self, tag: str, schema: str, name: str) -> bool:
        of_kind = self.computed is (schema == COMPUTED)  # no wildcard means computed tables, too
        return of_kind and self.of(tag) and _matches(self.schema, schema) and _matches(self.name, name)

    def of(self, tag: str) -> bool:
        """Whether sources with this tag can have such a table."""
        return _matches(self.tag, tag)

    @property
    def written(self) -> str:
        """The table as a rule may name it, with its schema, and with its tag unless that is `default`."""
        if self.computed:
            return self.name
        name = f"{self.schema}.{self.name}"
        return name if self.tag == "default" else f"{self.tag}.{name}"

    @property
    def computed(self) -> bool:
        """Whether it means a computed table."""
        return self.schema == COMPUTED

    @property
    def exact(self) -> bool:
        return not any(part.endswith("%") for part in (self.tag, self.schema, self.name))


def _matches(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("%") else text == pattern


@dataclass(frozen=True, slots=True)
class Expr:
    """A SQLite scalar expression over `?1 … ?n`, where `?i` is `inputs[i - 1]`.

    On the row and lookup sides, inputs are source column names or, for `row_id()` and similar functions, values of
    `RowFunction`. On the request side they are values of `RequestInput`.
    """

    sql: str
    inputs: tuple[str, ...]


class RowFunction(Enum):
    """Inputs of a row expression that are not columns. The values can't be mistaken for column names."""

    ROW_ID = "\x00row_id"
    TABLE_NAME = "\x00table_name"
    TABLE_SUFFIX = "\x00table_suffix"
    SCHEMA = "\x00schema"
    SOURCE = "\x00source"


NOW = "\x00now"
"""Input of a row expression: the time at which the row is evaluated, in microseconds since 1970 UTC. It is no
`RowFunction`, since rules can't name it but in comparisons."""

JOIN = "join"
"""What names of lookups begin with that rows are evaluated with; no request reads them."""

_JOINED = re.compile("\x00join:([0-9a-f]+):([0-9]+)")


def joined_input(join: str, output: int) -> str:
    """The input of a row expression for output number `output` of the row that the `RowJoin` with this name finds; of a
    join without outputs, output 0 is 1 where there is a row. Null where there is none."""
    return f"\x00join:{join}:{output}"


def joined_output(name: str) -> tuple[str, int] | None:
    """The join and output that an input means; None for other inputs."""
    found = _JOINED.fullmatch(name)
    return (found[1], int(found[2])) if found else None


_ELEMENT = re.compile("\x00(value|key):([0-9]+)")


def element_input(column: str, array: int) -> str:
    """The input for `value` or `key` of the current element of expanded array number `array`."""
    return f"\x00{column}:{array}"


def element_column(name: str) -> str | None:
    """The column of `json_each(…) AS e0`, `e1` … that such an input means; None for other inputs."""
    found = _ELEMENT.fullmatch(name)
    return f"e{found[2]}.{found[1]}" if found else None


_FOUND = re.compile("\x00found:([0-9]+):([0-9]+)")


def found_input(stage: int, output: int) -> str:
    """The input of a stage's filter for output number `output` of the row that stage number `stage` found, which is a
    SQL literal."""
    return f"\x00found:{stage}:{output}"


def found_output(name: str) -> FromStage | None:
    """The stage and output that such an input means; None for values of the request."""
    found = _FOUND.fullmatch(name)
    return FromStage(int(found[1]), int(found[2])) if found else None


class RequestInput(Enum):
    """Inputs of a request expression. All but the first are JSON text, or null where the request has none."""

    USER_ID = "user_id"  # claim `sub` as a SQLite value
    CLAIMS = "claims"
    CONNECTION = "connection"
    SUBSCRIPTION = "subscription"


AUTHENTICATED = frozenset({RequestInput.USER_ID.value, RequestInput.CLAIMS.value})
"""Inputs that come from the token; clients choose the others."""


@dataclass(frozen=True, slots=True)
class Output:
    """One selected column."""

    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class Star:
    """`*`: every column of the row, overriding earlier columns of the same name. Without `everything`, columns that
    begin with `_` are left out, and an earlier column is kept unless it is null."""

    everything: bool = True


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows of one table that go into the buckets of one definition.

    `output_table` None means the name of the table that the row comes from. A row is in the bucket named by `params`
    when every filter is true and no parameter is null or a blob. `each` are JSON arrays that are expanded; inputs refer
    to their elements through `element_input`.
    """

    table: TablePattern
    output_table: str | None
    filters: tuple[Expr, ...]
    each: tuple[Expr, ...]
    params: tuple[Expr, ...]
    projection: tuple[Output | Star, ...]

    def selected(self) -> tuple[Expr, ...]:
        """The expressions of named columns."""
        return tuple(item.expr for item in self.projection if isinstance(item, Output))

    def deciding(self) -> tuple[Expr, ...]:
        """The expressions that decide in which buckets a row is."""
        return (*self.filters, *self.each, *self.params)


@dataclass(frozen=True, slots=True)
class BucketDefinition:
    """A family of buckets. Their names begin with `name` (`stream.1a2b3c4d`); `digest` is the full row-side hash."""

    name: str
    digest: str
    sources: tuple[RowSource, ...]


@dataclass(frozen=True, slots=True)
class LookupDefinition:
    """An index over one table: rows that pass the filters, found by `keys`, returning `outputs`."""

    name: str
    digest: str
    table: TablePattern
    filters: tuple[Expr, ...]
    each: tuple[Expr, ...]
    keys: tuple[Expr, ...]
    outputs: tuple[Expr, ...]

    def exprs(self) -> tuple[Expr, ...]:
        """All expressions that determine its entries."""
        return (*self.filters, *self.each, *self.keys, *self.outputs)


@dataclass(frozen=True, slots=True)
class RowJoin:
    """A row of another table that rows of a table are evaluated with, whoever asks for them: the one that `lookup`
    gives for `keys`; of several the one with the least outputs. `index` is the name of the lookup that finds the rows
    of this table by the same keys, so that they are evaluated again when the other row changes; without keys there is
    none, and all are. Both lookups are also among those of the plan."""

    name: str
    table: TablePattern
    keys: tuple[Expr, ...]
    lookup: LookupDefinition
    index: str


@dataclass(frozen=True, slots=True)
class FromRequest:
    """A value of the request; with `each`, every element of a JSON array."""

    expr: Expr
    each: bool = False


@dataclass(frozen=True, slots=True)
class FromStage:
    """Output number `output` of the row found by stage number `stage`."""

    stage: int
    output: int


ParamSource = FromRequest | FromStage


@dataclass(frozen=True, slots=True)
class LookupStage:
    """A step of a request that looks `keys` up in a lookup definition. Stages are joined, so values of one looked-up
    row are only combined with values of that row. A stage whose outputs are not used is an EXISTS test. `filters` are
    over the request and over rows that this stage and earlier ones found: see `found_input`."""

    lookup: int
    keys: tuple[ParamSource, ...]
    filters: tuple[Expr, ...] = ()

    def reads(self) -> frozenset[int]:
        """The stages whose outputs its keys and filters read, itself among them."""
        found = (found_output(name) for each in self.filters for name in each.inputs)
        sources = (*self.keys, *(output for output in found if output is not None))
        return frozenset(source.stage for source in sources if isinstance(source, FromStage))


@dataclass(frozen=True, slots=True)
class RequestStage:
    """Rows made from the request: the elements of its arrays in every combination that passes the filters."""

    arrays: tuple[Expr, ...]
    filters: tuple[Expr, ...]
    outputs: tuple[Expr, ...]


Stage = LookupStage | RequestStage


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to buckets: if all `gates` are true, run the stages in order, then read one bucket of each definition in
    `buckets` per combination of `params`. Each parameter lists all sources that must agree on its value (usually one).
    `priority`, if given, overrides the stream's."""

    buckets: tuple[int, ...]
    gates: tuple[Expr, ...]
    stages: tuple[Stage, ...]
    params: tuple[tuple[ParamSource, ...], ...]
    priority: int | None = None

    def sources(self) -> list[ParamSource]:
        """What the keys of its stages and the parameters of its buckets are taken from."""
        stages = [stage for stage in self.stages if isinstance(stage, LookupStage)]
        return [source for group in (*(stage.keys for stage in stages), *self.params) for source in group]

    def lookups(self) -> tuple[int, ...]:
        """The lookups that its stages read, in order."""
        return tuple(stage.lookup for stage in self.stages if isinstance(stage, LookupStage))


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    auto_subscribe: bool
    priority: int
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """How source values become SQLite values; part of every bucket and lookup digest."""

    timestamps_iso8601: bool = True
    custom_postgres_types: bool = True
    timestamp_digits: int = 6


@dataclass(frozen=True, slots=True)
class Refresh:
    """When a computed table is computed again: every so many seconds, and after commits to tables (schema and name), or
    with `after_read` to those that its query reads; at least `least` seconds after the last time. All in seconds."""

    every: float | None = None
    after: tuple[tuple[str, str], ...] = ()
    after_read: bool = False
    least: float = 10.0
    timeout: float = 60.0

    @property
    def watched(self) -> tuple[tuple[tuple[str, str], ...], bool]:
        """The tables whose commits count: those that are named, and whether also those that the query reads."""
        return self.after, self.after_read


@dataclass(frozen=True, slots=True)
class ComputedTable:
    """A table of which the rows are the result of a query: in the source with this tag, or with `spark` in Spark, for
    that source. The columns `key` tell its rows apart."""

    tag: str
    name: str
    query: str
    key: tuple[str, ...]
    refresh: Refresh
    spark: bool = False

    @property
    def pattern(self) -> TablePattern:
        return TablePattern(self.tag, COMPUTED, self.name)


Deciding = tuple[tuple[TablePattern, tuple[Expr, ...]], ...]
"""What decides who gets which rows: for each row side, its table and the expressions over it."""


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """A compiled sync config. Variants and stages refer to buckets and lookups by position."""

    buckets: tuple[BucketDefinition, ...]
    lookups: tuple[LookupDefinition, ...]
    streams: tuple[Stream, ...]
    options: ConversionOptions
    computed: tuple[ComputedTable, ...] = ()
    joins: tuple[RowJoin, ...] = ()

    def tables(self) -> tuple[TablePattern, ...]:
        """Every table that the config reads, without duplicates, in the order of first use."""
        patterns = [s.table for b in self.buckets for s in b.sources] + [item.table for item in self.lookups]
        return tuple(dict.fromkeys(patterns))

    @property
    def reads_clock(self) -> bool:
        """Whether rows are compared with the current time."""
        return any(NOW in e.inputs for b in self.buckets for s in b.sources for e in s.deciding())

    def deciding(self) -> Deciding:
        """What decides who gets which rows."""
        rows = [(source.table, source.deciding()) for bucket in self.buckets for source in bucket.sources]
        return (*rows, *((lookup.table, lookup.exprs()) for lookup in self.lookups))

    def streams_by_bucket(self) -> dict[int, tuple[Stream, ...]]:
        """The streams that lead to each bucket definition, by its position."""
        return self._streams_by(lambda variant: variant.buckets)

    def streams_by_lookup(self) -> dict[int, tuple[Stream, ...]]:
        """The streams that read each lookup, by its position."""
        return self._streams_by(Variant.lookups)

    def _streams_by(self, used: Callable[[Variant], Iterable[int]]) -> dict[int, tuple[Stream, ...]]:
        found: dict[int, dict[str, Stream]] = {}
        for stream in self.streams:
            for variant in stream.variants:
                for position in used(variant):
                    found.setdefault(position, {})[stream.name] = stream
        return {position: tuple(streams.values()) for position, streams in found.items()}


def joined_lookups(plan: SyncPlan, exprs: Iterable[Expr]) -> tuple[LookupDefinition, ...]:
    """The lookups whose rows expressions over a row read, and those that these read."""
    joins = {each.name: each for each in plan.joins}
    found: dict[str, LookupDefinition] = {}
    waiting = list(exprs)
    while waiting:
        for name in waiting.pop().inputs:
            output = joined_output(name)
            join = None if output is None else joins.get(output[0])
            if join is not None and join.lookup.name not in found:
                found[join.lookup.name] = join.lookup
                waiting += join.lookup.exprs()
    return tuple(found.values())


NO_RULES = SyncPlan((), (), (), ConversionOptions())
"""The plan of a sync config that gives nobody anything."""
