"""`headwater migrate check`: what of a PowerSync deployment is taken over as it is, what is ignored, and what has to
change; and `migrate up`, which upgrades the store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from textwrap import TextWrapper

import click
import psycopg

from headwater.cli.config import ConfigReview, ServiceConfig, SyncConfigText, review_config
from headwater.cli.existing_store import existing_store
from headwater.codes import Kind
from headwater.config import ConfigSource
from headwater.config.document import ConfigError
from headwater.errors import HeadwaterError
from headwater.replication.own_slot import slot_note
from headwater.source.catalog.publications import load_publications
from headwater.source.catalog.schema import see_schema
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.checks import publication_findings, server_findings, source_findings
from headwater.source.slot import slot_name
from headwater.storage.address import PostgresAddress
from headwater.storage.open import open_store
from headwater_rules.compiler.compile import Compiled, compile_config, findings_in
from headwater_rules.errors import RuleError, Severity, SyncConfigError
from headwater_rules.plan import TablePattern
from headwater_rules.schema import SourceSchema


class Action(Enum):
    """In the order in which they are printed."""

    TAKEN = "Taken over as it is"
    IGNORED = "Ignored, or read with a warning"
    CHANGE = "Has to change"
    NOTE = "Good to know"


@dataclass(frozen=True, slots=True)
class MigrationItem:
    """One thing and its fate. `fix` says what to do, if anything."""

    fate: Action
    area: str
    what: str
    fix: str = ""


_SEE = "see docs/service-config.md"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def config_outcomes(review: ConfigReview) -> Iterator[MigrationItem]:
    """Each key of the service config."""
    if review.right:
        yield MigrationItem(Action.TAKEN, "config", ", ".join(review.right))
    for warning in review.warnings:
        yield MigrationItem(Action.IGNORED, "config", str(warning))
    for error in review.errors:
        place = f"{error.mark}: " if error.mark else ""
        key = f"{error.key}: " if error.key else ""
        yield MigrationItem(Action.CHANGE, "config", f"{place}{key}{error.what}", error.fix or _SEE)
    if isinstance(review.config.storage, PostgresAddress):
        what = f"a new store is made in the schema {review.config.storage.schema}; that of the old service is not read"
        yield MigrationItem(Action.NOTE, "store", what)
    yield from _port_outcomes(review)
    yield from _limit_outcomes(review)


def _limit_outcomes(review: ConfigReview) -> Iterator[MigrationItem]:
    """Limits that the PowerSync service does not have, unless the config sets them."""
    streams = review.config.api.parameters.streams
    if "api.parameters.max_streams_per_user" not in review.keys:
        what = (
            f"a user may have {streams.per_user} open streams in one process; the PowerSync service only counts"
            f" those of all users together ({streams.streams})"
        )
        fix = "where many devices share a user, set api.parameters: {max_streams_per_user: …}; see docs/limits.md"
        yield MigrationItem(Action.NOTE, "limits", what, fix)


def _port_outcomes(review: ConfigReview) -> Iterator[MigrationItem]:
    """Who answers where, if that is not as it was."""
    config = review.config
    if "healthcheck.probes.use_http" in review.keys and config.probes:
        what = "the endpoint answers probes (unified, api); a replicator alone (start -r sync) has no port for them"
        fix = "take the probes off that container, or ask for its metrics, at telemetry.prometheus_port"
        yield MigrationItem(Action.NOTE, "probes", what, fix)
    if config.prometheus_port is not None and config.metrics_host in _LOOPBACK:
        what = f"metrics are answered at {config.metrics_host} only, so a Prometheus in another container gets none"
        yield MigrationItem(Action.NOTE, "metrics", what, "set metrics: {host: 0.0.0.0}")


def rules_outcomes(config: ServiceConfig, schema: SourceSchema | None) -> tuple[Compiled | None, list[MigrationItem]]:
    """The sync config, against the tables of the source if they are known."""
    if config.sync_config is None:
        what = "no sync config is in a file: the old service keeps the one that was deployed to it"
        fix = "save it (GET /api/sync-rules/v1/current of the old service), and name the file in sync_config.path"
        return None, [MigrationItem(Action.CHANGE, "rules", what, fix)]
    given, origin = config.sync_config, config.sync_config.origin
    try:
        text = config.sync_text()
        compiled = compile_config(text)
    except ConfigError as error:
        return None, [MigrationItem(Action.CHANGE, "rules", str(error), "correct sync_config.path")]
    except SyncConfigError as errors:
        return None, [_of_rule(given, each) for each in errors.findings]
    found = [_of_rule(given, each) for each in findings_in(text, schema)]
    names = ", ".join(stream.name for stream in compiled.plan.streams)
    if not any(each.fate is Action.CHANGE for each in found):
        found = [
            MigrationItem(Action.TAKEN, "rules", f"{origin}: streams and bucket definitions {names}"),
            *found,
        ]
    return compiled, found


def _of_rule(given: SyncConfigText, error: RuleError) -> MigrationItem:
    fate = Action.CHANGE if error.severity is Severity.FATAL else Action.IGNORED
    place = f", line {error.span.line}" if error.span is not None else ""
    fix = error.suggestion or given.checked_by
    return MigrationItem(fate, "rules", f"{given.origin}{place}: [{error.code.value}] {error.message}", fix)


PUBLICATION = "powersync"
"""What the PowerSync service has its users make."""

_SLOTS = """
select slot_name::text, active from pg_replication_slots
where database = current_database() and slot_type = 'logical' and not temporary
  and (starts_with(slot_name, 'powersync_') or starts_with(slot_name, %s)) and slot_name <> all(%s)
order by slot_name
"""


def source_outcomes(
    settings: SourceSettings, tables: Sequence[TablePattern] | None, noted_slot: str = ""
) -> list[MigrationItem]:
    """The source, for the tables of the sync config; None if they are not known. `noted_slot` is that of our store."""
    try:
        with connect(settings, application_name="headwater migrate check") as conn, source_errors(settings):
            found = [*_readiness(conn, settings, tables), *_former_slots(conn, settings, noted_slot)]
    except HeadwaterError as error:
        return [MigrationItem(Action.CHANGE, "source", f"[{error.code}] {error.what}", error.fix)]
    return found


def _readiness(
    conn: psycopg.Connection, settings: SourceSettings, tables: Sequence[TablePattern] | None
) -> Iterator[MigrationItem]:
    known = load_publications(conn, (*settings.publications, PUBLICATION))
    if PUBLICATION in known and not any(name in known for name in settings.publications):
        lacking = ", ".join(settings.publications)
        what = f'the database has the publication "{PUBLICATION}", and lacks what the connection names: {lacking}'
        fix = f"set publications: [{PUBLICATION}] in the connection, or make our own: `headwater source prepare`"
        yield MigrationItem(Action.CHANGE, "source", what, fix)
        settings = replace(settings, publications=(PUBLICATION,))
    if tables is not None:
        findings = source_findings(conn, settings, tables)
    else:
        findings = [*server_findings(conn, settings), *publication_findings(conn, settings)]
    for each in findings:
        untold = "; ".join(statement for statement in each.sql if statement not in each.fix)
        fate = Action.CHANGE if each.fatal else Action.NOTE
        yield MigrationItem(
            fate, "source", f"[{each.code}] {each.what}", f"{each.fix}: {untold}" if untold else each.fix
        )
    if not any(each.fatal for each in findings):
        rights = "settings, rights" if tables is not None else "settings"
        published = ", ".join(settings.publications)
        yield MigrationItem(Action.TAKEN, "source", f"{settings.address}: {rights} and the publication {published}")
    if tables is None:
        what = "its tables, and the right to read them, are looked at once there are rules that can be read"
        yield MigrationItem(Action.NOTE, "source", what)


def _former_slots(conn: psycopg.Connection, settings: SourceSettings, noted: str) -> Iterator[MigrationItem]:
    """The old service names its slots as slot_name_prefix says, and so do we: ours are left out."""
    own = [slot_name(settings), noted]
    for name, active in conn.execute(_SLOTS, [settings.slot_prefix, own]).fetchall():
        reading = "is read by the old service" if active else "is read by nobody, and keeps the database's log"
        fix = f"when the old service is gone for good: SELECT pg_drop_replication_slot('{name}')"
        yield MigrationItem(
            Action.NOTE, "source", f"the slot {name} {reading}; Headwater makes one of its own beside it", fix
        )


_DEVICES = "devices download their rows once more, under other bucket names; writes that wait on them stay and are sent"

_WRAPPED = TextWrapper(110, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)


def check(configs: ConfigSource) -> int:
    """Look at config, rules and source, and print what becomes of them. Returns the exit code: 1 when something has to
    change. Changes nothing. Raises ConfigError when the service config can't be read at all."""
    review = review_config(configs, os.environ, Path.cwd())
    outcomes = list(_outcomes(review))
    for fate in Action:
        _print(fate, [each for each in outcomes if each.fate is fate])
    changes = sum(each.fate is Action.CHANGE for each in outcomes)
    if changes:
        click.echo(f"{changes} of these have to change before Headwater can take over. See docs/migrating.md.")
        return 1
    click.echo(
        "Nothing has to change in config, rules and source. Next is `headwater doctor`, which also looks at keys, ports"
        " and this machine. See docs/migrating.md for what differs."
    )
    return 0


def _outcomes(review: ConfigReview) -> Iterator[MigrationItem]:
    yield from config_outcomes(review)
    wrong = _is_wrong(review, "replication")
    sources = () if wrong else review.config.sources
    seen = see_schema(sources)
    compiled, found = rules_outcomes(review.config, seen.schema)
    yield from found
    yield MigrationItem(Action.NOTE, "rules", seen.note)
    tables = compiled.plan.tables() if compiled is not None else None
    for source in sources:
        for each in source_outcomes(source, tables, _noted_slot(review, source)):
            yield each if len(sources) == 1 else replace(each, what=f"{source.name}: {each.what}")
    if sources:
        yield from _store_outcomes(review, sources)
    elif not wrong:
        try:
            review.config.chosen(())
        except ConfigError as error:
            (issue,) = error.issues
            yield MigrationItem(Action.CHANGE, "source", issue.what, issue.fix)
    yield MigrationItem(Action.NOTE, "devices", _DEVICES)


def _is_wrong(review: ConfigReview, section: str) -> bool:
    return any(each.key.startswith(section) for each in review.errors)


def _store_outcomes(review: ConfigReview, sources: Sequence[SourceSettings]) -> Iterator[MigrationItem]:
    """What keeps the first start from making the store, or would have a source send us our own writes."""
    if _is_wrong(review, "storage"):
        return
    store = open_store(review.config.storage)
    try:
        for source in sources:
            store.raise_if_published(source.publications)
        for each in store.missing_rights():
            fix = (
                f"run {'; '.join(each.sql)}" if each.sql else "give the user that Headwater runs as the right to write"
            )
            yield MigrationItem(Action.CHANGE, "store", each.what, fix)
    except HeadwaterError as error:
        fate = Action.NOTE if error.kind is Kind.RETRY else Action.CHANGE  # it may be reached from elsewhere only
        yield MigrationItem(fate, "store", f"[{error.code}] {error.what} ({error.where})", error.fix)


def _noted_slot(review: ConfigReview, source: SourceSettings) -> str:
    """The slot that our store follows, which the config may name otherwise by now. Empty if there is no such store, or
    to open it would upgrade it."""
    if _is_wrong(review, "storage"):
        return ""
    try:
        store = open_store(review.config.storage)
        if not store.exists() or store.older_format() is not None:
            return ""
        with existing_store(review.config) as writer:
            return slot_note(source.name, writer).name
    except HeadwaterError:
        return ""


def _print(fate: Action, outcomes: list[MigrationItem]) -> None:
    if not outcomes:
        return
    click.echo(f"{fate.value}:")
    for each in outcomes:
        click.echo(_WRAPPED.fill(f"  {each.area:<8} {each.what}"))
        if each.fix:
            click.echo(f"{'':<11}-> {each.fix}")  # to be copied, so in one line
    click.echo()


def migrate(config: ServiceConfig, direction: str) -> None:
    """Upgrade a store by opening it. Raises HW_8104 for `down`, and StoreError for a store of a newer format."""
    if direction == "down":
        raise HeadwaterError(
            "a store can't be converted to an older format",
            str(config.storage),
            "restore a backup from before the upgrade, or let the older version make a new store: devices"
            " download what differs",
            code="HW_8104",
        )
    existed = open_store(config.storage).exists()
    open_store(config.storage).open_writer().close()
    done = "has this version's format" if existed else "was created"
    click.echo(f"the store at {config.storage} {done}")
