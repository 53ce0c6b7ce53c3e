"""Compiles streams: each query separately, merged where requests lead to them in the same way."""

from __future__ import annotations

from collections.abc import Mapping

from headwater_rules.compiler.catalog import merged
from headwater_rules.compiler.conditions import All
from headwater_rules.compiler.drafts import Job, check_danger, check_number, draft_query, find_everybody
from headwater_rules.compiler.expressions.semantics import Requests
from headwater_rules.compiler.flatten import flatten
from headwater_rules.compiler.planner import VariantDraft, find_mixed
from headwater_rules.compiler.relations import Context
from headwater_rules.errors import Code, RuleError, Severity
from headwater_rules.evaluate.inputs import Inputs
from headwater_rules.plan import RequestInput, Stream, Variant
from headwater_rules.text.config import StreamSource
from headwater_rules.text.sqltext import SqlText

_CHOSEN = (RequestInput.SUBSCRIPTION.value,)


def compile_stream(job: Job, source: StreamSource, used: set[str]) -> Stream:
    """Compile the stream. Its definitions go to the catalog, findings to the report. The names of the `with` queries
    that it uses are added to `used`."""
    drafts: list[VariantDraft] = []
    variants: list[Variant] = []
    names: set[str] = set()
    for query in source.queries:
        with job.report.collecting(query.place()):
            own = _drafts(job, source, query, names)
            found = [job.catalog.variant(source.name, draft, query.place()) for draft in own]
            drafts += own
            variants += found
            for draft in own if not source.accepts_dangerous else ():
                check_danger(job, draft, query.place())
            pairs = list(zip(own, found, strict=True))
            find_everybody(job, source.name, pairs, query, automatic=source.auto_subscribe)
    if source.auto_subscribe and drafts and all(_needs_subscription(draft) for draft in drafts):
        message = f"`{source.name}` has `auto_subscribe`, but gives nothing without subscription parameters"
        hint = "remove `auto_subscribe`, or add a query without `subscription.…`"
        job.report.add(RuleError(Code.NO_EFFECT, message, source.place, hint, Severity.WARNING))
    check_number(variants, f"stream `{source.name}`", source.place, job.report)
    for name in sorted(set(source.own_ctes) - names):
        warn_of_unused(job, name, source.ctes[name], "any query of the stream")
    used |= names - set(source.own_ctes)
    return Stream(source.name, source.auto_subscribe, source.priority, merged(variants))


def _needs_subscription(draft: VariantDraft) -> bool:
    """Whether null subscription parameters lead to no bucket."""
    chosen = [source for source in draft.requested() if source.expr.inputs == _CHOSEN]
    return not all(Inputs({}, None, None).values(source) for source in chosen)


def warn_of_unused(job: Job, name: str, query: SqlText, where: str) -> None:
    """Report a `with` query that nothing uses, and errors in it."""
    with job.report.collecting(query.place()):
        flatten(_context(job, {}, set()), query)
    message = f"`{name}` is not used by {where}"
    job.report.add(RuleError(Code.NO_EFFECT, message, query.place(), "remove it", Severity.WARNING))


def _context(job: Job, ctes: Mapping[str, SqlText], used: set[str]) -> Context:
    semantics = job.semantics(Requests.STREAM)
    return Context(semantics, ctes, job.default_schema, job.report, used=used, checks=job.checks)


def _drafts(job: Job, source: StreamSource, query: SqlText, used: set[str]) -> list[VariantDraft]:
    context = _context(job, source.ctes, used)
    before = len(job.report.errors)
    selection = flatten(context, query)
    if len(job.report.errors) > before:
        find_mixed(context, selection.condition)
        return []
    return draft_query(context, selection, All(()), frozenset(), query.place())
