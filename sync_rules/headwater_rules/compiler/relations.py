"""The tables and expanded arrays of a query, numbered, and the parts of a flattened SELECT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headwater_rules.compiler.checks import SourceChecks
from headwater_rules.compiler.conditions import Condition
from headwater_rules.compiler.expressions.fragment import REQUEST, Frag
from headwater_rules.compiler.expressions.scalars import identifier
from headwater_rules.compiler.expressions.semantics import Requests, Semantics
from headwater_rules.errors import Code, Place, Report, RuleError, Severity
from headwater_rules.plan import TablePattern
from headwater_rules.text.sqltext import SqlText

MAX_TABLES = 100  # planning takes time in the cube of their number


@dataclass(frozen=True, slots=True)
class Table:
    """One use of a source table."""

    pattern: TablePattern
    alias: str | None
    alias_quoted: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Each:
    """The elements of a JSON array, as a table with the columns `value` and `key`."""

    array: Frag
    place: Place


@dataclass(frozen=True, slots=True)
class Everything:
    """`*`: all columns of a table."""

    table: int
    place: Place


@dataclass(frozen=True, slots=True)
class Column:
    """A selected value and its name."""

    name: str
    value: Frag

    @property
    def place(self) -> Place:
        return self.value.place


@dataclass(frozen=True, slots=True)
class Selection:
    """A flattened SELECT. `tables` are the numbers of all tables that it joins."""

    columns: tuple[Column | Everything, ...]
    condition: Condition
    tables: frozenset[int]

    def named(self) -> dict[str, Frag]:
        """The columns of a subquery by name. Raises RuleError for `*`, whose columns are unknown, and for duplicate
        names."""
        columns: dict[str, Frag] = {}
        for column in self.columns:
            if isinstance(column, Everything):
                message = "`*` is not supported in a subquery or a `with` query"
                raise RuleError(Code.UNSUPPORTED, message, column.place, "name the columns")
            if column.name in columns:
                message = f"two columns of this subquery are called `{column.name}`"
                raise RuleError(Code.UNKNOWN_NAME, message, column.place, "give one of them another name")
            columns[column.name] = column.value
        return columns


Relation = int | dict[str, Frag]
"""What a name in FROM refers to: a table by its number, or the columns of a derived table."""


@dataclass(slots=True)
class Scope:
    """The names that one SELECT can use."""

    outer: Scope | None
    relations: dict[str, Relation] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """What the SELECTs of one query share. `ctes` are the SQL texts that names in FROM may refer to, `used` collects
    those that were used, and `hidden` are the names of CTEs that can't be used inside the CTE `within`. Findings go to
    `report`; after a fatal one the result must not be used. `checks` compares with the source, if its schema is
    known."""

    semantics: Semantics
    ctes: Mapping[str, SqlText]
    default_schema: str
    report: Report
    instances: list[Table | Each] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    checks: SourceChecks | None = None
    hidden: frozenset[str] = frozenset()
    within: str = ""

    def inside(self, cte: str) -> Context:
        """The context for the inside of a CTE. CTEs can't use each other."""
        return replace(self, ctes={}, hidden=frozenset(self.ctes), within=cte)

    def refuse_hidden(self, node: exp.Column, place: Place) -> None:
        """Raises RuleError where a CTE uses another one like a column, which would silently give nothing."""
        if identifier(node.this) in self.hidden and not node.args.get("table"):
            message = "the queries under `with` cannot name each other"
            raise RuleError(Code.UNSUPPORTED, message, place, "write the subquery in full")

    def warn_of_hidden(self, node: exp.Table, place: Place) -> None:
        """Warn where a CTE reads a table with the name of another CTE. Its own name is allowed."""
        name = identifier(node.this)
        if name not in self.hidden or node.args.get("db") or name == self.within:
            return
        message = f"`{name}` means the table here: the queries under `with` cannot name each other"
        hint = f"write `{self.default_schema}.{name}` if that is meant, else the subquery in full"
        self.report.add(RuleError(Code.NOT_THE_CTE, message, place, hint, Severity.WARNING))

    def naming(self, requests: Requests) -> Context:
        """The same context with other names for request values."""
        return replace(self, semantics=self.semantics.naming(requests))

    def owner(self, number: int) -> int:
        """The table that the values of an instance belong to. An array of a row belongs to the row's table; an array of
        the request is its own owner."""
        if number == REQUEST:
            return REQUEST
        instance = self.instances[number]
        if isinstance(instance, Each):
            tables = instance.array.sources - {REQUEST}
            return self.owner(next(iter(tables))) if tables else number
        return number

    def add(self, instance: Table | Each) -> int:
        """Add a table or array, and return its number. Raises RuleError beyond MAX_TABLES."""
        if len(self.instances) >= MAX_TABLES:
            message = f"the query reads more than {MAX_TABLES} tables and arrays"
            raise RuleError(Code.TOO_MANY, message, instance.place, "split the query")
        self.instances.append(instance)
        return len(self.instances) - 1

    def add_each(self, array: Frag) -> int:
        """Expand an array, and return its number. Raises RuleError when its values mix sources."""
        nested = any(source != REQUEST and isinstance(self.instances[source], Each) for source in array.sources)
        if len(array.sources) > 1 or nested:
            raise RuleError(
                Code.MIXED_FILTER, "an expanded array must come from one row, or from the request", array.place
            )
        return self.add(Each(array, array.place))

    def table(self, node: exp.Table, place: Place) -> Table:
        """The source table that a name in FROM refers to."""
        alias = node.args.get("alias")
        schema = identifier(node.args["db"]) if node.args.get("db") else self.default_schema
        tag, dot, rest = schema.partition(".")
        pattern = TablePattern(tag if dot else "default", rest if dot else schema, identifier(node.this))
        quoted = bool(alias and alias.this.args.get("quoted"))
        return Table(pattern, identifier(alias.this) if alias else None, quoted, place)
