"""Names in a SELECT: what a query's SELECTs share, and what columns, tables and row functions mean in one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from headwater_rules.compiler.clock import elsewhere, moving
from headwater_rules.compiler.fragment import REQUEST, ExprKind, Frag, Ref
from headwater_rules.compiler.relations import ExpandedArray, Relation, TableRef
from headwater_rules.compiler.request_values import RequestNames, Semantics, misused_name
from headwater_rules.compiler.row_joins import DraftedJoin, JoinDraft, RowJoins
from headwater_rules.compiler.schema_checks import QueryChecks, SourceChecks
from headwater_rules.compiler.trust import element
from headwater_rules.errors import Edit, Report, RuleCode, RuleError, did_you_mean
from headwater_rules.plan import ComputedTable, RowFunction, TablePattern
from headwater_rules.text.sqltext import edit_of, error_at, identifier, text_of, unsupported, warning_at
from headwater_rules.text.written import SqlText

MAX_TABLES = 100  # planning takes time in the cube of their number

ELEMENT = ("key", "value")
"""The columns of `json_each`."""

ROW_FUNCTIONS = {function.name.lower(): function.value for function in RowFunction}
_SUFFIX = "_table_suffix"  # the older name of `table_suffix()`, which is a column


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
    known; `computed` are the computed tables, by name."""

    semantics: Semantics
    ctes: Mapping[str, SqlText]
    default_schema: str
    report: Report
    instances: list[TableRef | ExpandedArray] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    checks: SourceChecks | None = None
    hidden: frozenset[str] = frozenset()
    within: str = ""
    computed: Mapping[str, ComputedTable] = field(default_factory=dict)
    _drafts: list[JoinDraft] = field(default_factory=list)
    _drafted: dict[str, DraftedJoin] = field(default_factory=dict)

    @property
    def joins(self) -> RowJoins:
        """The rows of other tables that rows are evaluated with."""
        return RowJoins(self.instances, self.owner, self._drafts, self._drafted)

    def inside(self, cte: str) -> Context:
        """The context for the inside of a CTE. CTEs can't use each other."""
        return replace(self, ctes={}, hidden=frozenset(self.ctes), within=cte)

    def refuse_hidden(self, node: exp.Column) -> None:
        """Raises RuleError where a CTE uses another one like a column, which would silently give nothing."""
        if identifier(node.this) in self.hidden and not node.args.get("table"):
            message = "the queries under `with` cannot name each other"
            raise unsupported(message, node, "write the subquery in full")

    def warn_of_hidden(self, node: exp.Table) -> None:
        """Warn where a CTE reads a table with the name of another CTE. Its own name is allowed."""
        name = identifier(node.this)
        if name not in self.hidden or node.args.get("db") or name == self.within:
            return
        message = f"`{name}` means the table here: the queries under `with` cannot name each other"
        hint = f"write `{self.default_schema}.{name}` if that is meant, else the subquery in full"
        self.report.add(warning_at(RuleCode.NOT_THE_CTE, message, node, hint))

    def naming(self, requests: RequestNames) -> Context:
        """The same context with other names for request values."""
        return replace(self, semantics=self.semantics.naming(requests))

    def owner(self, number: int) -> int:
        """The table that the values of an instance belong to. An array of a row belongs to the row's table; an array of
        the request is its own owner."""
        if number == REQUEST:
            return REQUEST
        instance = self.instances[number]
        if isinstance(instance, ExpandedArray):
            tables = instance.array.sources - {REQUEST}
            return self.owner(next(iter(tables))) if tables else number
        return number

    def table_at(self, number: int) -> TableRef:
        """The table with a number that is known to be one, and not an array."""
        instance = self.instances[number]
        assert isinstance(instance, TableRef)
        return instance

    def add(self, instance: TableRef | ExpandedArray) -> int:
        """Add a table or array, and return its number. Raises RuleError beyond MAX_TABLES."""
        if len(self.instances) >= MAX_TABLES:
            message = f"the query reads more than {MAX_TABLES} tables and arrays"
            raise error_at(RuleCode.TOO_MANY, message, instance.node, "split the query")
        self.instances.append(instance)
        return len(self.instances) - 1

    def add_each(self, array: Frag) -> int:
        """Expand an array, and return its number. Raises RuleError when its values mix sources."""
        nested = any(
            source != REQUEST and isinstance(self.instances[source], ExpandedArray) for source in array.sources
        )
        if moving(array):
            raise elsewhere(array.node)
        if len(array.sources) > 1 or nested:
            message = "an expanded array must come from one row, or from the request"
            raise error_at(RuleCode.MIXED_FILTER, message, array.node)
        return self.add(ExpandedArray(array))

    def table(self, node: exp.Table) -> TableRef:
        """The source table that a name in FROM refers to."""
        alias = node.args.get("alias")
        quoted = bool(alias and alias.this.args.get("quoted"))
        named = identifier(alias.this) if alias else None
        computed = None if node.args.get("db") else self.computed.get(identifier(node.this))
        if computed is not None:
            return TableRef(computed.pattern, named, quoted, node)
        schema = identifier(node.args["db"]) if node.args.get("db") else self.default_schema
        if node.args.get("catalog"):
            tag = identifier(node.args["catalog"])
        else:
            tag, dot, rest = schema.partition(".")  # "tag.schema".table, as other services write it
            tag, schema = (tag, rest) if dot else ("default", schema)
        pattern = TablePattern(tag, schema, identifier(node.this))
        return TableRef(pattern, named, quoted, node)


class ScopeNames:
    """The meaning of names in one SELECT."""

    def __init__(self, context: Context, scope: Scope) -> None:
        self.context = context
        self.checks = QueryChecks(context.checks, context.instances, context.report)
        self.scope = scope

    def column(self, node: exp.Column) -> Frag:
        """The value of a column. Raises RuleError when there is no such column, or more than one."""
        name = identifier(node.this)
        relation = self.relation(identifier(node.args["table"]), node) if node.table else self._holder(name, node)
        if isinstance(relation, dict):
            if name not in relation:
                hint = did_you_mean(name, relation)
                raise error_at(RuleCode.UNKNOWN_NAME, f"the subquery has no column `{name}`", node, hint)
            return relation[name]
        instance = self.context.instances[relation]
        if isinstance(instance, ExpandedArray) and name not in ELEMENT:
            hint = "there are `value` and `key`"
            raise error_at(RuleCode.UNKNOWN_NAME, f"`json_each` has no column `{name}` here", node, hint)
        if isinstance(instance, ExpandedArray):
            return Frag((Ref(relation, name),), ExprKind.ANY, node, element(instance.array.trust))
        if name == _SUFFIX and instance.pattern.name.endswith("%"):
            name = RowFunction.TABLE_SUFFIX.value
        else:
            self.checks.column(instance, name, node.this)
        return Frag((Ref(relation, name),), ExprKind.ANY, node)

    def row_function(self, qualifier: str | None, name: str, node: exp.Expr) -> Frag:
        """The value of `alias.table_suffix()` and similar functions."""
        relation = self.relation(qualifier, node) if qualifier else self.only_relation(node)
        table = self.context.instances[relation] if isinstance(relation, int) else None
        if not isinstance(relation, int) or not isinstance(table, TableRef):
            raise error_at(RuleCode.UNKNOWN_NAME, f"`{name}()` needs a table", node)
        if name == "table_suffix" and table.pattern.exact:
            message = "`table_suffix()` is empty: the table is named without a wildcard"
            hint = 'name the table `"prefix_%"`'
            self.context.report.add(warning_at(RuleCode.NO_EFFECT, message, node, hint))
        return Frag((Ref(relation, ROW_FUNCTIONS[name]),), ExprKind.ANY, node)

    def _holder(self, name: str, node: exp.Expr) -> Relation:
        """The relation that has the unqualified column `name`. Columns of subqueries and of `json_each` are known; any
        other must be one of the table's, if there is just one table."""
        named = [relation for relation in self.scope.relations.values() if self._has(relation, name)]
        if len(named) == 1 and len(self.scope.relations) > 1:
            return named[0]
        if isinstance(node, exp.Column) and len(self.scope.relations) > 1:
            raise self._ambiguous(name, node)
        return self.only_relation(node)

    def _ambiguous(self, name: str, node: exp.Column) -> RuleError:
        """The error for an unqualified column where there are several tables: which have it, as far as is known."""
        relations = {alias: each for alias, each in self.scope.relations.items() if self._has(each, name)}
        having = [alias for alias, each in relations.items() if self._has_column(each, name)] or list(relations)
        written = text_of(node).source_of(node) or name
        choices = [f"{alias}.{written}" for alias in having or self.scope.relations]
        hint = f"write {' or '.join(f'`{choice}`' for choice in choices)}"
        edit = edit_of(node, choices[0]) if len(having) == 1 else None
        message = f"`{written}` has to say of which table it is, because there are several"
        return error_at(RuleCode.UNKNOWN_NAME, message, node, hint, edit=edit)

    def _has_column(self, relation: Relation, name: str) -> bool:
        """Whether a relation is known to have a column."""
        if isinstance(relation, dict):
            return name in relation
        table, checks = self.context.instances[relation], self.context.checks
        if isinstance(table, ExpandedArray):
            return name in ELEMENT
        found = () if checks is None else checks.matching(table.pattern)
        return any(each.column(name) is not None for each in found)

    def _has(self, relation: Relation, name: str) -> bool:
        if isinstance(relation, dict):
            return name in relation
        return self.is_table(relation) or name in ELEMENT

    def is_table(self, relation: Relation) -> bool:
        return isinstance(relation, int) and isinstance(self.context.instances[relation], TableRef)

    def only_relation(self, node: exp.Expr) -> Relation:
        relations = self.scope.relations
        if len(relations) != 1:
            hint = f"write `{next(iter(relations))}.…`" if relations else ""
            message = "columns must be qualified where several tables are in scope"
            raise error_at(RuleCode.UNKNOWN_NAME, message, node, hint)
        return next(iter(relations.values()))

    def relation(self, name: str, node: exp.Expr) -> Relation:
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.relations:
                return scope.relations[name]
            scope = scope.outer
        if isinstance(node, exp.Column):
            misused = misused_name(name, identifier(node.this), self.context.semantics, node)
            if misused is not None:
                raise misused
        known = list(self.scope.relations)
        hint = did_you_mean(name, known) or f"in scope: {', '.join(known) or 'nothing'}"
        raise error_at(RuleCode.UNKNOWN_NAME, f"no table `{name}` in scope", node, hint, edit=self._aliased(name, node))

    def _aliased(self, name: str, node: exp.Expr) -> Edit | None:
        """The edit that qualifies a column by the alias of the table whose name qualifies it."""
        aliases = [
            alias
            for alias, relation in self.scope.relations.items()
            if isinstance(relation, int) and self._is_called(relation, name)
        ]
        table = node.args.get("table")
        return edit_of(table, aliases[0]) if len(aliases) == 1 and isinstance(table, exp.Identifier) else None

    def _is_called(self, number: int, name: str) -> bool:
        table = self.context.instances[number]
        return isinstance(table, TableRef) and table.pattern.name == name
