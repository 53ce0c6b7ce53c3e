"""Finds valid SQL that seems to mean something else: a comparison with NULL, a text that is added or searched in, a
text in double quotes, a call in single ones, a word for the current time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sqlglot import exp

from headwater_rules.compiler.request_values import RequestNames, Semantics
from headwater_rules.errors import Edit, RuleCode, RuleError, Severity
from headwater_rules.text.sqltext import edit_of, text_of, warning_at

_CALL = re.compile(r"(?:auth|connection|subscription|request)\.[a-z_]+\([^()]*\)|bucket\.[a-z_]\w*")
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?\s*", re.IGNORECASE)
_NULL = re.compile(r"(?i)\s*(?:==?|!=|<>)\s*NULL\b")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_QUOTED_NAMES = frozenset(
    {"all", "any", "asc", "case", "check", "column", "default", "desc", "distinct", "end", "from", "group", "limit"}
    | {"offset", "order", "primary", "references", "select", "table", "then", "to", "unique", "user", "when", "where"}
)
"""Names that must stand in double quotes, so that the quotes say nothing about what is meant."""

_DATABASE_USERS = frozenset({"current_user", "session_user"})
_OF_TIME = frozenset({"date", "time", "datetime", "julianday", "unixepoch", "strftime"})
_NOW = frozenset({"now", "subsec", "subsecond"})
_WORDS = {
    **dict.fromkeys(("now", "today", "tomorrow", "yesterday"), "compare a column with `now()` or `current_date`"),
    **dict.fromkeys(("infinity", "-infinity"), "compare with a time: rows have infinity as the end of the year 9999"),
}
"""What Postgres reads as points in time, and what to write instead."""


def misread(select: exp.Select, semantics: Semantics, *, known_columns: bool) -> Iterator[RuleError]:
    """A warning for each such expression in a SELECT, without those in subqueries. With `known_columns`, names that are
    no column are found by comparison with the source."""
    for node in select.walk(prune=lambda each: isinstance(each, exp.Select) and each is not select):
        match node:
            case exp.EQ() | exp.NEQ():
                yield from _with_null(node, semantics)
                if not known_columns:
                    yield from _quoted_text(node.this, node.expression)
            case exp.Like() if not known_columns:
                yield from _quoted_text(node.this, node.expression)
            case exp.In():
                yield from _in_text(node)
                for item in node.expressions if not known_columns else ():
                    yield from _quoted_text(node.this, item)
            case exp.Add():
                yield from _added_text(node)
            case exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.Between():
                yield from _words_of_time(node)
            case exp.Anonymous() if node.name.lower() in _OF_TIME:
                yield from _constant_time(node)
            case exp.Literal() if node.is_string and _CALL.fullmatch(str(node.this)):
                hint = f"write `{node.this}` without the quotes"
                message = f"`'{node.this}'` is a text, and not the value of that name"
                yield warning_at(RuleCode.MISREAD, message, node, hint, edit_of(node, str(node.this)))
            case exp.Column() if not node.table and node.name.lower() in _DATABASE_USERS and not _is_quoted(node):
                yield _database_user(node, semantics)
            case _:
                pass


def _is_quoted(column: exp.Column) -> bool:
    return bool(column.this.args.get("quoted"))


def _with_null(node: exp.EQ | exp.NEQ, semantics: Semantics) -> Iterator[RuleError]:
    if not isinstance(node.expression.unnest(), exp.Null) or isinstance(node.this.unnest(), exp.Null):
        return
    text, place = text_of(node), text_of(node).position_of(node.this)
    after = None if place is None else _NULL.match(text.sql, place[1])
    if place is None or after is None:
        return
    sign = "=" if isinstance(node, exp.EQ) else "!="
    always = "always" if sign == "!=" and semantics.null_differs else "never"
    message = f"`{sign} NULL` is {always} true, whatever the value is"
    test = " IS NULL" if sign == "=" else " IS NOT NULL"
    span = text.span(place[0], after.end())
    hint = f"write `{text.source_of(node.this)}{test}`"
    yield RuleError(RuleCode.MISREAD, message, span, hint, Severity.WARNING, text.edit(*after.span(), test))


def _added_text(node: exp.Add) -> Iterator[RuleError]:
    texts = [each for each in (node.this, node.expression) if isinstance(each, exp.Literal) and each.is_string]
    wrong = next((each for each in texts if not _NUMBER.fullmatch(str(each.this))), None)
    if wrong is None:
        return
    text = text_of(node)
    message = f"`+` adds numbers, and `{text.source_of(wrong)}` is none, so it counts as 0"
    yield warning_at(RuleCode.MISREAD, message, node, "write `||` to join texts", _sign_edit(node, "+", "||"))


def _sign_edit(node: exp.Binary, sign: str, instead: str) -> Edit | None:
    """The edit that replaces the operator of a node."""
    text = text_of(node)
    left, right = text.position_of(node.this), text.position_of(node.expression)
    if left is None or right is None or text.sql[left[1] : right[0]].strip() != sign:
        return None
    at = text.sql.index(sign, left[1])
    return text.edit(at, at + len(sign), instead)


def _in_text(node: exp.In) -> Iterator[RuleError]:
    field = node.args.get("field")
    if not isinstance(field, exp.Literal) or not field.is_string or str(field.this).lstrip().startswith("["):
        return
    items = ", ".join("'" + item.strip().replace("'", "''") + "'" for item in str(field.this).split(","))
    message = "`IN` searches a JSON array here, and this text is none, so nothing is found in it"
    yield warning_at(RuleCode.MISREAD, message, field, f"write `IN ({items})`", edit_of(field, f"({items})"))


def _words_of_time(node: exp.Expr) -> Iterator[RuleError]:
    for side in node.iter_expressions():
        hint = _WORDS.get(str(side.this).lower()) if isinstance(side, exp.Literal) and side.is_string else None
        if hint is not None:
            message = f"`'{side.this}'` is compared as a text, and is no point in time"
            yield warning_at(RuleCode.MISREAD, message, side, hint)


def _constant_time(node: exp.Anonymous) -> Iterator[RuleError]:
    """A call with a word that SQLite reads as the current time, which rules don't."""
    before = 1 if node.name.lower() == "strftime" else 0
    point = node.expressions[before] if len(node.expressions) > before else None
    if isinstance(point, exp.Literal) and point.is_string and str(point.this).strip().lower() in _NOW:
        message = f"`{text_of(node).source_of(node)}` is null: a rule gives the same answer whenever it is evaluated"
        hint = "compare a column with `now()` in the WHERE: `column > now() - interval '7 days'`"
        yield warning_at(RuleCode.MISREAD, message, node, hint)


def _quoted_text(left: exp.Expr, right: exp.Expr) -> Iterator[RuleError]:
    """A quoted name that is compared with one that is not."""
    if not isinstance(right, exp.Column) or right.table or not _is_quoted(right):
        return
    name = str(right.name)
    unquoted = isinstance(left, exp.Column) and not _is_quoted(left)
    if not unquoted or not _PLAIN.fullmatch(name) or name in _QUOTED_NAMES:
        return
    message = f'`"{name}"` is a column: texts stand in single quotes'
    hint = f"write `'{name}'` for the text, or `{name}` for the column"
    yield warning_at(RuleCode.MISREAD, message, right, hint, edit_of(right, f"'{name}'"))


def _database_user(node: exp.Column, semantics: Semantics) -> RuleError:
    message = f"`{node.name}` is read as a column: a device's user is no user of the database"
    call = {RequestNames.STREAM: "auth.user_id()", RequestNames.PARAMETERS: "request.user_id()"}.get(semantics.requests)
    hint = f"write `{call}`" if call else "select `request.user_id()` in a query under `parameters`"
    return warning_at(RuleCode.MISREAD, message, node, hint, edit_of(node, call) if call else None)
