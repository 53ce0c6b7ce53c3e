"""Compiles bucket definitions: parameter queries, which determine the buckets of a request, and data queries, which
fill them.

A data query together with a parameter query is compiled like a stream: the parameters are a table called `bucket`,
joined to the data by the data query's conditions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlglot import exp

from headwater_rules.compiler.flatten import flatten_select
from headwater_rules.compiler.fragment import ExprKind, Frag, Ref, equal, truth
from headwater_rules.compiler.names import Context, Scope
from headwater_rules.compiler.planner import VariantDraft, find_mixed, find_target
from headwater_rules.compiler.relations import All, Atom, SelectedColumn, Selection, TableRef
from headwater_rules.compiler.request_values import RequestNames
from headwater_rules.compiler.variants import Compilation, add_variants, check_danger, check_number, draft_query, merged
from headwater_rules.errors import RuleCode, RuleError, did_you_mean
from headwater_rules.plan import Stream, TablePattern, Variant
from headwater_rules.text.config import BucketSource, EventSource
from headwater_rules.text.sqltext import error_at, identifier, parse_select
from headwater_rules.text.written import SqlText

_BUCKET = "bucket"
_PRIORITY = "_priority"


@dataclass(frozen=True, slots=True)
class _Parameters:
    """A parameter query. It is flattened again for each data query."""

    query: tuple[SqlText, exp.Select] | None
    names: frozenset[str]
    priority: int | None


def compile_definition(job: Compilation, source: BucketSource) -> Stream:
    """Compile the bucket definition to a stream that everybody is subscribed to. Its parts go to the catalog, findings
    to the report."""
    variants: list[Variant] = []
    parameters = _parameters(job, source)
    for query in source.data:
        with job.report.collecting(query.span):
            node = parse_select(query)
            covered = bool(parameters)  # without any, all were wrong
            try:
                _check_cover(node, parameters)
            except RuleError as error:
                job.report.add(error)
                covered = False
            if not covered:
                _check_only(job, query, node)
                continue
            for each in parameters:
                variants += add_variants(
                    job, source.name, _drafts(job, each, query, node), node, automatic=True,
                    open_=source.accepts_dangerous, deciding=each.query or (query, node), priority=each.priority,
                )  # fmt: skip
    for each in parameters if not source.data else ():
        _check_parameters(job, source, each)
    check_number(variants, f"bucket definition `{source.name}`", source.key)
    return Stream(source.name, auto_subscribe=True, priority=source.priority, variants=merged(variants))


def check_event(job: Compilation, source: EventSource) -> None:
    """Report errors in the payload queries of an event, and that nothing reads events here."""
    for query in source.payloads:
        with job.report.collecting(query.span):
            context = _context(job).naming(RequestNames.NONE)
            before = len(job.report.errors)
            node = parse_select(query)
            selection = flatten_select(context, query, node)
            if len(job.report.errors) == before:
                find_target(context, selection, node)
    message = f"event `{source.name}` is checked, but has no effect: events are not supported"
    hint = 'remove it, or read changes with Spark: `spark.readStream.format("headwater")`'
    source.key.warn(RuleCode.NO_EFFECT, message, hint)


def _context(job: Compilation) -> Context:
    return job.context(RequestNames.PARAMETERS, {}, set())


# parameter queries


def _parameters(job: Compilation, source: BucketSource) -> list[_Parameters]:
    """All parameter queries without errors. A definition without any has one bucket for everybody."""
    if not source.parameters:
        return [_Parameters(None, frozenset(), None)]
    found: list[_Parameters] = []
    for text in source.parameters:
        before = len(job.report.errors)
        names, priority = frozenset[str](), None
        with job.report.collecting(text.span):
            node = parse_select(text)
            selection, priority = _without_priority(flatten_select(_context(job), text, node), source)
            names = frozenset(selection.named())
        if len(job.report.errors) > before:
            continue
        if found and names != found[0].names:
            message = f"this query gives {_listed(names)}, the first one {_listed(found[0].names)}"
            hint = "all parameter queries of a definition must select the same names"
            job.report.add(error_at(RuleCode.STRUCTURE, message, node, hint))
            continue
        found.append(_Parameters((text, node), names, priority))
    return found


def _without_priority(selection: Selection, source: BucketSource) -> tuple[Selection, int | None]:
    """Remove the column `_priority`, which is not a parameter but sets the priority of the query's buckets."""
    chosen = [item for item in selection.columns if isinstance(item, SelectedColumn) and item.name == _PRIORITY]
    if not chosen:
        return selection, None
    value, node = chosen[-1].value.parts[0], chosen[-1].node
    if len(chosen) > 1 or value not in {"0", "1", "2", "3"}:
        message = f"`{_PRIORITY}` must be one of 0, 1, 2, 3"
        raise error_at(RuleCode.STRUCTURE, message, node, f"write `1 AS {_PRIORITY}`")
    if source.has_priority:
        message = f"`{source.name}` sets its priority twice"
        raise error_at(RuleCode.STRUCTURE, message, node, f"remove `priority:` or the column `{_PRIORITY}`")
    others = tuple(item for item in selection.columns if item is not chosen[0])
    return replace(selection, columns=others), int(str(value))


def _check_parameters(job: Compilation, source: BucketSource, parameters: _Parameters) -> None:
    """Check a parameter query without any data query, as if there were one that compares every parameter."""
    if parameters.query is None:
        return
    text, node = parameters.query
    with job.report.collecting(text.span):
        context = _context(job)
        given, _ = _without_priority(flatten_select(context, text, node), source)
        number = context.add(TableRef(TablePattern("", "", _BUCKET), None, alias_quoted=False, node=node))
        selected, *compared = (
            Frag((Ref(number, str(position)),), ExprKind.ANY, node) for position in range(len(given.columns) + 1)
        )
        links = [(left, right) for left, right in zip(compared, given.named().values(), strict=True)]
        condition = All(tuple(Atom(truth(equal(*link, node)), link) for link in links))
        data = Selection((SelectedColumn("id", selected),), condition, frozenset({number}))
        for draft in draft_query(context, data, given.condition, given.tables, node):
            if not source.accepts_dangerous:
                check_danger(job, draft, node)


# data queries


def _drafts(job: Compilation, parameters: _Parameters, query: SqlText, node: exp.Select) -> list[VariantDraft]:
    context = _context(job)
    before = len(job.report.errors)
    given = Selection((), All(()), frozenset())
    if parameters.query is not None:
        given = flatten_select(context, *parameters.query)
    columns = {each.name: each.value for each in given.columns if isinstance(each, SelectedColumn)}
    scope = Scope(None, {_BUCKET: columns})
    selection = flatten_select(context.naming(RequestNames.NONE), query, node, scope)
    if len(job.report.errors) > before:
        find_mixed(context, selection)
        return []
    return draft_query(context, selection, given.condition, given.tables, node)


def _check_only(job: Compilation, query: SqlText, node: exp.Select) -> None:
    """Report other errors in a data query, whatever its parameters are."""
    used = {
        identifier(found.this): Frag(("NULL",), ExprKind.ANY, found)
        for found in node.find_all(exp.Column)
        if found.table == _BUCKET
    }
    flatten_select(_context(job).naming(RequestNames.NONE), query, node, Scope(None, {_BUCKET: used}))


def _check_cover(node: exp.Select, parameters: Iterable[_Parameters]) -> None:
    """Raise RuleError unless the data query compares every parameter. Otherwise a row would be in the buckets of all
    values, which are unlimited."""
    used = [(identifier(found.this), found) for found in node.find_all(exp.Column) if found.table == _BUCKET]
    for each in parameters:
        for name, found in used:
            if name not in each.names:
                hint = did_you_mean(name, each.names) or f"the parameters are {_listed(each.names)}"
                message = f"the parameter queries give no `{name}`"
                raise error_at(RuleCode.UNKNOWN_NAME, message, found, hint)
        missing = each.names - {name for name, _ in used}
        if missing:
            message = f"this data query does not use {_listed(missing)}"
            hint = f"add a condition such as `… = bucket.{min(missing)}`: every parameter has to be compared"
            raise error_at(RuleCode.STRUCTURE, message, node, hint)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`bucket.{name}`" for name in sorted(names)) or "no parameters"
