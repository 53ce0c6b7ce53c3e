"""`headwater serve`: runs the replicator and the endpoint, each in its own process, once the source answers and the
sync config fits it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from headwater.cli.config import ServiceConfig
from headwater.cli.startup import own_rules, rules_that_fit, wait_for_sources
from headwater.cli.supervise import Child, stop_on_signals, supervise
from headwater.cli.workers import endpoint_children, raise_if_in_use

_log = logging.getLogger(__name__)


def run(
    config: ServiceConfig,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    source_timeout: float = 30.0,
    take_slot: bool = False,
    replicator: bool = True,
    api: bool = True,
) -> None:
    """Serve until stopped. Reports ports in use and errors in rules or source before starting any process.

    `arguments` and `environment` pass the config to the children. `take_slot` is described at `Replicator`.
    """
    stop = stop_on_signals()
    if api:
        raise_if_in_use(config)
    headwater = [sys.executable, "-m", "headwater"]
    children = []
    unified = ["--unified"] if replicator and api else []  # one of the two answers at the metrics' port
    if replicator:
        rules = own_rules(config, quiet=True)  # the replicator logs the errors
        tables = rules.compiled.plan.tables() if rules is not None else ()
        wait_for_sources(config.chosen(()), tables, stop, source_timeout)
        if rules is not None and not stop.is_set():
            rules_that_fit(config, rules, quiet=True)
        # Restarted while the source is down, it must not end the endpoint, so it waits without limit
        command = [*headwater, "replicate", "--source-timeout", "0", *unified, *arguments]
        children.append(Child("replicator", command, environment, at_first=["--take-slot"] if take_slot else []))
    with ExitStack() as stack:
        if api:
            command = [*headwater, "api", *unified, *arguments]
            children += stack.enter_context(endpoint_children(config, command, environment))
        supervise(children, stop)
