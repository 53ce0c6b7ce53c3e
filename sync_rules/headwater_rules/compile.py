"""A sync config's text to its plan, or to everything that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from headwater_rules.catalog import Catalog
from headwater_rules.checks import SourceChecks
from headwater_rules.config import Config, read_config
from headwater_rules.definitions import check_event, compile_definition
from headwater_rules.document import load
from headwater_rules.drafts import Job
from headwater_rules.errors import Report, RuleError, RuleErrors
from headwater_rules.plan import Stream, SyncPlan
from headwater_rules.schema import SourceSchema
from headwater_rules.streams import compile_stream, warn_of_unused


@dataclass(frozen=True, slots=True)
class Compiled:
    """A usable plan, and what its author should know about it."""

    plan: SyncPlan
    warnings: tuple[RuleError, ...]


def compile_config(text: str, *, default_schema: str = "public", schema: SourceSchema | None = None) -> Compiled:
    """Compile a sync config. The same text always gives the same plan; the source's `schema` only adds findings.
    Raises RuleErrors with all that is wrong."""
    report = Report()
    try:
        config = read_config(load(text), report)
    except RuleError as error:
        raise RuleErrors([*report.sorted_errors(), error], report.sorted_warnings()) from None
    custom_types = config.options.conversion.custom_postgres_types
    checks = None if schema is None else SourceChecks(schema, custom_types=custom_types)
    job = Job(config.options, Catalog(config.options.conversion), default_schema, report, checks)
    streams = _streams(job, config)
    if checks is not None:
        checks.tell(report, strict=config.options.strict)
    if report.errors:
        raise RuleErrors(report.sorted_errors(), report.sorted_warnings())
    plan = SyncPlan(job.catalog.buckets, job.catalog.lookups, streams, config.options.conversion)
    return Compiled(plan, tuple(report.sorted_warnings()))


def _streams(job: Job, config: Config) -> tuple[Stream, ...]:
    used: set[str] = set()
    streams = [compile_definition(job, source) for source in config.buckets]
    streams += [compile_stream(job, source, used) for source in config.streams]
    for event in config.events:
        check_event(job, event)
    for name in sorted(config.shared_ctes.keys() - used):
        warn_of_unused(job, name, config.shared_ctes[name], "any stream")
    return tuple(streams)
