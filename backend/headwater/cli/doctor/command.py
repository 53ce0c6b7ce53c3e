"""`headwater doctor`: its arguments and help."""

from __future__ import annotations

import sys

import click

from headwater.cli.options import config_options, examples
from headwater.config.given import ConfigSource


@click.command(epilog=examples("headwater doctor", "headwater doctor -c headwater.yaml --json"))
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(configs: ConfigSource, as_json: bool) -> None:
    """Go through everything that can be wrong, and say what to do about it.

    Looks at the configs, the source and its rights, slots and log, the publication, clocks, uploads, the keys of
    tokens, the store and its disk, Java and Spark, and the ports. Changes nothing in the source. The exit code is 1
    when something FAILs; what is only a WARNing leaves it at 0.
    """
    from headwater.cli.doctor.run import run

    sys.exit(run(configs, as_json=as_json))
