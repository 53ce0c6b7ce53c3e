"""The `headwater` command. Composition only: each command's work is in `headwater.commands`."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from headwater.config import ConfigSource, ServiceConfig, load_config
from headwater.errors import HeadwaterError
from headwater_rules.errors import RuleErrors

_log = logging.getLogger(__name__)

EXIT_ERROR = 1


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the three options that say where the configs are; the command gets them as one ConfigSource."""

    @click.option("-c", "--config", "--config-path", "path", type=click.Path(path_type=Path), metavar="FILE",
                  help="The service config (default: headwater.yaml here, or HEADWATER_CONFIG_PATH).")  # fmt: skip
    @click.option("-c64", "--config-base64", "encoded", metavar="TEXT", help="The service config itself, as base64.")
    @click.option("-sync64", "--sync-base64", "sync", metavar="TEXT", help="The sync config itself, as base64.")
    @functools.wraps(command)
    def wrapped(*args: object, path: Path | None, encoded: str | None, sync: str | None, **options: object) -> None:
        command(*args, configs=ConfigSource(encoded, path, sync), **options)

    return wrapped


def _load(configs: ConfigSource) -> ServiceConfig:
    config = load_config(configs, os.environ, Path.cwd())
    logging.getLogger().setLevel(os.environ.get("HEADWATER_LOG_LEVEL", config.logging.level).upper())
    for warning in config.warnings:
        _log.warning("%s", warning)
    return config


def _arguments(configs: ConfigSource) -> list[str]:
    """The same options for a child process."""
    pairs = (("--config-base64", configs.base64), ("--config", configs.path), ("--sync-base64", configs.sync_base64))
    return [text for name, value in pairs if value is not None for text in (name, str(value))]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headwater")
def cli() -> None:
    """Sync Postgres to devices that work offline.

    Try it with sample data: `headwater dev`. With your own database: write headwater.yaml, then
    `headwater source prepare` and `headwater serve`.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("py4j", "asyncio", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


@cli.command(
    epilog=_examples(
        "headwater serve --config headwater.yaml",
        "PGPASSWORD=… headwater serve -c deploy.yaml   # the file says: password: !env PGPASSWORD",
    )
)
@_config_options
def serve(configs: ConfigSource) -> None:
    """Replicate the source and serve devices: everything on one machine."""
    from headwater.commands import serve as command

    _load(configs)  # says what is wrong once, before any process is started
    command.run(_arguments(configs))


@cli.command(epilog=_examples("headwater start -r unified -c powersync.yaml"))
@click.option(
    "-r", "--runner-type", default="unified", type=click.Choice(["unified", "api", "sync"]), show_default=True
)
@_config_options
def start(runner_type: str, configs: ConfigSource) -> None:
    """`serve` under the name and options of an existing compose file."""
    from headwater.commands import serve as command

    _load(configs)
    arguments = _arguments(configs)
    command.run(arguments, replicator=runner_type != "api", api=runner_type != "sync")


@cli.command(epilog=_examples("headwater replicate --config headwater.yaml"))
@_config_options
@click.option("--source-timeout", default=30.0, show_default=True, metavar="SECONDS",
              help="How long the source may be unreachable at the start.")  # fmt: skip
def replicate(configs: ConfigSource, source_timeout: float) -> None:
    """Only the replicator: follow the source into the store. A second one waits for the first to end."""
    from headwater.commands import replicate as command

    config = _load(configs)
    stop = threading.Event()
    command.stop_on_signals(stop)
    command.run(config, stop, source_timeout=source_timeout)


@cli.command(epilog=_examples("headwater api --config headwater.yaml"))
@_config_options
def api(configs: ConfigSource) -> None:
    """Only the endpoint: serve devices from the store."""
    from headwater.commands import api as command

    command.run(_load(configs))


@cli.group()
def rules() -> None:
    """Work on sync configs."""


@rules.command(epilog=_examples("headwater rules check sync.yaml", "headwater rules check sync.yaml --json"))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(file: Path, as_json: bool) -> None:
    """Compile a sync config and show everything that is wrong with it."""
    from headwater.commands.rules import check_file

    sys.exit(check_file(file, as_json=as_json))


@cli.group()
def source() -> None:
    """Prepare a source database and look at it."""


@source.command("prepare", epilog=_examples("headwater source prepare -c headwater.yaml",
                                            "headwater source prepare -c headwater.yaml --all-tables"))  # fmt: skip
@_config_options
@click.option("--all-tables", is_flag=True, help="Publish every table, not only those the sync config names.")
@click.option("--append-only", is_flag=True,
              help="Also publish tables without a key: Postgres then refuses their updates and deletes.")  # fmt: skip
def prepare_(configs: ConfigSource, all_tables: bool, append_only: bool) -> None:
    """Create the publication and check settings, rights and free slots. Safe to repeat."""
    from headwater.commands.source import prepare_source

    prepare_source(_load(configs), all_tables=all_tables, append_only=append_only)


@source.command(epilog=_examples("headwater source status -c headwater.yaml"))
@_config_options
def status(configs: ConfigSource) -> None:
    """Show how source, slot and store stand to each other."""
    from headwater.commands.source import show_status

    show_status(_load(configs))


@cli.command(epilog=_examples("headwater dev", "headwater dev --port 9000 --keep ./playground"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--rows", default=100_000, show_default=True, help="About how many rows of sample data.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep database and store there, and use them again.")
def dev(host: str, port: int, rows: int, keep: Path | None) -> None:
    """Everything in one command: a Postgres with sample data, Spark, the store, the endpoint and a demo app."""
    from headwater.commands.dev import run

    run(host=host, port=port, rows=rows, keep=keep)


def main() -> None:
    """Entry point: errors of ours become one message and exit code 1, never a trace."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RuleErrors as error:
        click.echo(error.render(), err=True)
        sys.exit(EXIT_ERROR)
    except HeadwaterError as error:
        click.echo(f"headwater: {error}", err=True)
        sys.exit(EXIT_ERROR)
