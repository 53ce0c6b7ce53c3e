"""`headwater source prepare`: prepares a source for replication."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

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
) -> None:
    """Publish the tables that the sync config names, or all, and print what was done; with `upload` also create what
    uploads need. With `print_sql`, only print the SQL. Exits with 1 when a table of uploads can't be written."""
    tables = None if all_tables else compile_config(config.sync_text()).plan.tables()
    admin = None if admin_uri is None else with_login(config.source(), admin_uri)
    uploads = config.uploads() if upload else None
    if print_sql:
        missing = missing_sql(config.source(), tables, admin=admin, append_only=append_only)
        hints = triggers.missing_sql(config.source(), admin) if with_triggers else ()
        needed = {each.login: missing_for_uploads(each, login) for each, login in _uploads_of(uploads, admin_uri)}
        if len(needed) == 1:
            missing = (*missing, *needed.popitem()[1])
        if missing or not hints:
            click.echo(sql_block(missing) or "-- nothing is missing")
        if hints:
            click.echo("-- optional, for a superuser: changes of tables are noticed at once")
            click.echo(sql_block(hints))
        for source, statements in needed.items():
            click.echo(f"-- for uploads, in {source.name} ({source.address})")
            click.echo(sql_block(statements) or "-- nothing is missing")
        return
    try:
        prepared = prepare(config.source(), tables, admin=admin, append_only=append_only, ran=_print_ran)
        installed = triggers.install(config.source(), admin) if with_triggers else triggers.Installed()
    except (SourceNotReadyError, PublishRefusedError) as error:
        if uploads is None:
            raise
        click.echo(f"headwater: {error}", err=True)  # what uploads need does not depend on it
        _prepare_uploads(uploads, admin_uri)
        sys.exit(1)
    _print_result(installed.done, (*prepared.warnings, *installed.warnings))
    click.echo(f"ready: {count(len(prepared.tables), 'table')} published from {config.source().address}")
    for table in prepared.tables:
        click.echo(f"  {table}")
    if uploads is not None and not _prepare_uploads(uploads, admin_uri):
        sys.exit(1)


def _uploads_of(
    uploads: UploadSettings | None, admin_uri: str | None
) -> Iterator[tuple[UploadSettings, SourceSettings | None]]:
    """The settings of each source that has tables for uploads, and the administrator's login there."""
    for each in () if uploads is None else uploads.by_source().values():
        yield each, None if admin_uri is None else with_login(each.login, admin_uri)


def _prepare_uploads(uploads: UploadSettings, admin_uri: str | None) -> bool:
    """Create what uploads need in each source, say what was there already, and check each table. Returns whether all
    can be written. Raises HW_6120, after which nothing was changed in that source."""
    fit = True
    for each, admin in _uploads_of(uploads, admin_uri):
        made = prepare_uploads(each, admin)
        for there in made.there:
            click.echo(f"there: {there}")
        findings = check_uploads(each)
        _print_result(made.done, findings)
        if any(finding.fatal for finding in findings):
            fit = False
            continue
        place = f" of {each.login.name}" if uploads.others else ""
        click.echo(f"ready: uploads to {count(len(each.tables), 'table')}{place}, written as role {each.role}")
    return fit


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
