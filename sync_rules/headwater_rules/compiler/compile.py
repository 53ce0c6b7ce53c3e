"""Compiles a sync config's text to its plan, or to all its errors."""

from __future__ import annotations

from dataclasses import dataclass

from headwater_rules.compiler.catalog import Catalog
from headwater_rules.compiler.checks import SourceChecks
from headwater_rules.compiler.definitions import check_event, compile_definition
from headwater_rules.compiler.drafts import Job
from headwater_rules.compiler.everybody import ForEverybody, warnings
from headwater_rules.compiler.streams import compile_stream, warn_of_unused
from headwater_rules.describe.per_row import buckets_per_row
from headwater_rules.errors import Code, Report, RuleError, RuleErrors, Severity, StoppedError
from headwater_rules.evaluate.limits import MOST_BUCKETS
from headwater_rules.plan import Stream, SyncPlan
from headwater_rules.schema import SourceSchema
from headwater_rules.text.config import Config, read_config
from headwater_rules.text.document import load

MAX_QUERIES = 5_000


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
    schema lacks is no error: a migration will add it. Raises RuleErrors with all errors."""
    report = Report()
    try:
        config = read_config(load(text), report)
        custom_types = config.options.conversion.custom_postgres_types
        checks = None
        if schema is not None:
            checks = SourceChecks(schema, custom_types=custom_types, allow_missing=allow_missing)
        return _compiled(config, default_schema, checks, report, advise=advise)
    except RuleError as error:
        raise RuleErrors([*report.sorted_errors(), error], report.sorted_warnings()) from None
    except StoppedError:
        raise RuleErrors(report.sorted_errors(), report.sorted_warnings()) from None


def findings_in(
    text: str, schema: SourceSchema | None, *, allow_missing: bool = False, advise: bool = False
) -> tuple[RuleError, ...]:
    """All that `compile_config` finds in a sync config, whether it compiles or not: errors, then warnings."""
    try:
        return compile_config(text, schema=schema, allow_missing=allow_missing, advise=advise).warnings
    except RuleErrors as errors:
        return errors.findings


def _compiled(
    config: Config, default_schema: str, checks: SourceChecks | None, report: Report, *, advise: bool
) -> Compiled:
    _bound(config)
    job = Job(config.options, Catalog(config.options.conversion), default_schema, report, checks)
    streams = _streams(job, config)
    if checks is not None:
        checks.report_to(report, strict=config.options.strict)
    if report.errors:
        raise RuleErrors(report.sorted_errors(), report.sorted_warnings())
    plan = SyncPlan(job.catalog.buckets, job.catalog.lookups, streams, config.options.conversion)
    if advise:
        _advise(config, plan, report)
        for warning in warnings(job.everybody):
            report.add(warning)
    return Compiled(plan, tuple(report.sorted_warnings()), tuple(job.everybody))


def _advise(config: Config, plan: SyncPlan, report: Report) -> None:
    places = {source.name: source.place for source in config.streams}
    places |= {source.name: source.place for source in config.buckets}
    for found in buckets_per_row(plan):
        message = f"`{found.stream}` has one bucket for each row of `{found.table}`, by `{found.value}`"
        hint = (
            f"a device may have {MOST_BUCKETS:,} buckets (api.parameters.max_buckets_per_connection); if one gets more"
            " rows of it, select by a value that many rows share, such as their owner or project"
        )
        report.add(RuleError(Code.BUCKET_PER_ROW, message, places[found.stream], hint, Severity.WARNING))


def _bound(config: Config) -> None:
    """Limit the number of queries. YAML aliases can repeat a query any number of times."""
    counted = [(source.place, len(source.queries)) for source in config.streams]
    counted += [(source.place, len(source.data) * max(len(source.parameters), 1)) for source in config.buckets]
    total = 0
    for place, count in counted:
        total += count
        if total > MAX_QUERIES:
            message = f"the sync config has more than {MAX_QUERIES} queries"
            raise RuleError(Code.TOO_MANY, message, place, "split the config")


def _streams(job: Job, config: Config) -> tuple[Stream, ...]:
    used: set[str] = set()
    streams = [compile_definition(job, source) for source in config.buckets]
    streams += [compile_stream(job, source, used) for source in config.streams]
    for event in config.events:
        check_event(job, event)
    for name in sorted(config.shared_ctes.keys() - used):
        warn_of_unused(job, name, config.shared_ctes[name], "any stream")
    return tuple(streams)
