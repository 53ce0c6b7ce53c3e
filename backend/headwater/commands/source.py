"""`headwater source …`: what is done to a source before and beside replication."""

from __future__ import annotations

from collections.abc import Sequence

import click
import psycopg

from headwater.config import ServiceConfig
from headwater.config.sources import with_login
from headwater.oplog.lsn import format_lsn
from headwater.replication.schema import POLL_SECONDS
from headwater.source import triggers
from headwater.source.checks import Finding, source_findings
from headwater.source.connect import connect
from headwater.source.prepare import prepare
from headwater.source.slot import slot_name, slot_status
from headwater.storage.open import open_store
from headwater.storage.stats import store_exists
from headwater_rules.compile import compile_config


def prepare_source(
    config: ServiceConfig,
    *,
    all_tables: bool = False,
    append_only: bool = False,
    with_triggers: bool = True,
    admin_uri: str | None = None,
) -> None:
    """Publish the tables that the sync config names, or all, and say what was done."""
    tables = None if all_tables else compile_config(config.sync_text()).plan.tables()
    admin = None if admin_uri is None else with_login(config.source(), admin_uri)
    prepared = prepare(config.source(), tables, admin=admin, append_only=append_only)
    installed = triggers.install(config.source(), admin) if with_triggers else triggers.Installed()
    _tell((*prepared.done, *installed.done), (*prepared.warnings, *installed.warnings))
    click.echo(f"ready: {len(prepared.tables)} tables are published from {config.source().address}")
    for table in prepared.tables:
        click.echo(f"  {table}")


def remove_triggers(config: ServiceConfig, *, admin_uri: str | None = None) -> None:
    """Take the event triggers away again."""
    removed = triggers.remove(config.source(), None if admin_uri is None else with_login(config.source(), admin_uri))
    _tell(removed.done, removed.warnings)
    if not removed.warnings:
        click.echo("no event triggers of ours are in the source")


def _tell(done: Sequence[str], warnings: Sequence[Finding]) -> None:
    for statement in done:
        click.echo(f"ran: {statement}")
    for finding in warnings:
        click.echo(f"note: {finding}", err=True)


def show_status(config: ServiceConfig) -> None:
    """How source, slot and store stand to each other."""
    tables = compile_config(config.sync_text()).plan.tables() if config.sync_config else None
    with connect(config.source(), application_name="headwater status") as conn:
        findings = source_findings(conn, config.source(), tables)
        slot = slot_status(conn, slot_name(config.source()))
        lag = _lag_bytes(conn, slot_name(config.source()))
        told = triggers.triggers_on(conn)
    click.echo(f"source    {config.source().address}: reachable")
    if slot is None:
        click.echo("slot      none yet: the replicator makes it")
    else:
        reader = f"read by process {slot.active_pid}" if slot.active_pid else "nobody reads it"
        click.echo(f"slot      {slot.name}: {slot.wal_status}, {reader}, {lag:,} bytes behind the source")
    click.echo(f"changes   of tables are found {_BY_TRIGGERS if told else ''}by looking every {POLL_SECONDS:.0f} s")
    _show_store(config)
    for finding in findings:
        click.echo(f"{'problem ' if finding.fatal else 'note    '}  {finding}")


_BY_TRIGGERS = "by event triggers, at once, and "


def _show_store(config: ServiceConfig) -> None:
    if not store_exists(config.storage):
        click.echo(f"store     {config.storage}: none yet")
        return
    store = open_store(config.storage)
    try:
        state = store.source_state(config.source().tag)
        if state is None:
            click.echo(f"store     {config.storage}: no snapshot yet")
            return
        click.echo(f"store     {config.storage}: at {format_lsn(state.lsn)}")
        for table in store.tables(config.source().tag):
            relation = table.relation
            resync = f"  being compared with the source: {table.resync}" if table.resync else ""
            identity = relation.identity.name.lower()
            click.echo(f"  {relation.schema}.{relation.name}  replica identity {identity}{resync}")
        for record in store.bulk_records()[-3:]:
            seconds = record.finished - record.started
            click.echo(f"  {record.kind}: {record.rows:,} rows, {record.tasks} Spark tasks, {seconds:.1f} s")
    finally:
        store.close()


def _lag_bytes(conn: psycopg.Connection, name: str) -> int:
    row = conn.execute(
        "select pg_current_wal_lsn() - confirmed_flush_lsn from pg_replication_slots where slot_name = %s", [name]
    ).fetchone()
    return int(row[0] or 0) if row else 0
