"""`headwater source prepare`: prepares a source for replication."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headwater.cli.config import ServiceConfig
from headwater.cli.databases import with_login
from headwater.insight.words import count
from headwater.source import triggers
from headwater.source.connect import SourceSettings
from headwater.source.readiness.checks import SourceNotReadyError
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.prepare import PublishRefusedError, missing_sql, prepare, sql_block
from headwater.source.upload.prepare import check_uploads, missing_for_uploads, prepare_uploads
from headwater.source.upload.settings import UploadSettings
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
) -> bool:
    """Publish the tables of a source that the sync config names, or all, and print what was done; with `upload` also
    create what uploads to it need. With `print_sql`, only print the SQL. Returns False when something is left to do, as
    when a table of uploads can't be written."""
    plan = None if all_tables else compile_config(config.sync_text()).plan
    tables, computed = (None, ()) if plan is None else (plan.tables(), plan.computed)
    admin = None if admin_uri is None else with_login(config.source(), admin_uri)
    uploads = config.uploads().by_source().get(config.source().name) if upload else None
    if print_sql:
        missing = missing_sql(config.source(), tables, computed=computed, admin=admin, append_only=append_only)
        hints = triggers.missing_sql(config.source(), admin) if with_triggers else ()
        if uploads is not None:
            missing = (*missing, *missing_for_uploads(uploads, admin))
        if missing or not hints:
            click.echo(sql_block(missing) or "-- nothing is missing")
        if hints:
            click.echo("-- optional, for a superuser: changes of tables are noticed at once")
            click.echo(sql_block(hints))
        return True
    try:
        prepared = prepare(
            config.source(), tables, computed=computed, admin=admin, append_only=append_only, ran=_print_ran
        )
        installed = triggers.install(config.source(), admin) if with_triggers else triggers.Installed()
    except (SourceNotReadyError, PublishRefusedError) as error:
        if uploads is None:
            raise
        click.echo(f"headwater: {error}", err=True)  # what uploads need does not depend on it
        _prepare_uploads(uploads, admin)
        return False
    _print_result(installed.done, (*prepared.warnings, *installed.warnings))
    click.echo(f"ready: {count(len(prepared.tables), 'table')} published from {config.source().address}")
    for table in prepared.tables:
        click.echo(f"  {table}")
    return uploads is None or _prepare_uploads(uploads, admin)


def _prepare_uploads(uploads: UploadSettings, admin: SourceSettings | None) -> bool:
    """Create what uploads need, say what was there already, and check each table. Returns whether all can be written.
    Raises HW_6120, after which nothing was changed."""
    made = prepare_uploads(uploads, admin)
    for each in made.there:
        click.echo(f"there: {each}")
    findings = check_uploads(uploads)
    _print_result(made.done, findings)
    if any(finding.fatal for finding in findings):
        return False
    click.echo(f"ready: uploads to {count(len(uploads.tables), 'table')}, written as role {uploads.role}")
    return True


def remove_triggers(config: ServiceConfig, *, admin_uri: str | None = None) -> None:
    """Remove the event triggers."""
    removed = triggers.remove(config.source(), None if admin_uri is None else with_login(config.source(), admin_uri))
    _print_result(removed.done, removed.warnings)
    if not removed.warnings:
        click.echo("the source has no event triggers of Headwater's")


def _print_ran(statement: str) -> None:
    click.echo(f"ran: {statement}")


def _print_result(done: Sequence[str], findings: Sequence[Finding]) -> None:
    for statement in done:
        _print_ran(statement)
    for finding in findings:
        click.echo(f"{'problem' if finding.fatal else 'note'}: {finding}", err=True)
