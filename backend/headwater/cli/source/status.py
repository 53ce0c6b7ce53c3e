"""`headwater source status`: the state of source, slot, replicator and store, for people and for scripts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import psycopg

from headwater.api.admin.status import health_of
from headwater.api.auth.errors import JwksError
from headwater.api.auth.fetch import CHECK_ADDRESS, JwksClient
from headwater.cli.own_rules import own_rules
from headwater.config.model import ClientAuth, ServiceConfig
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import format_lsn
from headwater.replication.health.model import Health, State
from headwater.replication.own_slot import slot_of
from headwater.replication.pace import Pace
from headwater.replication.stream.intake import FailedTransactions, Poison
from headwater.replication.versions import deciding_in, tables_named, why_served
from headwater.source.connect import connect
from headwater.source.readiness.checks import source_findings
from headwater.source.readiness.finding import Finding, span
from headwater.source.readiness.health import SlotHealth, slot_findings, slot_health
from headwater.source.slot import slot_name, slot_status
from headwater.source.triggers import triggers_on
from headwater.source.upload.check import check_uploads
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.store import SourceState, StoredTable
from headwater.storage.open import open_backend
from headwater_rules.plan import Deciding, TablePattern

_KEYS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Source:
    """The state that the source reports; `error` if it can't be asked."""

    address: str
    error: HeadwaterError | None = None
    slot: SlotHealth | None = None
    triggers: bool = False
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreState:
    """The state recorded in the store."""

    health: Health | None
    slot: str
    state: SourceState | None
    tables: tuple[StoredTable, ...]
    jobs: tuple[BulkRecord, ...]
    poisons: tuple[Poison, ...]
    patterns: tuple[TablePattern, ...]
    deciding: Deciding = ()
    served: str = ""


def show_status(config: ServiceConfig, *, as_json: bool = False) -> int:
    """Print the state. Returns the exit code: 1 when there is a problem."""
    kept = read_store(config)
    source = _ask(config, kept)
    source = replace(source, findings=(*source.findings, *key_findings(config.auth)))
    if as_json:
        click.echo(json.dumps(_as_dict(config, source, kept), indent=2))
    else:
        _print(config, source, kept)
    if source.error is not None:
        click.echo(f"headwater: {source.error}", err=True)
    held_up = kept is not None and kept.health is not None and kept.health.cause is not None
    return 1 if source.error is not None or held_up or any(finding.fatal for finding in source.findings) else 0


def _ask(config: ServiceConfig, kept: StoreState | None) -> _Source:
    settings = config.source()
    name = kept.slot if kept else slot_name(settings)
    tables: Sequence[TablePattern] | None = kept.patterns if kept else ()
    deciding = kept.deciding if kept else ()
    if not tables:
        rules = own_rules(config, quiet=True) if config.sync_config is not None else None
        tables = rules.compiled.plan.tables() if rules is not None else None
        deciding = rules.compiled.plan.deciding() if rules is not None else ()
    try:
        with connect(settings, application_name="headwater status") as conn:
            slot = slot_health(conn, name)
            findings = [
                *source_findings(conn, settings, tables, deciding),
                *slot_findings(conn, name, slot),
                *store_findings(conn, config, kept),
                *(check_uploads(config.upload) if config.upload is not None else ()),
            ]
            return _Source(settings.address, None, slot, triggers_on(conn), tuple(findings))
    except HeadwaterError as error:
        return _Source(settings.address, error)


def store_findings(conn: psycopg.Connection, config: ServiceConfig, kept: StoreState | None) -> list[Finding]:
    """Whether the store and the source belong together, by the slot that the store follows, or that a new one would."""
    name = slot_name(config.source()) if kept is None else kept.slot if kept.state is None else kept.state.slot
    slot = slot_status(conn, name)
    if slot is not None and slot.database != conn.info.dbname:
        slot = None
    if kept is None and slot is not None:
        read = "somebody reads" if slot.active_pid else "the source keeps log for"
        what = f'there is no store at {config.storage}, but {read} the slot "{slot.name}", which was made for one'
        fix = (
            "if the store was removed, put it back, or start Headwater again, which reads everything anew; else run"
            f" SELECT pg_drop_replication_slot('{slot.name}')"
        )
        return [Finding("HW_4013", what, fix, fatal=slot.active_pid is not None)]
    follows = kept is not None and kept.health is not None and kept.health.state in {State.STREAMING, State.RESYNCING}
    if kept is not None and follows and slot is None:
        what = f"the replicator that writes to the store at {config.storage} follows another source than this one"
        fix = "give each service a store of its own, or correct hostname and database in replication.connections"
        return [Finding("HW_4014", what, fix)]
    return []


def key_findings(auth: ClientAuth) -> list[Finding]:
    """The addresses from which no keys of tokens can be fetched from here, and why."""
    found = []
    for address in auth.addresses:
        try:
            asyncio.run(JwksClient(address, auth.rules).fetch(_KEYS_SECONDS))
        except JwksError as error:
            found.append(Finding(error.code, f"{error.what} ({error.where})", CHECK_ADDRESS))
    return found


def read_store(config: ServiceConfig) -> StoreState | None:
    """What the store records; None when there is no store. Raises StoreError."""
    if not open_backend(config.storage).exists():
        return None
    tag = config.source().tag
    reader, store = open_backend(config.storage).open_reader(), open_backend(config.storage).open_store()
    try:
        return StoreState(
            health_of(reader, tag),
            slot_of(config.source(), store),
            store.source_state(tag),
            tuple(store.tables(tag)),
            tuple(store.bulk_records()[-3:]),
            tuple(FailedTransactions(config.source(), store).read()),
            tables_named(store),
            deciding_in(store),
            why_served(store),
        )
    finally:
        reader.close()
        store.close()


def _as_dict(config: ServiceConfig, source: _Source, kept: StoreState | None) -> dict[str, Any]:
    state = kept.state if kept else None
    error = source.error
    return {
        "source": config.source().tag,
        "address": source.address,
        "reachable": error is None,
        "error": error and {"code": error.code, "what": error.what, "where": error.where, "fix": error.fix},
        "slot": source.slot and asdict(source.slot),
        "event_triggers": source.triggers,
        "catalog_poll_seconds": Pace().catalog,
        "findings": [asdict(finding) for finding in source.findings],
        "replicator": kept and kept.health and kept.health.as_dict(),
        "served": (kept.served or None) if kept else None,
        "store": str(config.storage),
        "store_position": state and format_lsn(state.lsn),
        "transactions_not_taken_in": [asdict(poison) for poison in (kept.poisons if kept else ())],
        "tables": [
            {
                "table": f"{table.relation.schema}.{table.relation.name}",
                "replica_identity": table.relation.identity.name.lower(),
                "compared_because": None if table.resync is None else str(table.resync),
            }
            for table in (kept.tables if kept else ())
        ],
    }


def _print(config: ServiceConfig, source: _Source, kept: StoreState | None) -> None:
    click.echo(f"source    {source.address}: {'reachable' if source.error is None else 'does not answer'}")
    _print_replicator(kept.health if kept else None)
    if source.slot is not None:
        _print_slot(source.slot)
    elif source.error is None:
        click.echo("slot      none yet: the replicator creates it")
    if source.error is None:
        at_once = "by event triggers, at once, and " if source.triggers else ""
        click.echo(f"changes   of tables are found {at_once}by looking every {Pace().catalog:.0f} s")
    _print_store(config, kept)
    for finding in source.findings:
        click.echo(f"{'problem ' if finding.fatal else 'note    '}  {finding}")


def _print_replicator(health: Health | None) -> None:
    if health is None:
        click.echo("state     stopped: no replicator has run yet")
        return
    lag = "" if health.lag_seconds is None else f", {health.lag_seconds:.1f} s behind"
    flowing = health.cause is None and health.slot is not None
    click.echo(f"state     {health.state.value} since {_time(health.since)}{lag if flowing else ''}")
    if health.work:
        click.echo(f"work      {health.work}")
    if health.cause is not None:
        click.echo(f"cause     {health.cause}")
        click.echo(
            f"          attempt {health.cause.attempts} failed {_time(health.cause.at)}, {_ago(health.cause.at)}"
        )
    elif health.trouble is not None:
        click.echo(f"          last error {_time(health.trouble.at)}, {_ago(health.trouble.at)}: {health.trouble}")


def _print_slot(slot: SlotHealth) -> None:
    reader = "active" if slot.active else "not active"
    left = "" if slot.left is None else f", lost after another {slot.left:,}"
    click.echo(f"slot      {slot.name}: {slot.wal_status}, {reader}, {slot.behind:,} bytes behind the source")
    click.echo(
        f"          keeps {slot.held:,} bytes of log in the source{left}; oldest transaction {slot.xmin_age:,} ago"
    )


def _print_store(config: ServiceConfig, kept: StoreState | None) -> None:
    if kept is None:
        click.echo(f"store     {config.storage}: none yet")
        return
    if kept.state is None:
        click.echo(f"store     {config.storage}: no snapshot yet")
        return
    click.echo(f"store     {config.storage}: at {format_lsn(kept.state.lsn)}")
    if kept.served:
        click.echo(f"rules     {kept.served}")
    for table in kept.tables:
        relation = table.relation
        resync = f"  being compared with the source: {table.resync}" if table.resync else ""
        click.echo(f"  {relation.schema}.{relation.name}  replica identity {relation.identity.name.lower()}{resync}")
    for poison in kept.poisons[-3:]:
        done = "skipped" if poison.skipped else "holds up the stream"
        click.echo(f"  transaction {poison.lsn} {done} since {_time(poison.at)}: {poison.why}")
    for job in kept.jobs:
        click.echo(f"  {job.kind}: {job.rows:,} rows, {job.tasks} Spark tasks, {job.finished - job.started:.1f} s")


def _ago(at: float) -> str:
    return f"{span(time.time() - at)} ago"


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
