"""Translates scalar expressions of a rule to SQLite, with the meaning that the rule language gives them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from headwater_rules.compiler import clock, functions
from headwater_rules.compiler.fragment import (
    NUMERIC,
    ExprKind,
    Frag,
    build,
    chain,
    choice,
    equal,
    equality,
    joined,
    negated,
    text,
    truth,
)
from headwater_rules.compiler.names import ROW_FUNCTIONS, ScopeNames
from headwater_rules.compiler.request_values import REQUEST_SCHEMAS, is_request_table, request_call, request_column
from headwater_rules.compiler.trust import NEITHER, any_of, element, every, opposite, repeating
from headwater_rules.errors import RuleCode, RuleError, did_you_mean
from headwater_rules.evaluate.engine import MAX_PATTERN
from headwater_rules.text.sqltext import edit_of, error_at, identifier, text_of, unsupported

_COMPARISONS: dict[type[exp.Expr], str] = {exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_BOUNDS = ((">=", "low"), ("<=", "high"))
_ARITHMETIC: dict[type[exp.Expr], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.BitwiseAnd: "&", exp.BitwiseOr: "|",
    exp.BitwiseLeftShift: "<<", exp.BitwiseRightShift: ">>",
}  # fmt: skip
_CASTS: dict[exp.DType, tuple[str, ExprKind]] = {
    **dict.fromkeys((exp.DType.TEXT, exp.DType.VARCHAR), ("TEXT", ExprKind.TEXT)),
    **dict.fromkeys((exp.DType.INT, exp.DType.BIGINT), ("INTEGER", ExprKind.INTEGER)),
    exp.DType.DECIMAL: ("NUMERIC", ExprKind.NUMBER),
    **dict.fromkeys((exp.DType.FLOAT, exp.DType.DOUBLE), ("REAL", ExprKind.NUMBER)),
    **dict.fromkeys((exp.DType.VARBINARY, exp.DType.BLOB), ("BLOB", ExprKind.ANY)),
}
_OF_JSON = "a JSON value is a text here, `json(x)` checks and shortens it"
_CAST_HINTS = {
    exp.DType.BOOLEAN: "booleans are 1 and 0: write `iif(x, 1, 0)`",
    exp.DType.UUID: "a uuid is a text here, `uuid_blob(x)` gives its bytes",
    **dict.fromkeys((exp.DType.JSON, exp.DType.JSONB), _OF_JSON),
    exp.DType.DATE: "write `date(x)`",
    exp.DType.TIME: "write `time(x)`",
    **dict.fromkeys((exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ), "write `datetime(x)`"),
}
_INSTEAD = "use `LIKE`, `instr` or `substring`"
_SEARCHED = ("a subquery is not supported here", "write `x IN (SELECT …)` as a condition of the WHERE")
_REFUSED: dict[type[exp.Expr], tuple[str, str]] = {
    exp.ILike: ("`ILIKE` is not supported", "`LIKE` ignores the case of A to Z, `lower(x) LIKE …` that of all letters"),
    **dict.fromkeys((exp.RegexpLike, exp.RegexpILike), ("regular expressions are not supported", _INSTEAD)),
    exp.SimilarTo: ("`SIMILAR TO` is not supported", _INSTEAD),
    exp.Pow: ("`^` is not supported: its last digits depend on the machine", "multiply"),
    exp.BitwiseXor: ("`#` is not supported", "write `(a | b) - (a & b)`"),
    exp.Array: ("an array is not supported here", "write `x IN ARRAY[…]` or `json_array(…)`"),
    exp.Bracket: ("`[…]` is not supported", "write `x ->> '$.0'` for the first element of a JSON array"),
    exp.ArrayContainsAll: ("`@>` and `<@` are not supported", "write `x IN array` or `a && b`"),
    exp.ArrayOverlaps: ("`&&` can't stand here: it compares two arrays", "join conditions by `AND`"),
    exp.Collate: ("`COLLATE` is not supported", "texts are ordered by UTF-16 unit"),
    exp.AtTimeZone: ("`AT TIME ZONE` is not supported", "write `datetime(x, '+02:00')`"),
    exp.Interval: ("`INTERVAL` is not supported", "write `datetime(x, '+1 day')`"),
    exp.HexString: ("hexadecimal literals are not supported", "write the number in decimal digits"),
    **dict.fromkeys((exp.Subquery, exp.Select), _SEARCHED),
    exp.Exists: ("`EXISTS` is not supported here", "write it as a condition of the WHERE"),
    exp.Any: ("`ANY` is not supported here", "write `x IN array`, or `x IN (SELECT …)`"),
    exp.All: ("`ALL` is not supported", "write `x NOT IN array`, or several conditions"),
    exp.Window: ("window functions are not supported", "compute the value in Postgres"),
}
_WORDS = {"order": "ORDER BY", "group": "GROUP BY", "locks": "FOR UPDATE", "on": "DISTINCT ON", "sample": "TABLESAMPLE"}
_HINTS = {
    "with": "write the query under `with:` of the stream",
    "order": "a device sorts in its own queries",
    "limit": "say in the WHERE which rows are synced",
    "group": "aggregate in Postgres, or on the device",
}
_OF_PARAMETERS = re.compile(r"(auth|connection|subscription)\.parameters\(\)\.([A-Za-z_]\w*)")
_IS = re.compile(r"(?i) ?IS( NOT)? ?")
_UUID_BEHIND = r"(?i)\s*::\s*uuid\b"
_MOMENTS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
_LARGEST = 2**63 - 1
_MOST_DIGITS = 19  # of a 64-bit integer


class Scalars:
    """Translates the expressions of one SELECT."""

    def __init__(self, names: ScopeNames) -> None:
        self._names = names
        self._checks = names.checks
        self._semantics = names.context.semantics

    def frag(self, node: exp.Expr) -> Frag:
        """The value of `node`; a placeholder if it has an error, which is reported."""
        try:
            return self._translate(node)
        except RuleError as error:
            return self._checks.failed(error, node)

    def _translate(self, node: exp.Expr) -> Frag:
        rule = _RULES.get(type(node))
        if rule is None:
            raise self.refused(node)
        allowed = _PARTS.get(type(node))
        if allowed is not None:
            self.only(node, allowed)
        translated: Frag = rule(self, node)
        self._checks.built(translated)
        return translated

    def only(self, node: exp.Expr, allowed: frozenset[str]) -> None:
        """Report parts of a node that would otherwise be ignored."""
        for name, value in node.args.items():
            if value and name not in allowed:
                part = value[0] if isinstance(value, list) else value
                where = part if isinstance(part, exp.Expr) else node
                word = name.rstrip("_")
                hint = _HINTS.get(word, "")
                message = f"`{_WORDS.get(word, word.upper())}` is not supported"
                self._checks.report.add(unsupported(message, where, hint))

    def refused(self, node: exp.Expr) -> RuleError:
        for kind, (message, suggestion) in _REFUSED.items():
            if isinstance(node, kind):
                return unsupported(message, node, suggestion)
        what = text_of(node).source_of(node)
        named = f" `{what}`" if 0 < len(what) <= 60 else ""
        return unsupported(f"this expression{named} is not supported", node)

    def _literal(self, node: exp.Literal) -> Frag:
        value = str(node.this)
        if node.is_string:
            if "\0" in value:
                raise unsupported("a text may not contain the NUL character", node)
            return build(ExprKind.TEXT, node, functions.quoted(value))
        if value.isdecimal() and len(value) <= _MOST_DIGITS and int(value) <= _LARGEST:
            return build(ExprKind.INTEGER, node, str(int(value)))
        try:
            return build(ExprKind.NUMBER, node, repr(float(value)).replace("inf", "9e999"))
        except ValueError:
            raise self.refused(node) from None

    def _minus(self, node: exp.Neg) -> Frag:
        if isinstance(node.this, exp.Literal) and not node.this.is_string and node.this.name == str(_LARGEST + 1):
            return build(ExprKind.INTEGER, node, f"(-{_LARGEST + 1})")  # the digits without the sign would be a real
        return build(ExprKind.NUMBER, node, "(- ", self.frag(node.this), ")")

    def _column(self, node: exp.Column) -> Frag:
        if isinstance(node.this, exp.Star):
            raise unsupported("`*` is not supported here", node, "name the column")
        if not node.table and str(node.name).lower() in _MOMENTS and not node.this.args.get("quoted"):
            self._refuse_time(node)
            return functions.call(str(node.name).lower(), [], node)  # raises
        if node.args.get("db") or node.args.get("catalog"):
            raise unsupported("a column may not be qualified by a schema", node, "give the table an alias")
        if node.table and is_request_table(table := identifier(node.args["table"]), self._semantics):
            return request_column(table, identifier(node.this), node)
        return self._names.column(node)

    def _call(self, node: exp.Anonymous) -> Frag:
        name = node.name.lower()
        self.only(node, frozenset({"this", "expressions"}))
        self._refuse_time(node)
        if name == "row_id" and not node.expressions:
            return self._names.row_function(None, name, node)
        arguments = [self.frag(argument) for argument in node.expressions if name in functions.KNOWN]
        if name in functions.JSON_READERS and arguments:
            self._checks.json(arguments[0], node, f"`{name}`")
        return functions.call(name, arguments, node, fixed=self._semantics.fixed_paths)

    def _qualified_call(self, node: exp.Dot) -> Frag:
        schema, function = node.this, node.expression
        if written := _OF_PARAMETERS.fullmatch(text_of(node).source_of(node)):
            instead = f"{written[1]}.parameter('{written[2]}')"
            raise unsupported("a JSON value has no columns", node, f"write `{instead}`", edit_of(node, instead))
        if not isinstance(schema, exp.Identifier) or not isinstance(function, exp.Anonymous):
            raise self.refused(node)
        qualifier, name = identifier(schema), function.name.lower()
        if qualifier in REQUEST_SCHEMAS and not schema.args.get("quoted"):
            self.only(function, frozenset({"this", "expressions"}))
            return request_call(qualifier, function, self._semantics, node)
        if name in ROW_FUNCTIONS:
            if function.expressions:
                raise functions.wrong_call(f"`{name}` takes no arguments", node)
            return self._names.row_function(qualifier, name, node)
        hint = did_you_mean(qualifier, REQUEST_SCHEMAS)
        raise functions.wrong_call(f"unknown function `{qualifier}.{name}`", node, hint)

    def _sides(self, node: exp.Binary) -> tuple[Frag, Frag]:
        return self.frag(node.this), self.frag(node.expression)

    def _equal(self, node: exp.Binary) -> Frag:
        left, right = self._sides(node)
        self._checks.compared(left, right, node)
        return equal(left, right, node)

    def _not_equal(self, node: exp.NEQ) -> Frag:
        if self._semantics.null_differs:
            return negated(self._equal(node))
        left, right = self._sides(node)
        self._checks.compared(left, right, node)
        return build(ExprKind.LOGICAL, node, "(", left, " <> ", right, ")")

    def _compare(self, node: exp.Binary) -> Frag:
        return self._ordered(node.this, _COMPARISONS[type(node)], node.expression, node)

    def _ordered(self, left_node: exp.Expr, sign: str, right_node: exp.Expr, node: exp.Expr) -> Frag:
        if clock.reads_time(left_node) or clock.reads_time(right_node):
            column = self.frag(clock.column_of(left_node, right_node))
            self._checks.moment(column, node)
            return clock.comparison(left_node, sign, right_node, column, self._names.context.instances, node)
        left, right = self.frag(left_node), self.frag(right_node)
        self._checks.compared(left, right, node, equality=False)
        return build(ExprKind.LOGICAL, node, "(", left, f"{_collation(left, right)} {sign} ", right, ")")

    def _refuse_time(self, node: exp.Expr) -> None:
        if clock.names_time(node):
            raise clock.misplaced(node)

    def _arithmetic(self, node: exp.Binary) -> Frag:
        left, right = self._sides(node)
        return build(ExprKind.NUMBER, node, "(", left, f" {_ARITHMETIC[type(node)]} ", right, ")")

    def _concat(self, node: exp.DPipe) -> Frag:
        items = [text(self.frag(item)) for item in node.flatten()]
        return joined(ExprKind.TEXT, node, items, " || ", chain(items))

    def _logic(self, node: exp.Connector, between: str) -> Frag:
        items = [truth(self.frag(item)) for item in node.flatten()]
        trust = (every if isinstance(node, exp.And) else any_of)([item.trust for item in items])
        return joined(ExprKind.CERTAIN, node, items, between, trust)

    def _is(self, node: exp.Is) -> Frag:
        wanted = node.expression
        if not isinstance(wanted, exp.Null | exp.Boolean):
            raise self._wrong_is(node, wanted)
        against = "NULL" if isinstance(wanted, exp.Null) else str(int(bool(wanted.this)))
        value, negate = self.frag(node.this), bool(node.args.get("negate"))
        tested = build(ExprKind.CERTAIN, value.node, "(", value, f" {'IS NOT' if negate else 'IS'} {against})")
        same = equality(value, replace(tested, parts=(against,), trust=NEITHER))
        return replace(tested, node=node, trust=opposite(same) if negate else same)

    def _wrong_is(self, node: exp.Is, wanted: exp.Expr) -> RuleError:
        """The error for `x IS y`."""
        text = text_of(node)
        left, right = text.source_of(node.this), text.source_of(wanted)
        written = _IS.fullmatch(text.source_of(node)[len(left) : -len(right)]) if left and right else None
        negate = written is not None and written[1] is not None
        sign = "=" if not negate else "!=" if self._semantics.null_differs else "IS DISTINCT FROM"
        instead = f"{left} {sign} {right}"
        message = "`IS` takes NULL, TRUE or FALSE and compares with nothing else"
        if written is None:
            return unsupported(message, node, "compare with `=` or `!=`")
        negation = node.parent if negate and isinstance(node.parent, exp.Not) else node
        return unsupported(message, node, f"write `{instead}`", edit_of(negation, instead))

    def _distinct(self, node: exp.Binary, sign: str) -> Frag:
        left, right = self._sides(node)
        trust = equality(left, right) if sign == "IS" else opposite(equality(left, right))
        return build(ExprKind.CERTAIN, node, "(", left, f" {sign} ", right, ")", trust=trust)

    def _like(self, node: exp.Like, escape: str = "") -> Frag:
        pattern = node.expression
        if isinstance(pattern, exp.Literal) and len(str(pattern.this).encode()) > MAX_PATTERN:
            raise error_at(RuleCode.TOO_MANY, f"the pattern of `LIKE` is longer than {MAX_PATTERN} bytes", node)
        left, right = text(self.frag(node.this)), text(self.frag(pattern))
        matches = build(ExprKind.LOGICAL, node, "(", left, " LIKE ", right, escape, ")")
        return negated(matches) if node.args.get("negate") else matches

    def _escaped_like(self, node: exp.Escape) -> Frag:
        character = node.expression
        if not isinstance(node.this, exp.Like):
            raise self.refused(node.this)
        if not (isinstance(character, exp.Literal) and len(str(character.this)) == 1):
            raise unsupported("`ESCAPE` takes one character", node, "write `LIKE 'a!%' ESCAPE '!'`")
        return self._like(node.this, f" ESCAPE {functions.quoted(str(character.this))}")

    def _access(self, node: exp.Binary, operator: str) -> Frag:
        value = self.frag(node.this)
        self._checks.json(value, node, f"`{operator}`")
        return functions.json_access(value, node.expression, operator, node, fixed=self._semantics.fixed_paths)

    def _in(self, node: exp.In) -> Frag:
        left = self.frag(node.this)
        literals = in_list(node)
        if literals is None:
            array = node.args.get("field")
            if array is None:
                raise self.refused(node.args.get("query") or node)
            elements = self.frag(array)
            self._checks.searched(left, elements, node)
            return self.in_array(left, elements)
        self.refuse_ambiguous(node)
        listed = [self.frag(item) for item in literals]
        for item in listed:
            self._checks.compared(left, item, item.node)
        items = joined(ExprKind.ANY, left.node, listed, ", ")
        trust = any_of([equality(left, item) for item in listed])
        return build(ExprKind.LOGICAL, node, "(", left, " IN ", items, ")", trust=trust)

    def in_array(self, left: Frag, array: Frag) -> Frag:
        """Whether `left` is an element of a JSON array text."""
        trust = repeating(left.trust, element(array.trust), (left.parts, None))
        return build(
            ExprKind.LOGICAL, left.node, "(", left, " IN (SELECT value FROM json_each(", array, ")))", trust=trust
        )

    def refuse_ambiguous(self, node: exp.In) -> None:
        """Reject `x IN (y)`, which is a comparison in SQL and a search in an array in the rule language."""
        listed = node.expressions
        if len(listed) == 1 and not isinstance(listed[0], exp.Literal | exp.Boolean | exp.Null | exp.Neg):
            hint = "leave the brackets out to search a JSON array, or compare with `=`"
            raise unsupported("`IN` with one computed value in brackets is ambiguous", node, hint)

    def _between(self, node: exp.Between) -> Frag:
        self.only(node, frozenset({"this", "low", "high"}))
        if clock.reads_time(node):
            bounds = (self._ordered(node.this, sign, node.args[name], node) for sign, name in _BOUNDS)
            return joined(ExprKind.LOGICAL, node, list(bounds), " AND ")
        value, low, high = (self.frag(node.args[name]) for name in ("this", "low", "high"))
        collation = _collation(value, low) or _collation(value, high)
        for bound in (low, high):
            self._checks.compared(value, bound, node, equality=False)
        return build(ExprKind.LOGICAL, node, "(", value, collation, " BETWEEN ", low, " AND ", high, ")")

    def _case(self, node: exp.Case) -> Frag:
        subject = node.args.get("this")
        pieces: list[str | Frag] = ["(CASE"]
        conditions: list[Frag] = []
        values: list[Frag] = []
        if subject is not None:
            conditions.append(self.frag(subject))
            pieces += [" ", conditions[0]]
        for branch in node.args["ifs"]:
            when = self.frag(branch.this)
            conditions.append(when if subject is not None else truth(when))
            values.append(self.frag(branch.args["true"]))
            pieces += [" WHEN ", conditions[-1], " THEN ", values[-1]]
        default = node.args.get("default")
        if default is not None:
            values.append(self.frag(default))
            pieces += [" ELSE ", values[-1]]
        trust = choice(values, conditions)
        return build(ExprKind.ANY, node, *pieces, " END)", trust=trust)

    def _wrong_cast(self, node: exp.Cast) -> RuleError:
        hint = _CAST_HINTS.get(node.to.this, "use text, integer, numeric, real or blob")
        message = "unsupported type in a cast"
        value = text_of(node).source_of(node.this)
        if node.to.this is not exp.DType.UUID or not value:
            return unsupported(message, node, hint)
        edit = edit_of(node, value, _UUID_BEHIND) if edit_of(node, value) == edit_of(node.this, value) else None
        return unsupported(message, node, f"write `{value}` alone: {hint}", edit)

    def _cast(self, node: exp.Cast) -> Frag:
        self._refuse_time(node)
        target = _CASTS.get(node.to.this)
        if target is None or node.to.expressions:
            raise self._wrong_cast(node)
        name, kind = target
        value = self.frag(node.this)
        if name == "TEXT":
            return text(value)
        if name == "BLOB":
            return build(ExprKind.ANY, node, "hw_blob(", value, ")")
        if name == "INTEGER" and value.kind in {ExprKind.NUMBER, ExprKind.ANY}:
            value = build(ExprKind.ANY, node, "hw_floor(", value, ")")
        # the plus removes the affinity that a cast would add to a comparison
        return build(kind, node, "(+CAST(", value, f" AS {name}))")


def in_list(node: exp.In) -> list[exp.Expr] | None:
    """The items of `IN (…)`, `IN ARRAY[…]` and `IN ROW(…)`; None for other forms."""
    if node.expressions:
        return list(node.expressions)
    field = node.args.get("field")
    if isinstance(field, exp.Array) or (isinstance(field, exp.Anonymous) and str(field.this).lower() == "row"):
        return list(field.expressions)
    return None


def _collation(left: Frag, right: Frag) -> str:
    """The collation for comparing texts by UTF-16 code units. SQLite's order by bytes is the same unless both sides can
    contain characters beyond U+D7FF."""
    for side in (left, right):
        if side.kind in NUMERIC:
            return ""
        literal = side.parts[0] if side.simple else None
        if isinstance(literal, str) and all(character < "\ud800" for character in literal):
            return ""
    return " COLLATE utf16"


_RULES: dict[type[exp.Expr], Callable[..., Frag]] = {
    exp.Paren: lambda self, node: self.frag(node.this),
    exp.Literal: Scalars._literal,
    exp.Boolean: lambda _, node: build(ExprKind.CERTAIN, node, str(int(bool(node.this)))),
    exp.Null: lambda _, node: build(ExprKind.ANY, node, "NULL"),
    exp.Column: Scalars._column,
    exp.Dot: Scalars._qualified_call,
    exp.Anonymous: Scalars._call,
    exp.Neg: Scalars._minus,
    exp.EQ: Scalars._equal,
    exp.NEQ: Scalars._not_equal,
    exp.Not: lambda self, node: negated(self.frag(node.this)),
    exp.And: lambda self, node: self._logic(node, " AND "),
    exp.Or: lambda self, node: self._logic(node, " OR "),
    exp.Is: Scalars._is,
    exp.NullSafeEQ: lambda self, node: self._distinct(node, "IS"),
    exp.NullSafeNEQ: lambda self, node: self._distinct(node, "IS NOT"),
    exp.Like: Scalars._like,
    exp.Escape: Scalars._escaped_like,
    exp.BitwiseNot: lambda self, node: build(ExprKind.NUMBER, node, "(~ ", self.frag(node.this), ")"),
    exp.DPipe: Scalars._concat,
    exp.JSONExtract: lambda self, node: self._access(node, "->"),
    exp.JSONExtractScalar: lambda self, node: self._access(node, "->>"),
    exp.In: Scalars._in,
    exp.Between: Scalars._between,
    exp.Case: Scalars._case,
    exp.Cast: Scalars._cast,
    **dict.fromkeys(_COMPARISONS, Scalars._compare),
    **dict.fromkeys(_ARITHMETIC, Scalars._arithmetic),
}
_PARTS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Div: frozenset({"this", "expression", "typed", "safe"}),
    exp.DPipe: frozenset({"this", "expression", "safe"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
}
"""The parts of nodes that are translated, where a node may have others."""
