"""A sync config's text to its plan, or to everything that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from headwater_rules.catalog import Catalog, united
from headwater_rules.conditions import terms
from headwater_rules.config import StreamSource, read_config
from headwater_rules.document import load
from headwater_rules.engine import engine
from headwater_rules.errors import Code, EvaluationError, Place, Report, RuleError, RuleErrors, Severity
from headwater_rules.flatten import flatten
from headwater_rules.plan import (
    Expr,
    FromRequest,
    RequestInput,
    RowSource,
    Star,
    Stream,
    SyncPlan,
    Variant,
)
from headwater_rules.planner import Target, VariantDraft, find_target, plan_term
from headwater_rules.relations import Column, Context, Everything, Selection, Table
from headwater_rules.sqltext import SqlText

MAX_VARIANTS = 100
_AUTHENTICATED = frozenset({RequestInput.USER_ID.value, RequestInput.CLAIMS.value})


@dataclass(frozen=True, slots=True)
class Compiled:
    """A usable plan, and what its author should know about it."""

    plan: SyncPlan
    warnings: tuple[RuleError, ...]


def compile_config(text: str, *, default_schema: str = "public") -> Compiled:
    """Compile a sync config. The same text always gives the same plan. Raises RuleErrors with all that is wrong."""
    report = Report()
    try:
        config = read_config(load(text), report)
    except RuleError as error:
        raise RuleErrors([error]) from None
    catalog = Catalog(config.options)
    streams = tuple(_stream(source, catalog, default_schema, report, strict=config.strict) for source in config.streams)
    if report.errors:
        raise RuleErrors(report.sorted_errors(), report.sorted_warnings())
    return Compiled(
        SyncPlan(catalog.buckets, catalog.lookups, streams, config.options), tuple(report.sorted_warnings())
    )


def _stream(source: StreamSource, catalog: Catalog, schema: str, report: Report, *, strict: bool) -> Stream:
    variants: list[Variant] = []
    used: set[str] = set()
    for query in source.queries:
        context = Context(source.ctes, schema, report, used=used)
        try:
            drafts = _query(context, query, report)
            for draft in drafts:
                _check_sql(draft, query.place())
                variants.append(catalog.variant(source.name, draft, query.place()))
                if not source.accepts_dangerous and _dangerous(draft):
                    report.add(_danger(query.place(), strict=strict))
        except RuleError as error:
            report.add(error)
        except RecursionError:
            report.add(RuleError(Code.TOO_MANY, "the query is nested too deeply", query.place(), "simplify it"))
    kinds = {bucket for variant in variants for bucket in variant.buckets}
    if len(kinds) > MAX_VARIANTS:
        message = f"stream `{source.name}` needs {len(kinds)} kinds of buckets, more than {MAX_VARIANTS}"
        report.add(RuleError(Code.TOO_MANY, message, source.place, "split the stream"))
    for name in sorted(set(source.own_ctes) - used):
        message = f"`{name}` is not used by any query of the stream"
        place = source.ctes[name].place()
        report.add(RuleError(Code.NO_EFFECT, message, place, "remove it", Severity.WARNING))
    return Stream(source.name, source.auto_subscribe, source.priority, united(variants))


def _query(context: Context, query: SqlText, report: Report) -> list[VariantDraft]:
    before = len(report.errors)
    selection = flatten(context, query)
    if len(report.errors) > before:
        return []
    target = find_target(context, selection, query.place())
    _warn_of_columns(target, report)
    _warn_of_alias(context, selection, target, report)
    return [
        plan_term(context, target, selection.tables, term)
        for term in terms(selection.condition, context.owner, query.place())
    ]


def _warn_of_columns(target: Target, report: Report) -> None:
    named = False
    for column in target.columns:
        if isinstance(column, Everything) and named:
            message = "`*` after other columns replaces those of the same name"
            warning = RuleError(Code.ALIAS_BEFORE_STAR, message, column.place, "put `*` first", Severity.WARNING)
            report.add(warning)
        named = named or isinstance(column, Column)


def _warn_of_alias(context: Context, selection: Selection, target: Target, report: Report) -> None:
    table = context.instances[target.table]
    if isinstance(table, Table) and table.alias and not table.alias_quoted and len(selection.tables) > 1:
        message = f"the synced table will be called `{table.alias}` on the device, by its alias"
        hint = f'quote the alias ("{table.alias}") if that is meant, or use the full name'
        report.add(RuleError(Code.JOINED_ALIAS, message, table.place, hint, Severity.WARNING))


def _check_sql(draft: VariantDraft, place: Place) -> None:
    """Every piece of SQL must be one that SQLite prepares."""
    exprs = [*draft.gates, *_row_exprs(draft.row)]
    if draft.arrays is not None:
        exprs += [*draft.arrays.arrays, *draft.arrays.filters, *draft.arrays.outputs]
    for lookup in draft.lookups:
        exprs += [*lookup.filters, *lookup.each, *lookup.keys, *lookup.outputs]
        exprs += [source.expr for source in lookup.sources if isinstance(source, FromRequest)]
    exprs += [source.expr for sources in draft.params for source in sources if isinstance(source, FromRequest)]
    for expr in dict.fromkeys(exprs):
        try:
            engine().check(f"SELECT {expr.sql}")
        except EvaluationError as error:
            message = f"SQLite does not accept an expression of this query: {error}"
            raise RuleError(Code.INTERNAL, message, place, "write the expression in a simpler way") from None


def _row_exprs(row: RowSource) -> list[Expr]:
    outputs = [item.expr for item in row.projection if not isinstance(item, Star)]
    return [*row.filters, *row.each, *row.params, *outputs]


def _dangerous(draft: VariantDraft) -> bool:
    """Whether what the client may choose decides alone: nothing that the token vouches for is in the values that
    lead to buckets or, where there are none, in the gates."""
    sources = [source for group in draft.params for source in group]
    sources += [source for lookup in draft.lookups for source in lookup.sources]
    exprs = [source.expr for source in sources if isinstance(source, FromRequest)] if sources else list(draft.gates)
    if draft.arrays is not None:
        exprs += [*draft.arrays.arrays, *draft.arrays.filters]
    inputs = {name for expr in exprs for name in expr.inputs}
    return bool(inputs) and not inputs & _AUTHENTICATED


def _danger(place: Place, *, strict: bool) -> RuleError:
    warning = RuleError(
        Code.DANGEROUS,
        "clients can send any value for the parameters of this query, and so read every row",
        place,
        "compare with `auth.…` too, or set `accept_potentially_dangerous_queries: true`",
        Severity.WARNING,
    )
    return warning.as_fatal() if strict else warning
