"""For a query that rules can't evaluate, the computed table and the query that give the same rows."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from headwater_rules.errors import Report, RuleCode, RuleError
from headwater_rules.text.written import SqlText

_REFUSED = frozenset({RuleCode.UNSUPPORTED, RuleCode.UNKNOWN_FUNCTION, RuleCode.MIXED_FILTER})
_OF_REQUEST = re.compile(r"(?i)\b(?:auth|connection|subscription|request|token_parameters|user_parameters)\s*\.")
_COMPARED = (exp.EQ, exp.In)
_LONGEST = 600
_TYPO = "did you mean"


@contextmanager
def offering_table(report: Report, stream: str, query: SqlText, ctes: Collection[str]) -> Iterator[None]:
    """Add the computed table to the first error in the block that refuses the query of a stream, which may use
    `ctes`."""
    before = len(report.errors)
    try:
        yield
    finally:
        refused = [each for each in report.errors[before:] if _may_compute(each)]
        found = _computed(stream, query.sql, ctes) if refused else None
        if found is not None:
            first = refused[0]
            suggestion = f"{first.suggestion}; or {found}" if first.suggestion else found
            offering = RuleError(first.code, first.message, first.span, suggestion)
            # An error in an expression that several parts of the query use is there several times
            report.errors[before:] = [offering if str(e) == str(first) else e for e in report.errors[before:]]


def _may_compute(error: RuleError) -> bool:
    """Whether a query is refused for what it asks, and not for a slip whose mend is known."""
    slip = error.edit is not None or error.suggestion.startswith(_TYPO) or bool(_OF_REQUEST.search(error.suggestion))
    return error.code in _REFUSED and not slip


def _computed(stream: str, query: str, ctes: Collection[str]) -> str | None:
    """The table in YAML, and the query that reads it. None for a query that is long or uses `ctes`, and where
    conditions on the request can't be taken out."""
    if len(query) > _LONGEST or any(re.search(rf"(?i)\b{re.escape(name)}\b", query) for name in ctes):
        return None
    try:
        parsed = sqlglot.parse_one(query, dialect="postgres")
    except (SqlglotError, RecursionError):
        return None
    if not isinstance(parsed, exp.Query) or (isinstance(parsed, exp.Select) and not parsed.args.get("from_")):
        return None
    conditions: list[str] = []
    if isinstance(parsed, exp.Select):
        taken = _without_request(parsed)
        if taken is None:
            return None
        conditions = taken
    text = parsed.sql(dialect="postgres")
    if _OF_REQUEST.search(text):
        return None
    name = f"{re.sub(r'[^a-z0-9_]', '_', stream.lower())}_table"
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    key = ", ".join(_key(parsed))
    table = f"{name}: {{query: {json.dumps(text, ensure_ascii=False)}, key: [{key}]}}"
    return f"have the source compute it: under `tables` write `{table}`, and here `SELECT * FROM {name}{where}`"


def _without_request(query: exp.Select) -> list[str] | None:
    """Take the conditions on the request out of a query, and select the columns that they compare. Returns these
    conditions; None if one is not a comparison with a column."""
    where = query.args.get("where")
    terms = list(where.this.flatten()) if where is not None and isinstance(where.this, exp.And) else []
    terms = terms or ([where.this] if where is not None else [])
    taken = [term for term in terms if _OF_REQUEST.search(term.sql(dialect="postgres"))]
    columns: list[exp.Column] = []
    conditions = []
    for term in taken:
        column = term.this
        if not isinstance(term, _COMPARED) or not isinstance(column, exp.Column) or term.find(exp.Select):
            return None
        columns.append(column.copy())
        unqualified = term.copy()
        unqualified.this.set("table", None)
        conditions.append(unqualified.sql(dialect="postgres"))
    kept = [term.copy() for term in terms if term not in taken]
    query.set("where", exp.Where(this=exp.and_(*kept, copy=False)) if kept else None)
    _select(query, columns)
    return conditions


def _select(query: exp.Select, columns: Sequence[exp.Column]) -> None:
    """Select these columns too, and group by them where rows are grouped or counted."""
    group = query.args.get("group")
    aggregated = group is not None or any(query.find_all(exp.AggFunc))
    there = {each.alias_or_name for each in query.expressions}
    grouped = {each.name for each in group.expressions} if group is not None else set()
    for column in columns:
        if column.name not in there and not query.is_star:
            query.set("expressions", [column.copy(), *query.expressions])
            there.add(column.name)
        if aggregated and column.name not in grouped:
            query.group_by(column.copy(), copy=False)
            grouped.add(column.name)


def _key(query: exp.Expr) -> list[str]:
    group = query.args.get("group")
    names = [each.name for each in group.expressions if isinstance(each, exp.Column)] if group is not None else []
    return names or ["id"]
