"""Compiles a sync config's text to its plan, or to all its errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headwater_rules.compiler.advice import ForEverybody, buckets_per_row, everybody_warnings, same_ids
from headwater_rules.compiler.computable import offering_table
from headwater_rules.compiler.definitions import check_event, compile_definition
from headwater_rules.compiler.flatten import flatten, flatten_select
from headwater_rules.compiler.planner import VariantDraft, find_mixed
from headwater_rules.compiler.relations import All
from headwater_rules.compiler.request_values import RequestNames
from headwater_rules.compiler.schema_checks import SourceChecks
from headwater_rules.compiler.variants import Catalog, Compilation, add_variants, check_number, draft_query, merged
from headwater_rules.errors import Report, RuleCode, RuleError, Severity, StoppedError, SyncConfigError
from headwater_rules.evaluate.inputs import Inputs
from headwater_rules.evaluate.limits import MOST_BUCKETS
from headwater_rules.plan import RequestInput, Stream, SyncPlan, Variant
from headwater_rules.schema import SourceSchema
from headwater_rules.text.computed import ComputedSource
from headwater_rules.text.config import Config, StreamSource, read_config
from headwater_rules.text.document import load
from headwater_rules.text.sqltext import parse_select
from headwater_rules.text.written import SqlText

MAX_QUERIES = 5_000
_WORD = re.compile(r"\w+")
_MISTYPED = 0.8  # how similar a name has to be
_SHARE = (
    f"a device may have {MOST_BUCKETS:,} buckets (api.parameters.max_buckets_per_connection); if one gets more rows of"
    " it, select by a value that many rows share, such as their owner or project"
)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan, the warnings for its author, and what every user gets without that its author says so."""

    plan: SyncPlan
    warnings: tuple[RuleError, ...]
    everybody: tuple[ForEverybody, ...] = ()


def compile_config(
    text: str,
    *,
    default_schema: str = "public",
    schema: SourceSchema | None = None,
    allow_missing: bool = False,
    advise: bool = False,
) -> Compiled:
    """Compile a sync config. The same text always gives the same plan; the source's `schema` only adds findings, and so
    does `advise`, about rules that work but may be costly or give more than is meant. With `allow_missing`, what the
    schema lacks is no error: a migration will add it. Raises SyncConfigError with all errors."""
    report = Report()
    try:
        config = read_config(load(text, report))
        custom_types = config.options.conversion.custom_postgres_types
        checks = None
        if schema is not None:
            checks = SourceChecks(schema, custom_types=custom_types, allow_missing=allow_missing)
        return _compiled(config, default_schema, checks, report, advise=advise)
    except RuleError as error:
        raise report.as_errors(error) from None
    except StoppedError:
        raise report.as_errors() from None


def computed_in(text: str) -> tuple[ComputedSource, ...]:
    """The computed tables of a sync config and where they are written, also if it does not compile otherwise."""
    if "tables" not in text and "\\" not in text:  # nor is the key written with escapes: no need to read the YAML
        return ()
    try:
        return read_config(load(text, Report())).tables
    except (RuleError, StoppedError):
        return ()


def findings_in(
    text: str, schema: SourceSchema | None, *, allow_missing: bool = False, advise: bool = False
) -> tuple[RuleError, ...]:
    """All that `compile_config` finds in a sync config, whether it compiles or not: errors, then warnings."""
    try:
        return compile_config(text, schema=schema, allow_missing=allow_missing, advise=advise).warnings
    except SyncConfigError as errors:
        return errors.findings


def _compiled(
    config: Config, default_schema: str, checks: SourceChecks | None, report: Report, *, advise: bool
) -> Compiled:
    _bound(config)
    computed = {source.table.name: source.table for source in config.tables}
    job = Compilation(
        config.options,
        Catalog(config.options.conversion),
        default_schema,
        report,
        checks,
        computed=computed,
    )
    streams = _streams(job, config)
    if checks is not None:
        _report_faults(config, checks.schema, report, allow_missing=checks.allow_missing)
        checks.report_to(report, strict=config.options.strict)
    if report.errors:
        raise report.as_errors()
    plan = SyncPlan(
        job.catalog.buckets,
        job.catalog.lookups,
        streams,
        config.options.conversion,
        tuple(computed.values()),
        job.catalog.joins,
    )
    read = set(plan.tables())
    for source in config.tables:
        if source.table.pattern not in read:
            message = f"no stream reads the table `{source.table.name}`, so it is not computed"
            source.key.warn(RuleCode.NO_EFFECT, message, "select from it in a stream, or remove it")
    if advise:
        keys = {each.name: each.key for each in config.streams} | {each.name: each.key for each in config.buckets}
        for found in buckets_per_row(plan):
            message = f"`{found.stream}` has one bucket for each row of `{found.table}`, by `{found.value}`"
            keys[found.stream].warn(RuleCode.BUCKET_PER_ROW, message, _SHARE)
        for same in same_ids(plan, None if checks is None else checks.schema):
            keys[same.stream].warn(RuleCode.SAME_IDS, same.what, same.fix)
        for warning in everybody_warnings(job.everybody):
            report.add(warning)
    return Compiled(plan, tuple(report.sorted_warnings()), tuple(job.everybody))


def _report_faults(config: Config, schema: SourceSchema, report: Report, *, allow_missing: bool) -> None:
    """Report what sources say of computed tables that they can't compute."""
    faults = {fault.name: fault for fault in schema.faults}
    for source in config.tables:
        fault = faults.get(source.table.name)
        if fault is not None:
            severity = Severity.FATAL if fault.certain and not allow_missing else Severity.WARNING
            engine = "Spark" if source.table.spark else "the source"
            message = f"{engine} can't compute `{source.table.name}`: {fault.what}"
            report.add(RuleError(RuleCode.NOT_COMPUTED, message, source.key.span(), fault.fix, severity))


def _bound(config: Config) -> None:
    """Limit the number of queries. YAML aliases can repeat a query any number of times."""
    counted = [(source.key, len(source.queries)) for source in config.streams]
    counted += [(source.key, len(source.data) * max(len(source.parameters), 1)) for source in config.buckets]
    total = 0
    for key, number in counted:
        total += number
        if total > MAX_QUERIES:
            message = f"the sync config has more than {MAX_QUERIES} queries"
            raise key.fail(message, "split the config", RuleCode.TOO_MANY)


def _streams(job: Compilation, config: Config) -> tuple[Stream, ...]:
    used: set[str] = set()
    streams = [compile_definition(job, source) for source in config.buckets]
    streams += [_stream(job, source, used) for source in config.streams]
    for event in config.events:
        check_event(job, event)
    for name in sorted(config.shared_ctes.keys() - used):
        _warn_of_unused(job, name, config.shared_ctes[name], "any stream")
    return tuple(streams)


_CHOSEN = (RequestInput.SUBSCRIPTION.value,)


def _stream(job: Compilation, source: StreamSource, used: set[str]) -> Stream:
    """Compile a stream: each query separately, merged where requests lead to them in the same way. The names of the
    `with` queries that it uses are added to `used`."""
    drafts: list[VariantDraft] = []
    variants: list[Variant] = []
    names: set[str] = set()
    for query in source.queries:
        with offering_table(job.report, source.name, query, source.ctes), job.report.collecting(query.span):
            node = parse_select(query)
            context = job.context(RequestNames.STREAM, source.ctes, names)
            before = len(job.report.errors)
            selection = flatten_select(context, query, node)
            if len(job.report.errors) > before:
                find_mixed(context, selection)
                continue
            own = draft_query(context, selection, All(()), frozenset(), node)
            drafts += own
            _warn_of_every_row(job, own, query)
            variants += add_variants(
                job, source.name, own, node, automatic=source.auto_subscribe, open_=source.accepts_dangerous,
                deciding=(query, node),
            )  # fmt: skip
    if source.auto_subscribe and drafts and all(_needs_subscription(draft) for draft in drafts):
        message = f"`{source.name}` has `auto_subscribe`, but gives nothing without subscription parameters"
        source.key.warn(RuleCode.NO_EFFECT, message, "remove `auto_subscribe`, or add a query without `subscription.…`")
    check_number(variants, f"stream `{source.name}`", source.key)
    for name in sorted(set(source.own_ctes) - names):
        meant = _mistyped(name, source.queries, names)
        if meant is None:
            _warn_of_unused(job, name, source.ctes[name], "any query of the stream")
        else:
            job.report.add(meant)
    used |= names - set(source.own_ctes)
    return Stream(source.name, source.auto_subscribe, source.priority, merged(variants))


def _needs_subscription(draft: VariantDraft) -> bool:
    """Whether null subscription parameters lead to no bucket."""
    chosen = [source for source in draft.requested() if source.expr.inputs == _CHOSEN]
    return not all(Inputs({}, None, None).values(source) for source in chosen)


def _mistyped(name: str, queries: Sequence[SqlText], used: Collection[str]) -> RuleError | None:
    """The warning where a query uses a name that seems to be the mistyped one of a `with` query, which none uses."""
    for query in queries:
        words = {found[0]: found for found in _WORD.finditer(query.sql) if found[0] not in used}
        for close in difflib.get_close_matches(name, words, n=1, cutoff=_MISTYPED):
            place = words[close].span()
            message = f"`{close}` means a table or column here: the query under `with` is called `{name}`"
            edit = query.edit(*place, name)
            span = query.span(*place)
            return RuleError(RuleCode.MISREAD, message, span, f"did you mean `{name}`?", Severity.WARNING, edit)
    return None


def _warn_of_every_row(job: Compilation, drafts: Sequence[VariantDraft], query: SqlText) -> None:
    """Report the alternatives of a query that look up all rows of a table which another alternative looks up by
    values: the table is joined for a condition that they leave out."""
    stages = [stage for draft in drafts for stage in draft.lookups]
    by_values = {stage.lookup.table for stage in stages if stage.keys}
    unconnected = {stage.lookup.table for stage in stages if not stage.keys and not stage.lookup.filters}
    for table in sorted(by_values & unconnected, key=lambda each: each.written):
        message = f"each request looks up all rows of `{table.written}`: an alternative of the OR does not ask which"
        hint = f"write one query for each alternative under `queries`, without `{table.name}` where it is not needed"
        job.report.add(RuleError(RuleCode.EVERY_ROW, message, query.span(), hint, Severity.WARNING))


def _warn_of_unused(job: Compilation, name: str, query: SqlText, where: str) -> None:
    """Report a `with` query that nothing uses, and errors in it."""
    with job.report.collecting(query.span):
        flatten(job.context(RequestNames.STREAM, {}, set()), query)
    message = f"`{name}` is not used by {where}"
    job.report.add(RuleError(RuleCode.NO_EFFECT, message, query.span(), "remove it", Severity.WARNING))
