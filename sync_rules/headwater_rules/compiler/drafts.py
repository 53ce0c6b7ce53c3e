"""Turns a flattened query into drafts of variants, with the checks that all kinds of queries share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater_rules.compiler.catalog import Catalog
from headwater_rules.compiler.checks import SourceChecks
from headwater_rules.compiler.conditions import All, Condition, terms
from headwater_rules.compiler.everybody import ForEverybody, allowed, for_everybody
from headwater_rules.compiler.expressions.semantics import Requests, Semantics
from headwater_rules.compiler.planner import VariantDraft, plan_term
from headwater_rules.compiler.relations import Column, Context, Everything, Selection, Table
from headwater_rules.compiler.target import Target, find_target
from headwater_rules.compiler.watch import Watch
from headwater_rules.errors import Code, EvaluationError, Place, Report, RuleError, Severity
from headwater_rules.evaluate.binding import Bound, Layout
from headwater_rules.evaluate.engine import engine
from headwater_rules.evaluate.inputs import stage_statement
from headwater_rules.plan import Expr, Star, TablePattern, Variant
from headwater_rules.text.options import Options
from headwater_rules.text.sqltext import SqlText

MAX_VARIANTS = 100
_WORDS_PER_TERM = 30  # planning a further one takes as long as compiling so many words
_BEYOND_LIMITS = re.compile("too large|too many|at most|stack overflow", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Job:
    """The inputs and outputs of compiling the definitions of one config."""

    options: Options
    catalog: Catalog
    default_schema: str
    report: Report
    checks: SourceChecks | None = None
    everybody: list[ForEverybody] = field(default_factory=list)

    def semantics(self, requests: Requests) -> Semantics:
        """The edition's meaning of SQL."""
        return Semantics(self.options.edition, self.options.fixed_paths, requests)


def draft_query(
    context: Context, selection: Selection, beside: Condition, tables: frozenset[int], place: Place
) -> list[VariantDraft]:
    """One draft per alternative of a query's condition combined with `beside`, which is over further `tables`. Raises
    RuleError for a query that can't be synced."""
    target = find_target(context, selection, place)
    table = context.instances[target.table]
    assert isinstance(table, Table)
    Watch(context.checks, context.instances, context.report).selected(table, target.columns, place)
    _warn_of_columns(target, context)
    _warn_of_alias(context, selection, target)
    condition = All((selection.condition, beside))
    drafts: list[VariantDraft] = []
    joined = len(selection.tables | tables)
    for number, term in enumerate(terms(condition, context.owner, place)):
        context.report.spend((_WORDS_PER_TERM if number else 0) + joined**2 // 10, place)
        with context.report.collecting(place):
            drafts.append(plan_term(context, target, selection.tables | tables, term))
    for draft in drafts:
        _check_sql(draft, place)
        if context.checks is not None:
            context.checks.decides(draft.row.table, draft.row.deciding(), place)
            for lookup in draft.lookups:
                context.checks.decides(lookup.table, lookup.exprs(), place)
    return drafts


def check_danger(job: Job, draft: VariantDraft, place: Place) -> None:
    """Report a draft for which values chosen by the client alone decide."""
    if not draft.dangerous:
        return
    warning = RuleError(
        Code.DANGEROUS,
        "clients can send any value for the parameters of this query, and so read every row",
        place,
        "compare with a value of the token too, or set `accept_potentially_dangerous_queries: true`",
        Severity.WARNING,
    )
    job.report.add(warning.as_fatal() if job.options.strict else warning)


def find_everybody(
    job: Job, stream: str, found: Sequence[tuple[VariantDraft, Variant]], query: SqlText, *, automatic: bool
) -> None:
    """Keep what every user gets by a query, unless its author says that this is meant."""
    if allowed(query):
        return
    by_draft = {id(draft): variant for draft, variant in found}
    for draft, whole in for_everybody([each for each, _ in found], job.report, query.place(), automatic=automatic):
        table = draft.row.table
        definition = job.catalog.name(by_draft[id(draft)].buckets[0])
        job.everybody.append(ForEverybody(stream, definition, f"{table.schema}.{table.name}", whole, query))


def check_number(variants: list[Variant], what: str, place: Place, report: Report) -> None:
    """Report a stream that needs too many bucket definitions."""
    kinds = {bucket for variant in variants for bucket in variant.buckets}
    if len(kinds) > MAX_VARIANTS:
        message = f"{what} needs {len(kinds)} kinds of buckets, more than {MAX_VARIANTS}"
        report.add(RuleError(Code.TOO_MANY, message, place, "split it"))


def _warn_of_columns(target: Target, context: Context) -> None:
    named = False
    for column in target.columns:
        if isinstance(column, Everything) and named and context.semantics.star_is_all:
            message = "`*` after other columns replaces those of the same name"
            warning = RuleError(Code.ALIAS_BEFORE_STAR, message, column.place, "put `*` first", Severity.WARNING)
            context.report.add(warning)
        named = named or isinstance(column, Column)


def _warn_of_alias(context: Context, selection: Selection, target: Target) -> None:
    table = context.instances[target.table]
    if isinstance(table, Table) and table.alias and not table.alias_quoted and len(selection.tables) > 1:
        message = f"the synced table will be called `{table.alias}` on the device, by its alias"
        hint = f'quote the alias ("{table.alias}") if that is meant, or use the full name'
        context.report.add(RuleError(Code.JOINED_ALIAS, message, table.place, hint, Severity.WARNING))


def _check_sql(draft: VariantDraft, place: Place) -> None:
    """Check that SQLite can prepare every statement. Whole statements are checked, because SQLite's limits apply to
    them."""
    try:
        for expr in dict.fromkeys((*draft.gates, *(source.expr for source in draft.requested()))):
            engine().check(f"SELECT {expr.sql}")
        if draft.arrays is not None:
            engine().check(stage_statement(draft.arrays)[0])
        row = draft.row
        outputs = [item.expr for item in row.projection if not isinstance(item, Star)]
        _check_bound(row.table, row.filters, row.each, (*row.params, *outputs))
        for lookup in draft.lookups:
            _check_bound(lookup.table, lookup.filters, lookup.each, (*lookup.keys, *lookup.outputs))
    except EvaluationError as error:
        raise _not_accepted(str(error), place) from None


def _check_bound(
    table: TablePattern, filters: tuple[Expr, ...], arrays: tuple[Expr, ...], values: tuple[Expr, ...]
) -> None:
    names = dict.fromkeys(name for expr in (*filters, *arrays, *values) for name in expr.inputs)
    bound = Bound(Layout(table.tag, table.schema, table.name, tuple(names)), table, filters, arrays)
    for expr in values:
        bound.position(expr)
    statement = bound.statement()
    if statement is not None:
        statement.check()


def _not_accepted(reason: str, place: Place) -> RuleError:
    if _BEYOND_LIMITS.search(reason):
        message = f"this query has more parts than SQLite takes: {reason}"
        return RuleError(Code.TOO_MANY, message, place, "split it, or compare with a list: `x IN (…)`")
    message = f"SQLite does not accept an expression of this query: {reason}"
    return RuleError(Code.INTERNAL, message, place, "write the expression in a simpler way")
