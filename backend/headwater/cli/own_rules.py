"""Compiles the sync config that the service config names, when replication starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headwater.cli.existing_store import existing_store
from headwater.config.model import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.replication.versions import was_taken
from headwater.source.catalog.schema import see_schema
from headwater.storage.open import open_backend
from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import Code, RuleError, RuleErrors

_log = logging.getLogger(__name__)


_ABSENT_COLUMNS = {Code.NO_COLUMN, Code.COLUMN_NOT_SENT}
"""A missing table is none of them: it may be made while the service runs."""


@dataclass(frozen=True, slots=True)
class OwnRules:
    """A sync config without errors."""

    yaml: str
    compiled: Compiled


def own_rules(config: ServiceConfig, *, quiet: bool = False) -> OwnRules | None:
    """The sync config. With `exit_on_error: false`, errors in it are logged, unless `quiet`, and None is returned.

    Raises RuleErrors otherwise, and ConfigError when there is no sync config or it can't be read.
    """
    yaml = config.sync_text()
    try:
        return OwnRules(yaml, compile_config(yaml))
    except RuleErrors as error:
        _refuse(config, error, quiet=quiet)
        return None


def rules_that_fit(config: ServiceConfig, rules: OwnRules, *, quiet: bool = False) -> OwnRules | None:
    """The sync config, if the columns by which it decides who gets rows are in the source, or may be missing, or if the
    store has taken this text already. With `exit_on_error: false`, the others are logged, and None is returned. Raises
    RuleErrors otherwise."""
    assert config.sync_config is not None, "it has these rules"
    seen = see_schema(config.sources)
    if config.sync_config.allow_missing or seen.schema is None or _taken_already(config, rules.yaml):
        return rules
    try:
        compile_config(rules.yaml, schema=seen.schema)
    except RuleErrors as error:
        absent = [_with_way_out(each) for each in error.errors if each.code in _ABSENT_COLUMNS]
        if absent:
            _refuse(config, RuleErrors(absent), quiet=quiet)
            return None
    return rules


def _refuse(config: ServiceConfig, error: RuleErrors, *, quiet: bool) -> None:
    if config.sync_config is None or config.sync_config.exit_on_error:
        raise error
    if not quiet:
        _log.error("%s is not deployed, the served version stays (exit_on_error is false):\n%s",
                   config.sync_config.origin, error.render())  # fmt: skip


def _taken_already(config: ServiceConfig, yaml: str) -> bool:
    """Whether the store has taken this text already; also true while it can't tell, since a start goes on then."""
    try:
        backend = open_backend(config.storage)
        if not backend.exists():
            return False
        if backend.older_format() is not None:
            return True
        with existing_store(config) as store:
            return was_taken(store, yaml)
    except HeadwaterError:
        return True


def _with_way_out(error: RuleError) -> RuleError:
    hint = "if a migration will add it, set sync_config.allow_missing: true"
    return RuleError(error.code, error.message, error.span, f"{error.suggestion}; {hint}")
