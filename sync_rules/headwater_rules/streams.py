"""Streams: each query for itself, united where requests lead to them in the same way."""

from __future__ import annotations

from headwater_rules.catalog import united
from headwater_rules.conditions import All
from headwater_rules.config import StreamSource
from headwater_rules.drafts import Job, check_danger, check_number, draft_query
from headwater_rules.errors import Code, RuleError, Severity
from headwater_rules.flatten import flatten
from headwater_rules.plan import Stream, Variant
from headwater_rules.planner import VariantDraft
from headwater_rules.relations import Context
from headwater_rules.semantics import Requests
from headwater_rules.sqltext import SqlText


def compile_stream(job: Job, source: StreamSource, used: set[str]) -> Stream:
    """The stream, whose definitions go to the catalog and whose findings to the report. The names of the `with`
    queries that it needs are added to `used`."""
    variants: list[Variant] = []
    names: set[str] = set()
    for query in source.queries:
        try:
            for draft in _drafts(job, source, query, names):
                variants.append(job.catalog.variant(source.name, draft, query.place()))
                if not source.accepts_dangerous:
                    check_danger(job, draft, query.place())
        except RuleError as error:
            job.report.add(error)
        except RecursionError:
            message = "the query is nested too deeply"
            job.report.add(RuleError(Code.TOO_MANY, message, query.place(), "simplify it"))
    check_number(variants, f"stream `{source.name}`", source.place, job.report)
    for name in sorted(set(source.own_ctes) - names):
        warn_of_unused(job, name, source.ctes[name], "any query of the stream")
    used |= names - set(source.own_ctes)
    return Stream(source.name, source.auto_subscribe, source.priority, united(variants))


def warn_of_unused(job: Job, name: str, query: SqlText, where: str) -> None:
    """Report a `with` query that nothing reads."""
    message = f"`{name}` is not used by {where}"
    job.report.add(RuleError(Code.NO_EFFECT, message, query.place(), "remove it", Severity.WARNING))


def _drafts(job: Job, source: StreamSource, query: SqlText, used: set[str]) -> list[VariantDraft]:
    context = Context(job.semantics(Requests.STREAM), source.ctes, job.default_schema, job.report, used=used)
    before = len(job.report.errors)
    selection = flatten(context, query)
    if len(job.report.errors) > before:
        return []
    return draft_query(context, selection, All(()), frozenset(), query.place())
