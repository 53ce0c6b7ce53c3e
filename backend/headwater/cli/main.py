"""The `headwater` command. Composition only: what each command does is beside this, in a file of its own."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from pathlib import Path

import click

from headwater.cli.extras import missing_extra
from headwater.cli.logs import set_up_logging
from headwater.cli.options import config_options, examples, load
from headwater.cli.rules.group import rules
from headwater.cli.supervise import ChildStoppedError, end_with_supervisor
from headwater.config import ConfigSource
from headwater.config.origin import CONFIG_B64, SYNC_B64
from headwater.errors import HeadwaterError, Kind
from headwater_rules.errors import RuleErrors

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
    help="How long the source may be unreachable at the start; 0 waits for ever.",
)


_take_slot = click.option(
    "--take-slot",
    is_flag=True,
    help="Take our replication slot in the source database from another service that has it.",
)


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


cli.add_command(rules)


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

    command.run(
        load(configs),
        _arguments(configs),
        _environment(configs),
        source_timeout=source_timeout,
        take_slot=take_slot,
    )


@cli.command(epilog=examples("headwater start -r unified -c powersync.yaml"))
@click.option(
    "-r", "--runner-type", default="unified", type=click.Choice(["unified", "api", "sync"]), show_default=True
)
@config_options
@_source_timeout
def start(runner_type: str, configs: ConfigSource, source_timeout: float) -> None:
    """`serve` under the name and options of an existing compose file."""
    from headwater.cli import serve as command

    command.run(
        load(configs),
        _arguments(configs),
        _environment(configs),
        source_timeout=source_timeout,
        replicator=runner_type != "api",
        api=runner_type != "sync",
    )


@cli.command(epilog=examples("headwater replicate --config headwater.yaml"))
@config_options
@_source_timeout
@_take_slot
def replicate(configs: ConfigSource, source_timeout: float, take_slot: bool) -> None:
    """Only the replicator: follow the source into the store. A second one waits for the first to end."""
    from headwater.cli.signals import stop_on_signals

    config = load(configs)
    stop = threading.Event()
    stop_on_signals(stop)
    end_with_supervisor()
    from headwater.cli import replicate as command

    command.run(config, stop, source_timeout=source_timeout, take_slot=take_slot)


@cli.command(epilog=examples("headwater api --config headwater.yaml"))
@config_options
def api(configs: ConfigSource) -> None:
    """Only the endpoint: serve devices from the store."""
    config = load(configs)
    from headwater.cli import api as command

    end_with_supervisor()
    command.run(config)


@cli.group()
def source() -> None:
    """Prepare a source database and look at it."""


@source.command("prepare", epilog=examples(
    "headwater source prepare -c headwater.yaml",
    "headwater source prepare -c headwater.yaml --admin-uri postgresql://postgres:secret@db.example.com/app",
    "headwater source prepare -c headwater.yaml --print-sql > prepare.sql   # for somebody with the rights to run",
    "headwater source prepare -c headwater.yaml --all-tables",
))  # fmt: skip
@config_options
@click.option("--all-tables", is_flag=True, help="Publish every table, not only those the sync config names.")
@click.option("--append-only", is_flag=True,
              help="Also publish tables without a key: Postgres then refuses their updates and deletes.")  # fmt: skip
@click.option("--admin-uri", envvar="HEADWATER_ADMIN_URI", metavar="URI",
              help="Who publishes and grants if the configured role may not (or HEADWATER_ADMIN_URI).")  # fmt: skip
@click.option("--triggers/--no-triggers", default=True,
              help="Make event triggers that tell of changed tables at once, where the role may.")  # fmt: skip
@click.option("--remove-triggers", is_flag=True, help="Only take those event triggers away again.")
@click.option("--print-sql", is_flag=True, help="Print the SQL of all that is missing, and do nothing.")
def prepare_(
    configs: ConfigSource,
    all_tables: bool,
    append_only: bool,
    admin_uri: str | None,
    triggers: bool,
    remove_triggers: bool,
    print_sql: bool,
) -> None:
    """Create the publication, grant the right to read its tables, and check settings, rights and free slots.

    What the configured role may not do is done as --admin-uri; without it, all that is missing is printed as SQL for
    somebody else to run. Safe to repeat.
    """
    from headwater.cli.source import prepare as command

    if remove_triggers and print_sql:
        raise click.UsageError("--print-sql is of no use with --remove-triggers")
    if remove_triggers:
        command.remove_triggers(load(configs), admin_uri=admin_uri)
        return
    command.prepare_source(
        load(configs),
        all_tables=all_tables,
        append_only=append_only,
        with_triggers=triggers,
        admin_uri=admin_uri,
        print_sql=print_sql,
    )


@source.command(epilog=examples("headwater source status -c headwater.yaml", "headwater source status --json"))
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(configs: ConfigSource, as_json: bool) -> None:
    """Show how source, slot, replicator and store stand to each other, what is wrong, and what to do about it.

    The exit code is 1 when there is a problem: the source does not answer, something keeps rows from flowing (a cause),
    or it would (a problem). Notes leave it at 0.
    """
    from headwater.cli.source.status import show_status

    sys.exit(show_status(load(configs, warn=not as_json), as_json=as_json))


@source.command("schema", epilog=examples("headwater source schema -o schema.json",
                                           "headwater source schema -c headwater.yaml > schema.json"))  # fmt: skip
@config_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it there.")
def schema_(configs: ConfigSource, output: Path | None) -> None:
    """Write the source's tables and column types as JSON, for `headwater rules … --schema-file` where there is no
    database, as in CI."""
    from headwater.cli.rules.source_schema import show_schema

    show_schema(load(configs, warn=False), output)


@source.command("resync", epilog=examples("headwater source resync todos", "headwater source resync public.a app.b"))
@click.argument("tables", nargs=-1, required=True, metavar="TABLE…")
@config_options
@click.option("--wait/--no-wait", default=True, help="Wait until it is done (the default), or only hand it in.")
def resync_(configs: ConfigSource, tables: tuple[str, ...], wait: bool) -> None:
    """Compare tables with the source and send devices what differs, while everything else flows."""
    from headwater.cli.requests import resync

    resync(load(configs), tables, wait=wait)


@source.command("skip", epilog=examples("headwater source skip --lsn 0/1A2B3C"))
@click.option("--lsn", required=True, metavar="LSN", help="Where the transaction is, as the error names it.")
@config_options
def skip_(configs: ConfigSource, lsn: str) -> None:
    """Leave a transaction out that can't be taken in and keeps the stream, and compare all tables with the source."""
    from headwater.cli.requests import skip

    skip(load(configs), lsn)


@cli.command(epilog=examples("headwater audit", "headwater audit todos --json", "headwater audit --repair"))
@click.argument("tables", nargs=-1, metavar="[TABLE…]")
@config_options
@click.option("--repair", is_flag=True, help="Mend what differs; devices are sent the difference.")
@click.option("--wait/--no-wait", default=True, help="Wait until it is done (the default), or only hand it in.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def audit(configs: ConfigSource, tables: tuple[str, ...], repair: bool, wait: bool, as_json: bool) -> None:
    """Compare the source, the stored rows and what devices are sent; name what differs. The exit code is 1 when
    something does and was not mended."""
    from headwater.cli.requests import audit as command

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
              help="How much of a bucket devices may download again to have its history shorter still; 0 for nothing. "
              "Without it, as much as is worth it.")  # fmt: skip
@click.option("--spark", is_flag=True, help="Use Spark, as is done by itself from some millions of ops on.")
def compact_(
    configs: ConfigSource, bucket: str | None, definition: str | None, budget: int | None, spark: bool
) -> None:
    """Make histories short now: what a new device downloads, and what the store keeps.

    The service does this by itself, some time after changes. Devices in the middle of a download are not disturbed.
    """
    from headwater.cli.signals import stop_on_signals

    config = load(configs, warn=False)
    stop = threading.Event()
    stop_on_signals(stop)
    from headwater.cli import compact as command

    command.run(config, stop, bucket=bucket, definition=definition, budget=budget, spark=spark)


@cli.group()
def store() -> None:
    """Work on the store: what Headwater keeps of the source for devices."""


@store.command("stats", epilog=examples("headwater store stats -c headwater.yaml",
                                         "headwater store stats --top 20 --json"))  # fmt: skip
@config_options
@click.option("--top", type=click.IntRange(min=0), default=5, show_default=True, metavar="N",
              help="How many buckets to show of those that stand out.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def stats_(configs: ConfigSource, top: int, as_json: bool) -> None:
    """Show what the store holds, what it takes on the disk, and which buckets grow.

    Reads all of the store once, while the service runs. Rows that are too large for a device are named here.
    """
    from headwater.cli.store.stats import show_stats

    show_stats(load(configs, warn=False), top=top, as_json=as_json)


@store.command("forget", epilog=examples("headwater store forget --table public.people --id 42 --dry-run",
                                          "headwater store forget --contains 'ann@example.com' --yes"))  # fmt: skip
@config_options
@click.option("--table", metavar="SCHEMA.NAME", help="The source table of the row to forget.")
@click.option("--id", "row_id", metavar="ID", help="The row's key; a JSON array where the key has several columns.")
@click.option("--id-too", is_flag=True,
              help="Forget the key as well. Devices then download the rest of its buckets again.")  # fmt: skip
@click.option("--contains", "text", metavar="TEXT", help="Forget every place that has this text; - reads stdin.")
@click.option("--dry-run", is_flag=True, help="Only say what would be rewritten.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget_(
    configs: ConfigSource,
    table: str | None,
    row_id: str | None,
    id_too: bool,
    text: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove a value from all that the store keeps, and prove it by searching the store's files.

    Delete it in the source first: it refuses while the source, or a row that stands, still holds the value. Runs
    beside the service; see docs/forget.md.
    """
    from headwater.cli.store.forget import forget

    if (text is None) == (table is None) or (table is None) != (row_id is None):
        raise click.UsageError("name either --table and --id, or --contains")
    if id_too and row_id is None:
        raise click.UsageError("--id-too belongs to --table and --id")
    forget(load(configs, warn=False), table, row_id, text, id_too=id_too, dry_run=dry_run, yes=yes)


@store.command("export", epilog=examples("headwater store export ./backup-monday -c headwater.yaml",
                                          "headwater store export ./moving --seal"))  # fmt: skip
@click.argument("directory", type=click.Path(path_type=Path))
@config_options
@click.option("--seal", is_flag=True, help="Refuse writes to the store from then on: another one takes its place.")
def export_(configs: ConfigSource, directory: Path, seal: bool) -> None:
    """Write the whole store into DIRECTORY, as Parquet files, while the service runs.

    The files hold one consistent state, rows of the source included: guard them as you guard the store. See
    docs/backup.md.
    """
    from headwater.cli.store.archive import export_to

    export_to(load(configs, warn=False), directory, seal=seal)


@store.command("import", epilog=examples("headwater store import ./backup-monday -c headwater.yaml"))
@click.argument("directory", type=click.Path(path_type=Path))
@config_options
def import_(configs: ConfigSource, directory: Path) -> None:
    """Build the configured store from DIRECTORY, which `headwater store export` wrote.

    All ids stay as they were, whatever storage the old and the new store have: connected devices go on where they
    are and download nothing again.
    """
    from headwater.cli.store.archive import import_from

    import_from(load(configs, warn=False), directory)


@store.command(epilog=examples("headwater store unseal -c headwater.yaml"))
@config_options
def unseal(configs: ConfigSource) -> None:
    """Open a store again that `headwater store export --seal` has sealed."""
    from headwater.cli.store.archive import unseal as command

    command(load(configs, warn=False))


@cli.command(epilog=examples("headwater dev", "headwater dev --port 9000 --keep ./playground"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option("--rows", default=100_000, show_default=True, help="About how many rows of sample data.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep database and store there, and use them again.")
def dev(host: str, port: int, rows: int, keep: Path | None) -> None:
    """Everything in one command: a Postgres with sample data, Spark, the store, the endpoint and a demo app."""
    from headwater.cli.dev import run

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
