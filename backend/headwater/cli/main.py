"""The `headwater` command: its commands, their arguments and help. Each is implemented in a module of its own."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from pathlib import Path

import click

from headwater.cli.explain import explain
from headwater.cli.init import init
from headwater.cli.lake import lake
from headwater.cli.mcp import mcp_
from headwater.cli.options import (
    claim,
    config_options,
    examples,
    load,
    load_without_lists,
    seconds,
    source_option,
    sources_changed,
)
from headwater.cli.powersync import migrate_, teardown_, test_connection
from headwater.cli.rules import rules
from headwater.cli.source import source
from headwater.cli.store import store
from headwater.cli.supervise import ChildStoppedError, end_with_supervisor, executed_anew, stop_on_signals
from headwater.cli.upload import upload
from headwater.cli.watching import set_up_logging
from headwater.codes import Kind
from headwater.config import CONFIG_B64, SYNC_B64, ConfigSource
from headwater.embedded import how_to_add
from headwater.errors import HeadwaterError
from headwater_rules.errors import SyncConfigError

_OF_SPARK = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})


def missing_extra(error: Exception) -> HeadwaterError | None:
    """The error to print for a failed import, if an extra provides the missing package."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in _OF_SPARK:
        return HeadwaterError("this command needs Spark", package, how_to_add("spark"), code="HW_8003")
    if package == "mcp":
        return HeadwaterError("the Model Context Protocol is missing", package, how_to_add("mcp"), code="HW_8007")
    if package == "opentelemetry":
        fix = f"{how_to_add('otel')}; or set OTEL_SDK_DISABLED=true to send none"
        return HeadwaterError("traces are configured, and need OpenTelemetry", package, fix, code="HW_8004")
    return None


_log = logging.getLogger(__name__)

EXIT_ERROR = 1  # a person has to change something first
EXIT_AGAIN = 75  # the same command may succeed later
EXIT_BUG = 70


_source_timeout = click.option(
    "--source-timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for an unreachable source at the start; 0 waits forever.",
)


_take_slot = click.option(
    "--take-slot",
    is_flag=True,
    help="Take our replication slot in the source database from another service that uses it.",
)


_unified = click.option("--unified", is_flag=True, hidden=True)  # as `serve` starts its two processes


def _for_children(configs: ConfigSource) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment that give child processes the same config."""
    from headwater.config.origin import for_children

    pairs = ((CONFIG_B64[0], configs.base64), (SYNC_B64[0], configs.sync_base64))
    environment = {name: text for name, text in pairs if text is not None}
    read = for_children(configs, os.environ, Path.cwd())
    arguments = [] if configs.path is None or read else ["--config", str(configs.path)]
    return arguments, {**environment, **read}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headwater")
def cli() -> None:
    """Sync Postgres to devices that work offline.

    Try it with sample data: `headwater dev`. With your own database: `headwater init` writes a config, then
    `headwater source prepare` and `headwater serve`.
    """
    set_up_logging()


for each in (explain, init, lake, mcp_, migrate_, rules, source, store, teardown_, test_connection, upload):
    cli.add_command(each)


@cli.command(epilog=examples("headwater doctor", "headwater doctor -c headwater.yaml --json"))
@config_options
@source_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(configs: ConfigSource, as_json: bool) -> None:
    """Go through everything that can be wrong, and say what to do about it.

    Looks at the configs, the source and its rights, slots and log, the publication, clocks, uploads, the keys of
    tokens, the store and its disk, Java and Spark, and the ports. Changes nothing in the source. The exit code is 1
    when something FAILs; what is only a WARNing leaves it at 0.
    """
    from headwater.cli.doctor import run

    sys.exit(run(configs, as_json=as_json))


@cli.command(
    epilog=examples(
        "headwater serve --config headwater.yaml",
        "PGPASSWORD=… headwater serve -c deploy.yaml   # the file says: password: !env PGPASSWORD",
    )
)
@config_options
@_source_timeout
@_take_slot
def serve(configs: ConfigSource, source_timeout: float, take_slot: bool) -> None:
    """Replicate the source and serve devices: everything on one machine."""
    from headwater.cli import serve as command

    command.run(load(configs), *_for_children(configs), source_timeout=source_timeout, take_slot=take_slot)


@cli.command(epilog=examples("headwater start -r unified -c powersync.yaml"))
@click.option("-r", "--runner-type", envvar="PS_RUNNER_TYPE", default="unified", show_default=True, show_envvar=True,
              type=click.Choice(["unified", "api", "sync"]))  # fmt: skip
@config_options
@_source_timeout
def start(runner_type: str, configs: ConfigSource, source_timeout: float) -> None:
    """`serve` under the name and options of an existing compose file."""
    from headwater.cli import serve as command

    command.run(
        load(configs),
        *_for_children(configs),
        source_timeout=source_timeout,
        replicator=runner_type != "api",
        api=runner_type != "sync",
    )


@cli.command(epilog=examples("headwater replicate --config headwater.yaml", "headwater replicate --source orders"))
@config_options
@_source_timeout
@_take_slot
@_unified
@click.option("--source", "names", multiple=True, metavar="NAME",
              help="Follow this source alone: its tag, or tag/shard. Can be repeated.")  # fmt: skip
def replicate(
    configs: ConfigSource, source_timeout: float, take_slot: bool, unified: bool, names: tuple[str, ...]
) -> None:
    """Only the replicator: follow the sources into the store. A second one waits for the first to end."""
    config = load(configs)
    with executed_anew(sources_changed(configs, config), config.reread_seconds):
        stop = stop_on_signals()
        end_with_supervisor()
        from headwater.cli import replicate as command

        command.run(
            config,
            stop,
            sources=config.chosen(names),
            source_timeout=source_timeout,
            take_slot=take_slot,
            unified=unified,
        )


@cli.command(epilog=examples("headwater api --config headwater.yaml"))
@config_options
@_unified
def api(configs: ConfigSource, unified: bool) -> None:
    """Only the endpoint: serve devices from the store."""
    config = load(configs)
    from headwater.cli import api as command

    every = 0.0 if command.has_children(config) else config.reread_seconds
    with executed_anew(sources_changed(configs, config), every):
        command.run(config, *_for_children(configs), unified=unified, beat=end_with_supervisor())


@cli.command(epilog=examples("headwater audit", "headwater audit todos --json", "headwater audit --repair"))
@click.argument("tables", nargs=-1, metavar="[TABLE…]")
@config_options
@source_option
@click.option("--repair", is_flag=True, help="Repair what differs; devices are sent the difference.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is done (the default), or only submit it.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def audit(configs: ConfigSource, tables: tuple[str, ...], repair: bool, wait: bool, as_json: bool) -> None:
    """Compare the source, the stored rows and the history that devices receive, and report differences. The exit code
    is 1 when something differs and was not repaired."""
    from headwater.cli.source.requests import audit as command

    sys.exit(command(load(configs), tables, repair=repair, wait=wait, as_json=as_json))


@cli.command(
    "compact",
    epilog=examples(
        "headwater compact",
        "headwater compact --definition todos",
        """headwater compact --bucket 'todos.3fa9c1|0["u1"]' --budget 1000000""",
    ),
)
@config_options
@click.option("--bucket", metavar="NAME", help="Only this bucket.")
@click.option("--definition", metavar="NAME", help="Only the buckets of this stream or bucket definition.")
@click.option("--budget", type=click.IntRange(min=0), metavar="BYTES",
              help="Bytes of a bucket that devices may download again to make its history shorter still; 0 for none. "
              "By default, as many as are worth it.")  # fmt: skip
@click.option("--spark", is_flag=True, help="Run on Spark (the default above a few million ops).")
def compact_(
    configs: ConfigSource, bucket: str | None, definition: str | None, budget: int | None, spark: bool
) -> None:
    """Shorten histories now: what a new device downloads, and what the store keeps.

    The service does this automatically, some time after changes. Devices in the middle of a download are not disturbed.
    """
    config = load_without_lists(configs)
    stop = stop_on_signals()
    from headwater.cli import compact as command

    command.run(config, stop, bucket=bucket, definition=definition, budget=budget, spark=spark)


@cli.command(
    epilog=examples(
        "headwater token user-1",
        "headwater token user-1 --claim role=admin --claim 'teams=[1,2]' --expires 15m",
        'curl -H "Authorization: Token $(headwater token user-1)" localhost:8080/write-checkpoint2.json',
    )
)
@click.argument("user")
@config_options
@click.option("--claim", "claims", multiple=True, metavar="NAME=VALUE", type=claim,
              help="Another claim; the value is JSON if it parses as such, otherwise text. Repeatable.")  # fmt: skip
@click.option("--audience", multiple=True, metavar="TEXT", help="The audience (default: what the config accepts).")
@click.option("--expires", default="1h", show_default=True, metavar="TIME", type=seconds,
              help="How long the token is valid: 90s, 15m, 1h, or 7d.")  # fmt: skip
def token(
    user: str, configs: ConfigSource, claims: tuple[tuple[str, object], ...], audience: tuple[str, ...], expires: int
) -> None:
    """Print a token for USER, signed with a secret of the config: for development, in place of your own backend.

    Prints nothing else. The service accepts the token. If the config only has public keys or addresses of keys, only
    their issuer can make tokens.
    """
    from headwater.cli import token as command

    command.run(load_without_lists(configs).auth, user, dict(claims), audience, expires)


@cli.command(
    epilog=examples(
        "headwater dev",
        "headwater dev --port 9000 --keep ./playground",
        "headwater dev --uri postgresql://app:secret@localhost:5432/app",
    )
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, help="Port to listen on; 0 chooses a free one.")
@click.option("--rows", default=100_000, show_default=True, help="About how many rows of sample data.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep database and store in this directory, and reuse them."
)
@click.option("--uri", metavar="URI", help="Show a database of yours in place of the sample data.")
@click.option("--users", metavar="TABLE", help="With --uri: the table of users (default: the likeliest).")
@click.option("--rules", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="With --uri: the sync config (default: what `headwater init` would write).")  # fmt: skip
def dev(
    host: str, port: int, rows: int, keep: Path | None, uri: str | None, users: str | None, rules: Path | None
) -> None:
    """Everything in one command: a Postgres with sample data, Spark, the store, the endpoint and a demo app.

    With --uri, what happens to the tables of a database of yours: what two users have, each commit on its way to them,
    and the rule behind each row. It makes a publication and a slot, and drops them in the end.
    """
    from headwater.cli.dev import run, run_own

    if uri is None:
        run(host=host, port=port, rows=rows, keep=keep)
    elif keep is not None:
        raise click.UsageError("--keep is for the sample data")
    else:
        run_own(uri, users, rules and rules.absolute(), host, port)


def main() -> None:
    """Entry point: prints one message for any error, never a traceback, and exits with a code other than 0."""
    try:
        cli(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except SyncConfigError as error:
        click.echo(error.render(), err=True)
        sys.exit(EXIT_ERROR)
    except HeadwaterError as error:
        if not isinstance(error, ChildStoppedError):  # the child has printed the reason
            click.echo(f"headwater: {error}", err=True)
        sys.exit(EXIT_AGAIN if error.kind is Kind.RETRY else EXIT_ERROR)
    except Exception as error:  # noqa: BLE001 - a bug; its text may contain secrets, so only its place is printed
        if (missing := missing_extra(error)) is not None:
            click.echo(f"headwater: {missing}", err=True)
            sys.exit(EXIT_ERROR)
        click.echo(f"headwater: {_place_of(error)}", err=True)
        _log.debug("internal error", exc_info=error)
        sys.exit(EXIT_BUG)


def _place_of(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"internal error: {type(error).__name__}{where}; HEADWATER_LOG_LEVEL=debug shows more, please report it"
