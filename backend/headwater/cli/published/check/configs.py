"""What becomes of the service config and the sync config."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.cli.published.check.result import Fate, Outcome
from headwater.config.errors import ConfigError
from headwater.config.model import ServiceConfig, SyncConfigText
from headwater.config.review import Review
from headwater.storage.address import PostgresAddress
from headwater_rules.compiler.compile import Compiled, compile_config, findings_in
from headwater_rules.errors import RuleError, RuleErrors, Severity
from headwater_rules.schema import SourceSchema

_SEE = "see docs/service-config.md"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def config_outcomes(review: Review) -> Iterator[Outcome]:
    """Each key of the service config."""
    if review.right:
        yield Outcome(Fate.TAKEN, "config", ", ".join(review.right))
    for warning in review.warnings:
        yield Outcome(Fate.IGNORED, "config", str(warning))
    for error in review.errors:
        place = f"{error.mark}: " if error.mark else ""
        key = f"{error.key}: " if error.key else ""
        yield Outcome(Fate.CHANGE, "config", f"{place}{key}{error.what}", error.fix or _SEE)
    if isinstance(review.config.storage, PostgresAddress):
        what = (
            f"the store is made anew in the schema {review.config.storage.schema}; that of the old service is not read"
        )
        yield Outcome(Fate.NOTE, "store", what)
    yield from _port_outcomes(review)
    yield from _limit_outcomes(review)


def _limit_outcomes(review: Review) -> Iterator[Outcome]:
    """Limits that the published service does not have, unless the config sets them."""
    api = review.config.api
    if "api.parameters.max_streams_per_user" not in review.keys:
        what = (
            f"a user may have {api.max_streams_per_user} open streams in one process; the published service counts only"
            f" those of all users together ({api.max_concurrent_connections})"
        )
        fix = "where many devices share a user, set api.parameters: {max_streams_per_user: …}; see docs/limits.md"
        yield Outcome(Fate.NOTE, "limits", what, fix)


def _port_outcomes(review: Review) -> Iterator[Outcome]:
    """Who answers where, if that is not as it was."""
    config = review.config
    if "healthcheck.probes.use_http" in review.keys and config.probes:
        what = "the endpoint answers probes (unified, api); a replicator alone (start -r sync) has no port for them"
        fix = "take the probes off that container, or ask for its metrics, at telemetry.prometheus_port"
        yield Outcome(Fate.NOTE, "probes", what, fix)
    if config.prometheus_port is not None and config.metrics_host in _LOOPBACK:
        what = f"metrics are answered at {config.metrics_host} only, so a Prometheus in another container gets none"
        yield Outcome(Fate.NOTE, "metrics", what, "set metrics: {host: 0.0.0.0}")


def rules_outcomes(config: ServiceConfig, schema: SourceSchema | None) -> tuple[Compiled | None, list[Outcome]]:
    """The sync config, against the tables of the source if they are known."""
    if config.sync_config is None:
        what = "no sync config is in a file: the old service keeps the one that was deployed to it"
        fix = "save it (GET /api/sync-rules/v1/current of the old service), and name the file in sync_config.path"
        return None, [Outcome(Fate.CHANGE, "rules", what, fix)]
    given, origin = config.sync_config, config.sync_config.origin
    try:
        text = config.sync_text()
        compiled = compile_config(text)
    except ConfigError as error:
        return None, [Outcome(Fate.CHANGE, "rules", str(error), "correct sync_config.path")]
    except RuleErrors as errors:
        return None, [_of_rule(given, each) for each in errors.findings]
    found = [_of_rule(given, each) for each in findings_in(text, schema)]
    names = ", ".join(stream.name for stream in compiled.plan.streams)
    if not any(each.fate is Fate.CHANGE for each in found):
        found = [Outcome(Fate.TAKEN, "rules", f"{origin}: streams and bucket definitions {names}"), *found]
    return compiled, found


def _of_rule(given: SyncConfigText, error: RuleError) -> Outcome:
    fate = Fate.CHANGE if error.severity is Severity.FATAL else Fate.IGNORED
    place = f", line {error.span.line}" if error.span is not None else ""
    fix = error.suggestion or given.checked_by
    return Outcome(fate, "rules", f"{given.origin}{place}: [{error.code.value}] {error.message}", fix)
