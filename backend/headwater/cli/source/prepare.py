"""`headwater source prepare`: prepares a source for replication."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headwater.config.model import ServiceConfig
from headwater.config.sources import with_login
from headwater.insight.words import count
from headwater.source import triggers
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.prepare import missing_sql, prepare, sql_block
from headwater.source.upload.prepare import missing_for_uploads, prepare_uploads
from headwater_rules.compiler.compile import compile_config


def prepare_source(
    config: ServiceConfig,
    *,
    all_tables: bool = False,
    append_only: bool = False,
    with_triggers: bool = True,
    admin_uri: str | None = None,
    print_sql: bool = False,
    upload: bool = False,
) -> None:
    """Publish the tables that the sync config names, or all, and print what was done; with `upload` also create what
    uploads need. With `print_sql`, only print the SQL."""
    tables = None if all_tables else compile_config(config.sync_text()).plan.tables()
    admin = None if admin_uri is None else with_login(config.source(), admin_uri)
    uploads = config.uploads() if upload else None
    if print_sql:
        missing = missing_sql(config.source(), tables, admin=admin, append_only=append_only)
        hints = triggers.missing_sql(config.source(), admin) if with_triggers else ()
        if uploads is not None:
            missing = (*missing, *missing_for_uploads(uploads, admin))
        if missing or not hints:
            click.echo(sql_block(missing) or "-- nothing is missing")
        if hints:
            click.echo("-- optional, for a superuser: changes of tables are noticed at once")
            click.echo(sql_block(hints))
        return
    prepared = prepare(config.source(), tables, admin=admin, append_only=append_only)
    installed = triggers.install(config.source(), admin) if with_triggers else triggers.Installed()
    _print_result((*prepared.done, *installed.done), (*prepared.warnings, *installed.warnings))
    if uploads is not None:
        made = prepare_uploads(uploads, admin)
        _print_result(made.done, made.warnings)
    click.echo(f"ready: {count(len(prepared.tables), 'table')} published from {config.source().address}")
    for table in prepared.tables:
        click.echo(f"  {table}")


def remove_triggers(config: ServiceConfig, *, admin_uri: str | None = None) -> None:
    """Remove the event triggers."""
    removed = triggers.remove(config.source(), None if admin_uri is None else with_login(config.source(), admin_uri))
    _print_result(removed.done, removed.warnings)
    if not removed.warnings:
        click.echo("the source has no event triggers of Headwater's")


def _print_result(done: Sequence[str], warnings: Sequence[Finding]) -> None:
    for statement in done:
        click.echo(f"ran: {statement}")
    for finding in warnings:
        click.echo(f"note: {finding}", err=True)
