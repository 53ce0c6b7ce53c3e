"""Prints expressions of a plan in the rule language, for people, without the parts added for SQLite."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headwater_rules.evaluate.clock import Interval, interval_words
from headwater_rules.evaluate.engine import renumber
from headwater_rules.plan import (
    Expr,
    RequestInput,
    RequestStage,
    RowFunction,
    Stage,
    SyncPlan,
    Variant,
    element_column,
    found_output,
    joined_input,
)
from headwater_rules.text.sqltext import RuleDialect

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_ELEMENT = re.compile(r"e([0-9]+)\.(value|key)")
_REQUEST = {
    RequestInput.USER_ID.value: "auth.user_id()",
    RequestInput.CLAIMS.value: "auth.parameters()",
    RequestInput.CONNECTION.value: "connection.parameters()",
    RequestInput.SUBSCRIPTION.value: "subscription.parameters()",
}
_OF_ROW = {function.value: f"{function.name.lower()}()" for function in RowFunction}
_INNER_FUNCTIONS = frozenset({"hw_truth", "hw_text", "hw_floor", "hw_moment", "quote"})
_OWN = "hw_"  # prefix of functions that differ from SQLite's of the same name
_LOOSE = (exp.Binary, exp.Not, exp.In, exp.Between)


def row_words(expr: Expr, arrays: Sequence[Expr] = (), joined: Mapping[str, str] | None = None) -> str:
    """An expression over a row; `arrays` are its expanded arrays, and `joined` is what `joined_words` gives."""
    return _words(expr, joined or {}, arrays)


def joined_words(plan: SyncPlan) -> dict[str, str]:
    """What reads rows of other tables in expressions over a row, as subqueries, by input."""
    found: dict[str, str] = {}
    for join in reversed(plan.joins):  # a join that is read by another one comes after it
        lookup = join.lookup
        here, there = (_Qualified(table.name, found) for table in (join.table, lookup.table))
        pairs = zip(lookup.keys, join.keys, strict=True)
        conditions = [f"{_words(inner, there, ())} = {_words(outer, here, ())}" for inner, outer in pairs]
        conditions += [f"({_words(each, there, ())})" for each in lookup.filters]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        for number, output in enumerate(lookup.outputs or (_NO_OUTPUT,)):
            column = there[output.inputs[0]] if output.inputs else "1"
            name = lookup.table.name.replace('"', '""')
            found[joined_input(join.name, number)] = f'(SELECT {column} FROM "{name}"{where})'
    return found


class _Qualified(dict[str, str]):
    """Columns with the name of their table; others as `known` has them."""

    def __init__(self, table: str, known: Mapping[str, str]) -> None:
        super().__init__(known)
        self._table = table.replace('"', '""')

    def __missing__(self, name: str) -> str:
        shown = _OF_ROW.get(name)
        escaped = name.replace('"', '""')
        return shown or f'"{self._table}"."{escaped}"'


_NO_OUTPUT = Expr("'1'", ())


def request_words(expr: Expr, arrays: Sequence[Expr] = ()) -> str:
    """An expression over values of the request."""
    return _words(expr, _REQUEST, arrays)


def compared_words(plan: SyncPlan, variant: Variant, expr: Expr) -> str:
    """A filter of a stage of a variant: over values of the request and of looked-up rows."""
    names = dict(_REQUEST)
    for name in expr.inputs:
        if (found := found_output(name)) is not None:
            names[name] = _of_stage(plan, variant.stages[found.stage], found.output)
    return _words(expr, names, ())


def _of_stage(plan: SyncPlan, stage: Stage, output: int) -> str:
    if isinstance(stage, RequestStage):
        return request_words(stage.outputs[output], stage.arrays)
    lookup = plan.lookups[stage.lookup]
    return _words(lookup.outputs[output], _Qualified(lookup.table.name, joined_words(plan)), lookup.each)


def columns_of(exprs: Sequence[Expr]) -> list[str]:
    """The source columns that expressions over a row read."""
    return list(dict.fromkeys(name for expr in exprs for name in expr.inputs if not name.startswith("\x00")))


def _words(expr: Expr, names: Mapping[str, str], arrays: Sequence[Expr]) -> str:
    written = renumber(expr.sql, [_named(name, names, arrays) for name in expr.inputs])
    try:
        tree = sqlglot.parse_one(written, dialect=RuleDialect)
        return str(_tidied(tree).sql(dialect=RuleDialect, normalize_functions=False))
    except (SqlglotError, RecursionError):
        return written  # the SQLite form is correct, too


def _named(name: str, names: Mapping[str, str], arrays: Sequence[Expr]) -> str:
    element = _ELEMENT.fullmatch(element_column(name) or "")
    if element:
        array = _words(arrays[int(element[1])], names, ())
        return f"each({array})" if element[2] == "value" else f"key_of({array})"
    if isinstance(names, _Qualified):
        return names[name]
    return names.get(name) or _OF_ROW.get(name) or '"' + name.replace('"', '""') + '"'


def _tidied(tree: exp.Expr) -> exp.Expr:
    for _ in range(8):  # each step may enable another one
        before = tree.sql(dialect=RuleDialect)
        tree = tree.transform(_step)
        if tree.sql(dialect=RuleDialect) == before:
            break
    return tree


def _step(node: exp.Expr) -> exp.Expr:
    for rule in _RULES:
        found = rule(node)
        if found is not None:
            return found
    return node


def _without_guard(node: exp.Expr) -> exp.Expr | None:
    """Remove `ifnull(x, 0)` from a condition, where null is false anyway."""
    name = str(node.this).lower() if isinstance(node, exp.Anonymous) else ""
    if name == "hw_text":
        return _as_text(_inner(node.expressions[0]), node)
    if name in _INNER_FUNCTIONS:
        return _inner(node.expressions[0])
    if name == "ifnull" and len(node.expressions) == 2 and node.expressions[1].sql() == "0":
        return _inner(node.expressions[0])
    return None


def _without_truth(node: exp.Expr) -> exp.Expr | None:
    """Remove `x <> 0`, which rules do not contain: their `!=` is written as NOT (… = …)."""
    if isinstance(node, exp.NEQ) and node.expression.sql() == "0":
        inner = _inner(node.this)
        return inner.this if isinstance(inner, exp.Cast) else inner
    return None


def _without_type(node: exp.Expr) -> exp.Expr | None:
    """Remove the truth test of a value of unknown type; show one that is converted to text with a cast."""
    if isinstance(node, exp.Case) and isinstance(node.this, exp.Anonymous) and str(node.this.this).lower() == "typeof":
        value, default = _inner(node.this.expressions[0]), node.args.get("default")
        to_text = isinstance(default, exp.Anonymous) and str(default.this) == "hw_text"
        return _as_text(value, node) if to_text else value
    return None


def _as_text(value: exp.Expr, node: exp.Expr) -> exp.Expr:
    """`CAST(value AS TEXT)` for a `node` that converts it, unless what it stands in takes nothing but texts."""
    around = node.parent
    while isinstance(around, exp.Paren):
        around = around.parent
    if isinstance(around, exp.DPipe | exp.Like | exp.Anonymous):
        return value
    return exp.Cast(this=value, to=exp.DataType.build("text"))


def _with_time(node: exp.Expr) -> exp.Expr | None:
    """`column + interval > now() + interval` for the call that the compiler makes of it."""
    if not isinstance(node, exp.Anonymous) or str(node.this) != "hw_clock":
        return None
    column, _, form, *parts = node.expressions
    numbers = [int(part.sql()) for part in parts]
    sign, of_clock = form.name.split()
    clock = "current_date" if of_clock == "day" else "now()"
    sides = (column.sql(dialect=RuleDialect), clock)
    left, right = (
        f"{side}{interval_words(Interval(*numbers[at : at + 3]))}" for side, at in zip(sides, (0, 3), strict=True)
    )
    return sqlglot.parse_one(f"{left} {sign} {right}", dialect=RuleDialect)


def _exists(node: exp.Expr) -> exp.Expr | None:
    """`EXISTS (SELECT …)` for `(SELECT 1 …) IS NOT NULL`."""
    negated = isinstance(node, exp.Not)
    found = node.this.unnest() if negated else node
    if not isinstance(found, exp.Is) or not isinstance(found.expression, exp.Null):
        return None
    if bool(found.args.get("negate")) is negated:
        return None
    query = found.this.unnest()
    return exp.Exists(this=query) if isinstance(query, exp.Select) and query.expressions[0].sql() == "1" else None


def _in_array(node: exp.Expr) -> exp.Expr | None:
    """`x IN array` for `x IN (SELECT value FROM json_each(array))`."""
    query = node.args.get("query") if isinstance(node, exp.In) else None
    found = query.find(exp.Table) if query is not None else None
    if found is None or not isinstance(found.this, exp.Anonymous):
        return None
    return exp.In(this=node.this, field=_inner(found.this.expressions[0]))


def _own_name(node: exp.Expr) -> exp.Expr | None:
    """`substring` for `hw_substring`."""
    name = str(node.this) if isinstance(node, exp.Anonymous) else ""
    if not name.startswith(_OWN) or name in _INNER_FUNCTIONS:
        return None
    return exp.Anonymous(this=name.removeprefix(_OWN), expressions=[_bare(item) for item in node.expressions])


def _bare(node: exp.Expr) -> exp.Expr:
    """A literal without a cast to its own type."""
    return node.this if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) else node


def _parameter(node: exp.Expr) -> exp.Expr | None:
    """`auth.parameter('x')` for `auth.parameters() ->> '$."x"'`; removes quotes from other paths."""
    if not isinstance(node, exp.JSONExtract | exp.JSONExtractScalar) or not isinstance(node.expression, exp.Literal):
        return None
    path = str(node.expression.this)
    if not path.startswith('$."'):
        return None
    try:
        keys = [json.loads(key) for key in re.findall(r'"(?:[^"\\]|\\.)*"', path)]
    except ValueError:
        return None
    shown = keys[0] if len(keys) == 1 else "$." + ".".join(keys)
    value = _inner(node.this)
    call = value.sql(dialect=RuleDialect)
    if isinstance(node, exp.JSONExtractScalar) and call in _REQUEST.values():
        return exp.Dot(
            this=exp.to_identifier(call.split(".")[0]),
            expression=exp.Anonymous(this="parameter", expressions=[exp.Literal.string(shown)]),
        )
    return type(node)(this=value, expression=exp.Literal.string(shown))


def _without_brackets(node: exp.Expr) -> exp.Expr | None:
    if not isinstance(node, exp.Paren):
        return None
    inner, parent = node.this, node.parent
    needed = isinstance(inner, _LOOSE) and isinstance(parent, _LOOSE) and not isinstance(inner, exp.Dot)
    return None if needed else inner


def _unquoted(node: exp.Expr) -> exp.Expr | None:
    if isinstance(node, exp.Identifier) and node.args.get("quoted") and _PLAIN.fullmatch(str(node.this)):
        return exp.to_identifier(str(node.this), quoted=False)
    return None


_RULES: tuple[Callable[[exp.Expr], exp.Expr | None], ...] = (
    _without_guard,
    _without_truth,
    _without_type,
    lambda node: node.this if isinstance(node, exp.Collate) else None,
    _with_time,
    _exists,
    _own_name,
    _in_array,
    _parameter,
    _without_brackets,
    _unquoted,
)


def _inner(node: exp.Expr) -> exp.Expr:
    return node.unnest()
