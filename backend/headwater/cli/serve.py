"""`headwater serve`: the replicator and the endpoint, each a process of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence

from headwater.cli.await_source import wait_for_source
from headwater.cli.own_rules import own_rules
from headwater.cli.signals import stop_on_signals
from headwater.cli.supervise import Child, supervise
from headwater.config import ServiceConfig


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
    """Serve until told to stop. What is wrong with rules or source is said here, before any process is started.

    `arguments` and `environment` lead the children to the same config. See `Replicator` for `take_slot`.
    """
    stop = threading.Event()
    stop_on_signals(stop)
    headwater = [sys.executable, "-m", "headwater"]
    children = []
    if replicator:
        rules = own_rules(config, quiet=True)  # the replicator speaks of it
        tables = rules.compiled.plan.tables() if rules is not None else ()
        wait_for_source(config.source(), tables, stop, source_timeout)
        # Started again while the source is away, it must not end the endpoint: it waits for as long as it takes.
        command = [*headwater, "replicate", "--source-timeout", "0", *arguments]
        children.append(Child("replicator", command, environment, at_first=["--take-slot"] if take_slot else []))
    if api:
        children.append(Child("endpoint", [*headwater, "api", *arguments], environment))
    supervise(children, stop)
