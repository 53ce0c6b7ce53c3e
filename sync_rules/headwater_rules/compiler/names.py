"""Resolves the names in a SELECT: columns, tables and row functions."""

from __future__ import annotations

from sqlglot import exp

from headwater_rules.compiler.expressions.fragment import Frag, Kind, Ref
from headwater_rules.compiler.expressions.scalars import identifier
from headwater_rules.compiler.expressions.trust import NEITHER, element
from headwater_rules.compiler.relations import Context, Each, Relation, Scope, Table
from headwater_rules.compiler.watch import Watch
from headwater_rules.errors import Code, RuleError, Severity, did_you_mean
from headwater_rules.plan import RowFunction
from headwater_rules.text.sqltext import SqlText

ELEMENT = ("key", "value")
"""The columns of `json_each`."""

_ROW_FUNCTIONS = {
    "row_id": RowFunction.ROW_ID,
    "table_name": RowFunction.TABLE_NAME,
    "table_suffix": RowFunction.TABLE_SUFFIX,
    "schema": RowFunction.SCHEMA,
}
_SUFFIX = "_table_suffix"


class ScopeNames:
    """The names of one SELECT, for its expressions. See `Names`."""

    def __init__(self, context: Context, text: SqlText, watch: Watch, scope: Scope) -> None:
        self._context = context
        self._text = text
        self._watch = watch
        self._scope = scope

    def column(self, node: exp.Column) -> Frag:
        """See `Names`."""
        name, place = identifier(node.this), self._text.place_of(node)
        relation = self.relation(identifier(node.args["table"]), node) if node.table else self._holder(name, node)
        if isinstance(relation, dict):
            if name not in relation:
                hint = did_you_mean(name, relation)
                raise self._fail(Code.UNKNOWN_NAME, f"the subquery has no column `{name}`", node, hint)
            return relation[name]
        instance = self._context.instances[relation]
        if isinstance(instance, Each) and name not in ELEMENT:
            hint = "there are `value` and `key`"
            raise self._fail(Code.UNKNOWN_NAME, f"`json_each` has no column `{name}` here", node, hint)
        if name == _SUFFIX and self._has_suffix(relation):
            name = RowFunction.TABLE_SUFFIX.value
        elif isinstance(instance, Table):
            self._watch.column(instance, name, node.this, self._text)
        trust = element(instance.array.trust) if isinstance(instance, Each) else NEITHER
        return Frag((Ref(relation, name),), Kind.ANY, place, trust)

    def _has_suffix(self, relation: int) -> bool:
        """Whether the older name of `table_suffix()`, which is a column, applies."""
        table = self._context.instances[relation]
        return isinstance(table, Table) and table.pattern.name.endswith("%")

    def row_function(self, qualifier: str | None, name: str, node: exp.Expr) -> Frag:
        """See `Names`."""
        relation = self.relation(qualifier, node) if qualifier else self.only_relation(node)
        table = self._context.instances[relation] if isinstance(relation, int) else None
        if not isinstance(relation, int) or not isinstance(table, Table):
            raise self._fail(Code.UNKNOWN_NAME, f"`{name}()` needs a table", node)
        place = self._text.place_of(node)
        if name == "table_suffix" and table.pattern.exact:
            message = "`table_suffix()` is empty: the table is named without a wildcard"
            hint = 'name the table `"prefix_%"`'
            self._context.report.add(RuleError(Code.NO_EFFECT, message, place, hint, Severity.WARNING))
        return Frag((Ref(relation, _ROW_FUNCTIONS[name].value),), Kind.ANY, place)

    def _holder(self, name: str, node: exp.Expr) -> Relation:
        """The relation that has the unqualified column `name`. Columns of subqueries and of `json_each` are known; any
        other must be one of the table's, if there is just one table."""
        named = [relation for relation in self._scope.relations.values() if self._has(relation, name)]
        if len(named) == 1 and len(self._scope.relations) > 1:
            return named[0]
        return self.only_relation(node)

    def _has(self, relation: Relation, name: str) -> bool:
        if isinstance(relation, dict):
            return name in relation
        return self.is_table(relation) or name in ELEMENT

    def is_table(self, relation: Relation) -> bool:
        return isinstance(relation, int) and isinstance(self._context.instances[relation], Table)

    def only_relation(self, node: exp.Expr) -> Relation:
        relations = self._scope.relations
        if len(relations) != 1:
            hint = f"write `{next(iter(relations))}.…`" if relations else ""
            raise self._fail(
                Code.UNKNOWN_NAME, "columns must be qualified where several tables are in scope", node, hint
            )
        return next(iter(relations.values()))

    def relation(self, name: str, node: exp.Expr) -> Relation:
        scope: Scope | None = self._scope
        while scope is not None:
            if name in scope.relations:
                return scope.relations[name]
            scope = scope.outer
        known = list(self._scope.relations)
        hint = did_you_mean(name, known) or f"in scope: {', '.join(known) or 'nothing'}"
        raise self._fail(Code.UNKNOWN_NAME, f"no table `{name}` in scope", node, hint)

    def _fail(self, code: Code, message: str, node: exp.Expr, suggestion: str = "") -> RuleError:
        return RuleError(code, message, self._text.place_of(node), suggestion)
