"""Commands under the names that existing compose files and scripts call: their arguments and their help."""

from __future__ import annotations

import sys

import click

from headwater.cli.options import config_options, examples, load, load_without_lists
from headwater.config import ConfigSource


@click.command(
    "migrate", epilog=examples("headwater migrate check -c powersync.yaml", "headwater migrate up -c powersync.yaml")
)
@click.argument("what", type=click.Choice(["check", "up", "down"]))
@config_options
def migrate_(what: str, configs: ConfigSource) -> None:
    """Move from the PowerSync service, or upgrade the store.

    check: say what of an existing service config, its sync config and its database is taken over as it is, what is
    ignored, and what has to change. Changes nothing. The exit code is 1 when something has to change.

    up: upgrade the store to the format of this version now. Every process also does that when it opens the store.
    """
    if what == "check":
        from headwater.cli.powersync.migrate import check

        sys.exit(check(configs))
    from headwater.cli.powersync.migrate import migrate as command

    command(load_without_lists(configs), what)


@click.command("teardown", epilog=examples("headwater teardown TEARDOWN -c powersync.yaml"))
@click.argument("word", metavar="TEARDOWN")
@config_options
def teardown_(word: str, configs: ConfigSource) -> None:
    """Permanently drop the replication slots and the store. The word TEARDOWN confirms it. Stop the service first."""
    from headwater.cli.powersync.teardown import teardown as command

    command(load(configs, warn=False), word)


@click.command("test-connection", epilog=examples("headwater test-connection -c powersync.yaml"))
@config_options
def test_connection(configs: ConfigSource) -> None:
    """Connect to the source and check whether it can be replicated. The exit code is 1 when it can't."""
    from headwater.cli.powersync.teardown import test_connections

    sys.exit(test_connections(load(configs, warn=False)))
