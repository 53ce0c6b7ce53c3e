"""What a process of the service checks before it starts: that the source answers, and that the sync config fits it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store
from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.replication.versions import was_taken
from headwater.source.catalog.schema import see_schema
from headwater.source.connect import SourceSettings, connect, of_each, shared_publications, source_errors
from headwater.source.readiness.checks import SPARED, raise_if_fatal, source_findings
from headwater.source.slot import SystemIdentity, database_oid, system_identity
from headwater.storage.open import open_store
from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode, RuleError, SyncConfigError
from headwater_rules.plan import TablePattern

_log = logging.getLogger(__name__)


_PAUSE = 1.0


def wait_for_source(
    settings: SourceSettings, tables: Sequence[TablePattern], stop: threading.Event, timeout: float
) -> None:
    """Return when the source is reachable and ready, or `stop` is set.

    Raises the last error after `timeout` seconds, and at once any error that waiting would not fix. With 0 the source
    is tried once: it is the replicator that waits, and reports what for.
    """
    deadline = time.monotonic() + timeout
    said = ""
    while not stop.is_set():
        try:
            _check(settings, tables)
            return
        except HeadwaterError as error:
            if error.kind is Kind.RETRY and timeout <= 0:
                return
            if error.kind is not Kind.RETRY or time.monotonic() + _PAUSE > deadline:
                raise
            if str(error) != said:
                said = str(error)
                _log.warning("%s; trying again", said)
            stop.wait(_PAUSE)


def _check(source: SourceSettings, tables: Sequence[TablePattern]) -> None:
    """Raises what keeps the source from being followed, and logs what does not."""
    with connect(source, application_name="headwater check") as conn:
        findings = source_findings(conn, source, tables)
    raise_if_fatal([finding for finding in findings if finding.code not in SPARED], source)
    for finding in findings:
        _log.warning("%s", finding)


def wait_for_sources(
    sources: Sequence[SourceSettings], tables: Sequence[TablePattern], stop: threading.Event, timeout: float
) -> None:
    """`wait_for_source` for the only source. Of several, return when one is ready: the others are tried once, and what
    is wrong with them is logged, since each is followed as soon as it can be. Raises the error of the first source
    after `timeout` seconds without any."""
    if len(sources) == 1:
        wait_for_source(sources[0], tables, stop, timeout)
        return
    deadline = time.monotonic() + timeout
    while not stop.is_set():
        errors = [e for e in of_each(sources, lambda source: _not_ready(source, tables)) if e is not None]
        if len(errors) < len(sources) or timeout <= 0:
            return
        if time.monotonic() + _PAUSE > deadline:
            raise errors[0]
        stop.wait(_PAUSE)


def _not_ready(source: SourceSettings, tables: Sequence[TablePattern]) -> HeadwaterError | None:
    try:
        _check(source, [table for table in tables if table.of(source.tag)])
    except HeadwaterError as error:
        _log.warning("source %s: %s", source.name, error)
        return error
    return None


def warn_of_same_databases(sources: Sequence[SourceSettings]) -> None:
    """Warn of sources that are one database by the same publication, though its address is written in several ways. Not
    an error: a cluster that was restored from a copy of another one may look like it."""
    if len(sources) < 2:
        return
    asked = list(zip(sources, of_each(sources, _database_of), strict=True))
    for number, (source, database) in enumerate(asked):
        for other, its in asked[:number]:
            if database is not None and database == its and (both := shared_publications(source, other)):
                _log.warning(
                    "sources %s and %s seem to be one database (%s, %s), and both follow its publication %s, so devices"
                    " get its rows from both: follow it once, or name different publications",
                    *(other.name, source.name, other.address, source.address, ", ".join(both)),
                )


def _database_of(source: SourceSettings) -> tuple[SystemIdentity, int] | None:
    """Identifies the database. None if it can't be asked now."""
    try:
        with connect(source, application_name="headwater check") as conn, source_errors(source):
            return system_identity(conn), database_oid(conn)
    except HeadwaterError:
        return None


_ABSENT_COLUMNS = {RuleCode.NO_COLUMN, RuleCode.COLUMN_NOT_SENT}
"""A missing table is none of them: it may be made while the service runs."""


@dataclass(frozen=True, slots=True)
class OwnRules:
    """A sync config without errors."""

    yaml: str
    compiled: Compiled


def own_rules(config: ServiceConfig, *, quiet: bool = False) -> OwnRules | None:
    """The sync config. With `exit_on_error: false`, errors in it are logged, unless `quiet`, and None is returned.

    Raises SyncConfigError otherwise, and ConfigError when there is no sync config or it can't be read.
    """
    yaml = config.sync_text()
    try:
        return OwnRules(yaml, compile_config(yaml))
    except SyncConfigError as error:
        _refuse(config, error, quiet=quiet)
        return None


def rules_that_fit(
    config: ServiceConfig, rules: OwnRules, followed: Collection[str] = (), *, quiet: bool = False
) -> OwnRules | None:
    """The sync config, if the columns by which it decides who gets rows are in the source, or may be missing, or if the
    store has taken this text already from a process that follows these sources. With `exit_on_error: false`, the others
    are logged, and None is returned. Raises SyncConfigError otherwise."""
    assert config.sync_config is not None, "it has these rules"
    if config.sync_config.allow_missing or _taken_already(config, rules.yaml, followed):
        return rules
    seen = see_schema(config.sources, rules.yaml)
    if seen.schema is None:
        return rules
    try:
        compile_config(rules.yaml, schema=seen.schema)
    except SyncConfigError as error:
        for each in error.errors:
            if each.code is RuleCode.NOT_COMPUTED:
                _log.warning("%s: %s", config.sync_config.origin, each)
        absent = [_with_way_out(each) for each in error.errors if each.code in _ABSENT_COLUMNS]
        if absent:
            _refuse(config, SyncConfigError(absent), quiet=quiet)
            return None
    return rules


def _refuse(config: ServiceConfig, error: SyncConfigError, *, quiet: bool) -> None:
    if config.sync_config is None or config.sync_config.exit_on_error:
        raise error
    if not quiet:
        _log.error("%s is not deployed, the served version stays (exit_on_error is false):\n%s",
                   config.sync_config.origin, error.render())  # fmt: skip


def _taken_already(config: ServiceConfig, yaml: str, followed: Collection[str]) -> bool:
    """Whether the store has taken this text already; also true when that can't be read, since a start goes on then."""
    try:
        store = open_store(config.storage)
        if not store.exists():
            return False
        if store.older_format() is not None:
            return True
        with existing_store(config) as writer:
            return was_taken(writer, yaml, followed)
    except HeadwaterError:
        return True


def _with_way_out(error: RuleError) -> RuleError:
    hint = "if a migration will add it, set sync_config.allow_missing: true"
    return RuleError(error.code, error.message, error.span, f"{error.suggestion}; {hint}")
