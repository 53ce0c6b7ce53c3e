"""Flattens FROM, joins, subqueries and CTEs into one list of tables and one condition.

`x IN (SELECT c FROM s WHERE w)` becomes the table `s` plus `x = s.c AND w`: the equality does the joining, so nothing
needs to be nested.
"""

from __future__ import annotations

from sqlglot import exp

from headwater_rules.compiler.absence import absent
from headwater_rules.compiler.fragment import REQUEST, ExprKind, Frag, Ref, build, equal, negated, truth
from headwater_rules.compiler.functions import may_aggregate, wrong_call
from headwater_rules.compiler.misread import misread
from headwater_rules.compiler.names import ELEMENT, Context, Scope, ScopeNames
from headwater_rules.compiler.optional_joins import joining, selected
from headwater_rules.compiler.relations import (
    Absence,
    All,
    Atom,
    Condition,
    Either,
    ExpandedArray,
    Relation,
    SelectedColumn,
    SelectedStar,
    Selection,
    bound_terms,
)
from headwater_rules.compiler.request_values import RequestNames
from headwater_rules.compiler.scalars import Scalars, in_list
from headwater_rules.compiler.trust import element
from headwater_rules.errors import RuleCode, RuleError
from headwater_rules.text.sqltext import (
    error_at,
    identifier,
    parse_select,
    selecting_nothing,
    text_of,
    unsupported,
    warning_at,
)
from headwater_rules.text.written import SqlText

_SELECT_PARTS = frozenset({"expressions", "from_", "joins", "where", "distinct"})
_CONDITIONS = (exp.EQ, exp.And, exp.Or, exp.Not, exp.In, exp.Exists, exp.ArrayOverlaps)
_JOIN_PARTS = frozenset({"this", "on", "kind", "side", "method", "using"})  # some have better messages of their own
_INNER = frozenset({"", "INNER", "CROSS"})
_LEFT = frozenset({"", "OUTER"})


def flatten(context: Context, text: SqlText, outer: Scope | None = None) -> Selection:
    """The flattened form of the one SELECT in `text`, which may also use the names of `outer`. Raises RuleError where
    the query can't be analysed further; other errors go to the report."""
    return flatten_select(context, text, parse_select(text), outer)


def flatten_select(context: Context, text: SqlText, node: exp.Select, outer: Scope | None = None) -> Selection:
    """`flatten` for a parsed SELECT of `text`."""
    context.report.spend(text.words(), text.span)
    return _Select(context, outer).run(node)


class _Select:
    """Flattens one SELECT."""

    def __init__(self, context: Context, outer: Scope | None) -> None:
        self._context = context
        self._scope = Scope(outer)
        self._names = ScopeNames(context, self._scope)
        self._checks = self._names.checks
        self._scalars = Scalars(self._names)
        self._value = self._scalars.frag
        self._tables: set[int] = set()
        self._conditions: list[Condition] = []
        self._optional: dict[int, Condition] = {}  # the ON of each left join

    def run(self, node: exp.Select) -> Selection:
        self._scalars.only(node, _SELECT_PARTS)
        if node.args.get("distinct"):
            # a device has each row once anyway, but ON would select rows
            self._scalars.only(node.args["distinct"], frozenset())
        self._checks.cases(node)
        for warning in misread(node, self._context.semantics, known_columns=self._context.checks is not None):
            self._context.report.add(warning)
        if node.args.get("from_"):
            self._from(node.args["from_"].this)
        elif self._context.semantics.requests is not RequestNames.PARAMETERS:
            at = text_of(node).span_of(node)
            raise RuleError(RuleCode.UNSUPPORTED, "a query needs a FROM", at, "select from the table to sync")
        for join in node.args.get("joins") or []:
            self._join(join)
        columns = self._columns(node)
        if node.args.get("where"):
            self._conditions.append(self._guarded(node.args["where"].this, negate=False))
        return self._selection(columns)

    def _selection(self, columns: list[SelectedColumn | SelectedStar]) -> Selection:
        """The whole SELECT, with left joins where it needs them."""
        condition: Condition = All(tuple(self._conditions))
        if self._optional:
            columns = [selected(self._context, column, self._optional) for column in columns]
            for number in sorted(self._tables):
                if self._context.owner(number) in self._optional:
                    at = self._context.instances[number].node
                    self._context.report.add(unsupported("an array of a left join can't stand in FROM", at))
            condition = joining(self._context, condition, self._optional)
        return Selection(tuple(columns), condition, frozenset(self._tables))

    # FROM

    def _join(self, join: exp.Join) -> None:
        side, kind = join.args.get("side") or "", join.args.get("kind") or ""
        if side == "LEFT" and not join.args.get("method") and kind in _LEFT:
            self._left_join(join)
            return
        if side or join.args.get("method") or kind not in _INNER:
            hint = "list the tables in FROM and compare in WHERE"
            self._context.report.add(unsupported("only inner and left joins are supported", join, hint))
        if join.args.get("using"):
            self._context.report.add(unsupported("`USING` is not supported", join, "write `ON a.x = b.x`"))
        self._scalars.only(join, _JOIN_PARTS)
        self._from(join.this)
        if join.args.get("on"):
            self._conditions.append(self._guarded(join.args["on"], negate=False))

    def _left_join(self, join: exp.Join) -> None:
        self._scalars.only(join, _JOIN_PARTS - {"using"})
        joined, on = join.this, join.args.get("on")
        is_table = isinstance(joined, exp.Table) and isinstance(joined.this, exp.Identifier)
        if not is_table or joined.args.get("joins") or self._cte(joined) is not None:
            raise unsupported("only a table can be the right side of a left join", join, "name the table, and use ON")
        if on is None:
            raise unsupported("a left join needs ON", join, "write `ON a.x = b.x`")
        before = set(self._tables)
        self._from(joined)
        for number in self._tables - before:
            # the ON of a later join may read the table of an earlier one
            condition = joining(self._context, self._guarded(on, negate=False), self._optional)
            self._tables.remove(number)
            self._optional[number] = condition

    def _from(self, node: exp.Expr) -> None:
        alias = node.args.get("alias")
        columns = alias.args.get("columns") if alias is not None else None
        if columns and not isinstance(node.this, exp.Anonymous):
            raise unsupported("column names after an alias are not supported", node)
        name = identifier(alias.this) if alias is not None else None
        if isinstance(node, exp.Subquery):
            self._scalars.only(node, frozenset({"this", "alias"}))
            if name is None or not isinstance(node.this, exp.Select):
                raise unsupported("a subquery in FROM must be a SELECT with an alias", node)
            self._derive(node, name, self._inner(node.this))
            return
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier | exp.Anonymous):
            raise unsupported("only tables and subqueries can stand in FROM", node)
        self._scalars.only(node, frozenset({"this", "db", "catalog", "alias", "joins"}))
        if isinstance(node.this, exp.Anonymous):
            self._from_each(node, node.this, name, columns or [])
        elif self._cte(node) is not None:
            cte = identifier(node.this)
            self._derive(node, name or cte, self._expand(cte))
        else:
            self._context.warn_of_hidden(node)
            table = self._context.table(node)
            self._checks.table(table, node.this)
            self._name(table.alias or table.pattern.name, self._context.add(table), node)
        for join in node.args.get("joins") or []:
            self._join(join)

    def _from_each(self, node: exp.Table, call: exp.Anonymous, name: str | None, columns: list[exp.Expr]) -> None:
        function = str(call.this).lower()
        if function != "json_each" or len(call.expressions) != 1:
            error = wrong_call(f"`{function}` cannot stand in FROM", node, "there is `json_each(array) AS name`")
            array = self._checks.failed(error, call)
        else:
            array = self._value(call.expressions[0])
        number, _ = self._element(array)
        self._name(name or function, self._renamed(number, array, columns, node) if columns else number, node)

    def _renamed(self, number: int, array: Frag, columns: list[exp.Expr], node: exp.Expr) -> dict[str, Frag]:
        """The elements of an array under other column names: `json_each(array) AS a (key, value)`."""
        names = [identifier(column) for column in columns if isinstance(column, exp.Identifier)]
        if len(names) != len(columns) or len(set(names)) != len(ELEMENT):
            hint = "write two different names, for key and value, or none: `AS a (position, element)`"
            raise unsupported("`json_each` has two columns, `key` and `value`", node, hint)
        self._tables.add(number)
        trust = element(array.trust)
        return {
            name: Frag((Ref(number, column),), ExprKind.ANY, node, trust)
            for name, column in zip(names, ELEMENT, strict=True)
        }

    def _derive(self, node: exp.Expr, name: str, selection: Selection) -> None:
        columns = selection.named()
        self._tables |= selection.tables
        self._conditions.append(selection.condition)
        self._name(name, columns, node)

    def _name(self, name: str, relation: Relation, node: exp.Expr) -> None:
        if name in self._scope.relations:
            message = f"two tables are called `{name}`"
            self._context.report.add(error_at(RuleCode.UNKNOWN_NAME, message, node, "give one of them an alias"))
            return
        self._scope.relations[name] = relation
        if isinstance(relation, int):
            self._tables.add(relation)

    def _inner(self, node: exp.Select) -> Selection:
        return _Select(self._context, self._scope).run(node)

    def _cte(self, node: exp.Table | exp.Column) -> SqlText | None:
        qualified = node.args.get("db") or node.args.get("table")
        return None if qualified else self._context.ctes.get(identifier(node.this))

    def _expand(self, name: str) -> Selection:
        """A fresh copy of a CTE, because each use is independent."""
        self._context.used.add(name)
        return flatten(self._context.inside(name), self._context.ctes[name])

    # the select list

    def _columns(self, node: exp.Select) -> list[SelectedColumn | SelectedStar]:
        columns: list[SelectedColumn | SelectedStar] = []
        for item in node.expressions:
            try:
                columns += self._item(item)
            except RuleError as error:
                self._context.report.add(error)
        return columns

    def _item(self, item: exp.Expr) -> list[SelectedColumn | SelectedStar]:
        if isinstance(item, exp.Alias):
            return [SelectedColumn(identifier(item.args["alias"]), self._value(item.this))]
        if isinstance(item, exp.Star):
            self._scalars.only(item, frozenset())
            tables = [each for each in self._scope.relations.values() if self._names.is_table(each)]
            return self._star(tables[0] if len(tables) == 1 else self._names.only_relation(item), item)
        if isinstance(item, exp.Column) and isinstance(item.this, exp.Star):
            self._scalars.only(item.this, frozenset())
            return self._star(self._names.relation(identifier(item.args["table"]), item), item)
        value = self._value(item)
        if isinstance(item, exp.Column):
            return [SelectedColumn(identifier(item.this), value)]
        name = text_of(item).source_of(item)
        message = f"this column has no name and will be called `{name}`"
        self._context.report.add(warning_at(RuleCode.UNNAMED_COLUMN, message, value.node, "add `AS name`"))
        return [SelectedColumn(name, value)]

    def _star(self, relation: Relation, item: exp.Expr) -> list[SelectedColumn | SelectedStar]:
        if isinstance(relation, dict):
            return [SelectedColumn(name, value) for name, value in relation.items()]
        if isinstance(self._context.instances[relation], ExpandedArray):
            raise unsupported("`*` of `json_each` is not supported", item, "select its `value`")
        return [SelectedStar(relation, item)]

    # WHERE and ON

    def _condition(self, node: exp.Expr, *, negate: bool) -> Condition:
        match node:
            case exp.Paren():
                return self._condition(node.this, negate=negate)
            case exp.Not():
                return self._condition(node.this, negate=not negate)
            case exp.And() | exp.Or():
                items = tuple(self._guarded(item, negate=negate) for item in node.flatten())
                return All(items) if isinstance(node, exp.And) is not negate else Either(items)
            case exp.Is() if self._is_held(node):
                return self._condition(node.this, negate=negate is not bool(node.args.get("negate")))
            case exp.In() if node.args.get("query") is not None:
                return self._in_select(node, negate=negate)
            case exp.In() if in_list(node) is None and node.args.get("field") is not None:
                return self._in_expression(node, node.args["field"], negate=negate)
            case exp.In() if not negate:
                return self._in_values(node)
            case exp.Exists() if isinstance(node.this, exp.Select):
                return self._exists(node, node.this, negate=negate)
            case exp.ArrayOverlaps():
                return self._overlap(node, negate=negate)
            case exp.EQ() if not negate:
                left, right = (self._value(side) for side in (node.this, node.expression))
                return self._link(left, right, node)
        value = self._value(node)
        return Atom(negated(value) if negate else truth(value))

    def _is_held(self, node: exp.Is) -> bool:
        """Whether `(condition) IS TRUE` involves more than one table, so that it equals the condition itself."""
        condition, wanted = node.this.unnest(), node.expression
        if not (isinstance(wanted, exp.Boolean) and wanted.this and isinstance(condition, _CONDITIONS)):
            return False
        searched = (found.args.get("field") for found in condition.find_all(exp.In))
        if condition.find(exp.Select, exp.ArrayOverlaps) or any(
            isinstance(array, exp.Column) and self._cte(array) is not None for array in searched
        ):
            return True
        owners = {self._context.owner(source) for source in self._value(condition).sources}
        return len(owners) > 1 or owners == {REQUEST}

    def _guarded(self, node: exp.Expr, *, negate: bool) -> Condition:
        try:
            return self._condition(node, negate=negate)
        except RuleError as error:
            self._context.report.add(error)
            return All(())

    def _in_select(self, node: exp.In, *, negate: bool) -> Condition:
        query = node.args["query"]
        inner = query.this if isinstance(query, exp.Subquery) else query
        if not isinstance(inner, exp.Select):
            raise unsupported("expected a SELECT statement", node, "use several queries")
        selection = self._inner(inner)
        if negate and isinstance(node.this, exp.Tuple):
            raise unsupported("`NOT IN` takes one value here", node, "write `NOT EXISTS (SELECT …)`")
        if not isinstance(node.this, exp.Tuple):
            return self._member(self._value(node.this), selection, node, negate=negate)
        values, columns = node.this.expressions, list(selection.named().values())
        if len(values) != len(columns):
            message = f"{len(values)} values are compared with {len(columns)} columns"
            raise unsupported(message, node)
        links = (
            self._link(self._value(value), column, node, selection.tables)
            for value, column in zip(values, columns, strict=True)
        )
        return All((*links, selection.condition))

    def _exists(self, node: exp.Exists, inner: exp.Select, *, negate: bool) -> Condition:
        if negate and any(may_aggregate(call) for item in inner.expressions for call in item.find_all(exp.Anonymous)):
            raise unsupported("an aggregate gives a row where there is none", node, "write `NOT EXISTS (SELECT 1 …)`")
        selection = self._inner(selecting_nothing(inner))  # only its tables and conditions matter
        if negate:
            return absent(self._context.joins, Absence(selection.tables, selection.condition, node))
        found = Atom(build(ExprKind.CERTAIN, node, "1"), tables=selection.tables)
        return All((found, selection.condition))

    def _in_expression(self, node: exp.In, array: exp.Expr, *, negate: bool) -> Condition:
        left = self._value(node.this)
        if isinstance(array, exp.Column) and self._cte(array) is not None:
            return self._member(left, self._expand(identifier(array.this)), node, negate=negate)
        if isinstance(array, exp.Column):
            self._context.refuse_hidden(array)
        elements = self._value(array)
        together = {self._context.owner(source) for source in left.sources | elements.sources}
        if negate or len(together) <= 1:
            self._checks.searched(left, elements, node)
            found = self._scalars.in_array(left, elements)
            return Atom(negated(found) if negate else truth(found))
        number, element = self._element(elements)
        return self._link(left, element, node, frozenset({number}))

    def _in_values(self, node: exp.In) -> Condition:
        """`IN` with a list; one equality per item if items depend on other sources than the left side."""
        whole = truth(self._value(node))
        if len({self._context.owner(source) for source in whole.sources}) <= 1:
            return Atom(whole)
        items, left = in_list(node) or [], self._value(node.this)
        bound_terms(len(items), node)
        return Either(tuple(self._link(left, self._value(item), node) for item in items))

    def _member(self, left: Frag, selection: Selection, node: exp.Expr, *, negate: bool) -> Condition:
        if negate:
            pair = (left, self._single(selection, node))
            self._checks.compared(*pair, node)
            return absent(self._context.joins, Absence(selection.tables, selection.condition, node, pair))
        link = self._link(left, self._single(selection, node), node, selection.tables)
        return All((link, selection.condition))

    def _single(self, selection: Selection, node: exp.Expr) -> Frag:
        columns = selection.columns
        if len(columns) != 1 or isinstance(columns[0], SelectedStar):
            raise unsupported("this subquery must select exactly one named column", node)
        return columns[0].value

    def _element(self, array: Frag) -> tuple[int, Frag]:
        self._checks.json(array, array.node, "an expanded array")
        number = self._context.add_each(array)
        return number, Frag((Ref(number, "value"),), ExprKind.ANY, array.node, element(array.trust))

    def _overlap(self, node: exp.ArrayOverlaps, *, negate: bool) -> Condition:
        if negate:
            hint = "access can follow from a row that is there, not from one that is missing"
            raise unsupported("`NOT (a && b)` is not supported", node, hint)
        sides: list[Frag] = []
        conditions: list[Condition] = []
        tables: set[int] = set()
        for side in (node.this, node.expression):
            inner = side.this if isinstance(side, exp.Subquery | exp.Paren) else side
            if isinstance(inner, exp.Select):
                selection = self._inner(inner)
                conditions.append(selection.condition)
                tables |= selection.tables
                sides.append(self._single(selection, side))
            else:
                number, element = self._element(self._value(side))
                tables.add(number)
                sides.append(element)
        return All((self._link(sides[0], sides[1], node, frozenset(tables)), *conditions))

    def _link(self, left: Frag, right: Frag, node: exp.Expr, tables: frozenset[int] = frozenset()) -> Atom:
        self._checks.compared(left, right, node)
        linked = truth(equal(left, right, node))
        self._checks.built(linked)
        return Atom(linked, (left, right), tables)
