"""`headwater source status`: the state of source, slot, replicator and store, for people and for scripts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import psycopg

from headwater.api.auth.errors import JwksError
from headwater.api.auth.fetch import CHECK_ADDRESS, JwksClient
from headwater.api.auth.settings import ClientAuth
from headwater.cli.config import ServiceConfig
from headwater.cli.startup import own_rules
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import format_lsn
from headwater.replication.computed import RefreshState, refresh_findings
from headwater.replication.intervals import PollIntervals
from headwater.replication.own_slot import slot_of
from headwater.replication.status import LogEnd, ReplicationState, SourceStatus, ask_log_end, find_status
from headwater.replication.stream.failed import FailedTransaction, FailedTransactions
from headwater.replication.versions import deciding_in, tables_named, why_served
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.checks import source_findings
from headwater.source.readiness.finding import Finding, span
from headwater.source.readiness.health import SlotHealth, slot_findings, slot_health
from headwater.source.slot import slot_name, slot_status, system_identity
from headwater.source.triggers import triggers_on
from headwater.source.upload.prepare import check_uploads
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reader import ReplicatorStatus
from headwater.storage.contract.store import SourceState, StoredTable
from headwater.storage.open import open_store
from headwater_rules.plan import Deciding, TablePattern

_KEYS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Source:
    """The state that the source reports; `error` if it can't be asked."""

    address: str
    error: HeadwaterError | None = None
    slot: SlotHealth | None = None
    log_end: LogEnd | None = None
    triggers: bool = False
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state recorded in the store."""

    heard: ReplicatorStatus
    slot: str
    state: SourceState | None
    tables: tuple[StoredTable, ...]
    jobs: tuple[BulkRecord, ...]
    poisons: tuple[FailedTransaction, ...]
    patterns: tuple[TablePattern, ...]
    deciding: Deciding = ()
    served: str = ""


def show_status(config: ServiceConfig, *, as_json: bool = False) -> int:
    """Print the state, of several sources one after the other, or as `sources` in JSON. Returns the exit code: 1 when
    there is a problem, or nobody is known to replicate one of them."""
    each = [_shown(one, as_json=as_json) for one in hasty(config).by_source()]
    if as_json:
        told = [found for _, found in each]
        click.echo(json.dumps(told[0] if len(told) == 1 else {"sources": told}, indent=2))
    return max(code for code, _ in each)


def _shown(config: ServiceConfig, *, as_json: bool) -> tuple[int, dict[str, Any]]:
    """The exit code for the only source, and the state as JSON if that is wanted; otherwise it is printed."""
    kept, unread = None, None
    try:
        kept = read_store(config)
    except HeadwaterError as error:
        unread = error
    source = _ask(config, kept)
    standing = standing_of(config, kept, source.log_end)
    if unread is not None and not standing.cause:
        standing = replace(standing, state=ReplicationState.UNKNOWN, why=f"the store can't be read: {unread}")
    found_by_refreshes = refresh_findings(standing.computed)
    findings = (*source.findings, *found_by_refreshes, *disk_findings(config), *key_findings(config.auth))
    found: dict[str, Any] = {}
    if as_json:
        found = _as_dict(config, source, kept, standing, findings)
    else:
        _print(config, source, kept, standing, findings)
    errors = [error for error in (source.error, unread) if error is not None]
    for each in errors:
        click.echo(f"headwater: {each}", err=True)
    bad = errors or standing.cause is not None or not standing.runs
    return (1 if bad or any(finding.fatal for finding in findings) else 0), found


def standing_of(config: ServiceConfig, kept: StoredState | None, log_end: LogEnd | None) -> SourceStatus:
    """How the source stands, if its log ends there; None: it was not asked, or did not answer. A replicator may run
    though its store is gone."""
    tag = config.source().name
    heard = open_store(config.storage).last_replicator_status(tag) if kept is None else kept.heard
    return find_status(tag, heard, log_end, time.time())


def _ask(config: ServiceConfig, kept: StoredState | None) -> _Source:
    settings = config.source()
    name = kept.slot if kept else slot_name(settings)
    tables: Sequence[TablePattern] | None = kept.patterns if kept else ()
    deciding = kept.deciding if kept else ()
    if not tables:
        rules = own_rules(config, quiet=True) if config.sync_config is not None else None
        tables = rules.compiled.plan.tables() if rules is not None else None
        deciding = rules.compiled.plan.deciding() if rules is not None else ()
    uploads = None if config.upload is None else config.upload.by_source().get(settings.name)
    try:
        with connect(settings, application_name="headwater status") as conn, source_errors(settings):
            log_end = ask_log_end(conn)
            slot = slot_health(conn, name)
            findings = [
                *source_findings(conn, settings, tables, deciding),
                *slot_findings(conn, name, slot),
                *store_findings(conn, config, kept),
                *(() if uploads is None else check_uploads(uploads)),
            ]
            return _Source(settings.address, None, slot, log_end, triggers_on(conn), tuple(findings))
    except HeadwaterError as error:
        return _Source(settings.address, error)


def store_findings(conn: psycopg.Connection, config: ServiceConfig, kept: StoredState | None) -> list[Finding]:
    """Whether the store and the source belong together, by the slot that the store follows, or that a new one would."""
    name = slot_name(config.source()) if kept is None else kept.slot if kept.state is None else kept.state.slot
    slot = slot_status(conn, name)
    if slot is not None and slot.database != conn.info.dbname:
        slot = None
    if kept is None and slot is not None:
        read = "somebody reads" if slot.active_pid else "the source keeps log for"
        what = f'there is no store at {config.storage}, but {read} the slot "{slot.name}", which was made for one'
        fix = (
            "if the store was removed, put it back, or start Headwater again, which reads everything again; else run"
            f" SELECT pg_drop_replication_slot('{slot.name}')"
        )
        return [Finding("HW_4013", what, fix, fatal=slot.active_pid is not None)]
    if kept is None or not name:
        return []
    if slot is None and standing_of(config, kept, None).state in _FLOWING:
        what = f"the replicator that writes to the store at {config.storage} follows another source, or lost its slot"
        fix = "give each service a store of its own, or correct hostname and database in replication.connections"
        return [Finding("HW_4014", what, fix)]
    if kept.state is None or (slot is not None and slot.wal_status != "lost"):
        return []
    if kept.state.system_id != system_identity(conn).system_id:
        what = f'this is another cluster than the one in which the store followed the slot "{name}"'
        fix = "start Headwater: if the same data is there, it makes a new slot and compares every table"
        return [Finding("HW_2040", what, fix)]
    lost = "is gone" if slot is None else "is lost: Postgres has removed log that it needs (max_slot_wal_keep_size)"
    fix = "start Headwater, which makes a new slot and compares every table; nothing is lost, devices only wait"
    return [Finding("HW_2040", f'the slot "{name}", which the store has followed, {lost}', fix)]


def key_findings(auth: ClientAuth) -> list[Finding]:
    """The addresses from which no keys of tokens can be fetched from here, and why."""
    found = []
    for address in auth.addresses:
        try:
            asyncio.run(JwksClient(address, auth.rules).fetch(_KEYS_SECONDS))
        except JwksError as error:
            found.append(Finding(error.code, f"{error.what} ({error.where})", CHECK_ADDRESS))
    return found


def hasty(config: ServiceConfig) -> ServiceConfig:
    """The same for somebody who waits for the answer: a source that says nothing is not waited for long."""

    def soon(source: SourceSettings) -> SourceSettings:
        return replace(
            source,
            connect_timeout=min(source.connect_timeout, _ANSWER_SECONDS),
            silence_seconds=min(source.silence_seconds, 4.0 * _ANSWER_SECONDS),
        )

    upload = config.upload and replace(
        config.upload,
        login=soon(config.upload.login),
        others=tuple(replace(each, login=soon(each.login)) for each in config.upload.others),
    )
    return replace(config, sources=tuple(map(soon, config.sources)), upload=upload)


_ANSWER_SECONDS = 3


def read_store(config: ServiceConfig) -> StoredState | None:
    """What the store records; None when there is no store. Raises StoreError."""
    stored = open_store(config.storage)
    if not stored.exists():
        return None
    tag = config.source().name
    with closing(stored.open_reader()) as reader, closing(stored.open_writer()) as store:
        return StoredState(
            reader.replicator_status(tag),
            slot_of(config.source(), store),
            store.source_state(tag),
            tuple(store.tables(tag)),
            tuple(store.bulk_records()[-3:]),
            tuple(FailedTransactions(config.source(), store).read()),
            tables_named(store, config.source().tag),
            deciding_in(store, config.source().tag),
            why_served(store),
        )


_LEAST_FREE, _LOW_FREE = 256 << 20, 4 << 30


def disk_findings(config: ServiceConfig) -> list[Finding]:
    """Whether the embedded store can be written, and has room."""
    if not isinstance(config.storage, SqliteAddress):
        return []
    directory = disk_of(config.storage)
    findings = []
    if not os.access(directory, os.W_OK | os.X_OK):
        fix = "give the user that Headwater runs as the right to write there, or set storage.path"
        findings.append(Finding("HW_8111", f"the store's directory {directory} can't be written", fix))
    free = shutil.disk_usage(directory).free
    if free < _LOW_FREE:
        what = f"{free / 1e9:,.1f} GB are free on the disk of the store ({directory})"
        fix = "free space, or set storage.path to another disk: the store stops taking changes when it is full"
        findings.append(Finding("HW_8110", what, fix, fatal=free < _LEAST_FREE))
    return findings


def disk_of(storage: SqliteAddress) -> Path:
    """The directory of a store, or the nearest above it that exists."""
    path = Path(storage.directory).absolute()
    return next(each for each in (path, *path.parents) if each.exists())


def _as_dict(
    config: ServiceConfig,
    source: _Source,
    kept: StoredState | None,
    standing: SourceStatus,
    findings: Sequence[Finding],
) -> dict[str, Any]:
    state = kept.state if kept else None
    error = source.error
    return {
        "source": config.source().name,
        "address": source.address,
        "reachable": error is None,
        "error": error and {"code": error.code, "what": error.what, "where": error.where, "fix": error.fix},
        "slot": source.slot and asdict(source.slot),
        "event_triggers": source.triggers,
        "catalog_poll_seconds": PollIntervals().catalog,
        "findings": [asdict(finding) for finding in findings],
        "replicator": standing.as_dict(),
        "served": (kept.served or None) if kept else None,
        "store": str(config.storage),
        "store_position": state and format_lsn(state.lsn),
        "transactions_not_taken_in": [asdict(poison) for poison in (kept.poisons if kept else ())],
        "tables": [
            {
                "table": table.relation.qualified_name,
                "replica_identity": table.relation.identity.name.lower(),
                "compared_because": None if table.resync is None else str(table.resync),
            }
            for table in (kept.tables if kept else ())
        ],
    }


def _print(
    config: ServiceConfig,
    source: _Source,
    kept: StoredState | None,
    standing: SourceStatus,
    findings: Sequence[Finding],
) -> None:
    click.echo(f"source    {source.address}: {'reachable' if source.error is None else 'does not answer'}")
    _print_standing(standing)
    if source.slot is not None:
        _print_slot(source.slot)
    elif source.error is None:
        click.echo("slot      none: a replicator makes it")
    if source.error is None:
        at_once = "by event trigger, and " if source.triggers else ""
        click.echo(f"schema    changes are detected {at_once}by polling every {PollIntervals().catalog:.0f} s")
    _print_store(config, kept)
    for computed in standing.computed:
        click.echo(f"  {computed.name}  {_refreshed(computed)}")
    for finding in findings:
        click.echo(f"{'problem ' if finding.fatal else 'note    '}  {finding}")


def _print_standing(standing: SourceStatus) -> None:
    since = "" if standing.since is None else f" since {_time(standing.since)}"
    behind = ""
    if standing.state in _FLOWING and standing.lag_seconds is not None:
        behind = f", {standing.lag_seconds:.1f} s behind"
    click.echo(f"state     {standing.state.value}{since}{behind}" + (f": {standing.why}" if standing.why else ""))
    click.echo(f"lag       {_lag(standing)}")
    if standing.work:
        click.echo(f"work      {standing.work}")
    if standing.cause is not None:
        click.echo(f"cause     {standing.cause}")
        at = standing.cause.at
        click.echo(f"          attempt {standing.cause.attempts} failed {_time(at)}, {_ago(at)}")
    elif standing.trouble is not None:
        at = standing.trouble.at
        click.echo(f"          last error {_time(at)}, {_ago(at)}: {standing.trouble}")


_FLOWING = {ReplicationState.STREAMING, ReplicationState.RESYNCING, ReplicationState.APPLYING, ReplicationState.WAITING}


def _lag(standing: SourceStatus) -> str:
    """How much the store may lack, and when that was known."""
    if standing.lag_bytes is None:
        last = standing.lag_known_at
        return "unknown" + ("" if last is None else f"; nothing was missing at {_time(last)}")
    old = standing.lag_seconds
    age = "; for how long is not known" if old is None else "" if old == 0 else f", the oldest written {old:,.1f} s ago"
    return f"{standing.lag_bytes:,} bytes of the source's log are not in the store{age}"


def _print_slot(slot: SlotHealth) -> None:
    reader = "active" if slot.active else "not active"
    left = "" if slot.left is None else f", lost after another {slot.left:,}"
    click.echo(f"slot      {slot.name}: {slot.wal_status}, {reader}")
    click.echo(
        f"          keeps {slot.held:,} bytes of log in the source{left}; oldest transaction {slot.xmin_age:,} ago"
    )


def _print_store(config: ServiceConfig, kept: StoredState | None) -> None:
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


def _refreshed(state: RefreshState) -> str:
    if not state.lsn:
        return "computed: not yet"
    of = f"{state.rows:,} rows, {state.changed:,} changed, {state.seconds:.1f} s"
    return f"computed as of {state.lsn}, {_ago(state.at)}: {of}"


def _ago(at: float) -> str:
    return f"{span(time.time() - at)} ago"


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
