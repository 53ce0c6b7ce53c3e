"""The group `headwater lake`: commands, arguments and help."""

from __future__ import annotations

import click

from headwater.cli.options import config_options, examples, load_without_lists, seconds
from headwater.cli.supervise import stop_on_signals
from headwater.config import ConfigSource
from headwater.embedded import how_to_add
from headwater.errors import HeadwaterError


@click.group()
def lake() -> None:
    """The store as tables of Parquet files, for Spark, DuckDB and others."""


@lake.command("export", epilog=examples("headwater lake export /srv/lake -c headwater.yaml",
                                         "headwater lake export /srv/lake --every 1m --snapshot-every 1h",
                                         "headwater lake export ./lake --once"))  # fmt: skip
@click.argument("directory")
@config_options
@click.option("--format", "_format", type=click.Choice(["parquet"]), default="parquet", show_default=True,
              help="The format of the files.")  # fmt: skip
@click.option("--every", default="10s", show_default=True, metavar="TIME", type=seconds,
              help="How often to add what is new to the op log: 10s, 5m or 1h.")  # fmt: skip
@click.option("--snapshot-every", default="10m", show_default=True, metavar="TIME", type=seconds,
              help="How often to write current rows and buckets anew, if a source went on.")  # fmt: skip
@click.option("--once", is_flag=True, help="Bring all tables up to date once, and end.")
@click.option("--reset", is_flag=True, help="Discard what the directory has, and begin anew.")
def export_(
    directory: str, configs: ConfigSource, _format: str, every: int, snapshot_every: int, once: bool, reset: bool
) -> None:
    """Keep the op log, the current rows and who has what in DIRECTORY as Parquet files.

    Runs beside the service, reads its store, and continues where it was after any end. Tables and columns are in
    docs/lake.md. The files hold rows of the source: protect them as you protect the store.
    """
    config = load_without_lists(configs)
    stop = stop_on_signals()
    try:
        from headwater.cli.lake.export import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise HeadwaterError("this command needs pyarrow", "", how_to_add("lake"), code="HW_8005") from error

    run(config, stop, directory, every=every, snapshot_every=0 if once else snapshot_every, once=once, reset=reset)
