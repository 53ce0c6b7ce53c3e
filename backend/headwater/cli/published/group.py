"""Commands under the names that existing compose files and scripts call: their arguments and their help."""

from __future__ import annotations

import sys

import click

from headwater.cli.options import config_options, examples, load
from headwater.config.given import ConfigSource


@click.command(epilog=examples("headwater migrate up -c powersync.yaml"))
@click.argument("direction", type=click.Choice(["up", "down"]))
@config_options
def migrate(direction: str, configs: ConfigSource) -> None:
    """Upgrade the store to the format of this version now. Every process also does that when it opens the store."""
    from headwater.cli.published.migrate import migrate as command

    command(load(configs, warn=False), direction)


@click.command(epilog=examples("headwater teardown TEARDOWN -c powersync.yaml"))
@click.argument("word", metavar="TEARDOWN")
@config_options
def teardown(word: str, configs: ConfigSource) -> None:
    """Permanently drop the replication slots and the store. The word TEARDOWN confirms it. Stop the service first."""
    from headwater.cli.published.teardown import teardown as command

    command(load(configs, warn=False), word)


@click.command("test-connection", epilog=examples("headwater test-connection -c powersync.yaml"))
@config_options
def test_connection(configs: ConfigSource) -> None:
    """Connect to the source and check whether it can be replicated. The exit code is 1 when it can't."""
    from headwater.cli.published.connection import test_connections

    sys.exit(test_connections(load(configs, warn=False)))
