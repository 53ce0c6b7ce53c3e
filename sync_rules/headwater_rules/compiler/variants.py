"""Turns a flattened query into variants, with the checks that all kinds of queries share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from sqlglot import exp

from headwater_rules.compiler.advice import ForEverybody, for_everybody, is_allowed
from headwater_rules.compiler.names import Context
from headwater_rules.compiler.planner import QueryTarget, VariantDraft, find_target, plan_term
from headwater_rules.compiler.relations import All, Condition, SelectedColumn, SelectedStar, Selection, terms
from headwater_rules.compiler.request_values import RequestNames, Semantics
from headwater_rules.compiler.schema_checks import QueryChecks, SourceChecks
from headwater_rules.errors import EvaluationError, Report, RuleCode, RuleError
from headwater_rules.evaluate.binding import Bound, Layout
from headwater_rules.evaluate.engine import engine
from headwater_rules.evaluate.inputs import stage_statement
from headwater_rules.evaluate.naming import SHORT, bucket_digest, lookup_digest
from headwater_rules.plan import (
    JOIN,
    BucketDefinition,
    ComputedTable,
    ConversionOptions,
    Expr,
    LookupDefinition,
    LookupStage,
    RowJoin,
    RowSource,
    Stage,
    TablePattern,
    Variant,
)
from headwater_rules.text.config import Options
from headwater_rules.text.document import YamlItem
from headwater_rules.text.sqltext import error_at, span_of, warning_at
from headwater_rules.text.written import SqlText

MAX_VARIANTS = 100
_WORDS_PER_TERM = 30  # planning a further one takes as long as compiling so many words
_BEYOND_LIMITS = re.compile("too large|too many|at most|stack overflow", re.IGNORECASE)


class Catalog:
    """Collects definitions in the order of first use."""

    def __init__(self, options: ConversionOptions) -> None:
        self._options = options
        self._buckets: dict[str, tuple[int, BucketDefinition]] = {}
        self._lookups: dict[str, tuple[int, LookupDefinition]] = {}
        self._joins: dict[str, RowJoin] = {}

    @property
    def joins(self) -> tuple[RowJoin, ...]:
        return tuple(self._joins.values())

    @property
    def buckets(self) -> tuple[BucketDefinition, ...]:
        return tuple(bucket for _, bucket in self._buckets.values())

    @property
    def lookups(self) -> tuple[LookupDefinition, ...]:
        return tuple(lookup for _, lookup in self._lookups.values())

    def name(self, position: int) -> str:
        """The name of a bucket definition."""
        return list(self._buckets)[position]

    def variant(self, stream: str, draft: VariantDraft, node: exp.Expr, priority: int | None = None) -> Variant:
        """The draft as a variant that refers to its definitions by position. Raises RuleError when two digests shorten
        to the same name."""
        stages: list[Stage] = [] if draft.arrays is None else [draft.arrays]
        stages += [LookupStage(self._lookup(each.lookup, node), each.keys, each.filters) for each in draft.lookups]
        bucket = self._bucket(stream, draft.row, node)
        for drafted in draft.joins:
            by = None if drafted.index is None else self._lookup(drafted.index, node, JOIN)
            lookup = self._lookup(drafted.lookup, node, JOIN)
            known, index = self.lookups[lookup], "" if by is None else self.lookups[by].name
            self._joins[drafted.join.name] = replace(drafted.join, lookup=known, index=index)
        return Variant((bucket,), draft.gates, tuple(stages), draft.params, priority)

    def _bucket(self, stream: str, row: RowSource, node: exp.Expr) -> int:
        digest = bucket_digest(row, self._options)
        name = f"{stream}.{digest[:SHORT]}"
        return _position(self._buckets, BucketDefinition(name, digest, (row,)), node)

    def _lookup(self, lookup: LookupDefinition, node: exp.Expr, kind: str = "lookup") -> int:
        digest = lookup_digest(lookup, self._options)
        name = f"{kind}.{digest[:SHORT]}"
        return _position(self._lookups, replace(lookup, name=name, digest=digest), node)


def merged(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Merge variants that the same request leads to in the same way."""
    buckets: dict[Variant, dict[int, None]] = {}
    for variant in variants:
        buckets.setdefault(replace(variant, buckets=()), {}).update(dict.fromkeys(variant.buckets))
    return tuple(replace(way, buckets=tuple(found)) for way, found in buckets.items())


D = TypeVar("D", BucketDefinition, LookupDefinition)


def _position(known: dict[str, tuple[int, D]], definition: D, node: exp.Expr) -> int:
    position, other = known.setdefault(definition.name, (len(known), definition))
    if other.digest != definition.digest:
        message = f"two different queries of this config would share the name {definition.name}"
        raise error_at(RuleCode.INTERNAL, message, node, "add a condition such as `id IS NOT NULL` to one of them")
    return position


@dataclass(frozen=True, slots=True)
class Compilation:
    """The inputs and outputs of compiling the definitions of one config."""

    options: Options
    catalog: Catalog
    default_schema: str
    report: Report
    checks: SourceChecks | None = None
    everybody: list[ForEverybody] = field(default_factory=list)
    computed: Mapping[str, ComputedTable] = field(default_factory=dict)

    def context(self, requests: RequestNames, ctes: Mapping[str, SqlText], used: set[str]) -> Context:
        """The context of a query with the edition's meaning of SQL."""
        semantics = Semantics(self.options.edition, self.options.fixed_paths, requests)
        return Context(
            semantics, ctes, self.default_schema, self.report, used=used, checks=self.checks, computed=self.computed
        )


def draft_query(
    context: Context, selection: Selection, beside: Condition, tables: frozenset[int], node: exp.Expr
) -> list[VariantDraft]:
    """One draft per alternative of a query's condition combined with `beside`, which is over further `tables`. Raises
    RuleError for a query that can't be synced."""
    target = find_target(context, selection, node)
    checks = QueryChecks(context.checks, context.instances, context.report)
    checks.selected(context.table_at(target.table), target.columns, node)
    _warn_of_columns(target, context)
    _warn_of_alias(context, selection, target)
    condition = All((selection.condition, beside))
    drafts: list[VariantDraft] = []
    joined = len(selection.tables | tables)
    span = partial(span_of, node)
    for number, term in enumerate(terms(condition, context.owner, node)):
        context.report.spend((_WORDS_PER_TERM if number else 0) + joined**2 // 10, span)
        with context.report.collecting(span):
            drafts.append(plan_term(context, target, selection.tables | tables, term))
    for draft in drafts:
        _check_sql(draft, node)
        if context.checks is not None:
            context.checks.decides(draft.row.table, draft.row.deciding(), node)
            for stage in draft.lookups:
                context.checks.decides(stage.lookup.table, stage.lookup.exprs(), node)
            for each in draft.joins:
                context.checks.decides(each.join.table, each.join.keys, node)
                context.checks.decides(each.lookup.table, each.lookup.exprs(), node)
    return drafts


def add_variants(
    job: Compilation,
    stream: str,
    drafts: Sequence[VariantDraft],
    query: exp.Select,
    *,
    automatic: bool,
    open_: bool,
    deciding: tuple[SqlText, exp.Select],
    priority: int | None = None,
) -> list[Variant]:
    """The drafts of a query as variants, whose definitions go to the catalog. Reports drafts for which values chosen by
    the client alone decide, unless these are accepted (`open_`), and keeps what every user gets, unless the author says
    that this is meant. `deciding` is the query that decides who gets its rows."""
    text, node = deciding
    variants = [job.catalog.variant(stream, draft, query, priority) for draft in drafts]
    for draft in drafts if not open_ else ():
        check_danger(job, draft, node)
    if not is_allowed(text):
        for number, whole in for_everybody(drafts, job.report, node, automatic=automatic):
            table, definition = drafts[number].row.table, job.catalog.name(variants[number].buckets[0])
            job.everybody.append(ForEverybody(stream, definition, table.written, whole, text))
    return variants


def check_danger(job: Compilation, draft: VariantDraft, node: exp.Expr) -> None:
    """Report a draft for which values chosen by the client alone decide."""
    if not draft.dangerous:
        return
    message = "clients can send any value for the parameters of this query, and so read every row"
    hint = "compare with a value of the token too, or set `accept_potentially_dangerous_queries: true`"
    warning = warning_at(RuleCode.DANGEROUS, message, node, hint)
    job.report.add(warning.as_fatal() if job.options.strict else warning)


def check_number(variants: list[Variant], what: str, key: YamlItem) -> None:
    """Report a stream that needs too many bucket definitions."""
    kinds = {bucket for variant in variants for bucket in variant.buckets}
    if len(kinds) > MAX_VARIANTS:
        message = f"{what} needs {len(kinds)} kinds of buckets, more than {MAX_VARIANTS}"
        key.reject(message, "split it", RuleCode.TOO_MANY)


def _warn_of_columns(target: QueryTarget, context: Context) -> None:
    named = False
    for column in target.columns:
        if isinstance(column, SelectedStar) and named and context.semantics.star_is_all:
            message = "`*` after other columns replaces those of the same name"
            warning = warning_at(RuleCode.ALIAS_BEFORE_STAR, message, column.node, "put `*` first")
            context.report.add(warning)
        named = named or isinstance(column, SelectedColumn)


def _warn_of_alias(context: Context, selection: Selection, target: QueryTarget) -> None:
    table = context.table_at(target.table)
    if table.alias and not table.alias_quoted and len(selection.tables) > 1:
        message = f"the synced table will be called `{table.alias}` on the device, by its alias"
        hint = f'quote the alias ("{table.alias}") if that is meant, or use the full name'
        context.report.add(warning_at(RuleCode.JOINED_ALIAS, message, table.node, hint))


def _check_sql(draft: VariantDraft, node: exp.Expr) -> None:
    """Check that SQLite can prepare every whole statement, since its limits apply to those."""
    try:
        filters = (expr for stage in draft.lookups for expr in stage.filters)
        for expr in dict.fromkeys((*draft.gates, *filters, *(source.expr for source in draft.requested()))):
            engine().check(f"SELECT {expr.sql}")
        if draft.arrays is not None:
            engine().check(stage_statement(draft.arrays)[0])
        row = draft.row
        _check_bound(row.table, row.filters, row.each, (*row.params, *row.selected()))
        for lookup in (stage.lookup for stage in draft.lookups):
            _check_bound(lookup.table, lookup.filters, lookup.each, (*lookup.keys, *lookup.outputs))
        for each in draft.joins:
            _check_bound(each.lookup.table, each.lookup.filters, (), (*each.lookup.keys, *each.lookup.outputs))
    except EvaluationError as error:
        raise _not_accepted(str(error), node) from None


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


def _not_accepted(reason: str, node: exp.Expr) -> RuleError:
    if _BEYOND_LIMITS.search(reason):
        message = f"this query has more parts than SQLite takes: {reason}"
        return error_at(RuleCode.TOO_MANY, message, node, "split it, or compare with a list: `x IN (…)`")
    message = f"SQLite does not accept an expression of this query: {reason}"
    return error_at(RuleCode.INTERNAL, message, node, "write the expression in a simpler way")
