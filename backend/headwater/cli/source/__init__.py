"""The group `headwater source`: commands, arguments and help."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from headwater.cli.options import config_options, examples, load, source_option
from headwater.config import ConfigSource
from headwater.errors import HeadwaterError


@click.group()
def source() -> None:
    """Prepare and inspect a source database."""


@source.command("prepare", epilog=examples(
    "headwater source prepare -c headwater.yaml",
    "headwater source prepare -c headwater.yaml --admin-uri postgresql://postgres:secret@db.example.com/app",
    "headwater source prepare -c headwater.yaml --print-sql > prepare.sql   # for somebody with the rights to run",
    "headwater source prepare -c headwater.yaml --all-tables",
    "headwater source prepare -c headwater.yaml --upload",
))  # fmt: skip
@config_options
@source_option
@click.option("--all-tables", is_flag=True, help="Publish every table, not only those the sync config names.")
@click.option("--append-only", is_flag=True,
              help="Also publish tables without a key: Postgres then rejects their updates and deletes.")  # fmt: skip
@click.option("--admin-uri", envvar="HEADWATER_ADMIN_URI", metavar="URI",
              help="Login to publish and grant with if the configured role may not. For several sources, without an"
                   " address: postgresql://user:password@")  # fmt: skip
@click.option("--triggers/--no-triggers", default=True,
              help="Create event triggers that report changed tables at once, if the role may.")  # fmt: skip
@click.option("--remove-triggers", is_flag=True, help="Only remove those event triggers.")
@click.option(
    "--upload", is_flag=True, help="Also create the tables, the role and the grants that uploads need, and try them."
)
@click.option("--print-sql", is_flag=True, help="Only print the SQL for what is missing.")
def prepare_(
    configs: ConfigSource,
    all_tables: bool,
    append_only: bool,
    admin_uri: str | None,
    triggers: bool,
    remove_triggers: bool,
    upload: bool,
    print_sql: bool,
) -> None:
    """Create the publication, grant the right to read its tables, and check settings, rights and free slots.

    What the configured role may not do is done as --admin-uri, which also gives that role REPLICATION and BYPASSRLS if
    it needs them; without it, the SQL for what is missing is printed for an administrator to run. Safe to repeat. The
    exit code is 1 when something is left for an administrator, or uploads to a table can't work.
    """
    from headwater.cli.databases import refuse_address
    from headwater.cli.source import prepare as command

    if remove_triggers and print_sql:
        raise click.UsageError("--print-sql can't be used with --remove-triggers")
    if remove_triggers:
        command.remove_triggers(load(configs), admin_uri=admin_uri)
        return
    config = load(configs)
    ready, several = True, len(config.sources) > 1
    if several and admin_uri is not None:
        refuse_address(admin_uri)
    for one in config.by_source():
        if several:
            click.echo(f"{'-- ' if print_sql else ''}source {one.source().name}")
        try:
            ready &= command.prepare_source(
                one,
                all_tables=all_tables,
                append_only=append_only,
                with_triggers=triggers,
                admin_uri=admin_uri,
                print_sql=print_sql,
                upload=upload,
            )
        except HeadwaterError as error:
            if not several:
                raise
            click.echo(f"headwater: {error}", err=True)  # the others do not depend on it
            ready = False
    if not ready:
        sys.exit(1)


@source.command(epilog=examples("headwater source status -c headwater.yaml", "headwater source status --json"))
@config_options
@source_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(configs: ConfigSource, as_json: bool) -> None:
    """Show the state of source, slot, replicator and store, what is wrong, and what to do about it.

    The exit code is 0 only while a replicator is known to run and nothing is wrong. It is 1 when none runs or when that
    is not known, when source or store can't be asked, and when something stops replication (a cause) or would stop it
    (a problem). Notes leave it at 0.
    """
    from headwater.cli.source.status import show_status

    sys.exit(show_status(load(configs, warn=not as_json), as_json=as_json))


@source.command("schema", epilog=examples("headwater source schema -o schema.json",
                                           "headwater source schema -c headwater.yaml > schema.json"))  # fmt: skip
@config_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write it to this file.")
def schema_(configs: ConfigSource, output: Path | None) -> None:
    """Write the source's tables and column types as JSON, for `headwater rules … --schema-file` where no database is
    available, as in CI."""
    from headwater.cli.source.schema import show_schema

    show_schema(load(configs, warn=False), output)


@source.command("resync", epilog=examples("headwater source resync todos", "headwater source resync public.a app.b"))
@click.argument("tables", nargs=-1, required=True, metavar="TABLE…")
@config_options
@source_option
@click.option("--wait/--no-wait", default=True, help="Wait until it is done (the default), or only submit it.")
def resync_(configs: ConfigSource, tables: tuple[str, ...], wait: bool) -> None:
    """Compare tables with the source and send devices what differs, while replication continues."""
    from headwater.cli.source.requests import resync

    resync(load(configs), tables, wait=wait)


@source.command("skip", epilog=examples("headwater source skip --lsn 0/1A2B3C"))
@click.option("--lsn", required=True, metavar="LSN", help="The transaction's LSN, as given in the error.")
@config_options
@source_option
def skip_(configs: ConfigSource, lsn: str) -> None:
    """Skip a transaction that can't be applied and holds up the stream, and compare all tables with the source."""
    from headwater.cli.source.requests import skip

    skip(load(configs), lsn)


@source.command("move", epilog=examples(
    "headwater source move default --to postgresql://headwater:secret@new.example.com/app --check",
    "headwater source move default --to postgresql://headwater:secret@new.example.com/app",
    "headwater source move default --accept-differences   # the config has the new address already",
))  # fmt: skip
@click.argument("name", metavar="NAME")
@config_options
@click.option("--to", "uri", envvar="HEADWATER_MOVE_TO", metavar="URI",
              help="The database to move to; without it, the one that the config has.")  # fmt: skip
@click.option("--check", is_flag=True, help="Only check and compare.")
@click.option("--accept-differences", is_flag=True, help="Allow it though much differs, or tables are missing.")
def move_(configs: ConfigSource, name: str, uri: str | None, check: bool, accept_differences: bool) -> None:
    """Check whether a source can be followed in another database, and allow that.

    Checks rights and settings there, compares every table with what the service has, and tells who is still connected
    to the former database. It changes neither database. The service follows the new one once the config has its
    address. Safe to repeat. The exit code is 1 when it is not allowed.
    """
    from headwater.cli.source.move import move
    from headwater.pipeline.jobs import BulkJobs
    from headwater.pipeline.spark.engine import SparkEngine
    from headwater.pipeline.spark.session import Spark

    config = load(configs)
    spark = Spark(config.spark)
    try:
        code = move(config, name, uri, BulkJobs(SparkEngine(spark)), check=check, accept_differences=accept_differences)
    finally:
        spark.stop()
    sys.exit(code)
