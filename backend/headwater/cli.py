"""The `headwater` command. Composition only: each command's work is in `headwater.commands`."""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import click

from headwater.commands.logs import set_up_logging
from headwater.commands.supervise import SUPERVISED, ChildStoppedError, end_with_supervisor
from headwater.config import ConfigSource, ServiceConfig, load_config
from headwater.config.origin import CONFIG_B64, SYNC_B64
from headwater.errors import HeadwaterError, Kind
from headwater_rules.errors import RuleErrors

_log = logging.getLogger(__name__)

EXIT_ERROR = 1  # a person has to change something first
EXIT_AGAIN = 75  # the same command may succeed later
EXIT_BUG = 70


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


_source_timeout = click.option(
    "--source-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the source may be unreachable at the start; 0 waits for ever.",
)


def _load(configs: ConfigSource) -> ServiceConfig:
    config = load_config(configs, os.environ, Path.cwd())
    set_up_logging(config.logging.level, config.logging.format)
    if SUPERVISED not in os.environ:
        for warning in config.warnings:
            _log.warning("%s", warning)
    return config


def _arguments(configs: ConfigSource) -> list[str]:
    """The same config for a child process; see `_environment` for the rest."""
    return [] if configs.path is None else ["--config", str(configs.path)]


def _environment(configs: ConfigSource) -> dict[str, str]:
    pairs = ((CONFIG_B64[0], configs.base64), (SYNC_B64[0], configs.sync_base64))
    return {name: text for name, text in pairs if text is not None}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headwater")
def cli() -> None:
    """Sync Postgres to devices that work offline.

    Try it with sample data: `headwater dev`. With your own database: write headwater.yaml, then
    `headwater source prepare` and `headwater serve`.
    """
    set_up_logging()


@cli.command(
    epilog=_examples(
        "headwater serve --config headwater.yaml",
        "PGPASSWORD=… headwater serve -c deploy.yaml   # the file says: password: !env PGPASSWORD",
    )
)
@_config_options
@_source_timeout
def serve(configs: ConfigSource, source_timeout: float) -> None:
    """Replicate the source and serve devices: everything on one machine."""
    from headwater.commands import serve as command

    command.run(_load(configs), _arguments(configs), _environment(configs), source_timeout=source_timeout)


@cli.command(epilog=_examples("headwater start -r unified -c powersync.yaml"))
@click.option(
    "-r", "--runner-type", default="unified", type=click.Choice(["unified", "api", "sync"]), show_default=True
)
@_config_options
@_source_timeout
def start(runner_type: str, configs: ConfigSource, source_timeout: float) -> None:
    """`serve` under the name and options of an existing compose file."""
    from headwater.commands import serve as command

    command.run(
        _load(configs),
        _arguments(configs),
        _environment(configs),
        source_timeout=source_timeout,
        replicator=runner_type != "api",
        api=runner_type != "sync",
    )


@cli.command(epilog=_examples("headwater replicate --config headwater.yaml"))
@_config_options
@_source_timeout
def replicate(configs: ConfigSource, source_timeout: float) -> None:
    """Only the replicator: follow the source into the store. A second one waits for the first to end."""
    from headwater.commands.signals import stop_on_signals

    config = _load(configs)
    stop = threading.Event()
    stop_on_signals(stop)
    end_with_supervisor()
    from headwater.commands import replicate as command

    command.run(config, stop, source_timeout=source_timeout)


@cli.command(epilog=_examples("headwater api --config headwater.yaml"))
@_config_options
def api(configs: ConfigSource) -> None:
    """Only the endpoint: serve devices from the store."""
    config = _load(configs)
    from headwater.commands import api as command

    end_with_supervisor()
    command.run(config)


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
@click.option("--admin-uri", envvar="HEADWATER_ADMIN_URI", metavar="URI",
              help="Who publishes and grants if the configured role may not (or HEADWATER_ADMIN_URI).")  # fmt: skip
def prepare_(configs: ConfigSource, all_tables: bool, append_only: bool, admin_uri: str | None) -> None:
    """Create the publication and check settings, rights and free slots. Safe to repeat."""
    from headwater.commands.source import prepare_source

    prepare_source(_load(configs), all_tables=all_tables, append_only=append_only, admin_uri=admin_uri)


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
    """Entry point: every error becomes one message and an exit code that is not 0, never a trace."""
    try:
        cli(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RuleErrors as error:
        click.echo(error.render(), err=True)
        sys.exit(EXIT_ERROR)
    except HeadwaterError as error:
        if not isinstance(error, ChildStoppedError):  # the child has said why
            click.echo(f"headwater: {error}", err=True)
        sys.exit(EXIT_AGAIN if error.kind is Kind.RETRY else EXIT_ERROR)
    except Exception as error:  # noqa: BLE001 - a bug; its text may hold anything, so its place has to do
        click.echo(f"headwater: {_place_of(error)}", err=True)
        _log.debug("internal error", exc_info=error)
        sys.exit(EXIT_BUG)


def _place_of(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"internal error: {type(error).__name__}{where}; HEADWATER_LOG_LEVEL=debug shows more, please report it"
