"""Compiles the sync config that the service config names, when replication starts."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headwater.config.model import ServiceConfig
from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleErrors

_log = logging.getLogger(__name__)


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
        if config.sync_config is None or config.sync_config.exit_on_error:
            raise
        if not quiet:
            _log.error("%s is not deployed, the served version stays (exit_on_error is false):\n%s",
                       config.sync_config.origin, error.render())  # fmt: skip
        return None
