"""Finds rules that work but may give more or less than is meant, or cost much: queries whose rows every user gets,
streams with one bucket per row of a table, of which a device may need as many as it has rows, and rows of several
tables that may have one id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod

from sqlglot import exp

from headwater_rules.compiler.fragment import ExprKind, Frag, Ref, text, to_expr
from headwater_rules.compiler.planner import VariantDraft, every_user_passes, holds, samples
from headwater_rules.errors import Report, RuleCode, RuleError, Severity
from headwater_rules.plan import (
    Expr,
    FromRequest,
    FromStage,
    LookupStage,
    ParamSource,
    RowFunction,
    RowSource,
    Star,
    SyncPlan,
    TablePattern,
    Variant,
)
from headwater_rules.schema import SourceSchema
from headwater_rules.text.sqltext import span_of
from headwater_rules.text.written import SqlText

_UNIQUE: dict[tuple[str, ...], str] = {("id",): "id", (RowFunction.ROW_ID.value,): "row_id()"}
"""Values that are unique within a table."""

_ALLOWED = re.compile(r"#[ \t]*headwater:[ \t]*everybody")
_NEVER_NULL = frozenset({"id", *(function.value for function in RowFunction)})
_MOST_TRIED = 1_000
_TRIED_PER_WORD = 10  # trying so many values takes as long as compiling a word

_COLUMN = Frag((Ref(0, "id"),), ExprKind.ANY, exp.Null())
_FORMS = frozenset(to_expr(form, lambda ref: ref.column).sql for form in (_COLUMN, text(_COLUMN)))
"""A column as it is and as text. Other forms of a unique value need not be unique."""


@dataclass(frozen=True, slots=True)
class BucketPerRow:
    """`definition` has one bucket for each row of `table`, identified by `value`, and a request of `stream` can lead to
    many of them."""

    stream: str
    definition: str
    table: str
    value: str


def buckets_per_row(plan: SyncPlan) -> tuple[BucketPerRow, ...]:
    """All such definitions of a plan, in its order."""
    return tuple(dict.fromkeys(_found(plan)))


def _found(plan: SyncPlan) -> Iterator[BucketPerRow]:
    for stream in plan.streams:
        for variant in stream.variants:
            for definition in (plan.buckets[number] for number in variant.buckets):
                for source in definition.sources:
                    value = _unique(plan, variant, source)
                    if value is not None:
                        yield BucketPerRow(stream.name, definition.name, source.table.written, value)


def _unique(plan: SyncPlan, variant: Variant, source: RowSource) -> str | None:
    """The unique value that determines a row's bucket, unless a request has at most one such value."""
    for param, given in zip(source.params, variant.params, strict=True):
        value = _value(param)
        if value is not None and not any(_single(plan, variant, each) for each in given):
            return value
    return None


def _value(expr: Expr) -> str | None:
    """The unique value that an expression is."""
    return _UNIQUE.get(expr.inputs) if expr.sql in _FORMS else None


def _single(plan: SyncPlan, variant: Variant, source: ParamSource) -> bool:
    """Whether a request has at most one value of it."""
    match source:
        case FromRequest(_, each):
            return not each
        case FromStage(number, _):
            stage = variant.stages[number]
            if not isinstance(stage, LookupStage):
                return False
            lookup = plan.lookups[stage.lookup]
            if lookup.each:
                return False
            keys = zip(lookup.keys, stage.keys, strict=True)
            return any(_value(key) is not None and _single(plan, variant, given) for key, given in keys)


@dataclass(frozen=True, slots=True)
class ForEverybody:
    """Every user of `stream` gets the rows of a bucket definition: all rows of `table` if `whole`, else those that pass
    conditions on the row. `query` decides it."""

    stream: str
    definition: str
    table: str
    whole: bool
    query: SqlText


def for_everybody(
    drafts: Sequence[VariantDraft], report: Report, node: exp.Expr, *, automatic: bool
) -> list[tuple[int, bool]]:
    """The positions of a query's alternatives that depend on nobody, and whether they select whole tables. If others
    depend on the user, only whole tables are returned: rows such as public ones may be for everybody. If none does,
    only streams that are `automatic` are."""
    found = [(number, _is_whole(draft, report, node)) for number, draft in enumerate(drafts) if _is_open(draft)]
    if len(found) < len(drafts):
        return [(number, whole) for number, whole in found if whole]
    return found if automatic else []


def is_allowed(query: SqlText) -> bool:
    """Whether `# headwater: everybody` stands among the comments directly above the line on which a query begins."""
    lines = query.document[: query.start].split("\n")[:-1]
    for line in map(str.strip, reversed(lines)):
        if not line.startswith("#"):
            return False
        if _ALLOWED.fullmatch(line):
            return True
    return False


def everybody_warnings(found: Iterable[ForEverybody]) -> Iterator[RuleError]:
    """One warning for each query."""
    by_query: dict[int, list[ForEverybody]] = {}
    for each in found:
        by_query.setdefault(each.query.start, []).append(each)
    for of_query in by_query.values():
        query = of_query[0].query
        named = ", ".join(dict.fromkeys(f"`{each.table}`" for each in of_query))
        what = "all rows" if all(each.whole for each in of_query) else "the same rows"
        message = f"every user gets {what} of {named}: nothing in this query depends on who it is"
        if any(query.sql.lower().count(word) for word in ("auth.", "request.", "token_parameters")):
            message = f"every user gets {what} of {named}: a part of the condition is true for everybody"
        hint = (
            "compare with a value of the token in each alternative (policies of the source do not apply); if it is"
            " meant, write `# headwater: everybody` on the line above"
        )
        yield RuleError(RuleCode.EVERYBODY, message, query.span(), hint, Severity.WARNING)


def _is_open(draft: VariantDraft) -> bool:
    if draft.compares():
        return False
    return all(every_user_passes(gate) for gate in draft.gates)


def _is_whole(draft: VariantDraft, report: Report, node: exp.Expr) -> bool:
    row = draft.row
    if draft.lookups or row.each or row.params:
        return False
    return all(_always(test, report, node) for test in row.filters)


def _always(test: Expr, report: Report, node: exp.Expr) -> bool:
    """Whether a condition on a row is true for all values that were tried, among them those that it names."""
    values = samples(test)
    choices = [[value for value in values if value is not None or name not in _NEVER_NULL] for name in test.inputs]
    if prod(map(len, choices)) > _MOST_TRIED:
        return False
    tried = 0
    for chosen in product(*choices):
        tried += 1
        if not holds(test, chosen):
            return False
    report.spend(tried // _TRIED_PER_WORD, partial(span_of, node))
    return True


@dataclass(frozen=True, slots=True)
class SameIds:
    """`stream` gives rows of several tables as one table of devices, by ids that two of them may have. `what` says
    which, and `fix` what to select instead."""

    stream: str
    what: str
    fix: str


def same_ids(plan: SyncPlan, schema: SourceSchema | None) -> tuple[SameIds, ...]:
    """All such rows of a plan, in its order. That a tag has shards is known from the sources' `schema` alone, and so is
    that ids are uuids, which differ."""
    found: dict[SameIds, None] = {}
    named: dict[str, tuple[TablePattern, str]] = {}
    for stream in plan.streams:
        for position in dict.fromkeys(bucket for variant in stream.variants for bucket in variant.buckets):
            for source in plan.buckets[position].sources:
                if (function := _needed(source, schema)) is not None:
                    found[_of_pattern(stream.name, source.table, function)] = None
                elif source.table.exact and source.output_table is not None and _id_of(source, schema) is not None:
                    first, other = named.setdefault(source.output_table, (source.table, stream.name))
                    if (first.tag, first.schema) != (source.table.tag, source.table.schema):
                        found[_of_two(stream.name, source, first, other)] = None
    return tuple(found)


_SHARDS = "shards"
_APART = {
    _SHARDS: (RowFunction.SOURCE, "two shards"),
    "tag": (RowFunction.SOURCE, "two sources"),
    "schema": (RowFunction.SCHEMA, "two schemas"),
    "name": (RowFunction.TABLE_SUFFIX, "two tables"),
}
"""What a pattern may stand for several of, the function that tells those apart, and what they are."""


def _needed(source: RowSource, schema: SourceSchema | None) -> str | None:
    """What makes the rows of a query come from several tables, if nothing in it tells them apart."""
    pattern, selected = source.table, _id_of(source, schema)
    if selected is None:
        return None
    several = [part for part in ("tag", "schema") if getattr(pattern, part).endswith("%")]
    if pattern.name.endswith("%") and source.output_table is not None:
        several.append("name")
    if "tag" not in several and schema is not None and schema.shards(pattern.tag) and selected is not _ROW_ID:
        several.append(_SHARDS)
    told = {name for expr in source.deciding() for name in expr.inputs}
    return next((each for each in several if _APART[each][0].value not in told), None)


_ROW_ID = RowFunction.ROW_ID


def _id_of(source: RowSource, schema: SourceSchema | None) -> RowFunction | str | None:
    """The column that is the id of a query's rows, or ROW_ID; None if the id is computed, or is known to be a uuid."""
    chosen: RowFunction | str | None = _ROW_ID
    named = False
    for item in source.projection:
        if isinstance(item, Star):
            if item.everything or not named:
                chosen = "id"
        elif item.name == "id":
            named = True
            plain = item.expr.sql in _FORMS and len(item.expr.inputs) == 1
            chosen = item.expr.inputs[0] if plain else None
    if chosen == _ROW_ID.value:
        return _ROW_ID
    tables = () if schema is None or not isinstance(chosen, str) else schema.matching(source.table)
    if not tables:
        return chosen
    columns = [table.column(str(chosen)) for table in tables]
    if not any(columns):
        return _ROW_ID
    return None if all(column is None or column.type == "uuid" for column in columns) else chosen


def _of_pattern(stream: str, pattern: TablePattern, part: str) -> SameIds:
    function, what = _APART[part]
    call = function.value.removeprefix("\x00")
    fix = f"select `{call}() || '/' || id AS id`"
    if part == _SHARDS:
        fix = f"select `row_id() AS id`, or `{call}() || '/' || id AS id`"
    message = f"{what} may have rows of `{pattern.written}` with the same id, and a device then shows one of them"
    return SameIds(stream, message, f"{fix}; nothing is needed where ids are unique in all of them, as uuids are")


def _of_two(stream: str, source: RowSource, first: TablePattern, other: str) -> SameIds:
    where = "" if other == stream else f" (stream `{other}`)"
    both = f"`{source.table.written}` and `{first.written}`{where} are both `{source.output_table}` on devices"
    message = f"{both}, and rows of them with the same id are one row there"
    name = f"{source.table.schema if source.table.tag == first.tag else source.table.tag}_{source.output_table}"
    fix = f"select from one of them under another name, as `{source.table.written} AS {name}`"
    return SameIds(stream, message, fix)
